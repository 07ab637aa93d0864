"""Comparison of two sets of runs: reading them, comparing metrics, and notes for the reader."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, Literal

import numpy as np

from multigrid_rl.config.scenario import LEARN
from multigrid_rl.evaluation.seed_statistics import (
    Interval,
    Strata,
    improvement_interval,
    iqm_difference,
    iqm_interval,
    permutation_p,
)
from multigrid_rl.runs.reader import RunRecord, Series, read_run
from multigrid_rl.text import ConfigError, expected, shown

#: Environment steps until all gates held: from a run's verdict, not from its reports.
HELD = "env_steps_to_held"
#: A run's final value is the mean over the reports of its last so many environment steps, at most a tenth of its
#: budget; a gate has its own window.
FINAL_WINDOW = 100_000
#: With fewer runs on a side an interval means little.
MIN_RUNS = 3
#: Paths of one machine, and its cores: they make no difference between two runs.
PRIVATE = ("run_dir", "checkpoints", "train.threads")
_VALUE_LENGTH = 40  # letters
_MOST_LISTED = 6  # differences between two sets


@dataclass(frozen=True)
class RunSet:
    """Runs of one recipe; they should differ only in the seed and, if there are several, the scenario."""

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def by_scenario(self) -> dict[str, list[RunRecord]]:
        """Runs of each scenario, in alphabetical order."""
        names = sorted({scenario_of(run) for run in self.runs})
        return {name: [run for run in self.runs if scenario_of(run) == name] for name in names}

    @property
    def title(self) -> str:
        """Name and the folders that hold the runs, or the only run, for a legend: ``A: lr-3e-4``."""
        places = [place.resolve() for place in places_of(self.runs)]
        names = [f"{place.parent.name}/{place.name}" if len(self.runs) == 1 else place.name for place in places]
        return shown(f"{self.name}: {', '.join(names)}", _VALUE_LENGTH)


@dataclass(frozen=True)
class SetComparison:
    """One metric of set A against set B."""

    metric: str  # its name; :data:`HELD` for the verdict's
    smaller: bool  # whether less is better
    ours: Interval  # IQM of A; infinite where runs never held
    theirs: Interval  # the same of B
    difference: Interval | None  # of the two IQMs; ``None`` if undefined
    better: Interval  # probability that a run of A is better than one of B
    p: float  # of the permutation test of ``better`` against 1/2
    never: tuple[int, int]  # runs of A and of B that never held, only for :data:`HELD`

    @property
    def significant(self) -> bool:
        """Whether the difference is significant, by the bootstrap interval and the permutation test at 5 %."""
        return self.p < 0.05 and not self.better.low <= 0.5 <= self.better.high


# --- reading


def find_runs(patterns: list[str]) -> list[Path]:
    """Find run folders: each of ``patterns`` is one, contains some at any depth, or is a glob pattern.

    Raises ``ConfigError``: nothing there.
    """
    folders: list[Path] = []
    for pattern in patterns:
        matched = sorted(glob(pattern))  # noqa: PTH207 - patterns may be absolute
        places = [Path(pattern)] if Path(pattern).exists() else [Path(place) for place in matched]
        runs = []
        for place in places:
            inside = place.rglob("metrics.jsonl")
            runs += [place] if (place / "metrics.jsonl").is_file() else sorted(file.parent for file in inside)
        if not runs:
            raise ConfigError(expected(pattern, "a run folder, a folder of some, or a pattern for them", "no run"))
        folders += runs
    return list({folder.resolve(): folder for folder in folders}.values())


def read_set(name: str, patterns: list[str]) -> RunSet:
    """Read the runs of a set. Raises ``ConfigError``: no run, a damaged one, or an interrupted one."""
    runs = tuple(read_run(folder) for folder in find_runs(patterns))
    for run in runs:
        check_ended(run)
    return RunSet(name, runs)


def check_ended(run: RunRecord) -> None:
    """Raise :class:`ConfigError` for a run that did not end by itself."""
    ended = run.verdict["ended"] if run.verdict else "no verdict.json"
    if ended in ("interrupted", "no verdict.json"):
        raise ConfigError(expected(run.path, "a run that ended by itself", ended))


def recipe_of(run: RunRecord) -> dict[str, Any]:
    """Return the common part of runs of one recipe: configuration without seed, commit and versions."""
    config = {key: value for key, value in run.config.items() if key != "seed"}
    # One run's results change the next one's checkout: "+changes" makes no difference.
    commit = (run.provenance.get("commit") or "unknown").removesuffix("+changes")[:12]
    return {**config, "commit": commit, "versions": run.provenance.get("versions", {})}


def differences(ours: Any, theirs: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Return the different leaves of two nested mappings without :data:`PRIVATE`: (dotted key, one, other)."""
    if isinstance(ours, list) and isinstance(theirs, list) and ours and theirs and isinstance(ours[0], dict):
        return differences(dict(enumerate(ours)), dict(enumerate(theirs)), key)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = dict.fromkeys([*ours, *theirs])
        return [d for k in keys for d in differences(ours.get(k), theirs.get(k), f"{key}.{k}" if key else str(k))]
    return [] if ours == theirs or key in PRIVATE else [(key, ours, theirs)]


