"""Two sets of runs against each other: what is read from the runs, what is compared, what must be said about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, Literal

import numpy as np

from multigrid_rl.config import ConfigError
from multigrid_rl.gates import Gate
from multigrid_rl.judge.seeds import (
    Array,
    Interval,
    Strata,
    improvement_interval,
    iqm_difference,
    iqm_interval,
    permutation_p,
)
from multigrid_rl.runs.reader import Run, Series, differences, read_run
from multigrid_rl.runs.reference import check_ended, decisive
from multigrid_rl.text import expected

#: Environment steps until all gates were held: a run's verdict, no metric of its reports.
HELD = "env_steps_to_held"
#: A run's final value is the mean over the reports of its last so many environment steps, where no gate says otherwise.
FINAL_WINDOW = 100_000
#: With fewer runs on a side an interval means little.
FEW = 3
_SHOWN_VALUE = 40  # letters
_MOST_TOLD = 6  # differences between two sets


@dataclass(frozen=True)
class RunSet:
    """Runs that are judged together; they should differ in nothing but the seed and, if there are several, scenario."""

    name: str
    runs: tuple[Run, ...]

    @property
    def by_scenario(self) -> dict[str, list[Run]]:
        """Runs of each scenario, in alphabetical order."""
        names = sorted({scenario_of(run) for run in self.runs})
        return {name: [run for run in self.runs if scenario_of(run) == name] for name in names}

    @property
    def title(self) -> str:
        """Name and the folders that hold the runs, for a legend: ``A: lr-3e-4``."""
        return _brief(f"{self.name}: {', '.join(dict.fromkeys(run.path.resolve().parent.name for run in self.runs))}")


@dataclass(frozen=True)
class SetComparison:
    """One metric of set A against set B.

    Attributes:
        metric: its name; :data:`HELD` for the verdict's.
        smaller: whether less is better.
        ours: IQM of A with its interval; infinite where the run in question never held.
        theirs: the same of B.
        difference: of the two IQMs; ``None`` where there is none.
        better: probability that a run of A is better than one of B.
        p: of the permutation test of ``better`` against 1/2.
        never: runs of A and of B that never held, of :data:`HELD` only.
    """

    metric: str
    smaller: bool
    ours: Interval
    theirs: Interval
    difference: Interval | None
    better: Interval
    p: float
    never: tuple[int, int]

    @property
    def told_apart(self) -> bool:
        """Whether the seeds at hand tell the sets apart: neither interval nor permutation test allows for chance."""
        return self.p < 0.05 and not self.better.low <= 0.5 <= self.better.high


# --- reading


def find_runs(given: list[str]) -> list[Path]:
    """Find run folders: each of ``given`` is one, holds some (at any depth), or is a pattern for such folders.

    Raises:
        ConfigError: nothing there.
    """
    folders: list[Path] = []
    for text in given:
        matched = sorted(glob(text))  # noqa: PTH207 - patterns may be absolute
        places = [Path(text)] if Path(text).exists() else [Path(place) for place in matched]
        found = [run for place in places for run in _below(place)]
        if not found:
            raise ConfigError(expected(text, "a run folder, a folder of some, or a pattern for them", "no run"))
        folders += found
    return list({folder.resolve(): folder for folder in folders}.values())


def _below(place: Path) -> list[Path]:
    if (place / "metrics.jsonl").is_file():
        return [place]
    return sorted(file.parent for file in place.rglob("metrics.jsonl"))


def read_set(name: str, given: list[str]) -> RunSet:
    """Read the runs of a set.

    Raises:
        ConfigError: no run, a damaged one, or one that has not ended by itself.
    """
    runs = tuple(read_run(folder) for folder in find_runs(given))
    for run in runs:
        check_ended(run)
    return RunSet(name, runs)


def check_sets(ours: RunSet, theirs: RunSet) -> None:
    """Refuse sets that cannot be compared.

    Raises:
        ConfigError: other scenarios, or a run on both sides.
    """
    there = {run.path.resolve() for run in theirs.runs}
    both = [run.path for run in ours.runs if run.path.resolve() in there]
    if both:
        raise ConfigError(expected(both[0], f"a run of {ours.name} or of {theirs.name}", "one of both"))
    names = [", ".join(runs.by_scenario) for runs in (ours, theirs)]
    if names[0] != names[1]:
        raise ConfigError(expected("scenarios", f"those of {ours.name}, {names[0]}, in {theirs.name}, too", names[1]))


def scenario_of(run: Run) -> str:
    """Return the name of a run's scenario."""
    return str(run.config["scenario"]["name"])


def seeds_of(runs: list[Run]) -> list[int]:
    """Return the seeds, sorted."""
    return sorted(run.config["seed"] for run in runs)


# --- what must be said


