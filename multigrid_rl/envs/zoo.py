"""What a game of PettingZoo's kind is, whoever brings it, and what its seats see and do.

What an agent sees becomes a vector of floats, flattened as Gymnasium does it; pixels of a byte become 0 to 1. Flags of
the legal choices, where a game has such, come behind it: ``action_mask`` of a dictionary that it sees, or of its info.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.envs.base import TimeLimit, flat_actions, reset_seed, unfit_actions
from multigrid_rl.tables import entries, find
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.trust import mistake
from multigrid_rl.types import MAX_NUMBERS

LOG = logging.getLogger(__name__)
Array = NDArray[Any]
#: Argument of every environment: an episode is truncated after so many steps.
LIMIT = "max_episode_steps"
#: Starts that are drawn before an environment counts as one in which nobody ever moves.
_STARTS = 100
#: Rounds in which it is looked whether an environment tells what is legal, where its start does not.
_ROUNDS = 3
#: What an agent is shown: an observation and its info.
Shown = dict[str, tuple[Any, Mapping[str, Any]]]
#: Where is said which choices are legal.
LEGAL = "action_mask"
#: Environment variables with which pygame draws without a window.
QUIET = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
#: How a game is drawn: as text, or as a picture (H, W, 3) uint8.
How = Literal["text", "picture"]


@dataclass
class Happened:
    """What came of a start or of one step of one environment; every mapping is by agent."""

    seen: Shown  # of whom it shows something
    turn: tuple[str, ...]  # who moves next; nobody: the episode is over
    paid: dict[str, float] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)  # whose episode ended: for good, or else by a time limit
    owed: dict[str, float] = field(default_factory=dict)  # paid when they move next, or the episode is cut before
    others: Callable[[], Shown] = dict  # what the others see, asked where the episode is cut


class Game(Protocol):
    """One environment, however its agents take turns: an entry of ``tables.GAMES`` opens one.

    Attributes:
        agents: all there may be.
        turns: one moves after the other.
        draws: how it can be drawn, and the further arguments with which it is built to be drawn so.
        fps: steps a second at which it is shown.
    """

    agents: tuple[str, ...]
    turns: bool
    draws: Mapping[How, Mapping[str, Any]]
    fps: float

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Return what an agent sees and what it does."""

    def start(self, seed: int) -> Happened:
        """Begin an episode."""

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one step with the actions of whose turn it is."""

    def drawn(self, how: How, agent: str | None = None) -> Any:
        """Draw it as it stands; as text no more than an ``agent`` may know."""

    def named(self, agent: str, action: int) -> str:
        """Return the name of a choice: its number where the game has no names."""

    def close(self) -> None:
        """Let go of windows, threads and files."""


def open_game(env_id: str, env_args: Mapping[str, Any], how: How | None = None) -> Game:
    """Build one environment.

    Args:
        env_id: ``pettingzoo:FAMILY/NAME-vN`` as registered, ``pettingzoo:MODULE`` with ``parallel_env`` or ``env`` in
            it, ``pettingzoo:MODULE:FUNCTION``, or what another entry of ``tables.GAMES`` opens: ``openspiel:GAME``.
        env_args: arguments of it; ``max_episode_steps`` cuts its episodes, too: see :class:`PettingZooEnvs`.
        how: to be drawn so; ``None``: not at all.

    Raises ``ValueError``: one line naming the key and what is wrong, or that it cannot be drawn so.
    """
    if env_args.get("render_mode") is not None:
        raise ValueError(expected("env_args", "no render_mode (pages and films ask for it)", env_args["render_mode"]))
    most = env_args.get(LIMIT, 1)
    if type(most) is not int or most < 1:
        raise ValueError(expected(f"env_args.{LIMIT}", "a whole number of at least 1", most))
    beginning, _, rest = env_id.partition(":")
    table = entries("games")
    name, build = (rest, find(table, beginning)) if beginning in table else (env_id, find(table, "pettingzoo"))
    game: Game = build(name, env_args)
    if how is None:
        return game
    if how not in game.draws:
        got = " or a ".join(game.draws) or "none"
        raise ValueError(expected(f"env_id={env_id}", f"a game that draws a {how}", got))
    if how == "picture":  # pygame opens no window, plays no sound and greets nobody on standard output
        os.environ.update({**QUIET, **os.environ})
    drawable: Game = build(name, {**env_args, **game.draws[how]})
    return drawable


def begun(game: Game, seed: int) -> Happened:
    """Begin an episode; a start in which nobody is to move is drawn again."""
    now = game.start(seed)
    for again in range(1, _STARTS):
        if now.turn:
            break
        now = game.start(reset_seed(seed, again, 0))
    return now


class Seat(NamedTuple):
    """What one agent of an environment sees and does."""

    seen: spaces.Space[Any]  # its own observation space, without flags of legal choices
    acts: spaces.Space[Any]  # its own action space
    size: int  # D: numbers of the flattened observation, flags included
    legal: int  # how many of them, the last ones, say which choices are legal
    pixels: tuple[tuple[int, int], ...]  # which of its numbers are bytes of 0 to 255, and become 0 to 1: from, to
    boxed: str  # where the observation stands in a dictionary with flags; " ": it is all the rest; empty: no such one

    @property
    def space(self) -> spaces.Box:
        """What its network reads."""
        return spaces.Box(-np.inf, np.inf, (self.size,), np.float32)

    @property
    def image(self) -> tuple[int, ...]:
        """Height, width and channels, where it sees an image: the first numbers; empty where it does not."""
        shape = self.seen.shape if isinstance(self.seen, spaces.Box) else ()
        return shape if len(shape) == 3 else ()

    @property
    def plain(self) -> tuple[int, ...] | None:
        """Shape of an observation that :meth:`read` copies as it comes; ``None`` where it makes something of all."""
        vector = isinstance(self.seen, spaces.Box) and len(self.seen.shape) == 1
        return self.seen.shape if vector and not (self.pixels or self.legal) else None

    @property
    def taken(self) -> dict[str, Any]:
        """The part of a card that says how the environment takes actions."""
        start = np.reshape(getattr(self.acts, "start", []), -1).tolist()
        return {"taken": {"shape": list(self.acts.shape), "dtype": str(self.acts.dtype), "start": start}}

    @property
    def parts(self) -> tuple[int, ...]:
        """Where the flags of each part of an action begin."""
        return (0, *np.cumsum(flat_actions(self.acts).nvec)[:-1].tolist())

    def read(self, obs: Any, info: Mapping[str, Any], row: NDArray[np.float32]) -> None:
        """Write an observation into ``row`` (D,). Raises ``ConfigError``: it is not of its space."""
        legal = obs[LEGAL] if self.boxed else info.get(LEGAL)
        if self.boxed:
            obs = obs[self.boxed] if self.boxed in obs else {key: obs[key] for key in obs if key != LEGAL}
        own = self.size - self.legal
        if isinstance(self.seen, spaces.Box):
            flat = np.asarray(obs)
            if flat.shape != self.seen.shape:
                raise ConfigError(expected("observation", f"shape {self.seen.shape} of its space", flat.shape))
            row[:own] = flat.reshape(-1)
        else:
            flat = spaces.flatten(self.seen, obs)
            if len(flat) != own:  # numpy would stretch a single number
                raise ConfigError(expected("observation", f"{own} numbers of {self.seen}", len(flat)))
            row[:own] = flat
        for begin, end in self.pixels:
            row[begin:end] /= 255
        if self.legal and legal is None:
            row[own:] = 1.0  # who may do anything, or has nothing to decide, need not say so
        elif self.legal:
            flags = np.concatenate(legal) if isinstance(legal, tuple) else np.asarray(legal).reshape(-1)
            if len(flags) != self.legal:
                raise ConfigError(expected(LEGAL, f"{self.legal} flags", len(flags)))
            row[own:] = flags
        elif legal is not None and not isinstance(self.acts, spaces.Box):
            wanted = f"flags within the first {_ROUNDS} rounds"
            raise ConfigError(expected(LEGAL, wanted, "the first ones later"))


def rows_of(observation: Any, size: int, own: Seat | None) -> tuple[Array, bool]:
    """Return what a network reads (N, D), and whether several were asked.

    Args:
        observation: numbers, or one that an environment shows, of ``info`` with its flags beside it in a dictionary.
        size: length ``D``.
        own: of that environment.

    Raises ``ConfigError``: something else.
    """
    shape = () if isinstance(observation, Mapping | tuple) else np.shape(observation)
    raw = own is not None and bool(own.pixels) and getattr(observation, "dtype", None) == np.uint8
    if shape[-1:] == (size,) and len(shape) <= 2 and not raw:
        return np.atleast_2d(np.asarray(observation, np.float32)), len(shape) > 1
    if own is None:
        raise ConfigError(expected("observation", f"{size} numbers", f"shape {shape}"))
    row = np.zeros((1, size), np.float32)
    beside = isinstance(observation, Mapping) and own.legal and not own.boxed
    try:
        own.read(observation["observation"] if beside else observation, observation if beside else {}, row[0])
    except (ConfigError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        wanted = f"{size} numbers, or what the environment shows: {own.seen}"
        raise ConfigError(expected("observation", wanted, shown(repr(observation), 80))) from error
    return row, False


def _pixels(space: spaces.Space[Any], first: int = 0) -> tuple[tuple[int, int], ...]:
    """Return which numbers of a flattened observation are bytes of 0 to 255; it begins with number ``first``."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [*(space.values() if isinstance(space, spaces.Dict) else space)]
        begins = first + np.cumsum([0, *map(spaces.flatdim, parts)])
        return tuple(pair for part, begin in zip(parts, begins.tolist(), strict=False) for pair in _pixels(part, begin))
    bytes_ = isinstance(space, spaces.Box) and space.dtype == np.uint8 and space.high.max() == 255
    return ((first, first + spaces.flatdim(space)),) if bytes_ else ()


