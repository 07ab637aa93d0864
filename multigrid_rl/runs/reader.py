"""Reads run folders: configuration, provenance, verdict, and its reports as curves.

Missing, damaged and forged content raises a one-line error that names the file.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multigrid_rl.config.overrides import SHORT, parse, written
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.files import exists, read_plain_yaml
from multigrid_rl.gates import Gate
from multigrid_rl.runs.checkpoints import STANDINGS
from multigrid_rl.text import ConfigError, expected, first_error

Array = NDArray[np.float64]

#: Key of the moment at which all gates are held, besides the metrics of single gates.
ALL_GATES = "all gates"


class Series(NamedTuple):
    """One metric at a run's reports, without those where it had no value."""

    env_steps: Array  # (R,) increasing
    values: Array  # (R,)


#: Limit of counts such as steps, so that arrays of floats hold them exactly.
_MOST = 2**53
#: Limit of all other numbers: differences of larger ones overflow in plots.
_LARGEST = 1e100
_WRITTEN = "the file that the run wrote"
_Count = Annotated[int, Field(ge=0, lt=_MOST)]


class _RunFile(BaseModel):
    """Keys that are read of a run's file; other keys are ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, strict=True)


class _Moment(_RunFile):
    env_steps: _Count
    policy_updates: _Count
    seconds: float


class _Gate(_RunFile):
    metric: str
    comparison: Literal["<=", ">="]
    bound: float
    hold: Literal["every", "mean", "share"]
    window: _Count
    share: float = 1.0
    value: float | None = None
    met: bool = False
    held: bool = False
    first_reached: _Moment | None = None
    first_held: _Moment | None


class _Verdict(_RunFile):
    gates: list[_Gate]
    ended: str
    env_steps: _Count
    env_steps_to_held: _Count | None
    policy_updates_to_held: _Count | None = None
    seconds_to_held: float | None = None


class _Strength(_RunFile):
    opponent: str
    win: float


class _Opponent(_RunFile):
    name: str
    seat: str
    weight: float = 1.0
    sha256: str | None = None
    strength: list[_Strength] = []


class _Provenance(_RunFile):
    command: str = ""
    config_sha256: str | None = None
    started: str = ""
    commit: str | None = None
    versions: dict[str, str] = {}
    opponents: list[_Opponent] = []


class _Standing(_RunFile):
    player: str
    since: _Count | None
    win: Annotated[float, Field(ge=0, le=1)] | None
    share: float


class _Standings(_RunFile):
    players: list[_Standing]


class _Scenario(_RunFile):
    name: str
    description: str = ""
    seats: dict[str, Any] = {}


class _Config(_RunFile):
    scenario: _Scenario
    seed: _Count
    scheme: str | None = None
    experiment: str | None = None
    train: dict[str, Any] = {}
    model: dict[str, Any] = {}


@dataclass(frozen=True)
class RunRecord:
    """Content of a run folder.

    Attributes:
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
        keys = [field.name for field in fields(Gate)]
        rows = self.verdict["gates"] if self.verdict else []
        return [Gate(**{key: row[key] for key in keys if key in row}) for row in rows]

    def steps_to_held(self) -> dict[str, int | None]:
        """Return environment steps until each gate was held, and all of them (:data:`ALL_GATES`); ``None``: never."""
        if self.verdict is None:
            return {}
        held = {row["metric"]: (row["first_held"] or {}).get("env_steps") for row in self.verdict["gates"]}
        return {ALL_GATES: self.verdict["env_steps_to_held"], **held}


@contextmanager
def reading(path: Path, wanted: str) -> Iterator[None]:
    """Convert errors of reading and checking a file in the block into a ``ConfigError``."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_error(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(expected(path, wanted, getattr(error, "strerror", error))) from error


def _missing(path: Path) -> str:
    """Return the message for a missing file of a run's folder."""
    got = f"one without {path.name}" if path.parent.is_dir() else "a file" if path.parent.exists() else "none there"
    meant = [above.parent for above in path.parents if above.name == "checkpoints"]
    if (named := Path(str(path.parent).removeprefix("run_dir=")) / path.name).exists():
        meant.append(named.parent)
    hint = "".join(f" (did you mean {folder}?)" for folder in meant)
    return f"{path.parent}: expected a run folder, got {got}{hint}"


def _read_file(path: Path, schema: type[_RunFile]) -> dict[str, Any]:
    """Read a file of a run unchanged, if it fits ``schema``. Raises ``ConfigError``."""
    with reading(path, _WRITTEN):
        if exists(path):
            content: dict[str, Any] = (
                read_plain_yaml(path) if path.suffix == ".yaml" else json.loads(path.read_text(encoding="utf-8"))
            )
            schema.model_validate(content)
            return content
    raise ConfigError(_missing(path))


