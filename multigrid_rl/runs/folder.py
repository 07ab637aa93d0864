"""Writes run folders: configuration, provenance, metrics, verdict, TensorBoard, checkpoints."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from multigrid_rl.config.schema import RunConfig, to_yaml
from multigrid_rl.files import free_path, json_text, read_plain_yaml, write_atomic
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.runs.checkpoints import Checkpoint, read_state, set_aside_newer, start_of
from multigrid_rl.runs.provenance import circumstances, config_hash, facts_of, user_modules
from multigrid_rl.tables import TRACKERS, find, load
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import import_object

if TYPE_CHECKING:
    from multigrid_rl.players.catalogue import Seating

LOG = logging.getLogger(__name__)
#: File by which a run belongs to one process.
LOCK = "run.lock"


class Tracker(Protocol):
    """Takes a run's rows, too: an entry of ``TRACKERS`` names its class, called without arguments.

    It may have a class method ``check``, which raises ``ConfigError`` before the run starts: it is not available.
    """

    def begin(self, folder: Path, values: dict[str, Any]) -> None:
        """Take the run's folder, whose ``metrics.jsonl`` holds all rows so far, and its configuration."""

    def row(self, row: dict[str, Any]) -> None:
        """Take the row of an iteration."""

    def end(self, verdict: dict[str, Any] | None) -> None:
        """Take the verdict, ``None`` if the run broke off, and close."""


def tracker_named(name: str) -> Any:
    """Return the class of a :class:`Tracker`, by its entry of ``TRACKERS`` or as ``module:Class``.

    Raises ``ConfigError``: it cannot be imported, or is no tracker.
    """
    if ":" not in name:
        return find(TRACKERS, name)
    kind = import_object("tracking", name, "module:Class")
    if missing := [method for method in ("begin", "row", "end") if not callable(getattr(kind, method, None))]:
        raise ConfigError(expected("tracking", "a class with begin, row and end", f"{name} without {missing[0]}"))
    return kind


class EventBoard:
    """Writes a run's rows as TensorBoard events.

    ``first_step``: of a resumed run: TensorBoard forgets events of earlier processes from there on.
    """

    def __init__(self, folder: Path, first_step: int | None) -> None:
        self._writer = EventFileWriter(str(folder))
        self.close = self._writer.close
        if first_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=first_step, session_log=start))

    def row(self, row: dict[str, Any]) -> None:
        """Write one event with all values of a row: forty events take a tenth of an iteration."""
        gates = (name for name in row if name.startswith("gates/") and name.endswith("/met"))
        gate_values = {name.removesuffix("/met"): row.get(name[6:-4]) for name in gates}
        values = [
            # TensorBoard groups by the text before the first slash.
            Summary.Value(tag=name if "/" in name else f"run/{name}", simple_value=value)
            for name, value in (row | gate_values).items()
            if value is not None
        ]
        self._writer.add_event(Event(wall_time=time.time(), step=row["env_steps"], summary=Summary(value=values)))


