"""The ``compare`` verb: which runs are meant, what is printed and written."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from multigrid_rl.config import ConfigError
from multigrid_rl.judge.seeds import Interval
from multigrid_rl.judge.sets import (
    HELD,
    RunSet,
    SetComparison,
    check_sets,
    compare_sets,
    notes,
    read_set,
    seeds_of,
)
from multigrid_rl.runs.reference import refuse_to_overwrite


class Request(NamedTuple):
    """What was asked for on the command line."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    output: Path
    json_file: Path | None
    force: bool
    reps: int
    seed: int


def split(runs: list[str], against: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two sides: what stands before and after ``--against``, or the first and the second of two folders.

    Raises:
        ConfigError: there are not two sides.
    """
    if against:
        return tuple(runs), tuple(against)
    if len(runs) != 2:
        raise ConfigError(f"{len(runs)} without --against: allowed are two folders of runs, or A... --against B...")
    return (runs[0],), (runs[1],)


def compare_runs(request: Request) -> None:
    """Compare two sets of runs: table, sentences, PNG and JSON.

    Raises:
        ConfigError: runs that cannot be compared, or a file that exists, unless ``force``.
    """
    for path in filter(None, (request.output, request.json_file)):
        refuse_to_overwrite(path, force=request.force)
    ours, theirs = read_set("A", list(request.ours)), read_set("B", list(request.theirs))
    check_sets(ours, theirs)
    said = list(notes(ours, theirs))
    rows = compare_sets(ours, theirs, request.reps, np.random.default_rng(request.seed))
    # Imported here: matplotlib takes a second, which a mistake above need not cost.
    from multigrid_rl.show.figures import draw_comparison, save_figure  # noqa: PLC0415

    save_figure(draw_comparison(ours, theirs, np.random.default_rng(request.seed)), request.output)
    if request.json_file is not None:
        write_json(report(ours, theirs, rows, said, request), request.json_file)
    console = _console()
    for runs in (ours, theirs):
        for line in heading(runs):
            console.print(line)
    for line in said:
        console.print(line if line.startswith("warning") else f"note: {line}")
    console.print(comparison_table(rows))
    for row in rows:
        console.print(sentence(row, len(ours.runs), len(theirs.runs)))
    console.print(closing(rows))
    console.print("drawn: " + ", ".join(str(path) for path in (request.output, request.json_file) if path))


def heading(runs: RunSet) -> list[str]:
    """Which runs a set is made of."""
    return [
        f"{runs.name}: {scenario}, {len(group)} runs, seeds {', '.join(map(str, seeds_of(group)))} ({_places(group)})"
        for scenario, group in runs.by_scenario.items()
    ]


def _places(group: list[Any]) -> str:
    return ", ".join(dict.fromkeys(str(run.path.parent) for run in group))


def comparison_table(rows: list[SetComparison]) -> Table:
    """One row for each metric."""
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(("metric", "better", "A (IQM, 95 %)", "B (IQM, 95 %)", "A - B", "A is better")):
        table.add_column(title, justify="left" if number < 2 else "right", no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(
            row.metric,
            "less" if row.smaller else "more",
            _told(row.ours, row.metric),
            _told(row.theirs, row.metric),
            _told(row.difference, row.metric, sign=True) if row.difference else "-",
            f"{row.better.value:.0%} ({row.better.low:.0%} to {row.better.high:.0%})",
        )
    return table


def _told(its: Interval, metric: str, *, sign: bool = False) -> str:
    value, low, high = (_number(x, metric, sign=sign) for x in its)
    return f"{value} ({low} to {high})"


def _number(value: float, metric: str, *, sign: bool = False) -> str:
    if math.isinf(value):
        return "never"
    plus = "+" if sign else ""
    return f"{value:{plus},.0f}" if metric == HELD else f"{value:{plus}.3g}"


def sentence(row: SetComparison, ours: int, theirs: int) -> str:
    """One metric in plain words, no surer than the seeds allow."""
    ahead, share, low, high = "A", row.better.value, row.better.low, row.better.high
    if share < 0.5:
        ahead, share, low, high = "B", 1 - share, 1 - high, 1 - low
    how = "sooner" if row.metric == HELD else "lower" if row.smaller else "higher"
    told = f"{row.metric}: {ahead} is {how} in {share:.0%} of the pairs, 95 % interval {low:.0%} to {high:.0%}"
    if any(row.never):
        told += f"; never held: {row.never[0]} of {ours} in A, {row.never[1]} of {theirs} in B"
    if not row.told_apart:
        return f"{told}: these seeds do not tell A and B apart{_chance(row)}."
    return f"{told}: {ahead} is better by these seeds; dealt at random, runs differ so in {_p(row.p)} of all deals."


def _chance(row: SetComparison) -> str:
    # Where the interval alone would have said otherwise, the reader should know why it was not believed.
    if row.better.low <= 0.5 <= row.better.high:
        return ""
    return f" (dealt at random, so few runs differ as much in {_p(row.p)} of all deals)"


def _p(p: float) -> str:
    return "less than 0.1 %" if p < 0.001 else f"{p:.1%}".replace("%", " %")


def closing(rows: list[SetComparison]) -> str:
    """What many comparisons at once mean."""
    apart = sum(row.told_apart for row in rows)
    return (
        f"told apart by {apart} of {len(rows)} metrics; where nothing differs about one in twenty tells sets apart, "
        "too, and metrics of the same runs are not independent."
    )


def report(
    ours: RunSet, theirs: RunSet, rows: list[SetComparison], said: list[str], request: Request
) -> dict[str, Any]:
    """Everything that was found, as plain data; ``null`` stands for "never"."""
    return {
        "format": 1,
        "sets": {
            runs.name: [
                {"run": str(run.path), "scenario": name, "seed": run.config["seed"]}
                for name, group in runs.by_scenario.items()
                for run in group
            ]
            for runs in (ours, theirs)
        },
        "notes": said,
        "reps": request.reps,
        "seed": request.seed,
        "metrics": [
            {
                "metric": row.metric,
                "better": "less" if row.smaller else "more",
                "A": _plain(row.ours),
                "B": _plain(row.theirs),
                "A - B": _plain(row.difference) if row.difference else None,
                "probability_of_improvement": _plain(row.better),
                "permutation_p": row.p,
                "told_apart": row.told_apart,
                "never": {"A": row.never[0], "B": row.never[1]},
            }
            for row in rows
        ],
    }


def _plain(its: Interval) -> dict[str, float | None]:
    return {name: None if math.isinf(value) else value for name, value in its._asdict().items()}


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write what was found. Raises ``ConfigError`` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; allowed is a file that can be written") from error


def _console() -> Console:
    # Where the output goes into a file, lines stay whole and the table gets the width that its numbers need.
    file = not sys.stdout.isatty()
    return Console(highlight=False, markup=False, soft_wrap=file, width=140 if file else None)
