"""The ``evaluate`` verb: what is played, printed and written."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, one_thread, refused, written_beside
from multigrid_rl.config.overrides import parse
from multigrid_rl.files import json_text
from multigrid_rl.text import spread


def evaluate(
    who: Annotated[str, typer.Argument(help="A player of `multigrid-rl players`, a folder with one, or a run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides: scenario=1v1 scenario.seats.blue_0=blue-master. By default a run's own."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Games in each mode.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Decides the games: the same seed, the same table.")] = 10_000,
    opponent: Annotated[str | None, typer.Option(help="Player on every seat of the other team.")] = None,
    sides: Annotated[
        Literal["own", "other", "red", "blue", "both"] | None,
        typer.Option(help="Side to evaluate; by default both for a player, the learned side for a run."),
    ] = None,
    mode: Annotated[
        Literal["stochastic", "argmax", "both"],
        typer.Option(help="Draw actions as in training, take the likeliest, or both one after the other."),
    ] = "both",
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of a run; the latest by default.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write; runs/evaluations/... by default.")
    ] = None,
) -> None:
    """Play fresh games and say how it did, with intervals; the last line is JSON."""
    parse(overrides or ())  # a typing error costs no loading of torch
    from multigrid_rl.evaluation import evaluation, targets

    one_thread()
    target = targets.find_target(who, list(overrides or ()), checkpoint, opponent)
    if sides is not None and not target.rivals:
        raise refused("--sides", f"nothing for {who}, whose environment has no opponents", sides)
    if episodes < len(target.teams(sides)):
        raise refused("--episodes", "at least one for each side that is played", episodes)
    modes = evaluation.MODES if mode == "both" else (mode,)
    name = target.name.replace(":", ".")
    folder = output or Path("runs") / "evaluations" / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    report, files = None, []
    try:
        with written_beside(folder, "folder") as unfinished:
            unfinished.mkdir()
            result = evaluation.evaluate(target, episodes=episodes, seed=seed, modes=modes, sides=sides)
            report, games = evaluation.report(result), None
            if target.rivals:
                files.append(evaluation.write_episodes(result, unfinished))
                kept = [game.model_dump() for game in evaluation.labelled_games(result)]
                games = json_text(kept) if kept else None
            for file, text in (("summary.json", json_text(report, indent=2)), ("games.json", games)):
                if text is not None:
                    files.append(unfinished / file)
                    files[-1].write_text(text + "\n", encoding="utf-8")
    finally:
        if report is not None:  # even if the disk is full
            screen = console(130 if target.rivals else None)
            screen.print(f"{target.name}: seed {seed}")
            for part in (part for part in report["parts"] if target.rivals and part["mode"] == modes[0]):
                screen.print(f"as {part['side']}: {', '.join(f'{seat} {it}' for seat, it in part['players'].items())}")
            screen.print(_table(report))
    screen.print(f"wrote {folder}: {', '.join(file.name for file in files)}")
    typer.echo(json_text(_last_line(report, modes)))  # whole, however narrow the terminal is


def _last_line(report: dict[str, Any], modes: tuple[str, ...]) -> dict[str, Any]:
    """Return the closing line: of all games if there is one mode, else of the stochastic ones, the others beside."""
    keys = ("episodes", "win", "draw", "loss", "return_mean", "length_mean")
    rows = {mode: {key: round(row[key], 6) for key in keys if key in row} for mode, row in report["modes"].items()}
    first = rows[modes[0]]
    line = {"episodes": first["episodes"], "seconds": report["seconds"], **first, "mode": modes[0]}
    return line | {mode: rows[mode] for mode in modes[1:]}


def _table(report: dict[str, Any]) -> Table:
    """Lay out one row for each mode and side, and one for both sides together; shares of wins where one can win."""
    whole = next(iter(report["modes"].values()))
    sided, own = "win" in whole, list(whole.get("metrics", ()))
    table = Table("mode", *(["side"] if sided else []), box=None, pad_edge=False)
    outcomes = ("win (95 %)", "draw", "loss") if sided else ()
    for title in ("episodes", *outcomes, "return (95 %)", "length (95 %)", *own):
        table.add_column(title, justify="right")
    for mode, whole in report["modes"].items():
        rows = [(part["side"], part) for part in report["parts"] if part["mode"] == mode]
        for side, row in [*rows, *([("both", whole)] if len(rows) > 1 else [])]:
            table.add_row(mode, *([side] if sided else []), *_shares(row), *_means(row, own))
        for name, row in whole.get("against", {}).items():
            table.add_row(mode, f"against {name}", *_shares(row))
    return table


def _shares(row: dict[str, Any]) -> list[str]:
    if "win" not in row:
        return [f"{row['episodes']:,}"]
    low, high = row.get("win_interval", (0.0, 1.0))
    win = f"{row['win']:.1%} ({low:.1%} to {high:.1%})"
    return [f"{row['episodes']:,}", win, f"{row['draw']:.1%}", f"{row['loss']:.1%}"]


def _means(row: dict[str, Any], own: list[str]) -> list[str]:
    cells = []
    for name, digits in (("return", 3), ("length", 1)):
        low, high = row[f"{name}_interval"]
        cells.append(f"{row[f'{name}_mean']:.{digits}f} ({spread(low, high, f'.{digits}f')})")
    for it in (row.get("metrics", {}).get(name) for name in own):
        cells.append("" if it is None else f"{it['mean']:.3g} ({spread(it['interval'][0], it['interval'][1], '.3g')})")
    return cells
