"""Checkpoints of a run: written completely or not at all, and checked before they are read.

A checkpoint is the folder ``checkpoints/step_000409600`` with RLlib's state (``rllib/``), the run's state
(``run.pkl``), every network as a player (``players/``), and ``manifest.json``: size and sha256 of each file, written
last. Old ones are removed. Only a run's own checkpoints are read as pickles; players are safetensors.
"""

import hashlib
import json
import logging
import os
import pickle
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from multigrid_rl.files import write_atomic
from multigrid_rl.tables import MOVED
from multigrid_rl.text import ConfigError, expected

LOG = logging.getLogger(__name__)
MANIFEST = "manifest.json"
UNFINISHED, REMOVED = "unfinished", "removed"
#: Folder of a run for the snapshots of a growing pool.
LEAGUE = "league"
#: File of such a run: its opponents, and how its learner fares against them.
STANDINGS = "standings.json"
_STATE = "run.pkl"
#: Exceptions of reading a damaged manifest.
_NO_MANIFEST = (OSError, ValueError, KeyError, TypeError, RecursionError)


class Checkpoint(NamedTuple):
    """A complete checkpoint."""

    path: Path
    env_steps: int
    margin: float | None  # of the gates when it was written; None: no report yet, or no gates
    metrics_bytes: int  # length of metrics.jsonl when it was written


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a run's state, besides RLlib's, into an unfinished checkpoint."""
    (folder / _STATE).write_bytes(pickle.dumps(state, protocol=5))


class _Unpickler(pickle.Unpickler):
    """Finds classes in their current modules."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(MOVED.get(module, module), name)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read the file of :func:`write_state`: a pickle, so only of a trusted checkpoint."""
    with (checkpoint / _STATE).open("rb") as file:
        state: dict[str, Any] = _Unpickler(file).load()
    return state


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write the manifest of all files in ``folder`` and force everything to the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {str(path.relative_to(folder)): _size_and_sha256(path, sync=True) for path in paths}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({**facts, "files": files}, indent=1) + "\n", encoding="utf-8")
    _size_and_sha256(manifest, sync=True)


def check(folder: Path) -> Checkpoint:
    """Compare every file of a checkpoint with its manifest. Raises ``ConfigError``."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, list[Any]] = manifest["files"]
        facts = Checkpoint(folder, manifest["env_steps"], manifest["gate_margin"], manifest["metrics_bytes"])
    except _NO_MANIFEST as error:
        raise ConfigError(expected(folder / MANIFEST, "that of a whole checkpoint", error)) from error
    for name, recorded in files.items():
        try:
            actual = _size_and_sha256(folder / name, sync=False)
        except OSError as error:
            raise ConfigError(expected(folder / name, "a file of a whole checkpoint", error.strerror)) from error
        if actual != recorded:
            wanted, got = (f"{size} bytes with sha256 {digest[:16]}" for size, digest in (recorded, actual))
            raise ConfigError(expected(folder / name, wanted, got))
    return facts


def newest_good(run: Path, *, log: bool = True) -> Checkpoint:
    """Return the newest complete checkpoint of a run; with ``log`` warns of skipped damaged ones.

    Raises ``ConfigError``: there is none.
    """
    reasons = []
    for path in reversed(checkpoints_in(run / "checkpoints")):
        try:
            checkpoint = check(path)
        except ConfigError as error:
            reasons.append(str(error))
            if log:
                LOG.warning("%s is damaged and passed over: %s", path.name, error)
            continue
        if reasons and log:
            LOG.warning("going on from %s, the newest checkpoint that is whole", path.name)
        return checkpoint
    raise ConfigError(expected("--resume", "a run with a whole checkpoint", "; ".join([str(run), *reasons[:1]])))


def start_of(run: Path, *, log: bool = True) -> Checkpoint:
    """Return the checkpoint that a run resumes from: the newest complete one, or step 0 if it has none.

    Raises ``ConfigError``: all of its checkpoints are damaged.
    """
    folder = run / "checkpoints"
    return newest_good(run, log=log) if checkpoints_in(folder) else Checkpoint(folder / "step_000000000", 0, None, 0)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return all checkpoints of a run, damaged ones too, oldest first."""
    return sorted((path for path in folder.glob("step_*") if path.name[5:].isdigit()), key=_steps)


def set_aside_newer(checkpoint: Path) -> None:
    """Rename checkpoints newer than ``checkpoint``: they are damaged, and must not count among the newest."""
    for path in checkpoints_in(checkpoint.parent):
        if _steps(path) > _steps(checkpoint):
            target = path.with_name(f"damaged_{path.name}")
            clear(target)
            path.rename(target)


def _steps(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def prune(folder: Path, keep: int) -> None:
    """Name the newest checkpoint, and remove all but the ``keep`` newest and the one with the best gate margin.

    Args:
        folder: of all checkpoints of a run; it has one.
        keep: how many of the newest stay, at least 1.
    """
    paths = checkpoints_in(folder)
    write_atomic(folder / "latest", f"{paths[-1].name}\n".encode())
    ranks = {path: _rank(path) for path in paths}
    # Margins of two stages are about different gates: those of the later one count.
    ranked = [path for path in paths if ranks[path] is not None]
    if (best := max(ranked, key=lambda path: (ranks[path], _steps(path)), default=None)) is not None:
        write_atomic(folder / "best", f"{best.name}\n".encode())
    for path in (path for path in paths[:-keep] if path != best):
        # Renamed first: a kill half-way leaves no half checkpoint under its name.
        removed = folder / REMOVED
        clear(removed)
        path.rename(removed)
        clear(removed)


def commit(sealed: Path, final: Path) -> None:
    """Move a sealed checkpoint to its place."""
    if final.exists():  # a resumed run wrote it a second time
        clear(final.parent / REMOVED)
        final.rename(final.parent / REMOVED)
    sealed.rename(final)
    _sync(final.parent)
    clear(final.parent / REMOVED)


def clear(folder: Path) -> None:
    """Remove a folder and its content, if it exists."""
    if folder.exists():
        shutil.rmtree(folder)


def _rank(path: Path) -> tuple[int, float] | None:
    """Return stage and gate margin of a checkpoint, if it has one."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        stage, margin = manifest["stage"], manifest["gate_margin"]
    except _NO_MANIFEST:
        return None
    return None if margin is None else (stage, margin)


def _sync(path: Path) -> None:
    """Force a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size_and_sha256(path: Path, *, sync: bool) -> list[Any]:
    content = path.read_bytes()
    if sync:
        _sync(path)
    return [len(content), hashlib.sha256(content).hexdigest()]
