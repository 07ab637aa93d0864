"""Recorded play on disk: columns in ``data.safetensors``, metadata in ``card.json``. No pickle.

A row is one step of one agent; the rows of an episode are contiguous and in order. Columns are memory-mapped, so data
may be larger than memory.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open

from multigrid_rl.config.scenario import Strict, task_of
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.players.cards import (
    ActionSignature,
    BoxSignature,
    EnvSignature,
    ObservationSignature,
    PlayerError,
    Text,
    read_plain_file,
    signature,
)
from multigrid_rl.text import ConfigError, expected, first_error, shown
from multigrid_rl.types import MAX_RECORDED, AgentSpec

Array = NDArray[Any]
DATA_FILE, CARD_FILE = "data.safetensors", "card.json"
_MAX_CARD_BYTES = 1_000_000
#: Rows per check of numbers; bytes per read for hashes and copies.
_ROWS_PER_CHECK = 1 << 16
_CHUNK_BYTES = 1 << 22
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "I64": np.dtype("<i8"),
}


class EpisodeReturns(Strict):
    """Returns of complete episodes."""

    episodes: int = Field(ge=1)
    mean: float
    std: float
    least: float
    most: float


class DataCard(Strict):
    """Metadata of recorded play."""

    format: int = Field(default=1, ge=1, le=1)
    who: Text
    #: Hash of the player's weights; ``None`` for scripted players and for imported data.
    who_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    scenario: Text
    env: EnvSignature | None = None
    observation: ObservationSignature
    actions: ActionSignature
    members: int = Field(default=1, ge=1, le=4)
    seed: int | None = None
    rows: int = Field(ge=1)
    episodes: int = Field(ge=1)
    bounds: bool = True  # whether episode boundaries are known; else ``episodes`` is 1
    returns: EpisodeReturns | None = None
    told: dict[str, float] = Field(default_factory=dict)  # mean and std of returns as an imported file states them
    seats: list[Text] = Field(default=[])  # that were recorded; empty: unknown
    bytes: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    versions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_byte(self) -> "DataCard":
        most = 0 if isinstance(self.actions, BoxSignature) else np.max(self.actions)
        if most > MAX_RECORDED:
            raise ValueError(expected("actions", f"at most {MAX_RECORDED} choices in recorded play", most))
        return self

    def summary(self) -> str:
        """Describe the data in one line."""
        line = f"{self.rows:,} steps of {self.who} in {self.env.env_id if self.env else self.scenario}"
        if self.returns is None:
            text = f"{self.told['mean']:,.2f} +- {self.told.get('std', 0):,.2f}, it says" if "mean" in self.told else ""
            return f"{line}, returns {text or 'unknown'}"
        stats = self.returns
        return f"{line}, {stats.episodes:,} whole episodes of return {stats.mean:,.2f} +- {stats.std:,.2f}"


class Episode(NamedTuple):
    """``L`` consecutive steps of one agent."""

    observations: Array  # (L, D) float32 or uint8
    actions: Array  # (L, C) uint8 or (L, A) float32, as passed to the environment
    rewards: Array  # (L,) canonical
    terminated: bool  # ended with the last step; if both flags are false, the recording stopped
    truncated: bool
    final_observation: Array  # (D,) after the last step
    seed: tuple[int, int, int]  # of the environments, number of the environment, number of the episode in it


class Demonstrations(NamedTuple):
    """``M`` recorded steps in ``E`` episodes, mapped into memory."""

    card: DataCard
    observations: Array  # (M, D)
    actions: Array  # (M, C) or (M, A)
    rewards: Array  # (M,) float32
    terminated: Array  # (M,) bool
    truncated: Array  # (M,) bool
    episode_ends: Array  # (E,) int64 row after the last of each episode
    final_observations: Array  # (E, D) after the last step
    seeds: Array  # (E, 3) int64, -1 where unknown; see ``Episode``


def _columns_of(card: DataCard) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of each column; larger types come first, for alignment."""
    obs, acts = card.observation, card.actions
    width = obs.size or len(obs.categories or ())
    numbers = isinstance(acts, BoxSignature)
    parts = len(acts.low) if isinstance(acts, BoxSignature) else len(acts) if isinstance(acts, list) else card.members
    tokens = "F32" if obs.size else "U8"
    columns = {
        "episode_ends": ("I64", (card.episodes,)),
        "seeds": ("I64", (card.episodes, 3)),
        "rewards": ("F32", (card.rows,)),
        "actions": ("F32" if numbers else "U8", (card.rows, parts)),
        "final_observations": (tokens, (card.episodes, width)),
        "observations": (tokens, (card.rows, width)),
        "terminated": ("BOOL", (card.rows,)),
        "truncated": ("BOOL", (card.rows,)),
    }
    return dict(sorted(columns.items(), key=lambda column: -_DTYPES[column[1][0]].itemsize))