def check_sets(ours: RunSet, theirs: RunSet) -> None:
    """Check that sets can be compared. Raises ``ConfigError``: other scenarios, or a run on both sides."""
    other_paths = {run.path.resolve() for run in theirs.runs}
    if shared := [run.path for run in ours.runs if run.path.resolve() in other_paths]:
        raise ConfigError(expected(shared[0], f"a run of {ours.name} or of {theirs.name}", "one of both"))
    names = [", ".join(runs.by_scenario) for runs in (ours, theirs)]
    if names[0] != names[1]:
        raise ConfigError(expected("scenarios", f"those of {ours.name}, {names[0]}, in {theirs.name}, too", names[1]))


def places_of(runs: Sequence[RunRecord]) -> list[Path]:
    """Return the folders of the runs; of a single run its folder, as its parent may contain others."""
    return [runs[0].path] if len(runs) == 1 else list(dict.fromkeys(run.path.parent for run in runs))


def scenario_of(run: RunRecord) -> str:
    """Return the name of a run's scenario."""
    return str(run.config["scenario"]["name"])


def seeds_of(runs: list[RunRecord]) -> list[int]:
    """Return the seeds, sorted."""
    return sorted(run.config["seed"] for run in runs)


# --- notes


def notes(ours: RunSet, theirs: RunSet) -> Iterator[str]:
    """Yield notes on the comparability of the sets, one line each."""
    for runs in (ours, theirs):
        yield from _within_set(runs)
    for scenario, group in ours.by_scenario.items():
        place = f" in {scenario}" if len(ours.by_scenario) > 1 else ""
        changed = _describe_differences(group[0], theirs.by_scenario[scenario][0], _MOST_LISTED)
        yield f"{ours.name} and {theirs.name} differ{place} in {changed or 'nothing that a run records'}"
    all_runs = [*ours.runs, *theirs.runs]
    ends = [run.env_steps for run in all_runs]
    if max(ends) > 1.1 * min(ends):
        held = any(run.verdict and run.verdict["ended"] == "held" for run in all_runs)
        why = "runs end when their gates are held, here" if held else "runs report last"
        yield f"{why} after {min(ends):,} to {max(ends):,} steps: final values are those at each run's own end"
    if min(len(runs) for s in (ours, theirs) for runs in s.by_scenario.values()) < MIN_RUNS:
        yield f"fewer than {MIN_RUNS} runs on a side: intervals mean little"
    if len(ours.by_scenario) > 1:
        yield "several scenarios: an IQM mixes their scales, the share of pairs is the mean over scenarios and does not"
    windows = " or ".join(f"{window:,}" for window in sorted({final_window(run) for run in all_runs}))
    yield f"final values are means over the last {windows} steps of a run, of a gate's metric over the gate's window"


def _within_set(runs: RunSet) -> Iterator[str]:
    for scenario, group in runs.by_scenario.items():
        seeds = seeds_of(group)
        if repeated := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            yield f"warning: {runs.name}: seed {repeated[0]} of {scenario} twice; the same seed is no second run"
        for run in group[1:]:
            if changed := _describe_differences(group[0], run, 1):
                yield f"warning: {runs.name}: not only the seed differs: {changed} in {group[0].path} and {run.path}"
                break


