"""What a cup plays and by whom: ``cup.json``, written before its first game and compared when it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multigrid_rl.judge.cup.pairings import write_whole
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.scratch import lock

MANIFEST_FILE = "cup.json"


class EntryLine(BaseModel):
    """What a cup remembers of an entry: enough to know whether it is still the same."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: str
    sha256: str | None
    problem: str | None


class Manifest(BaseModel):
    """What a cup plays."""

    model_config = ConfigDict(extra="forbid")

    format: int = Field(default=1, ge=1, le=1)
    scenario: str
    spec: dict[str, Any]
    games: int
    seed: int
    agents_key: str  # what agents are given as their seeds follows from this, not from `seed`
    limits: dict[str, float]
    entries: list[EntryLine]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make ``folder`` and keep it locked for the block.

    Raises:
        PlayerError: another cup is at work in it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise PlayerError(f"{folder}: {error.strerror}; allowed is a folder that can be written") from error
    try:
        if lock(handle):
            raise PlayerError(f"{folder}: another cup is at work in it; allowed is another --output, or to wait")
        yield
    finally:
        os.close(handle)


def read_manifest(folder: Path) -> Manifest | None:
    """What the cup in ``folder`` plays, nothing if it has not begun.

    Raises:
        PlayerError: the folder holds something else, or a damaged file.
    """
    path = folder / MANIFEST_FILE
    try:
        if path.exists():
            return Manifest.model_validate_json(path.read_bytes())
        if folder.exists() and any(folder.iterdir()):
            raise PlayerError(f"{folder}: holds something that is no cup; allowed is a new folder, or a cup to go on")
    except ValidationError as error:
        raise PlayerError(f"{path}: not a cup's: {' '.join(str(error).split())[:200]}") from error
    except OSError as error:
        raise PlayerError(f"{path}: {error.strerror}; allowed is a new folder, or a cup to go on") from error
    return None


def begin(manifest: Manifest, folder: Path) -> None:
    """Write what is played, or see to it that it is what the cup in ``folder`` plays.

    Raises:
        PlayerError: it plays something else.
    """
    before = read_manifest(folder)
    if before is None:
        write_whole(folder / MANIFEST_FILE, manifest.model_dump_json(indent=1))
        return
    now = Manifest.model_validate_json(manifest.model_dump_json())  # as it looks after writing: tuples become lists
    for key, ours in now:
        theirs = getattr(before, key)
        if key == "entries" and ours != theirs:
            raise PlayerError(f"{folder}: {_changed(theirs, ours)}; allowed is the same cup, or another --output")
        if key == "spec" and ours != theirs:
            raise PlayerError(f"{folder}: {manifest.scenario} is another game now; allowed is another --output")
        if ours != theirs:
            raise PlayerError(f"{folder}: {key}={theirs} there, {ours} now; allowed is the same, or another --output")


def _changed(before: list[EntryLine], now: list[EntryLine]) -> str:
    old, new = ({entry.name: entry for entry in entries} for entries in (before, now))
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            return f"entry {name} took part and is gone"
        if name not in old:
            return f"entry {name} did not take part"
        if old[name] != new[name]:
            return f"entry {name} has changed"
    return "entries in another order"