# --- writing


def write(folder: Path, episodes: Iterable[Episode], facts: Mapping[str, Any]) -> DataCard:
    """Write ``episodes`` into a new ``folder`` with a card of ``facts``; one episode at a time is in memory.

    Raises ``FileExistsError``: the folder exists; ``OSError``: it cannot be written; ``ValueError``: there are no
    episodes, or they do not fit the facts.
    """
    folder.mkdir(parents=True)
    # Counts are known only at the end: a draft card gives the columns' types, the final card their shapes.
    draft = DataCard(**facts, rows=1, episodes=1, bytes=1, sha256="0" * 64)
    kinds = {name: (_DTYPES[dtype], shape[1:]) for name, (dtype, shape) in _columns_of(draft).items()}
    rows, count, returns = 0, 0, []
    with ExitStack() as stack:
        parts = {name: stack.enter_context((folder / f"{name}.part").open("w+b")) for name in kinds}
        for episode in episodes:
            length = len(episode.rewards)
            rows, count = rows + length, count + 1
            last = np.arange(1, length + 1) == length
            values: dict[str, Any] = {
                **{name: getattr(episode, name) for name in ("observations", "actions", "rewards")},
                "terminated": last & episode.terminated,
                "truncated": last & episode.truncated,
                "episode_ends": rows,
                "final_observations": episode.final_observation,
                "seeds": episode.seed,
            }
            for name, value in values.items():
                (dtype, shape), got = kinds[name], np.shape(value)
                if got not in (shape, (length, *shape)):
                    raise ConfigError(expected(f"column {name}", f"{shape} for each row", got))
                parts[name].write(np.ascontiguousarray(value, dtype).tobytes())
            if episode.terminated or episode.truncated:
                returns.append(float(np.sum(episode.rewards, dtype=np.float64)))
        counted = draft.model_copy(update={"rows": rows, "episodes": count, "returns": _returns(returns)})
        if not rows:
            raise ValueError("none")
        size, digest = _assemble(folder / DATA_FILE, _columns_of(counted), parts)
    for name in kinds:
        (folder / f"{name}.part").unlink()
    card = DataCard.model_validate({**counted.model_dump(), "bytes": size, "sha256": digest})
    (folder / CARD_FILE).write_text(json.dumps(card.model_dump(), indent=2) + "\n", encoding="utf-8")
    return card


def _returns(returns: list[float]) -> EpisodeReturns | None:
    if not returns:
        return None
    mean, std = float(np.mean(returns)), float(np.std(returns))
    return EpisodeReturns(episodes=len(returns), mean=mean, std=std, least=min(returns), most=max(returns))


def _assemble(
    file: Path, columns: dict[str, tuple[str, tuple[int, ...]]], parts: Mapping[str, IO[bytes]]
) -> tuple[int, str]:
    """Write a safetensors file of the columns; returns size and sha256."""
    header, first = {}, 0
    for name, (dtype, shape) in columns.items():
        end = first + int(np.prod(shape)) * _DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}
        first = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("w+b") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in columns:
            parts[name].seek(0)
            shutil.copyfileobj(parts[name], stream, _CHUNK_BYTES)
        stream.flush()
        os.fsync(stream.fileno())
        size = stream.tell()
        stream.seek(0)
        return size, _sha256_of(stream)


