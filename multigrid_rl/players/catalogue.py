"""The catalogue of players: scripted ones by name, frozen ones by name or folder, others as ``tables.NAMINGS`` says."""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from multigrid_rl import tables
from multigrid_rl.files import player_folders
from multigrid_rl.players.cards import (
    CARD_FILE,
    Card,
    PlayerError,
    PlayerFiles,
    Source,
    Strength,
    read_card,
    read_files,
    read_network,
)
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.places import place_of
from multigrid_rl.text import expected, program, shown, unknown
from multigrid_rl.types import Policy, Seats

#: Players that need no file, in words.
DESCRIPTIONS = {
    "random": "every action with the same probability",
    "idle": "does nothing",
    "key-runner": "knows the board; fetches its key, opens its door, toggles an opponent in front",
    "hunter": "knows the board; chases and eliminates opponents",
}
CATALOGUE_FILE = "catalogue.yaml"
#: What a folder that is no player may hold, and what it is then.
_BELOW = {
    **dict.fromkeys(("*/config.yaml", "*/*/config.yaml"), "a folder of runs"),
    **dict.fromkeys((f"{depth}*/{CARD_FILE}" for depth in ("", "*/", "*/*/")), "a folder of players"),
}


def _scripted(name: str, spec: Seats, seat: str = "") -> Policy:
    return place_of(spec).scripted(spec, name, seat)


#: What makes each of them for one game.
BUILT_IN: dict[str, Callable[[Seats], Policy]] = {name: partial(_scripted, name) for name in DESCRIPTIONS}


class Program(Protocol):
    """A player that is no folder with a card: a class, a program, a team of folders."""

    @property
    def title(self) -> str:
        """What it calls itself. Raises ``PlayerError``: damaged."""

    @property
    def folder(self) -> Path | None:
        """Its folder, if it has one."""

    def packed(self) -> "Program":
        """Return the same with its files in memory, for processes that do not see its folder."""

    def seat(self, spec: Any, seat: str) -> Policy:
        """Load it for a seat. Raises ``PlayerError`` or ``ConfigError``."""


class Made(NamedTuple):
    """A :class:`Program` without files: it is made where it plays."""

    title: str
    make: Callable[[Any, str], Policy]
    folder: Path | None = None

    def packed(self) -> "Made":
        """Return itself."""
        return self

    def seat(self, spec: Any, seat: str) -> Policy:
        """Make the player. Raises what ``make`` raises."""
        return self.make(spec, seat)


class Naming(NamedTuple):
    """A way to name a player: what an entry of ``tables.NAMINGS`` is."""

    #: What such a name looks like, for messages.
    form: str
    #: Finds the player of a name: the folder of a card, or a program; ``None`` for a name of another form.
    find: Callable[[str], "Path | Program | None"]
    #: Whether what it finds is code that is not ours, and is run.
    runs_code: bool = False
    #: Names that it knows, for messages.
    known: Callable[[], list[str]] = list


def namings() -> Iterator[Naming]:
    """Yield the ways to name a player, but for those of add-ons that are left out."""
    for name in tables.NAMINGS:
        if tables.has(tables.NAMINGS, name):
            yield tables.find(tables.NAMINGS, name)


def runs_code(name: str) -> bool:
    """Return whether a player of this name would be code that is not ours, such as a class or a program."""
    return any(naming.find(name) is not None for naming in namings() if naming.runs_code)


class LoadedPlayer(NamedTuple):
    """A player ready to play, and what to tell the user about it."""

    player: Policy
    name: str
    strength: list[Strength] = []  # noqa: RUF012 - of a tuple, which nobody changes
    weight: float = 1.0  # share of the games in which it plays, where several players take turns on the seat

    @property
    def sha256(self) -> str | None:
        """Hash of its weights or files; ``None`` for a built-in player."""
        return getattr(self.player, "sha256", None)

    @property
    def members(self) -> int:
        """Seats that it acts for at once."""
        return getattr(self.player, "members", 1)


#: The players of each seat; of several in one, each game draws one.
Seating = dict[str, tuple[LoadedPlayer, ...]]


