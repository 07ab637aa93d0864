"""The ``report`` verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multigrid_rl.cli.app import fail, one_thread

#: Games that are played with a run's policy in each mode.
GAMES = 200


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_OR_CUP", help="Folder of a training run or of a cup.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML to write; report.html in the folder by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    episodes: Annotated[
        int | None,
        typer.Option(min=0, help=f"Fresh games of a run's policy in each mode; {GAMES} by default, 0: none."),
    ] = None,
) -> None:
    """Write one HTML file about a run or a cup: results, curves, games to look at. It needs no network."""
    from multigrid_rl.cli.overlay import curves_folder
    from multigrid_rl.runs.reader import read_run
    from multigrid_rl.show.report import is_cup, write_cup_report, write_run_report
    from multigrid_rl.text import expected

    if is_cup(folder):
        if episodes is not None:
            raise fail(expected("--episodes", f"nothing for {folder}, a cup, whose games are played", episodes))
        written = write_cup_report(folder, output, force=force)
    else:
        if not (folder / "metrics.jsonl").is_file():
            raise fail(expected(folder, "the folder of a run or a cup", "neither metrics.jsonl nor results.json in it"))
        one_thread()
        # The curves of the run's own recipe, if it followed one that has some.
        recipe = read_run(folder).config.get("experiment")
        curves = curves_folder() / f"{recipe}.json"
        reference = curves if recipe and curves.is_file() else None
        games = GAMES if episodes is None else episodes
        written = write_run_report(folder, output, force=force, games=games, reference=reference)
    typer.echo(f"wrote {written} ({written.stat().st_size / 1000:,.0f} kB)")
