"""What a cup keeps for itself, since agents write where they like: a copy of each agent, and every result in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from multigrid_rl.judge.cup.entries import UNREADABLE, Entry, external
from multigrid_rl.judge.cup.manifest import read_manifest
from multigrid_rl.judge.cup.pairings import PAIRINGS, Pairing, load_pairing, save_pairing
from multigrid_rl.players.agents import copy_folder, folder_sha256
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.scratch import remove_tree

LOG = logging.getLogger(__name__)
#: Folder of a cup with a copy of each agent as it was handed in.
COPIES = "entries"


def as_handed_in(entries: list[Entry], folder: Path) -> list[Entry]:
    """``entries`` as they were when the cup in ``folder`` began: agents that have changed since are told and replaced.

    Raises:
        PlayerError: the folder holds something else than a cup.
    """
    before = read_manifest(folder)
    hashes = {line.name: line.sha256 for line in before.entries if line.kind == "external"} if before else {}
    return [_first(entry, folder / COPIES, hashes.get(entry.name)) for entry in entries]


def _first(entry: Entry, copies: Path, sha256: str | None) -> Entry:
    if sha256 is None or (entry.kind, entry.sha256) == ("external", sha256):
        return entry
    try:
        kept = external(copies / entry.name, entry.name)
    except UNREADABLE:
        return entry
    if kept.sha256 != sha256:
        return entry
    LOG.warning("entry %s: its folder has changed since the cup began; it plays as it was handed in", entry.name)
    return kept


def keep_agents(entries: list[Entry], folder: Path) -> list[Entry]:
    """Copy agents into ``folder``, where they are not there yet; returns entries that play from these copies.

    Raises:
        PlayerError: an agent's files cannot be read any more.
        OSError: ``folder`` cannot be written.
    """
    return [_kept(entry, folder / COPIES / entry.name) if entry.kind == "external" else entry for entry in entries]


def _kept(entry: Entry, home: Path) -> Entry:
    assert entry.folder is not None
    if not _is(home, entry.sha256):
        remove_tree(home)
        copy_folder(entry.folder, home)
    return replace(entry, folder=home)


def _is(folder: Path, sha256: str | None) -> bool:
    try:
        return not folder.is_symlink() and folder_sha256(folder) == sha256
    except UNREADABLE:
        return False


@contextmanager
def guarded(folder: Path, held: dict[Path, Pairing]) -> Iterator[None]:
    """See to it, at the end of the block, that the results in ``folder`` are those in ``held`` and no others."""
    try:
        yield
    finally:
        for path in sorted((folder / PAIRINGS).glob("*.json")):
            if path not in held:
                aside = path.with_suffix(".refused")
                path.replace(aside)
                LOG.warning("%s: written while the cup ran, not by the cup; now %s", path, aside.name)
        for path, pairing in held.items():
            if not _holds(path, pairing):
                LOG.warning("%s: changed while the cup ran, not by the cup; written again", path)
                save_pairing(path, pairing)


def _holds(path: Path, pairing: Pairing) -> bool:
    try:
        return load_pairing(path).model_dump_json() == pairing.model_dump_json()
    except PlayerError:
        return False
