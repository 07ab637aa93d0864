"""Reference curves: the runs of a recipe over seeds. Pure except for files.

A reference is made of several runs that differ only in the seed: median, 10th to 90th percentile and range on one grid
of environment steps. Runs end when their gates are held, so they have different lengths: after its end a run's last
value is **held forward**, and the reference counts at each grid point how many runs were **still running**. The grid
begins where all have reported.
"""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from multigrid_rl.config.compose import compose
from multigrid_rl.config.overrides import written
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.evaluation.sets import check_ended, differences, recipe_of
from multigrid_rl.files import data_root
from multigrid_rl.gates import Gate
from multigrid_rl.runs.reader import Array, RunRecord, Series
from multigrid_rl.text import ConfigError, expected, one_line, shown

#: Points of a reference's grid: enough for a smooth line, few enough for a file that can be read.
GRID_POINTS = 101
#: Metrics of a reference in addition to those of the gates.
ALWAYS = ("episode_len_mean", "return_mean/", "win/")


# These models read the part of a file that is drawn; further fields are for its readers.
class Band(BaseModel, frozen=True):
    """One metric over seeds at every grid point."""

    median: list[float]
    p10: list[float]
    p90: list[float]


class SeedRun(BaseModel, frozen=True):
    """One run behind a reference."""

    seed: int
    steps_to_held: dict[str, int | None]


class Reference(BaseModel, frozen=True):
    """Reference curves of a recipe."""

    format: int = Field(default=1, ge=1, le=1)
    name: str
    gates: list[Gate]
    runs: list[SeedRun] = Field(min_length=2)
    env_steps: list[int] = Field(min_length=2)  # the grid
    running: list[int]  # runs that had not ended at each grid point
    metrics: dict[str, Band]

    def median_to_held(self, gate: str) -> float | None:
        """Return median environment steps until ``gate`` was held, "never" as later than all; ``None``: never."""
        steps = [math.inf if (held := run.steps_to_held.get(gate)) is None else held for run in self.runs]
        middle = statistics.median(steps)
        return None if math.isinf(middle) else middle


# --- building a reference


def build_reference(runs: list[RunRecord], name: str) -> Reference:
    """Build reference curves from finished runs that differ only in the seed. Raises ``ConfigError``."""
    _check_comparable(runs)
    first = runs[0]
    gates = first.gates
    metrics = [gate.metric for gate in gates]
    metrics += [m for m in first.series if m.startswith(ALWAYS) and m not in metrics]
    for run in runs:
        if missing := [metric for metric in metrics if metric not in run.series]:
            raise ConfigError(f"{run.path}: expected reports with {missing[0]}, got none")
    start = max(run.series[metric].env_steps[0] for run in runs for metric in metrics)
    if (end := max(run.env_steps for run in runs)) <= start:
        raise ConfigError(expected(first.path, "a longer run", f"all reports at {end:.0f} environment steps"))
    grid = np.unique(np.linspace(start, end, GRID_POINTS).round())
    return Reference(
        name=name,
        gates=gates,
        runs=[SeedRun(seed=run.config["seed"], steps_to_held=run.steps_to_held()) for run in runs],
        env_steps=grid.astype(int).tolist(),
        running=[sum(run.env_steps >= point for run in runs) for point in grid],
        metrics={metric: _band([run.series[metric] for run in runs], grid) for metric in metrics},
    )


def _check_comparable(runs: list[RunRecord]) -> None:
    if len(runs) < 2:
        raise ConfigError(expected("runs", "at least 2 with different seeds", len(runs)))
    first, paths = runs[0], dict[int, Path]()
    for run in runs:
        check_ended(run)
        if (other_path := paths.setdefault(run.config["seed"], run.path)) != run.path:
            raise ConfigError(expected(run.path, "a seed of its own", f"seed={run.config['seed']} as in {other_path}"))
        for key, first_value, value in differences(recipe_of(first), recipe_of(run)):
            raise ConfigError(expected(run.path, f"{key}={first_value} as in {first.path}", f"{key}={value}"))


def changes(config: dict[str, Any], recipe: str | None) -> list[tuple[str, str, str]] | None:
    """Return the values in which a run's configuration differs from a recipe's, as text: (key, run, recipe).

    Without a recipe: from the defaults. ``None``: unknown, as one of the two is of another version.
    """
    scenario, train = config["scenario"], config.get("train") or {}
    settings = {"scenario": scenario["name"], "scenario.env_id": scenario.get("env_id"), "train": train.get("name")}
    settings |= {"expert": (train.get("dagger") or {}).get("expert")} | {k: config.get(k) for k in ("data", "init")}
    named = [f"{key}={value}" for key, value in settings.items() if value]
    try:
        defaults = compose(named)
        if defaults.experiment != recipe:  # not the one that the scenario names
            defaults = compose([f"experiment={recipe or 'none'}", *named])
        run_config = RunConfig.model_validate(config)
    except ValueError:
        return None
    changed = differences(run_config.model_dump(mode="json"), defaults.model_dump(mode="json"))
    rows = [(key, shown(written(this_run)), shown(written(recipe_value))) for key, this_run, recipe_value in changed]
    return [row for row in rows if row[0] not in ("seed", "experiment", "data")]


def _band(rows: list[Series], grid: Array) -> Band:
    # np.interp repeats the last value after the last report.
    values = np.stack([np.interp(grid, row.env_steps, row.values) for row in rows])  # (seeds, points)
    low, middle, high = ([float(f"{v:.5g}") for v in curve] for curve in np.percentile(values, (10, 50, 90), axis=0))
    return Band(median=middle, p10=low, p90=high)


# --- files


def curves_of(run: RunRecord) -> Path | None:
    """Return the project's file of reference curves of a run's recipe, if there is one."""
    path = data_root() / "configs" / "recipe" / "curves" / f"{run.config.get('experiment')}.json"
    return path if path.is_file() else None


def load_reference(path: Path) -> Reference:
    """Read a reference that :func:`build_reference` made. Raises ``ConfigError``: it is damaged."""
    try:
        return Reference.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(expected(path, "a file of reference curves", one_line(error))) from error
