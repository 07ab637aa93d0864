"""Who takes part in a cup: bundles, external agents, players by name, and whatever else was handed in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from multigrid_rl.players.agents import AGENT_FILE, read_agent
from multigrid_rl.players.bundle import bundle_sha256, load_team
from multigrid_rl.players.cards import CARD_FILE, PlayerError, read_card
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, WHAT, Catalogue
from multigrid_rl.players.external import ExternalPlayer
from multigrid_rl.players.sandbox import Limits
from multigrid_rl.types import GameSpec, Policy

Kind = Literal["scripted", "frozen", "external", "broken"]

#: Files that somebody may have taken for an entry; others beside the entries (lists, notes) are nobody's.
HANDED_IN = (".zip", ".tar", ".gz", ".tgz", ".safetensors", ".pt", ".pth", ".pkl", ".json", ".py")
_TEAMS = ("red", "blue")


@dataclass(frozen=True)
class Entry:
    """One entry of a cup.

    Attributes:
        name: of its folder, or of the player.
        kind: what it is; ``broken`` forfeits every game.
        about: one line on what it is.
        sha256: of its files; ``None`` for scripted players.
        problem: why it is broken.
        folder: its files; ``None`` for scripted players.
    """

    name: str
    kind: Kind
    about: str
    sha256: str | None = None
    problem: str | None = None
    folder: Path | None = None

    @contextmanager
    def seated(self, game: Table, team: str) -> Iterator[dict[str, Policy]]:
        """Its players for ``team``, as a match takes them; an external agent's process ends with the block.

        Raises:
            PlayerError: it cannot be loaded.
            PlayerFaultError: an external agent does not start.
        """
        if self.kind == "scripted" or self.folder is None:
            yield {seat: BUILT_IN[self.name](game.spec) for seat in game.spec.seats if game.spec.team_of(seat) == team}
        elif self.kind == "external":
            agent = replace(read_agent(self.folder), name=self.name)
            # Not the games' own seed: whoever knows that one knows where the keys will lie.
            seed = int(hashlib.sha256(f"{game.seed} {team}".encode()).hexdigest()[:8], 16)
            with ExternalPlayer(agent, game.spec, team, game.scenario, seed, game.limits) as player:
                player.start(game.games)
                seats = [seat for seat in game.spec.seats if game.spec.team_of(seat) == team]
                yield {team if len(seats) > 1 else seats[0]: player}
        else:
            yield load_team(self.folder, game.spec, team)


@dataclass(frozen=True)
class Table:
    """What is played at every table of a cup.

    Attributes:
        scenario: its name.
        spec: the game.
        games: for each pair and side.
        seed: of the games; the same at every table, so that everybody meets the same layouts.
        limits: of external agents.
    """

    scenario: str
    spec: GameSpec
    games: int
    seed: int
    limits: Limits


def find_entries(folder: Path, names: list[str], catalogue: Catalogue, table: Table) -> list[Entry]:
    """Entries in ``folder``, one for each folder below it, and players of ``catalogue``; in alphabetical order.

    Whatever is wrong with an entry makes it ``broken`` and is told in its ``problem``; it never raises. Where the
    folder is a catalogue of frozen players, those of other scenarios stay away.

    Raises:
        PlayerError: no such folder, an unknown player, a name twice, fewer than two entries.
    """
    if not folder.is_dir():
        raise PlayerError(f"{folder}: no such folder; allowed is a folder with one folder for each entry")
    listed = Catalogue(folder).entries if (folder / CATALOGUE_FILE).is_file() else {}
    entries = []
    for path in sorted(folder.iterdir()):
        home = listed.get(path.name, {}).get("scenario", table.scenario)
        if path.name.startswith((".", "_")) or home != table.scenario:
            continue
        if path.is_dir() or path.suffix in HANDED_IN or path.is_symlink():
            entries.append(_entry(path, table))
    entries += [_by_name(name, catalogue, table) for name in names]
    twice = sorted({e.name for e in entries if sum(other.name == e.name for other in entries) > 1})
    if twice:
        raise PlayerError(f"{twice[0]}: two entries of this name; allowed is each name once")
    if len(entries) < 2:
        raise PlayerError(f"{folder}: {len(entries)} entries; allowed is at least 2 (see --with)")
    return sorted(entries, key=lambda entry: entry.name)


def _by_name(name: str, catalogue: Catalogue, table: Table) -> Entry:
    if name in BUILT_IN:
        return Entry(name, "scripted", f"built in: {WHAT[name]}")
    if name not in catalogue.entries:
        raise PlayerError(f"--with {name}: unknown; allowed is {', '.join(catalogue.names())}")
    entry = _entry(catalogue.folder(name), table)
    if entry.problem is not None:
        raise PlayerError(f"--with {name}: {entry.problem}")
    return entry


def _entry(path: Path, table: Table) -> Entry:
    name = path.name
    try:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}", name):
            raise PlayerError("its name: allowed are 1 to 64 letters, digits, blanks and . _ -")
        if not path.is_dir():
            raise PlayerError("is a file; allowed is a folder with a bundle or an external agent")
        if (path / AGENT_FILE).exists():
            agent = read_agent(path)
            return Entry(name, "external", " ".join(agent.command), agent.sha256, folder=path)
        for team in _TEAMS:
            load_team(path, table.spec, team)
        return Entry(name, "frozen", _about(path), bundle_sha256(path), folder=path)
    except PlayerError as error:
        # Absolute paths are this machine's business and do not belong on the entry's page.
        said = " ".join(str(error).replace(f"{path}/", "").replace(str(path), name).split())
        return Entry(name, "broken", "cannot play", problem=said, folder=path)


def _about(path: Path) -> str:
    folder = path if (path / CARD_FILE).is_file() else next(p for p in sorted(path.iterdir()) if p.is_dir())
    card = read_card(folder)
    steps = card.provenance.get("env_steps", 0)
    return f"{card.architecture['name']} for {', '.join(card.seats)} of {card.scenario}, {steps:,} training steps"
