"""The catalogue of players: scripted ones by name, frozen ones by name or folder, agents by their folder.

One's own classes are named ``module:Class``: they are tried before anything starts, and watched while they play.
"""

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from multigrid_rl.competition.agents import Part, is_agent, read_agent, read_parts
from multigrid_rl.competition.external import SeatedAgent
from multigrid_rl.competition.hub import fetched
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
from multigrid_rl.players.frozen import FrozenPlayer, check_fits
from multigrid_rl.players.scripted import Hunter, IdlePlayer, KeyRunner, RandomPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError, expected, shown, unknown
from multigrid_rl.types import GameSpec, Policy, RunError, SeatView, UniformSource
from multigrid_rl.user_code import CODE, import_object, user_code
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.engine import World

#: Players that need no file. Each is made for one game.
BUILT_IN: dict[str, Callable[[GameSpec], Policy]] = {
    "random": lambda spec: RandomPlayer(),  # noqa: ARG005
    "idle": lambda spec: IdlePlayer(),  # noqa: ARG005
    "key-runner": KeyRunner,
    "hunter": Hunter,
}
#: What they are, in words.
WHAT = {
    "random": "every action with the same probability",
    "idle": "does nothing",
    "key-runner": "knows the board; fetches its key, opens its door, toggles an opponent in front",
    "hunter": "knows the board; chases and eliminates opponents",
}
CATALOGUE_FILE = "catalogue.yaml"
#: Entry points by which an installed package gives its classes of players names.
PLUGGED_IN = "multigrid_rl.players"
#: In which a player of the user's own is tried.
_GAMES = 3


def code_of(name: str) -> str | None:
    """Return the ``module:Class`` of a player of the user's own, also by the name that its package gives it."""
    if CODE.fullmatch(name):
        return name
    return next((point.value for point in entry_points(group=PLUGGED_IN, name=name)), None)


def is_program(name: str) -> bool:
    """Whether a player is code, ours or the user's class, and has no folder."""
    return name in BUILT_IN or code_of(name) is not None


def refuse_class(key: str, name: str) -> None:
    """Refuse a player of the user's own where one must have a folder. Raises :class:`PlayerError`."""
    if code_of(name) is not None:
        wanted = "a player with a folder (a Python class takes part as an agent that calls it, docs/extending.md)"
        raise PlayerError(expected(key, wanted, name))


class OwnPlayer:
    """A player of the user's own as a match takes it; what it needs not have is added, what it answers is checked.

    Args:
        name: what it is called.
        player: has ``act``; with memory also ``initial_state`` and ``reset_state``.
    """

    def __init__(self, name: str, player: Any) -> None:
        self.name = name
        self.player = player
        self.reads_board = bool(getattr(player, "reads_board", True))
        self._remembers = hasattr(player, "initial_state")

    def initial_state(self, games: int) -> Any:
        """Return its memory of ``games`` fresh games."""
        return self.player.initial_state(games) if self._remembers else None

    def reset_state(self, state: Any, done: NDArray[np.bool_]) -> Any:
        """Return its memory with the games in ``done`` (N,) started afresh."""
        return self.player.reset_state(state, done) if self._remembers else None

    def act(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[np.int8], Any]:
        """Return its actions (N,). Raises ``RunError``: it failed, or answered something else."""
        try:
            with user_code(f"player {self.name}"):
                return self.checked(view, state, rng)
        except ConfigError as error:
            raise RunError(str(error)) from error

    def checked(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[np.int8], Any]:
        """Return its actions (N,). Raises :class:`ConfigError` for other ones, and whatever its code raises."""
        answer = self.player.act(view, state, rng)
        if not isinstance(answer, tuple) or len(answer) != 2:
            wanted = "actions and the next memory, a tuple of two"
            raise ConfigError(expected(f"player {self.name}: act", wanted, type(answer).__name__))
        actions = np.asarray(answer[0])
        good = actions.shape == (len(view.tokens),) and actions.dtype.kind in "iu"
        if not good or ((actions < 0) | (actions >= len(ACTIONS))).any():
            wanted = f"integers 0 to {len(ACTIONS) - 1}, one for each of {len(view.tokens)} games"
            got = f"{actions.dtype} of shape {actions.shape}: {shown(str(actions.tolist()), 40)}"
            raise ConfigError(expected(f"player {self.name}: actions", wanted, got))
        return actions.astype(np.int8), answer[1]


def watched(name: str, own: Any, spec: GameSpec, seat: str) -> OwnPlayer:
    """Return a player that acted once on ``seat`` of three games. Raises :class:`ConfigError`: it cannot."""
    with user_code(f"player {name}"):
        if not hasattr(own, "act"):
            raise ConfigError(expected(f"player {name}", "something with act(view, state, rng)", type(own).__name__))
        memory = [part for part in ("initial_state", "reset_state") if hasattr(own, part)]
        if len(memory) == 1:
            raise ConfigError(expected(f"player {name}", "both initial_state and reset_state, or neither", memory[0]))
        player = OwnPlayer(name, own)
        world, agent = World(spec, _GAMES), spec.seats.index(seat)
        view = SeatView(world.outputs.tokens[:, agent], world.board(), agent)
        state = player.initial_state(_GAMES)
        _, state = player.checked(view, state, Streams(0, np.arange(_GAMES)))
        if not memory and state is not None:
            wanted = "None as the next memory without initial_state and reset_state"
            raise ConfigError(expected(f"player {name}: act", wanted, type(state).__name__))
        player.reset_state(state, np.ones(_GAMES, np.bool_))
    return player