def _sha256_of(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


# --- reading


def read_data_card(folder: Path) -> DataCard:
    """Read and check only the card. Raises ``ConfigError``."""
    path = folder / CARD_FILE
    if not path.exists():
        got = f"{folder} without {CARD_FILE}" if folder.is_dir() else f"{folder}: no such folder"
        raise ConfigError(
            expected("data", "a folder that `multigrid-rl data record` or `data import` has written", got)
        )
    try:
        return DataCard.model_validate_json(read_plain_file(path, _MAX_CARD_BYTES))
    except PlayerError as error:
        raise ConfigError(f"data: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"data: {path}: {first_error(error)}") from error


def facts(config: RunConfig) -> dict[str, Any]:
    """Return the provenance of a run's recorded play. Raises ``ConfigError``: its card is damaged."""
    card = read_data_card(Path(str(config.data))).model_dump(include={"who", "sha256", "rows", "episodes"})
    return {"folder": config.data, **card}


def read_demonstrations(folder: Path, agent: AgentSpec | None = None, env: Any = None) -> Demonstrations:
    """Check size, hash, types, shapes and every number of recorded play, and map it into memory.

    Args:
        folder: folder that ``data record`` or ``data import`` wrote.
        agent: the learner, whose spaces must fit; ``None``: not checked.
        env: signature of its environment, see ``env_signature``.

    Raises ``ConfigError``: damaged, truncated, not finite, or of another environment.
    """
    card, path = read_data_card(folder), folder / DATA_FILE
    if agent is not None:
        _check_fits(folder, card, agent, env)
    try:
        with path.open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) != card.bytes:
                hint = " (truncated?)" if size < card.bytes else ""
                raise ConfigError(expected(f"data: {path}", f"the {card.bytes} bytes of its card", f"{size}{hint}"))
            digest = _sha256_of(file)
        if digest != card.sha256:
            wanted, got = f"{card.sha256[:16]}... of its card", f"{digest[:16]}...: changed since it was written"
            raise ConfigError(expected(f"data: {path}: sha256", wanted, got))
        with safe_open(path, framework="pt") as tensors:  # only torch tensors are views of the file
            columns = {name: tensors.get_tensor(name).numpy() for name in tensors.keys()}  # noqa: SIM118 - no dict
    except OSError as error:
        raise ConfigError(
            expected("data", "a folder that `multigrid-rl data record` wrote", f"{path}: {error}")
        ) from error
    except SafetensorError as error:
        raise ConfigError(expected(f"data: {path}", "a safetensors file", shown(str(error), 200))) from error
    for name, (dtype, shape) in _columns_of(card).items():
        column = columns.get(name)
        if column is None or column.shape != shape or column.dtype != _DTYPES[dtype]:
            got = "none" if column is None else f"{column.dtype} {column.shape}"
            raise ConfigError(expected(f"data: {path}: column {name}", f"{_DTYPES[dtype]} {shape} of its card", got))
    if len(columns) > len(_columns_of(card)):
        raise ConfigError(expected(f"data: {path}", "the columns of its card", ", ".join(map(shown, columns))))
    data = Demonstrations(card, **columns)
    _check_numbers(path, data)
    return data


def _check_fits(folder: Path, card: DataCard, agent: AgentSpec, env: Any) -> None:
    of_run, of_data = env and env["env_id"], card.env and card.env.env_id
    if (of_run and task_of(of_run)) != (of_data and task_of(of_data)):
        names = [env_id or "the red/blue-door game" for env_id in (of_run, of_data)]
        raise ConfigError(expected(f"data: {folder}: env", names[0], names[1]))
    side = agent.seats[0].partition("_")[0]
    if env is None and card.seats and not any(seat.startswith(side) for seat in card.seats):  # it sees other colours
        raise ConfigError(expected(f"data: {folder}: seats", ", ".join(agent.seats), ", ".join(card.seats)))
    wanted = signature(agent, card.observation.view_size)
    needed = DataCard.model_validate({**card.model_dump(), **wanted})
    for part, value in wanted.items():
        if getattr(card, part) != getattr(needed, part):
            got = card.model_dump(exclude_none=True)[part]
            raise ConfigError(expected(f"data: {folder}: {part}", shown(str(value), 200), shown(str(got), 200)))


def _check_numbers(path: Path, data: Demonstrations) -> None:
    ends = data.episode_ends
    if ends[0] < 1 or (np.diff(ends) < 1).any() or ends[-1] != data.card.rows:
        raise ConfigError(expected(f"data: {path}: column episode_ends", "rows that grow up to the last", "others"))
    categories, acts = data.card.observation.categories, data.card.actions
    most: dict[str, Any] = {"observations": categories, "final_observations": categories, "actions": None}
    if not isinstance(acts, BoxSignature):
        most["actions"] = acts if isinstance(acts, list) else [acts] * data.card.members
    for name, limits in {"rewards": None, **most}.items():
        column = getattr(data, name)
        for first in range(0, len(column), _ROWS_PER_CHECK):
            part = column[first : first + _ROWS_PER_CHECK]
            valid = np.isfinite(part) if limits is None else part < np.array(limits)
            if not valid.all():
                place = tuple(np.argwhere(~valid)[0])
                wanted = "finite numbers" if limits is None else f"numbers below {shown(str(limits))}"
                raise ConfigError(
                    expected(f"data: {path}: column {name}", wanted, f"{part[place]} in row {first + place[0]}")
                )


def encoded(distribution: Any, actions: Array) -> Array:
    """Return actions (B, C) or (B, A) as (B, F): choices one-hot, bounded numbers scaled to -1 to 1."""
    if (choices := getattr(distribution, "choices", None)) is None:
        finite = np.isfinite(distribution.low) & np.isfinite(distribution.high)
        low = np.where(finite, distribution.low, np.float32(-1))
        share = (actions - low) / (np.where(finite, distribution.high, np.float32(1)) - low)
        return np.asarray(2 * share - 1, np.float32)
    return np.concatenate([np.eye(count, dtype=np.float32)[actions[:, c]] for c, count in enumerate(choices)], axis=1)
