"""A cup: everybody against everybody, from both sides, on the same games. Goes on where it was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multigrid_rl.judge.cup.entries import Entry, Table
from multigrid_rl.judge.cup.pairings import (
    Pairing,
    forfeited,
    load_pairing,
    pairing_file,
    play_pairing,
    save_pairing,
    write_whole,
)
from multigrid_rl.players.cards import PlayerError

MANIFEST_FILE = "cup.json"
#: Pairings that an entry may spoil before it is out of the cup: one that hangs would else cost a night.
STRIKES = 3


class EntryLine(BaseModel):
    """What a cup remembers of an entry: enough to know whether it is still the same."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: str
    sha256: str | None
    problem: str | None


class Manifest(BaseModel):
    """What a cup plays: written before its first game, compared when it goes on."""

    model_config = ConfigDict(extra="forbid")

    format: int = Field(default=1, ge=1, le=1)
    scenario: str
    spec: dict[str, Any]
    games: int
    seed: int
    limits: dict[str, float]
    entries: list[EntryLine]


@dataclass(frozen=True)
class Progress:
    """One pairing is done."""

    number: int  # from 1
    of: int
    pairing: Pairing
    played: bool  # now, not in an earlier session


def schedule(entries: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """All pairings (red, blue): each pair twice, once from each side."""
    for k, one in enumerate(entries):
        for two in entries[k + 1 :]:
            yield one, two
            yield two, one


def play_cup(entries: list[Entry], table: Table, folder: Path, show: Callable[[Progress], None]) -> list[Pairing]:
    """Play what is not yet in ``folder`` and return all pairings, in the order of :func:`schedule`.

    Every finished pairing is a file of its own, written in one go: a killed cup goes on with the first that is missing.

    Raises:
        PlayerError: ``folder`` holds another cup, or something else.
    """
    _begin(Manifest(
        scenario=table.scenario,
        spec=asdict(table.spec),
        games=table.games,
        seed=table.seed,
        limits=asdict(table.limits),
        entries=[EntryLine(name=e.name, kind=e.kind, sha256=e.sha256, problem=e.problem) for e in entries],
    ), folder)  # fmt: skip
    pairs = list(schedule(entries))
    strikes: Counter[str] = Counter()
    pairings = []
    for number, (red, blue) in enumerate(pairs, 1):
        path = pairing_file(folder, red, blue)
        known = path.exists()
        pairing = load_pairing(path) if known else _play(red, blue, table, strikes)
        if not known:
            save_pairing(path, pairing)
        if pairing.at_fault is not None:
            strikes[pairing.at_fault] += 1
        pairings.append(pairing)
        show(Progress(number, len(pairs), pairing, not known))
    return pairings


def _play(red: Entry, blue: Entry, table: Table, strikes: Counter[str]) -> Pairing:
    out = {
        entry.name: f"out after {STRIKES} spoiled pairings"
        for entry in (red, blue)
        if strikes[entry.name] >= STRIKES and entry.kind != "broken"
    }
    if out:
        broken = {entry.name: str(entry.problem) for entry in (red, blue) if entry.kind == "broken"}
        return forfeited(red, blue, table, out | broken)
    return play_pairing(red, blue, table)


def _begin(manifest: Manifest, folder: Path) -> None:
    path = folder / MANIFEST_FILE
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise PlayerError(f"{folder}: holds something that is no cup; allowed is a new folder, or a cup to go on")
        write_whole(path, manifest.model_dump_json(indent=1))
        return
    try:
        before = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise PlayerError(f"{path}: not a cup's: {' '.join(str(error).split())[:200]}") from error
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