class RunFolder:
    """Writes one run's folder.

    Args:
        path: of the folder; must not exist yet.
        seated: background players by seat, of all stages.

    Raises ``FileExistsError``: the folder exists already; as :func:`runs.provenance.facts_of`.
    """

    def __init__(self, path: Path, config: RunConfig, seated: Seating) -> None:
        facts = facts_of(config)
        path.mkdir(parents=True, exist_ok=False)
        self.path = path
        self._lock = lock_file(path / LOCK)
        self.provenance: dict[str, Any] = {
            **circumstances(),
            "seed": config.seed,
            **user_modules(config),
            "opponents": [
                {"seat": seat, "name": player.name, "weight": player.weight, "sha256": player.sha256}
                | {"strength": [row.model_dump() for row in player.strength]}
                for seat, players in seated.items()
                for player in players
            ],
            **facts,
        }
        with ExitStack() as undo:  # a run that cannot begin leaves nothing
            undo.callback(self.discard)
            undo.callback(self.close)
            self._open(config, first_step=None)
            undo.pop_all()

    @classmethod
    def reopen(cls, path: Path, config: RunConfig, checkpoint: Checkpoint) -> RunFolder:
        """Open the folder of a run that resumes from ``checkpoint``.

        Rows after the checkpoint are reported once more, so they move aside, into
        ``metrics.after-<steps>.jsonl``; an earlier verdict moves to ``verdict.<steps>.json``. Raises ``ConfigError``:
        another process is writing to the folder, or its provenance is damaged.
        """
        from multigrid_rl.runs.reader import read_provenance, read_verdict  # noqa: PLC0415 - most runs are new

        self = cls.__new__(cls)
        self.path = path
        self._lock = lock_file(path / LOCK)
        try:
            self.provenance = read_provenance(path)
            if start_of(path, log=False).path != checkpoint.path:
                raise ConfigError(f"{path}: expected a run that no process trains, got one written to meanwhile")
            _resume_pool(path, config, checkpoint)
        except ConfigError:
            self._lock.close()
            raise
        resumed = self.provenance.setdefault("resumed", [])
        set_aside_newer(checkpoint.path)
        modules, previous_modules = user_modules(config), [self.provenance, *resumed][-1].get("modules", {})
        resumed.append({"from_env_steps": checkpoint.env_steps, **circumstances(), **modules})
        _set_aside(path / "metrics.jsonl", checkpoint.metrics_bytes, f"after-{checkpoint.env_steps}")
        verdict = path / "verdict.json"
        if verdict.exists():
            steps: Any = "damaged"
            with suppress(ConfigError):
                steps = read_verdict(path)["env_steps"]
            verdict.rename(free_path(path, f"verdict.{steps}", ".json"))
        with ExitStack() as undo:
            undo.callback(self.close)
            self._open(config, first_step=checkpoint.env_steps + 1)
            undo.pop_all()
        for module, digest in modules.get("modules", {}).items():
            if previous_modules.get(module, digest) != digest:
                LOG.warning("%s: changed since the run began or went on: its numbers may differ from now on", module)
        return self

    def _open(self, config: RunConfig, first_step: int | None) -> None:
        self._verdict: dict[str, Any] | None = None
        self._trackers: list[Tracker] = []
        write_atomic(self.path / "config.yaml", to_yaml(config).encode())
        self.provenance["config_sha256"] = config_hash(read_plain_yaml(self.path / "config.yaml"))
        self._write_json("provenance.json", self.provenance)
        self._log = logging.FileHandler(self.path / "run.log", encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("multigrid_rl").addHandler(self._log)
        self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
        self._board = EventBoard(self.path / "tensorboard", first_step)
        for name in config.trackers:
            tracker = tracker_named(name)()
            tracker.begin(self.path, config.model_dump(mode="json"))
            self._trackers.append(tracker)

    def add_fact(self, name: str, facts: Any) -> None:
        """Add an entry to the provenance of this run and of its players."""
        self.provenance[name] = facts
        self._write_json("provenance.json", self.provenance)

    def record(self, row: dict[str, Any]) -> None:
        """Append one iteration's row to ``metrics.jsonl``, TensorBoard and other trackers."""
        self._metrics.write(json_text(row) + "\n")
        self._metrics.flush()
        self._board.row(row)
        for tracker in self._trackers:
            tracker.row(row)

    def last_row(self) -> dict[str, Any] | None:
        """Return the last row of ``metrics.jsonl``, as :meth:`record` took it; ``None``: there is none yet."""
        *lines, _ = (self.path / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
        return json.loads(lines[-1]) if lines else None

    def checkpoint_path(self, env_steps: int) -> Path:
        """Return the folder of the checkpoint at ``env_steps``."""
        return self.path / "checkpoints" / f"step_{env_steps:09d}"

    def sync_metrics(self) -> int:
        """Force all of ``metrics.jsonl`` to the disk; returns its length in bytes."""
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    @property
    def is_started(self) -> bool:
        """Whether there is a row."""
        return (self.path / "metrics.jsonl").stat().st_size > 0

    def discard(self) -> None:
        """Remove the folder of a run that never began: its name is free again."""
        shutil.rmtree(self.path, ignore_errors=True)

    def verdict(self, verdict: dict[str, Any]) -> None:
        """Write ``verdict.json``."""
        self._verdict = verdict
        self._write_json("verdict.json", verdict)

    def close(self) -> None:
        """Flush and close all files."""
        open_parts = [part for name in ("_metrics", "_board", "_log", "_lock") if (part := vars(self).get(name))]
        for part in open_parts:
            logging.getLogger("multigrid_rl").removeHandler(part)
        closers = [part.close for part in open_parts]
        for close in [*(partial(tracker.end, self._verdict) for tracker in self._trackers), *closers]:
            # A row that a full disk refused fails once more here; the run has reported it.
            with suppress(OSError):
                close()

    def _write_json(self, name: str, content: Any) -> None:
        write_atomic(self.path / name, f"{json_text(content, indent=2)}\n".encode())


def lock_file(file: Path) -> IO[str]:
    """Open and lock a file: while the handle is open, other processes cannot. Raises ``ConfigError``."""
    handle = file.open("a", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.close()
        raise ConfigError(
            expected(file.parent, "a folder that no other process uses", "another process is writing to it")
        ) from error
    except OSError:  # a network drive without locks
        LOG.warning("%s: no locks on this drive; see to it that only one process works in it", file.parent)
    return handle


def _resume_pool(path: Path, config: RunConfig, checkpoint: Checkpoint) -> None:
    """Restore a growing pool's files from a checkpoint. Raises ``ConfigError``: one has changed."""
    if config.scenario.league is None:
        return
    state = read_state(checkpoint.path)["league"] if checkpoint.env_steps else None
    try:
        load(config.scenario.league.pool).resume(path, state)
    except PlayerError as error:
        raise ConfigError(str(error)) from error


def _set_aside(metrics: Path, length: int, name: str) -> None:
    content = metrics.read_bytes() if metrics.exists() else b""
    if len(content) < length:
        LOG.warning("%s: %d bytes; the checkpoint knew %d: rows are missing", metrics, len(content), length)
    length = content.rfind(b"\n", 0, length) + 1  # no row may follow half of one
    if newer := content[length:]:
        free_path(metrics.parent, f"metrics.{name}", ".jsonl").write_bytes(newer)
        os.truncate(metrics, length)