def _without_text(key: str, seen: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return an observation space without its parts that are text, and say so: networks read numbers."""
    if not isinstance(seen, spaces.Dict):
        return seen
    rest = {name: part for name, part in seen.items() if part.dtype is None or part.dtype.kind != "U"}
    if len(rest) == len(seen):
        return seen
    LOG.warning(
        "%s: what it says in words is left out, as networks read numbers: %s", key, [*seen.keys() - rest.keys()]
    )
    return spaces.Dict(rest)


def seat_of(key: str, seen: spaces.Space[Any], acts: spaces.Space[Any], *, told: bool) -> Seat:
    """Describe a seat. Raises ``ValueError``: spaces that no network here reads or fills."""
    boxed, seen = "", _without_text(key, seen)
    if isinstance(seen, spaces.Dict) and LEGAL in seen.spaces:
        rest = {name: space for name, space in seen.items() if name != LEGAL}
        boxed, seen = next(iter(rest.items())) if len(rest) == 1 else (" ", spaces.Dict(rest))
    wanted = unfit_actions(acts)
    if wanted:
        raise ValueError(expected(key, wanted, acts))
    if not getattr(seen, "is_np_flattenable", False) or isinstance(seen, spaces.Text):
        parts = seen.items() if isinstance(seen, spaces.Dict) else ()
        bad = [name for name, part in parts if not part.is_np_flattenable] or [seen]
        wanted = "observations that can be flattened (an ObservationWrapper in a module of yours makes others of them)"
        raise ValueError(expected(key, wanted, shown(", ".join(f"{name}" for name in bad), 200)))
    if boxed and isinstance(acts, spaces.Box):
        raise ValueError(expected(key, f"choices with {LEGAL}", acts))
    legal = 0 if isinstance(acts, spaces.Box) or not (boxed or told) else int(flat_actions(acts).nvec.sum())
    size = spaces.flatdim(seen) + legal
    if size > MAX_NUMBERS:
        smaller = "in a module of yours ResizeObservation of Gymnasium, or SuperSuit, makes images smaller"
        wanted = f"observations of at most {MAX_NUMBERS:,} numbers ({smaller})"
        raise ValueError(expected(key, wanted, f"{size:,}"))
    return Seat(seen, acts, size, legal, _pixels(seen), boxed)


class Described(NamedTuple):
    """What is known of an environment before any is built to be played."""

    seats: dict[str, Seat]
    turns: bool


@lru_cache(maxsize=8)
def _described(env_id: str, env_args: str) -> Described:
    game = open_game(env_id, json.loads(env_args))
    try:
        with TimeLimit():
            found = {agent: game.spaces(agent) for agent in game.agents}
            told = _masked(game, begun(game, 0), {agent: acts for agent, (_, acts) in found.items()})
            game.close()
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        raise ValueError(failed(env_id, "reset", mistake(error))) from error
    seats = {agent: seat_of(f"env_id={env_id}: {agent}", *of, told=told) for agent, of in found.items()}
    return Described(seats, game.turns)


def _masked(game: Game, now: Happened, acts: Mapping[str, spaces.Space[Any]]) -> bool:
    """Return whether anybody is told by its info which choices are legal: where one is, all are, if not at once."""
    for space in acts.values():
        space.seed(0)
    with suppress(Exception, SystemExit):  # of a stranger: it will fail again where it is played
        for _ in range(_ROUNDS * (len(acts) if game.turns else 1)):
            if any(info.get(LEGAL) is not None for _, info in now.seen.values()):
                return True
            if not now.turn or any(LEGAL in obs for obs, _ in now.seen.values() if isinstance(obs, Mapping)):
                return False
            now = game.play({agent: acts[agent].sample() for agent in now.turn})
    return False


def described(env_id: str, env_args: Mapping[str, Any]) -> Described:
    """Build an environment once and return what it is. Raises ``ValueError``: see :func:`open_game`."""
    return _described(env_id, json.dumps(dict(env_args), sort_keys=True))


def failed(env_id: str, call: str, got: str) -> str:
    """Return the message for an environment whose ``call`` did not answer as it should."""
    return expected(f"env_id={env_id}: {call}", "an answer as PettingZoo defines it", got)


#: What the random numbers are for that say who takes whose part.
_PARTS = 1


class SwappedParts:
    """A game in which it is drawn anew for each episode who of a group of alike agents takes whose part.

    ``groups``: agents that see and do alike.
    """

    def __init__(self, game: Game, groups: Iterable[tuple[str, ...]]) -> None:
        self.game, self.groups = game, tuple(groups)
        self.agents = game.agents

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        # Not the game's own numbers: its cards must not tell who is who.
        rng = np.random.default_rng((seed, _PARTS))
        self._part = {agent: agent for agent in self.agents}
        for group in self.groups:
            self._part |= dict(zip(group, (group[k] for k in rng.permutation(len(group))), strict=True))
        self._whose = {part: agent for agent, part in self._part.items()}
        return self._told(self.game.start(seed))

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one step with the actions of whose turn it is."""
        return self._told(self.game.play({self._part[agent]: action for agent, action in actions.items()}))

    def _told(self, now: Happened) -> Happened:
        whose = self._whose
        return Happened(
            {whose[part]: its for part, its in now.seen.items()},
            tuple(whose[part] for part in now.turn),
            {whose[part]: its for part, its in now.paid.items()},
            {whose[part]: its for part, its in now.ended.items()},
            {whose[part]: its for part, its in now.owed.items()},
            lambda: {whose[part]: its for part, its in now.others().items()},
        )