def read_config(run: Path) -> dict[str, Any]:
    """Read ``config.yaml`` unchanged. Raises ``ConfigError`` if it is missing or damaged."""
    return _read_file(run / "config.yaml", _Config)


def read_provenance(run: Path) -> dict[str, Any]:
    """Read ``provenance.json``. Raises ``ConfigError`` if it is missing or damaged."""
    return _read_file(run / "provenance.json", _Provenance)


def read_verdict(run: Path) -> dict[str, Any]:
    """Read ``verdict.json``. Raises ``ConfigError`` if it is missing, as before a run's end, or damaged."""
    return _read_file(run / "verdict.json", _Verdict)


def run_config(run: Path) -> RunConfig:
    """Return the configuration of a run. Raises ``ConfigError`` if there is none that this version understands."""
    try:
        return RunConfig.model_validate(read_config(run))
    except ValidationError as error:
        raise ConfigError(f"{run / 'config.yaml'}: {first_error(error)}") from error


def read_standings(run: Path) -> list[dict[str, Any]]:
    """Read the opponents of a run with a league: player, since, win, share; none of another run.

    Raises ``ConfigError``: the file is damaged.
    """
    path = run / STANDINGS
    return _read_file(path, _Standings)["players"] if path.is_file() else []


def opponent_hashes(run: Path) -> dict[str, str]:
    """Return the sha256 of every frozen player that a run met, by name.

    The players of the catalogue may have changed since: a run resumes, and is judged, against these. Raises
    ``ConfigError``: its provenance is missing or damaged.
    """
    provenance = read_provenance(run)
    if "opponents" not in provenance:
        raise ConfigError(expected(run / "provenance.json", _WRITTEN, "one without opponents"))
    return {row["name"]: row["sha256"] for row in provenance["opponents"] if row["sha256"]}


def read_run(path: Path) -> RunRecord:
    """Read a run folder; an incomplete last line is left out. Raises ``ConfigError``."""
    if not (path / "metrics.jsonl").is_file():
        raise ConfigError(_missing(path / "metrics.jsonl"))
    config = read_config(path)
    if not (reports := [row for row in read_rows(path / "metrics.jsonl") if row.get("report_episodes")]):
        wanted = f"a report, the first after {config['scenario'].get('report_episodes', 100)} finished episodes"
        raise ConfigError(expected(path / "metrics.jsonl", wanted, "none: the run is too short or has just begun"))
    provenance = read_provenance(path) if (path / "provenance.json").exists() else {}
    verdict = read_verdict(path) if (path / "verdict.json").exists() else None
    points: dict[str, list[tuple[float, float]]] = {}
    for row in reports:
        for name, value in row.items():
            if name != "env_steps" and value is not None:
                points.setdefault(name, []).append((row["env_steps"], value))
    series = {name: Series(*np.array(rows, np.float64).T) for name, rows in points.items()}
    return RunRecord(path, config, provenance, verdict, series, int(reports[-1]["env_steps"]))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return every row of a ``metrics.jsonl``, reports or not; an incomplete last line, after a kill, is left out.

    Raises ``ConfigError``: a line that is no row of a run.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(expected(path, _WRITTEN, error)) from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                break
            raise ConfigError(expected(f"{path}: line {number}", "a JSON object", error)) from error
        if not isinstance(row, dict) or not isinstance(row.get("env_steps"), int):
            raise ConfigError(f"{path}: line {number}: expected a row with env_steps, got none")
        rows.append({name: _number(value, f"{path}: line {number}: {name}") for name, value in row.items()})
    return rows


def _number(value: Any, where: str) -> float | None:
    """Return a value of a row; ``None`` for what is not finite."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if not isinstance(value, (int, float)) or abs(value) >= _LARGEST:
        raise ConfigError(expected(where, f"a number below {_LARGEST:g}, or null", f"a {type(value).__name__}"))
    return value


def check_of_games(overrides: Sequence[str]) -> None:
    """Raise ``ConfigError`` for an override of training, which games alone do not read."""
    for key, value in parse(overrides).items():
        part = SHORT.get(key, key).partition(".")[0]
        if part in RunConfig.model_fields.keys() - {"scenario", "experiment", "scheme", "shared", "checkpoints"}:
            raise ConfigError(expected(key, "an override of the game, as nothing is trained", written(value)))