def notes(ours: RunSet, theirs: RunSet) -> Iterator[str]:
    """Yield what a reader must know beside the numbers, one line each."""
    for runs in (ours, theirs):
        yield from _within(runs)
    for scenario, group in ours.by_scenario.items():
        other = theirs.by_scenario[scenario][0]
        found = differences(decisive(group[0]), decisive(other))
        where = f" in {scenario}" if len(ours.by_scenario) > 1 else ""
        told = "; ".join(f"{key} {_brief(one)} / {_brief(two)}" for key, one, two in found[:_MOST_TOLD])
        told += f" and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
        yield f"{ours.name} and {theirs.name} differ{where} in {told or 'nothing that a run records'}"
    every = [*ours.runs, *theirs.runs]
    ends = [run.env_steps for run in every]
    if max(ends) > 1.1 * min(ends):
        yield (
            f"runs end when their gates are held, here after {min(ends):,} to {max(ends):,} steps: final values are "
            "those at each run's own end"
        )
    if min(len(runs) for s in (ours, theirs) for runs in s.by_scenario.values()) < FEW:
        yield f"fewer than {FEW} runs on a side: intervals mean little"
    if len(ours.by_scenario) > 1:
        yield "several scenarios: an IQM mixes their scales, the share of pairs is the mean over scenarios and does not"


def _within(runs: RunSet) -> Iterator[str]:
    for scenario, group in runs.by_scenario.items():
        seeds = seeds_of(group)
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            yield f"warning: {runs.name}: seed {twice[0]} of {scenario} twice; the same seed is no second run"
        for run in group[1:]:
            found = differences(decisive(group[0]), decisive(run))
            if found:
                key, one, two = found[0]
                more = f" and {len(found) - 1} more" if len(found) > 1 else ""
                yield (
                    f"warning: {runs.name}: not only the seed differs: {key} is {_brief(one)} in {group[0].path}, "
                    f"{_brief(two)} in {run.path}{more}"
                )
                break


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}..."


# --- comparing


def final_value(series: Series, window: int) -> float:
    """Return the mean over the reports of a run's last ``window`` environment steps, as a gate looks back."""
    return float(series.values[series.env_steps > series.env_steps[-1] - window].mean())


def directions(runs: tuple[Run, ...]) -> dict[str, Literal["<=", ">="]]:
    """Return metrics that all runs report, with the direction of their gate: the gates' own, then shares of wins."""
    gates = [{gate.metric: gate.comparison for gate in run.gates} for run in runs]
    found = {m: way for m, way in gates[0].items() if all(g.get(m) == way for g in gates)}
    found |= dict.fromkeys(set.intersection(*map(_wins, runs)), ">=")
    return {metric: way for metric, way in found.items() if all(metric in run.series for run in runs)}


def _wins(run: Run) -> set[str]:
    # One seat of each learning team: its mates win with it.
    seats = run.config["scenario"].get("seats", {})
    first = {seat.partition("_")[0]: seat for seat in sorted(seats, reverse=True) if seats[seat] == "learn"}
    return {f"win/{seat}" for seat in first.values()}


def compare_sets(ours: RunSet, theirs: RunSet, reps: int, rng: np.random.Generator) -> list[SetComparison]:
    """Compare steps to held, where there are gates, and the final value of every common metric.

    Raises:
        ConfigError: the runs have nothing in common to compare.
    """
    every = (*ours.runs, *theirs.runs)
    ways = directions(every)
    rows = []
    if all(run.gates for run in every):
        values = [_held_steps(runs) for runs in (ours, theirs)]
        never = tuple(int(sum(np.isinf(group).sum() for group in side)) for side in values)
        rows.append(_compare(HELD, "<=", values, (never[0], never[1]), reps, rng))
    for metric, way in ways.items():
        rows.append(_compare(metric, way, [_finals(runs, metric) for runs in (ours, theirs)], (0, 0), reps, rng))
    if not rows:
        raise ConfigError(expected(every[0].path, "gates, or a metric that all runs report", "neither"))
    return rows


def _held_steps(runs: RunSet) -> Strata:
    return [_never_last([(run.verdict or {}).get(HELD) for run in group]) for group in runs.by_scenario.values()]


def _never_last(steps: list[int | None]) -> Array:
    return np.array([math.inf if its is None else its for its in steps], np.float64)


def _finals(runs: RunSet, metric: str) -> Strata:
    return [
        np.array([final_value(run.series[metric], _window(run.gates, metric)) for run in group])
        for group in runs.by_scenario.values()
    ]


def _window(gates: list[Gate], metric: str) -> int:
    return next((gate.window for gate in gates if gate.metric == metric), FINAL_WINDOW)


def _compare(
    metric: str,
    way: Literal["<=", ">="],
    values: list[Strata],
    never: tuple[int, int],
    reps: int,
    rng: np.random.Generator,
) -> SetComparison:
    ours, theirs = values
    smaller = way == "<="
    return SetComparison(
        metric=metric,
        smaller=smaller,
        ours=iqm_interval(ours, reps, rng),
        theirs=iqm_interval(theirs, reps, rng),
        difference=iqm_difference(ours, theirs, reps, rng),
        better=improvement_interval(ours, theirs, reps, rng, smaller=smaller),
        p=permutation_p(ours, theirs, reps, rng, smaller=smaller),
        never=never,
    )