def load_frozen(name: str, source: Source, card: Card, spec: Seats, seat: str, *, greedy: bool = False) -> LoadedPlayer:
    """Load the player of a card for a seat, checking hash and fit. Raises :class:`PlayerError`."""
    place = place_of(spec)
    mirrored = place.fits(spec, card, seat)
    player = FrozenPlayer.of(card, read_network(source, card), mirrored=mirrored, greedy=greedy)
    player.own = place.agents(spec, {seat: spec.team_of(seat)}, "dtde", shared=False)[0].own
    return LoadedPlayer(player, name, card.strength)


class Catalogue:
    """Players by name.

    ``root``: folder of frozen players; by default the user's folders and then the project's ``checkpoints/``.

    Attributes:
        root: where new players go.
        entries: of all folders; of a name in two the first folder's.
        given: players that were handed over, by name: files in memory, or objects of the user's own.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.folders = player_folders() if root is None else [root]
        self.root = self.folders[0]
        self.given: dict[str, PlayerFiles | Program] = {}
        self._read()

    def _read(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self._homes: dict[str, Path] = {}
        for folder in self.folders:
            path = folder / CATALOGUE_FILE
            found = _parse(path, path.read_text(encoding="utf-8")) if path.exists() else {}
            self._homes = dict.fromkeys(found, folder) | self._homes
            self.entries = found | self.entries

    def names(self) -> list[str]:
        """Return all players by name, built-in ones first."""
        return [*BUILT_IN, *(name for name in self.entries if name not in BUILT_IN)]

    def source_of(self, name: str) -> Source | Program:
        """Return where a player comes from: the folder of a card, or whatever :data:`tables.NAMINGS` finds.

        Raises ``PlayerError``: unknown.
        """
        if name in self.given:
            return self.given[name]
        if name in BUILT_IN:
            return Made(name, partial(_scripted, name))
        if name in self.entries:
            return self._homes[name] / name
        known = list(namings())
        for naming in known:
            if (found := naming.find(name)) is not None:
                return found
        if name.startswith("hf:"):
            raise PlayerError(expected("player", "a folder, as `hf download USER/NAME --local-dir FOLDER` makes", name))
        if "/" in name and not os.path.lexists(name):
            wanted = "a name, a folder that is there, or module:Class without a path"
            raise PlayerError(expected("player", wanted, f"{name}: no such folder"))
        if "/" in name or Path(name).is_dir():
            return _player_folder(Path(name))
        forms = [naming.form for naming in known]
        more = ", ".join(["{}, a folder with a frozen player", *forms[:-1]]) + f" or {forms[-1]}"
        raise PlayerError(unknown("player", name, [*self.names(), *(n for way in known for n in way.known())], more))

    def folder(self, name: str) -> Path:
        """Return the folder of a player, by catalogue name or by path. Raises :class:`PlayerError`: it has none."""
        source = self.source_of(name)
        folder = source if isinstance(source, Path) else None if isinstance(source, PlayerFiles) else source.folder
        if folder is None:
            raise PlayerError(expected("player", "one with a folder", name))
        return folder

    def card_of(self, name: str) -> Card | None:
        """Return the card of a player, ``None`` for a program. Raises :class:`PlayerError`: unknown, or damaged."""
        source = self.source_of(name)
        return read_card(source) if isinstance(source, Path | PlayerFiles) else None

    def packed(self, names: Iterable[str]) -> "Catalogue":
        """Return a catalogue of ``names`` alone, their files in it, for a process that may not see their folders.

        The files are checked when a player is seated. Raises :class:`PlayerError` where they cannot be read.
        """
        wanted = tuple(dict.fromkeys(names))
        result = copy.copy(self)
        result.entries = {name: self.entries[name] for name in wanted if name in self.entries}
        result.given = {
            name: its if isinstance(its, PlayerFiles) else read_files(its) if isinstance(its, Path) else its.packed()
            for name, its in ((name, self.source_of(name)) for name in wanted)
        }
        return result

    def title_of(self, name: str) -> tuple[str, str]:
        """Return what a player calls itself, and the scenario it was made for, 1v1 where it was for none.

        Raises ``PlayerError``: unknown or damaged.
        """
        source = self.source_of(name)
        if not isinstance(source, Path | PlayerFiles):
            return source.title, "1v1"
        card = read_card(source)
        return (name if name in self.entries else card.name), card.scenario

    def seat(self, name: str, spec: Seats, seat: str, *, greedy: bool = False) -> LoadedPlayer:
        """Load a player for a seat, checking hash and fit; a ``greedy`` network takes its likeliest action.

        Raises:
            PlayerError: unknown, damaged, or made for another seat or game.
            ConfigError: a player of the user's own (``module:Class``) that cannot be imported, or does not play.
        """
        source = self.source_of(name)
        if not isinstance(source, Path | PlayerFiles):
            strength = self.strength(name) if place_of(spec).built_in else []
            return LoadedPlayer(source.seat(spec, seat), name, strength)
        card = read_card(source)
        listed = self.entries.get(name, {}).get("sha256", card.sha256)
        if listed != card.sha256:
            wanted = f"{listed[:16]}... of the catalogue"
            raise PlayerError(expected(f"player {name}: sha256", wanted, f"{card.sha256[:16]}... on its card"))
        return load_frozen(name, source, card, spec, seat, greedy=greedy)

    def take_turns(
        self, names: Mapping[str, float], spec: Seats, seat: str, hashes: Mapping[str, str]
    ) -> tuple[LoadedPlayer, ...]:
        """Load the players (name -> weight) that take turns on a seat; ``hashes``: sha256 that some must have, by name.

        Raises :class:`PlayerError`, which names the seat.
        """
        rows = []
        for name, weight in names.items():
            try:
                row = self.seat(name, spec, seat)
            except PlayerError as error:
                raise PlayerError(f"scenario.seats.{seat}={name}: {error}") from error
            if row.sha256 != hashes.get(name, row.sha256):
                raise PlayerError(expected(f"scenario.seats.{seat}={name}: sha256", hashes[name], row.sha256))
            rows.append(row._replace(weight=weight / sum(names.values())))
        return tuple(rows)

    def strength(self, name: str) -> list[Strength]:
        """Return the measured results of a player. Raises :class:`PlayerError` for an unknown one."""
        card = self.card_of(name)
        return card.strength if card else [Strength(**row) for row in self.entries.get(name, {}).get("strength", [])]

    def add(self, name: str, entry: dict[str, Any]) -> None:
        """Append an entry under a new name; existing lines stay as they are. Raises :class:`PlayerError`: it cannot."""
        path = self.root / CATALOGUE_FILE
        block = yaml.safe_dump({name: entry}, sort_keys=False, default_flow_style=None, width=120)
        lines = "".join(f"  {line}\n" for line in block.splitlines())
        before = path.read_text(encoding="utf-8") if path.exists() else "players:\n"
        if self.root not in self._homes.values():
            # Nothing is listed yet: whatever stands for "no players" gives way to the key, comments stay.
            kept = [line for line in before.splitlines() if line.startswith("#")]
            before = "\n".join([*kept, "players:"])
        after = before.rstrip("\n") + "\n" + lines
        entries = _parse(path, after)
        if entries.get(name) != entry:
            raise PlayerError(expected(path, "a catalogue to which lines can be appended", "another form of yaml"))
        path.write_text(after, encoding="utf-8")
        self._read()


def _player_folder(folder: Path) -> Path:
    """Return a player's folder as it is. Raises :class:`PlayerError` for one that holds runs, or nothing."""
    if not (folder / CARD_FILE).exists():
        if folder.is_dir() and not any(folder.iterdir()):
            wanted = f"a folder with a player ({CARD_FILE}) or a run (config.yaml)"
            raise PlayerError(expected("player", wanted, f"{folder}, an empty one"))
        if any((folder / file).is_file() for file in tables.CHECKPOINTS):
            wanted = f"a player, as {program()} export makes one of it"
            raise PlayerError(expected("player", wanted, f"{folder}, a checkpoint of RLlib's"))
        for pattern, what in _BELOW.items():
            inside = next((file.parent for file in sorted(folder.glob(pattern))), None)
            if inside is not None:
                raise PlayerError(expected("player", f"one player or run, such as {inside}", f"{folder}, {what}"))
    return folder


def _parse(path: Path, text: str) -> dict[str, dict[str, Any]]:
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise PlayerError(expected(path, "yaml", error)) from error
    entries = (content.get("players") or {}) if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise PlayerError(expected(f"{path}: players", "a mapping of names to entries", shown(str(content))))
    for name, entry in entries.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256", ""), str):
            wanted = "a mapping whose sha256 is text"
            raise PlayerError(expected(f"{path}: players.{name}", wanted, shown(str(entry))))
    return entries
