"""The verbs ``evaluate``, which plays games, and ``compare``, which reads two sets of runs: tables and files."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from rich.table import Table

from multigrid_rl import tables
from multigrid_rl.cli.app import AGAINST, refused
from multigrid_rl.cli.output import console, grid, one_thread, refuse_to_overwrite, spread, temporary_output
from multigrid_rl.config.overrides import parse
from multigrid_rl.evaluation.sets import HELD, check_sets, compare_sets, notes, places_of, read_set, seeds_of
from multigrid_rl.files import json_text
from multigrid_rl.text import percent

if TYPE_CHECKING:
    from multigrid_rl.evaluation.seed_statistics import Interval
    from multigrid_rl.evaluation.sets import SetComparison


def evaluate(
    who: Annotated[str, typer.Argument(help="A player of `multigrid-rl players`, a folder with one, or a run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides: scenario=1v1 scenario.seats.blue_0=blue-master. By default a run's own."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Games in each mode.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides the games.")] = 10_000,
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
    parse(overrides or ())  # report a wrong override before torch is imported
    from multigrid_rl.evaluation import evaluation, targets

    one_thread()
    target = targets.find_target(who, list(overrides or ()), checkpoint, opponent)
    if sides is not None and not target.rivals:
        raise refused("--sides", f"nothing for {who}, whose environment has no opponents", sides)
    modes = evaluation.MODES if mode == "both" else (mode,)
    folder = output or Path("runs", "evaluations", f"{target.name.replace(':', '.')}-{datetime.now():%Y%m%d-%H%M%S-%f}")
    report, files = None, []
    try:
        with temporary_output(folder, "folder") as temporary_path:
            temporary_path.mkdir()
            result = evaluation.evaluate(target, episodes=episodes, seed=seed, modes=modes, sides=sides)
            report, games = evaluation.report(result), None
            if target.rivals:
                files.append(evaluation.write_episodes(result, temporary_path))
                stored = [game.model_dump() for game in evaluation.labelled_games(result)]
                games = json_text(stored) if stored else None
            for file, text in (("summary.json", json_text(report, indent=2)), ("games.json", games)):
                if text is not None:
                    files.append(temporary_path / file)
                    files[-1].write_text(text + "\n", encoding="utf-8")
    finally:
        if report is not None:  # print it even if the disk is full
            screen = console(130 if target.rivals else None)
            screen.print(f"{target.name}: seed {seed}")
            for part in (part for part in report["parts"] if target.rivals and part["mode"] == modes[0]):
                screen.print(f"as {part['side']}: {', '.join(f'{seat} {it}' for seat, it in part['players'].items())}")
            screen.print(_table(report))
    screen.print(f"wrote {folder}: {', '.join(file.name for file in files)}")
    typer.echo(json_text(_last_line(report, modes)))  # never wrapped by the terminal's width


def _last_line(report: dict[str, Any], modes: tuple[str, ...]) -> dict[str, Any]:
    """Return the closing line: the results of the first mode, then those of each further mode under its name."""
    keys = ("episodes", "win", "draw", "loss", "return_mean", "length_mean")
    rows = {mode: {key: round(row[key], 6) for key in keys if key in row} for mode, row in report["modes"].items()}
    first = rows[modes[0]]
    line = {"episodes": first["episodes"], "seconds": report["seconds"], **first, "mode": modes[0]}
    return line | {mode: rows[mode] for mode in modes[1:]}


def _table(report: dict[str, Any]) -> Table:
    """Return a table with a row for each mode and side, and one for both sides; with shares of wins if known."""
    total = next(iter(report["modes"].values()))
    has_winner, metric_names = "win" in total, list(total.get("metrics", ()))
    has_sides = has_winner or len({part["side"] for part in report["parts"]}) > 1
    outcomes = ("win (95 %)", "draw", "loss") if has_winner else ()
    measured = ("episodes", *outcomes, "return (95 %)", "length (95 %)", *metric_names)
    table = grid(("mode", *(["side"] if has_sides else [])), measured)
    for mode, total in report["modes"].items():
        rows = [(part["side"], part) for part in report["parts"] if part["mode"] == mode]
        for side, row in [*rows, *([("both", total)] if len(rows) > 1 else [])]:
            table.add_row(mode, *([side] if has_sides else []), *_shares(row), *_means(row, metric_names))
        for name, row in total.get("against", {}).items():
            table.add_row(mode, f"against {name}", *_shares(row))
    return table


def _shares(row: dict[str, Any]) -> list[str]:
    if "win" not in row:
        return [f"{row['episodes']:,}"]
    low, high = row.get("win_interval", (0.0, 1.0))
    win, draw, loss, low, high = (percent(share, 1) for share in (row["win"], row["draw"], row["loss"], low, high))
    return [f"{row['episodes']:,}", f"{win} ({low} to {high})", draw, loss]


def _means(row: dict[str, Any], metric_names: list[str]) -> list[str]:
    cells = []
    for name, digits in (("return", 3), ("length", 1)):
        low, high = row[f"{name}_interval"]
        cells.append(f"{row[f'{name}_mean']:.{digits}f} ({spread(low, high, f'.{digits}f')})")
    for it in (row.get("metrics", {}).get(name) for name in metric_names):
        cells.append("" if it is None else f"{it['mean']:.3g} ({spread(it['interval'][0], it['interval'][1], '.3g')})")
    return cells


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Runs: folders, folders of some, patterns. Two: the first against the second.")
    ],
    against: Annotated[
        list[str] | None, typer.Option(AGAINST, help="Runs of the other side; takes all words up to the next option.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("compare.png"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite it if it exists.")] = False,
    reps: Annotated[int, typer.Option(min=1000, help="Bootstrap samples.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Compare two sets of runs: IQM, confidence intervals, probability of improvement."""
    if not against and len(runs) != 2:
        raise refused("runs", "two folders of runs, or A... --against B...", f"{len(runs)} without --against")
    refuse_to_overwrite(output, force=force, suffix=".png")
    ours = read_set("A", runs if against else runs[:1])
    theirs = read_set("B", against or runs[1:])
    check_sets(ours, theirs)
    rows = compare_sets(ours, theirs, reps, np.random.default_rng(seed))
    if has_figure := tables.has(tables.FIGURES, "comparison"):
        tables.find(tables.FIGURES, "comparison")(ours, theirs, np.random.default_rng(seed), output)
    screen = console(140)
    for side in (ours, theirs):
        for scenario, group in side.by_scenario.items():
            places = ", ".join(map(str, places_of(group)))
            seeds = ", ".join(map(str, seeds_of(group)))
            screen.print(f"{side.name}: {scenario}, {len(group)} run{'s'[: len(group) != 1]}, seeds {seeds} ({places})")
    for line in notes(ours, theirs):
        screen.print(line if line.startswith("warning") else f"note: {line}")
    counts = len(ours.runs), len(theirs.runs)
    screen.print(_comparison_table(rows, *counts))
    for row in rows:
        screen.print(sentence(row, *counts))
    screen.print(
        f"significant differences: {sum(row.significant for row in rows)} of {len(rows)} metrics; by chance alone "
        "about one metric in twenty is significant, and metrics of the same runs are not independent."
    )
    if has_figure:
        screen.print(f"drawn: {output}")


