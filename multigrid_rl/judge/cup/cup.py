"""A cup: everybody against everybody, from both sides, on the same games. Goes on where it was killed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from multigrid_rl.judge.cup.entries import Entry, Table
from multigrid_rl.judge.cup.keeping import as_handed_in, guarded, keep_agents
from multigrid_rl.judge.cup.manifest import EntryLine, Manifest, begin
from multigrid_rl.judge.cup.pairings import Pairing, forfeited, load_pairing, pairing_file, play_pairing, save_pairing

LOG = logging.getLogger(__name__)
#: Pairings that an entry may spoil before it is out of the cup: one that hangs would else cost a night.
STRIKES = 3


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
    Only what was there at the start counts as played; the rest is held in memory and compared with its file at the end.

    Raises:
        PlayerError: ``folder`` holds another cup, or something else.
        ScratchError, OSError: this machine has no room for results or agents.
    """
    entries = as_handed_in(entries, folder)
    begin(Manifest(
        scenario=table.scenario,
        spec=asdict(table.spec),
        games=table.games,
        seed=table.seed,
        agents_key=table.agents_key,
        limits=asdict(table.limits),
        entries=[EntryLine(name=e.name, kind=e.kind, sha256=e.sha256, problem=e.problem) for e in entries],
    ), folder)  # fmt: skip
    pairs = list(schedule(keep_agents(entries, folder)))
    paths = [pairing_file(folder, red, blue) for red, blue in pairs]
    held = {path: load_pairing(path) for path in paths if path.exists()}
    strikes: Counter[str] = Counter()
    pairings = []
    with guarded(folder, held):
        for number, (path, (red, blue)) in enumerate(zip(paths, pairs, strict=True), 1):
            known = path in held
            pairing = held[path] if known else _play(red, blue, table, strikes)
            if not known:
                _save(path, pairing)
                held[path] = pairing
            if pairing.at_fault is not None:
                strikes[pairing.at_fault] += 1
            pairings.append(pairing)
            show(Progress(number, len(pairs), pairing, not known))
    return pairings


def _save(path: Path, pairing: Pairing) -> None:
    if path.exists():
        LOG.warning("%s: written while the cup ran, not by the cup; what was played takes its place", path)
    save_pairing(path, pairing)


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
