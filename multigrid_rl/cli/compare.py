"""The ``compare`` verb: reads two sets of runs, prints their comparison and writes its figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from multigrid_rl import tables
from multigrid_rl.cli.app import AGAINST, console, refuse_to_overwrite, refused
from multigrid_rl.evaluation.sets import HELD, check_sets, compare_sets, notes, places_of, read_set, seeds_of

if TYPE_CHECKING:
    from multigrid_rl.evaluation.seed_statistics import Interval
    from multigrid_rl.evaluation.sets import SetComparison


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
    has_figure = tables.has(tables.FIGURES, "comparison")
    if has_figure:
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
    screen.print(_table(rows, *counts))
    for row in rows:
        screen.print(sentence(row, *counts))
    significant = sum(row.significant for row in rows)
    screen.print(
        f"significant differences: {significant} of {len(rows)} metrics; by chance alone about one metric in twenty is "
        "significant, and metrics of the same runs are not independent."
    )
    if has_figure:
        screen.print(f"drawn: {output}")


def _table(rows: list[SetComparison], ours: int, theirs: int) -> Table:
    fewest = min(ours, theirs)
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(("metric", "better", "A (IQM, 95 %)", "B (IQM, 95 %)", "A - B", "A is better")):
        table.add_column(title, justify="left" if number < 2 else "right", no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(
            row.metric,
            "less" if row.smaller else "more",
            _cell(row.ours, row.metric, ours),
            _cell(row.theirs, row.metric, theirs),
            _cell(row.difference, row.metric, fewest, "+") if row.difference else "-",
            f"{row.better.value:.0%}" + (f" ({row.better.low:.0%} to {row.better.high:.0%})" if fewest > 1 else ""),
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
    interval = f", 95 % interval {low:.0%} to {high:.0%}" if min(ours, theirs) > 1 else " (one run has no interval)"
    text = f"{row.metric}: {ahead} is {relation} in {share:.0%} of the pairs{interval}"
    if any(row.never):
        text += f"; never held: {row.never[0]} of {ours} in A, {row.never[1]} of {theirs} in B"
    test = "permutation test, p < 0.001" if row.p < 0.001 else f"permutation test, p = {row.p:.3f}"
    if row.significant:
        return f"{text}: a significant difference ({test})."
    # Where the interval alone suggests a difference, the sentence says why the test rejects it.
    chance = f" ({test}: so few runs differ as much by chance)"
    one_sided = not row.better.low <= 0.5 <= row.better.high
    return f"{text}: no significant difference{chance if one_sided else ''}."
