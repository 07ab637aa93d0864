"""The catalogue of players: scripted ones by name, frozen ones by name or folder, others by ``tables.NAMINGS``."""

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

#: Descriptions of the players that need no file.
DESCRIPTIONS = {
    "random": "every action with the same probability",
    "idle": "does nothing",
    "key-runner": "knows the board; fetches its key, opens its door, toggles an opponent in front",
    "hunter": "knows the board; chases and eliminates opponents",
}
CATALOGUE_FILE = "catalogue.yaml"
#: Files in folders that are no player, and the name for such a folder.
_OTHER_FOLDERS = {
    **dict.fromkeys(("*/config.yaml", "*/*/config.yaml"), "a folder of runs"),
    **dict.fromkeys((f"{depth}*/{CARD_FILE}" for depth in ("", "*/", "*/*/")), "a folder of players"),
}


def _scripted(name: str, spec: Seats, seat: str = "") -> Policy:
    return place_of(spec).scripted(spec, name, seat)


#: Makers of the built-in players for one game.
BUILT_IN: dict[str, Callable[[Seats], Policy]] = {name: partial(_scripted, name) for name in DESCRIPTIONS}


class Program(Protocol):
    """A player without a folder with a card: a class, a program, a team of folders."""

    @property
    def title(self) -> str:
        """Its name for itself. Raises ``PlayerError``: damaged."""

    @property
    def folder(self) -> Path | None:
        """Its folder, if it has one."""

    def packed(self) -> "Program":
        """Return a copy with its files in memory, for processes without access to its folder."""

    def seat(self, spec: Any, seat: str) -> Policy:
        """Load it for a seat. Raises ``PlayerError`` or ``ConfigError``."""


class PlayerMaker(NamedTuple):
    """A :class:`Program` without files, which makes its player when it is seated."""

    title: str
    make: Callable[[Any, str], Policy]
    folder: Path | None = None

    def packed(self) -> "PlayerMaker":
        """Return itself."""
        return self

    def seat(self, spec: Any, seat: str) -> Policy:
        """Make the player. Raises what ``make`` raises."""
        return self.make(spec, seat)


class Naming(NamedTuple):
    """A way to name a player: an entry of ``tables.NAMINGS``."""

    #: Form of such names, for messages.
    form: str
    #: Finds the player of a name: the folder of a card, or a program; ``None`` for a name of another form.
    find: Callable[[str], "Path | Program | None"]
    #: Whether it finds code from outside of this package, which then runs.
    runs_code: bool = False
    #: Names that it knows, for messages.
    known: Callable[[], list[str]] = list


def namings() -> Iterator[Naming]:
    """Yield the ways to name a player, without those of add-ons that are not installed."""
    yield from (naming for _, naming in tables.loaded(tables.NAMINGS))


def runs_code(name: str) -> bool:
    """Return whether a player of this name runs code from outside of this package, such as a class or a program."""
    return any(naming.find(name) is not None for naming in namings() if naming.runs_code)


class LoadedPlayer(NamedTuple):
    """A player ready to play, with its name and results for the user."""

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
        """Number of seats that it acts for at once."""
        return getattr(self.player, "members", 1)


#: The players of each seat; each game draws one of several.
Seating = dict[str, tuple[LoadedPlayer, ...]]


def load_frozen(name: str, source: Source, card: Card, spec: Seats, seat: str, *, greedy: bool = False) -> LoadedPlayer:
    """Load the player of a card for a seat, checking hash and fit. Raises :class:`PlayerError`."""
    place = place_of(spec)
    mirrored = place.fits(spec, card, seat)  # before its weights are read
    player = FrozenPlayer.of(card, read_network(source, card), mirrored=mirrored, greedy=greedy)
    player.env_seat = place.agents(spec, {seat: spec.team_of(seat)}, "dtde", shared=False)[0].own
    return LoadedPlayer(player, name, card.strength)


