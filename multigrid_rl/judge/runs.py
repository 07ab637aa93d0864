"""Run folders as a judge reads them: reports become one series for each metric."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from multigrid_rl.config import ConfigError
from multigrid_rl.gates import Gate

Array = NDArray[np.float64]

#: Key of the moment at which all gates are held, beside the metrics of single gates.
ALL_GATES = "all gates"


class CurveError(ConfigError):
    """A run or a reference that cannot be used; the message is one line naming file, value and what is allowed."""


class Series(NamedTuple):
    """One metric at a run's reports, without those where it had no value."""

    env_steps: Array  # (R,) increasing
    values: Array  # (R,)


@dataclass(frozen=True)
class Run:
    """What was read from a run folder.

    Attributes:
        path: the folder.
        config: resolved ``config.yaml``.
        provenance: ``provenance.json``; empty where there is none.
        verdict: ``verdict.json``, or ``None`` for a run that is still going or was killed.
        series: metric -> its series; only numbers of reports.
        env_steps: of the last report.
    """

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    verdict: dict[str, Any] | None
    series: dict[str, Series]
    env_steps: int

    @property
    def gates(self) -> list[Gate]:
        """The gates it was judged by, none without a verdict."""
        keys = ("metric", "comparison", "bound", "hold", "window")
        return [Gate(**{key: row[key] for key in keys}) for row in (self.verdict or {"gates": []})["gates"]]

    def steps_to_held(self) -> dict[str, int | None]:
        """Environment steps until each gate was held first, and until all were (:data:`ALL_GATES`); ``None``: never."""
        if self.verdict is None:
            return {}
        held = {row["metric"]: (row["first_held"] or {}).get("env_steps") for row in self.verdict["gates"]}
        return {ALL_GATES: self.verdict["env_steps_to_held"], **held}


def read_run(path: Path) -> Run:
    """Read a run folder; a last line that a kill tore in two is left out.

    Raises:
        CurveError: not a run folder, a damaged file, or no reports yet.
    """
    if not (path / "metrics.jsonl").is_file():
        raise CurveError(f"{path}: no metrics.jsonl in it; allowed is a run folder")
    config = _config(path / "config.yaml")
    reports = [row for row in read_rows(path / "metrics.jsonl") if row.get("report_episodes")]
    if not reports:
        raise CurveError(f"{path / 'metrics.jsonl'}: no reports; the first comes when 100 episodes have finished")
    provenance = _json(path / "provenance.json", ())
    verdict = _json(path / "verdict.json", ("gates", "ended", "env_steps", "env_steps_to_held"))
    series = read_series(reports)
    return Run(path, config, provenance or {}, verdict, series, int(reports[-1]["env_steps"]))


def read_series(reports: list[dict[str, Any]]) -> dict[str, Series]:
    """Metric -> series, from rows that each hold ``env_steps``."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in reports:
        for name, value in row.items():
            if name != "env_steps" and isinstance(value, (int, float)) and math.isfinite(value):
                points.setdefault(name, []).append((row["env_steps"], value))
    return {name: Series(*np.array(rows, np.float64).T) for name, rows in points.items()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every row of a ``metrics.jsonl``, reports or not; a last line that a kill tore in two is left out.

    Raises:
        CurveError: a line that is no row of a run.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise CurveError(f"{path}: line {number}: {one_line(error)}; allowed is one JSON object a line") from error
        if not isinstance(row, dict) or not isinstance(row.get("env_steps"), int):
            raise CurveError(f"{path}: line {number}: no env_steps; allowed is a row that a run wrote")
        rows.append(row)
    return rows


def _config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise CurveError(f"{path}: {one_line(error)}; allowed is the file that the run wrote") from error
    scenario = config.get("scenario") if isinstance(config, dict) else None
    if not isinstance(scenario, dict) or "name" not in scenario or "seed" not in config:
        raise CurveError(f"{path}: no scenario.name and seed; allowed is the file that the run wrote")
    whole: dict[str, Any] = config
    return whole


def _json(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CurveError(f"{path}: {one_line(error)}; allowed is the file that the run wrote") from error
    lost = [key for key in keys if key not in content] if isinstance(content, dict) else ["object"]
    if lost:
        raise CurveError(f"{path}: no {lost[0]}; allowed is the file that the run wrote")
    whole: dict[str, Any] = content
    return whole


def differences(ours: Any, theirs: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Leaves in which two nested mappings differ: (dotted key, one, other)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = dict.fromkeys([*ours, *theirs])
        return [d for k in keys for d in differences(ours.get(k), theirs.get(k), f"{key}.{k}" if key else str(k))]
    return [] if ours == theirs else [(key, ours, theirs)]


def one_line(error: Exception) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split())