class LoadedPlayer(NamedTuple):
    """A player ready to play, and what to tell the user about it."""

    player: Policy
    name: str
    sha256: str | None  # of the weights; None for built-in players
    strength: list[Strength]
    weight: float = 1.0  # share of the games in which it plays, where several players take turns on the seat
    members: int = 1  # seats that it acts for at once


def load_frozen(
    name: str, source: Source, card: Card, spec: GameSpec, seat: str, *, greedy: bool = False
) -> LoadedPlayer:
    """Load the player of a card for a seat, checking hash and fit. Raises :class:`PlayerError`."""
    mirrored = check_fits(card, spec, seat)
    player = FrozenPlayer.of(card, read_network(source, card), mirrored=mirrored, greedy=greedy)
    return LoadedPlayer(player, name, card.sha256, card.strength, members=card.members)


class Catalogue:
    """Players by name.

    Args:
        root: folder of frozen players; by default the user's folders and then the project's ``checkpoints/``.

    Attributes:
        root: where new players go.
        entries: of all folders; of a name in two the first folder's.
        objects: players of the user's own that were handed over as objects, by their ``module:Class``.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.folders = player_folders() if root is None else [root]
        self.root = self.folders[0]
        self.objects: dict[str, Any] = {}
        self._files: dict[str, PlayerFiles | list[Part]] = {}
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

    def folder(self, name: str) -> Path:
        """Return the folder of a frozen player, by catalogue name or by path. Raises :class:`PlayerError`."""
        if name in self.entries and name not in BUILT_IN:
            return self._homes[name] / name
        if name.startswith("hf:"):
            return fetched(name)
        if "/" in name and not os.path.lexists(name):
            wanted = "a name, a folder that is there, or module:Class without a path"
            raise PlayerError(expected("player", wanted, f"{name}: no such folder"))
        if "/" in name or Path(name).is_dir():
            return _player_folder(Path(name))
        plugged = (point.name for point in entry_points(group=PLUGGED_IN))
        more = "{}, a folder with a frozen player or an agent, module:Class, or hf:user/name"
        raise PlayerError(unknown("player", name, [*self.names(), *plugged], more))

    def packed(self, names: Iterable[str]) -> "Catalogue":
        """Return a catalogue of ``names`` alone, their files in it, for a process that may not see their folders.

        The files are checked when a player is seated. Raises :class:`PlayerError` where they cannot be read.
        """
        wanted = tuple(dict.fromkeys(names))
        result = copy.copy(self)
        result.entries = {name: self.entries[name] for name in wanted if name in self.entries}
        sources = {name: self._source(name) for name in wanted if not is_program(name)}
        result._files = {name: read_files(its) if isinstance(its, Path) else its for name, its in sources.items()}
        return result

    def home_of(self, name: str) -> tuple[str, str]:
        """Return what a player calls itself, and the scenario it was made for, 1v1 where it was for none.

        Raises:
            PlayerError: unknown or damaged.
        """
        if is_program(name):
            return name, "1v1"
        folder = self.folder(name)
        if is_agent(folder):
            return read_agent(folder).name, "1v1"
        card = read_card(folder)
        return (name if name in self.entries else card.name), card.scenario

    def _source(self, name: str) -> Source | list[Part]:
        """Return where a player that is no program comes from; of an agent all its files. Raises ``PlayerError``."""
        if name in self._files:
            return self._files[name]
        folder = self.folder(name)
        if not is_agent(folder):
            return folder
        read_agent(folder)
        return list(read_parts(folder))

    def seat(self, name: str, spec: GameSpec, seat: str, *, greedy: bool = False) -> LoadedPlayer:
        """Load a player for a seat, checking hash and fit; a ``greedy`` network takes its likeliest action.

        Raises:
            PlayerError: unknown, damaged, or made for another seat or game.
            ConfigError: a player of the user's own (``module:Class``) that cannot be imported, or does not play.
        """
        if name in BUILT_IN:
            return LoadedPlayer(BUILT_IN[name](spec), name, None, self.strength(name))
        if name in self.objects:
            return LoadedPlayer(watched(name, self.objects[name], spec, seat), name, None, [])
        if name not in self.entries and (code := code_of(name)) is not None:
            with user_code(f"player {code}"):
                own = import_object(f"player {code}", code, "module:Class")(spec)
            return LoadedPlayer(watched(code, own, spec, seat), name, None, [])
        source = self._source(name)
        if isinstance(source, list):
            agent = SeatedAgent(name, source, spec, (seat,))
            return LoadedPlayer(agent, name, agent.sha256, [])
        card = read_card(source)
        listed = self.entries.get(name, {}).get("sha256", card.sha256)
        if listed != card.sha256:
            wanted = f"{listed[:16]}... of the catalogue"
            raise PlayerError(expected(f"player {name}: sha256", wanted, f"{card.sha256[:16]}... on its card"))
        return load_frozen(name, source, card, spec, seat, greedy=greedy)

    def take_turns(
        self, names: Mapping[str, float], spec: GameSpec, seat: str, hashes: Mapping[str, str]
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
        if is_program(name):
            return [Strength(**row) for row in self.entries.get(name, {}).get("strength", [])]
        source = self._source(name)
        return [] if isinstance(source, list) else read_card(source).strength

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
    """Return a player's folder as it is. Raises :class:`PlayerError` for one that holds runs."""
    if not (folder / CARD_FILE).exists() and not is_agent(folder):
        run = next(
            (file.parent for depth in ("*", "*/*") for file in sorted(folder.glob(f"{depth}/config.yaml"))), None
        )
        if run is not None:
            raise PlayerError(expected("player", f"one player or run, such as {run}", f"{folder}, a folder of runs"))
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