class Catalogue:
    """Players by name.

    ``root``: folder of frozen players; by default the user's folders and then the project's ``checkpoints/``.

    Attributes:
        root: folder for new players.
        entries: entries of all folders; the first folder with a name counts.
        given: players that were passed in, by name: files in memory, or a user's objects.
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
        """Return where a player comes from: the folder of a card, or what :data:`tables.NAMINGS` finds.

        Raises ``PlayerError``: unknown.
        """
        if name in self.given:
            return self.given[name]
        if name in BUILT_IN:
            return PlayerMaker(name, partial(_scripted, name))
        if name in self.entries:
            return self._homes[name] / name
        ways = list(namings())
        for naming in ways:
            if (found := naming.find(name)) is not None:
                return found
        if name.startswith("hf:"):
            raise PlayerError(expected("player", "a folder, as `hf download USER/NAME --local-dir FOLDER` makes", name))
        if "/" in name and not os.path.lexists(name):
            wanted = "a name, a folder that is there, or module:Class without a path"
            raise PlayerError(expected("player", wanted, f"{name}: no such folder"))
        if "/" in name or Path(name).is_dir():
            return _player_folder(Path(name))
        forms = [naming.form for naming in ways]
        more = ", ".join(["{}, a folder with a frozen player", *forms[:-1]]) + f" or {forms[-1]}"
        raise PlayerError(unknown("player", name, [*self.names(), *(n for way in ways for n in way.known())], more))

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
        """Return a catalogue of only ``names``, with their files, for a process without access to their folders.

        The files are checked when a player is seated. Raises :class:`PlayerError`: they cannot be read.
        """
        wanted = tuple(dict.fromkeys(names))
        result = copy.copy(self)
        result.entries = {name: self.entries[name] for name in wanted if name in self.entries}
        result.given = {}
        for name in wanted:
            source = self.source_of(name)
            player = read_files(source) if isinstance(source, Path) else source
            result.given[name] = player if isinstance(player, PlayerFiles) else player.packed()
        return result

    def title_of(self, name: str) -> tuple[str, str]:
        """Return a player's name for itself and the scenario that it was made for, 1v1 if for none.

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
            ConfigError: a user's player (``module:Class``) cannot be imported, or does not play.
        """
        source = self.source_of(name)
        if not isinstance(source, Path | PlayerFiles):
            return LoadedPlayer(source.seat(spec, seat), name, self.strength(name) if place_of(spec).built_in else [])
        card = read_card(source)
        if (listed := self.entries.get(name, {}).get("sha256", card.sha256)) != card.sha256:
            wanted = f"{listed[:16]}... of the catalogue"
            raise PlayerError(expected(f"player {name}: sha256", wanted, f"{card.sha256[:16]}... on its card"))
        return load_frozen(name, source, card, spec, seat, greedy=greedy)

    def load_mixture(
        self, names: Mapping[str, float], spec: Seats, seat: str, hashes: Mapping[str, str]
    ) -> tuple[LoadedPlayer, ...]:
        """Load the players (name -> weight) that take turns on a seat; ``hashes``: required sha256 by name, of some.

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
        """Append an entry under a new name and keep the lines of others. Raises :class:`PlayerError`: it cannot."""
        path = self.root / CATALOGUE_FILE
        block = yaml.safe_dump({name: entry}, sort_keys=False, default_flow_style=None, width=120)
        lines = "".join(f"  {line}\n" for line in block.splitlines())
        before = path.read_text(encoding="utf-8") if path.exists() else "players:\n"
        if self.root not in self._homes.values():
            # Nothing is listed yet: the key replaces any form of "no players", comments stay.
            comments = [line for line in before.splitlines() if line.startswith("#")]
            before = "\n".join([*comments, "players:"])
        after = before.rstrip("\n") + "\n" + lines
        entries = _parse(path, after)
        if entries.get(name) != entry:
            raise PlayerError(expected(path, "a catalogue to which lines can be appended", "another form of yaml"))
        path.write_text(after, encoding="utf-8")
        self._read()


def _player_folder(folder: Path) -> Path:
    """Return a player's folder unchanged. Raises :class:`PlayerError` for one that holds runs, or nothing."""
    if not (folder / CARD_FILE).exists():
        if folder.is_dir() and not any(folder.iterdir()):
            wanted = f"a folder with a player ({CARD_FILE}) or a run (config.yaml)"
            raise PlayerError(expected("player", wanted, f"{folder}, an empty one"))
        if any((folder / file).is_file() for file in tables.CHECKPOINTS):
            wanted = f"a player, as {program()} export makes one of it"
            raise PlayerError(expected("player", wanted, f"{folder}, a checkpoint of RLlib's"))
        for pattern, kind in _OTHER_FOLDERS.items():
            inside = next((file.parent for file in sorted(folder.glob(pattern))), None)
            if inside is not None:
                raise PlayerError(expected("player", f"one player or run, such as {inside}", f"{folder}, {kind}"))
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