def _comparison_table(rows: list[SetComparison], ours: int, theirs: int) -> Table:
    fewest = min(ours, theirs)
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(("metric", "better", "A (IQM, 95 %)", "B (IQM, 95 %)", "A - B", "A is better")):
        table.add_column(title, justify="left" if number < 2 else "right", no_wrap=number == 0, overflow="fold")
    for row in rows:
        better, low, high = map(percent, row.better)
        table.add_row(
            row.metric,
            "less" if row.smaller else "more",
            _cell(row.ours, row.metric, ours),
            _cell(row.theirs, row.metric, theirs),
            _cell(row.difference, row.metric, fewest, "+") if row.difference else "-",
            f"{better} ({low} to {high})" if fewest > 1 else better,
        )
    return table


def _cell(interval: Interval, metric: str, runs: int, plus: str = "") -> str:
    form = f"{plus},.0f" if metric == HELD else f"{plus}.3g"
    value, low, high = ("never" if math.isinf(x) else format(x, form) for x in interval)
    return f"{value} ({low} to {high})" if runs > 1 else value


def sentence(row: SetComparison, ours: int, theirs: int) -> str:
    """Return one metric's result as a sentence, with its uncertainty over seeds."""
    ahead, share, low, high = "A", row.better.value, row.better.low, row.better.high
    if share < 0.5:
        ahead, share, low, high = "B", 1 - share, 1 - high, 1 - low
    relation = "sooner" if row.metric == HELD else "lower" if row.smaller else "higher"
    one = min(ours, theirs) == 1
    interval = " (one run has no interval)" if one else f", 95 % interval {percent(low)} to {percent(high)}"
    text = f"{row.metric}: {ahead} is {relation} in {percent(share)} of the pairs{interval}"
    if any(row.never):
        text += f"; never held: {row.never[0]} of {ours} in A, {row.never[1]} of {theirs} in B"
    test = "permutation test, p < 0.001" if row.p < 0.001 else f"permutation test, p = {row.p:.3f}"
    if row.significant:
        return f"{text}: a significant difference ({test})."
    # Where the interval alone suggests a difference, the sentence says why the test rejects it.
    chance = f" ({test}: so few runs differ as much by chance)"
    one_sided = not row.better.low <= 0.5 <= row.better.high
    return f"{text}: no significant difference{chance if one_sided else ''}."
