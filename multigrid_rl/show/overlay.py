"""The ``overlay`` and ``reference`` verbs: compare a run with its recipe's reference curves, and make those."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, fail, refuse_to_overwrite, refused

if TYPE_CHECKING:
    from multigrid_rl.runs.reader import Run
    from multigrid_rl.show.reference import Comparison, Reference


def overlay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    reference: Annotated[
        str | None, typer.Option(help="Recipe with reference curves, or their file; the run's own recipe by default.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("overlay.png"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the PNG if it exists.")] = False,
) -> None:
    """Draw a run over its recipe's reference curves and say how they compare."""
    from multigrid_rl.runs import reader
    from multigrid_rl.show import reference as curves

    refuse_to_overwrite(output, force=force, suffix=".png")
    drawn = reader.read_run(run)
    usual = curves.load_reference(_find_reference(drawn, reference))
    rows = curves.compare(drawn, usual)
    # Imported here: matplotlib takes a second, which a mistake above need not cost.
    from multigrid_rl.show.figures import draw_overlay, save_figure

    changed = curves.changes(drawn.config, usual.name)
    save_figure(draw_overlay(drawn, usual, alike=not changed), output)
    screen = console(100)
    screen.print(f"{run} against {usual.name}: {usual.command}, seeds {', '.join(map(str, usual.seeds))}")
    for line in _caveats(drawn, usual):
        screen.print(line)
    if changed:
        screen.print(f"changed from the recipe {usual.name}, so its seeds differ from this run in more than the seed:")
        table = Table("key", "this run", "recipe", box=None, pad_edge=False)
        for values in changed:
            table.add_row(*values)
        screen.print(table)
    for row in rows:
        screen.print(sentence(row))
    screen.print(_verdict(drawn, usual))
    screen.print(f"drawn: {output}")


def reference(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs that differ only in the seed.")],
    name: Annotated[str, typer.Option(help="Recipe whose curves these are.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the JSON if it exists.")] = False,
) -> None:
    """Make reference curves out of finished runs of one recipe with different seeds."""
    from multigrid_rl.runs.reader import ALL_GATES, read_run
    from multigrid_rl.show.reference import build_reference, save_reference

    refuse_to_overwrite(output, force=force)
    made = build_reference([read_run(folder) for folder in runs], name)
    save_reference(made, output, force=force)
    held = sum(run.steps_to_held.get(ALL_GATES) is not None for run in made.runs)
    console(100).print(
        f"{output}: {len(made.metrics)} metrics of {len(made.runs)} runs "
        f"(seeds {', '.join(map(str, made.seeds))}), {made.env_steps[0]:,} to {made.env_steps[-1]:,} "
        f"environment steps; all gates held by {held}; after a run's end its last value is repeated "
        f"({made.running[-1]} still running at the end)"
    )


def curves_folder() -> Path:
    """Return the folder of the project's own reference curves, a file for each recipe that has some."""
    from multigrid_rl.files import data_root

    return data_root() / "configs" / "recipe" / "curves"


def _find_reference(run: Run, given: str | None) -> Path:
    """Find the file of reference curves: by name or path, or of the run's own recipe."""
    if given is not None and (Path(given).is_file() or "/" in given or given.endswith(".json")):
        return Path(given)
    name = given if given is not None else run.config.get("experiment")
    if name is None:
        raise refused("--reference", f"a name or file, as {run.path} followed no recipe", "experiment=null")
    path = curves_folder() / f"{name}.json"
    if not path.is_file():
        from multigrid_rl.text import unknown

        known = sorted(file.stem for file in curves_folder().glob("*.json"))
        raise fail(unknown("--reference", name, known, "a file, or a recipe with curves ({})"))
    return path


def sentence(row: Comparison) -> str:
    """Describe the comparison of one metric."""
    from multigrid_rl.show.words import when_held

    place = f"{row.end} than the band" if row.end in ("better", "worse") else f"{row.end} the band"
    if row.reports:
        own = f" (its own seeds: {_share(row.own_inside)})" if row.own_inside is not None else ""
        text = f"{_share(row.inside)} of {row.reports} reports lie inside the reference's 10-90 % band{own}"
    else:
        text = "no report lies within the reference's steps"
    text = f"{row.metric}: {text}; it ends at {row.last:.3g}, {place} (median {row.median:.3g})"
    return text + (f"; {when_held(row.held, row.median_held)}." if row.gate else ".")


def _verdict(run: Run, reference: Reference) -> str:
    from multigrid_rl.runs.reader import ALL_GATES
    from multigrid_rl.show.words import when_held

    if not reference.gates:
        return "The reference has no gates."
    if run.verdict is None:
        return "This run has no verdict: it is still going, or it was killed."
    return f"All gates: {when_held(run.steps_to_held()[ALL_GATES], reference.median_to_held(ALL_GATES))}."


def _caveats(run: Run, reference: Reference) -> Iterator[str]:
    pairs = {
        "scenario": (run.config["scenario"]["name"], reference.scenario),
        "scheme": (run.config.get("scheme"), reference.scheme),
    }
    for key, (ours, theirs) in pairs.items():
        if ours != theirs:
            yield f"note: {key}={ours} here, {theirs} in the reference"
    missing = [metric for metric in reference.metrics if metric not in run.series]
    if missing:
        yield f"note: this run does not report {', '.join(missing)}"


def _share(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{share:.0%}"