def _describe_differences(one: RunRecord, other: RunRecord, most: int) -> str:
    changes = differences(recipe_of(one), recipe_of(other))
    texts = [f"{key} {shown(str(a), _VALUE_LENGTH)} / {shown(str(b), _VALUE_LENGTH)}" for key, a, b in changes[:most]]
    return "; ".join(texts) + (f" and {len(changes) - most} more" if len(changes) > most else "")


# --- comparing


def final_value(series: Series, window: int) -> float:
    """Return the mean over the reports of a run's last ``window`` environment steps, as a gate does."""
    return float(series.values[series.env_steps > series.env_steps[-1] - window].mean())


def final_window(run: RunRecord) -> int:
    """Return the window of a run's final value in environment steps."""
    return min(FINAL_WINDOW, int(run.config["train"].get("until", run.env_steps)) // 10)


def directions(runs: tuple[RunRecord, ...]) -> dict[str, Literal["<=", ">="]]:
    """Return common metrics with the direction of their gate: first the gates' metrics, then shares of wins.

    Environments of other packages have no seats and no wins: their metrics are the agents' returns.
    """
    gates = [{gate.metric: gate.comparison for gate in run.gates} for run in runs]
    metrics = {m: comparison for m, comparison in gates[0].items() if all(g.get(m) == comparison for g in gates)}
    metrics |= dict.fromkeys(sorted(set.intersection(*map(_wins, runs))), ">=")
    return {metric: comparison for metric, comparison in metrics.items() if all(metric in run.series for run in runs)}


def _wins(run: RunRecord) -> set[str]:
    seats = run.config["scenario"].get("seats", {})  # a game of another package lists only those that do not learn
    own = [name for name in sorted(run.series, reverse=True) if seats.get(name.partition("/")[2], LEARN) == LEARN]
    # One seat of each learning team: its teammates win with it.
    first = {name.partition("_")[0]: name for name in own if name.startswith("win/")}
    if not (seats and first):
        return {name for name in own if name.startswith("return_mean/")} - {gate.metric for gate in run.gates}
    return set(first.values())


def compare_sets(ours: RunSet, theirs: RunSet, reps: int, rng: np.random.Generator) -> list[SetComparison]:
    """Compare the steps until gates held, if there are gates, and the final value of every common metric.

    Raises ``ConfigError``: the runs have no common metric.
    """
    all_runs = (*ours.runs, *theirs.runs)
    comparisons: dict[str, str] = {HELD: "<="} if all(run.gates for run in all_runs) else {}
    comparisons |= directions(all_runs)
    if not comparisons:
        raise ConfigError(expected(all_runs[0].path, "gates, or a metric that all runs report", "neither"))
    rows = []
    for metric, comparison in comparisons.items():
        smaller, (a, b) = comparison == "<=", (_values(runs, metric) for runs in (ours, theirs))
        never = [int(sum(np.isinf(group).sum() for group in side)) if metric == HELD else 0 for side in (a, b)]
        row = SetComparison(
            metric=metric,
            smaller=smaller,
            ours=iqm_interval(a, reps, rng),
            theirs=iqm_interval(b, reps, rng),
            difference=iqm_difference(a, b, reps, rng),
            better=improvement_interval(a, b, reps, rng, smaller=smaller),
            p=permutation_p(a, b, reps, rng, smaller=smaller),
            never=(never[0], never[1]),
        )
        rows.append(row)
    return rows


def _values(runs: RunSet, metric: str) -> Strata:
    return [np.array([_value(run, metric) for run in group], np.float64) for group in runs.by_scenario.values()]


def _value(run: RunRecord, metric: str) -> float:
    if metric == HELD:
        steps = (run.verdict or {}).get(HELD)
        return math.inf if steps is None else float(steps)
    window = next((gate.window for gate in run.gates if gate.metric == metric), final_window(run))
    return final_value(run.series[metric], window)
