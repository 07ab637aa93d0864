"""What a game of PettingZoo's kind is, whoever brings it, and what its seats see and do.

What an agent sees becomes a vector of floats, flattened as Gymnasium does it; pixels of a byte become 0 to 1. Flags of
the legal choices, where a game has such, come behind it: ``action_mask`` of a dictionary that it sees, or of its info.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.envs.base import TimeLimit, flat_actions, reset_seed, unfit_actions
from multigrid_rl.tables import entries, find
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import mistake
from multigrid_rl.types import MAX_NUMBERS

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
_LEGAL = "action_mask"
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

    Raises:
        ValueError: one line naming the key and what is wrong, or that it cannot be drawn so.
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
        quiet = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
        os.environ.update({**quiet, **os.environ})
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
    unit: int  # what is 1 of it
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
    def parts(self) -> tuple[int, ...]:
        """Where the flags of each part of an action begin."""
        return (0, *np.cumsum(flat_actions(self.acts).nvec)[:-1].tolist())

    def read(self, obs: Any, info: Mapping[str, Any], row: NDArray[np.float32]) -> None:
        """Write an observation into ``row`` (D,). Raises ``ConfigError``: it is not of its space."""
        legal = obs[_LEGAL] if self.boxed else info.get(_LEGAL)
        if self.boxed:
            obs = obs[self.boxed] if self.boxed in obs else {key: obs[key] for key in obs if key != _LEGAL}
        own = self.size - self.legal
        if isinstance(self.seen, spaces.Box):
            flat = np.asarray(obs)
            if flat.shape != self.seen.shape:
                raise ConfigError(expected("observation", f"shape {self.seen.shape} of its space", flat.shape))
            row[:own] = flat.reshape(-1)
            if self.unit != 1:
                row[:own] /= self.unit
        else:
            flat = spaces.flatten(self.seen, obs)
            if len(flat) != own:  # numpy would stretch a single number
                raise ConfigError(expected("observation", f"{own} numbers of {self.seen}", len(flat)))
            row[:own] = flat
        if self.legal and legal is None:
            row[own:] = 1.0  # who may do anything, or has nothing to decide, need not say so
        elif self.legal:
            flags = np.concatenate(legal) if isinstance(legal, tuple) else np.asarray(legal).reshape(-1)
            if len(flags) != self.legal:
                raise ConfigError(expected(_LEGAL, f"{self.legal} flags", len(flags)))
            row[own:] = flags
        elif legal is not None:
            wanted = f"told from the start on, as {_ROUNDS} rounds were looked at"
            raise ConfigError(expected(_LEGAL, wanted, "told later"))


def _seat(key: str, seen: spaces.Space[Any], acts: spaces.Space[Any], *, told: bool) -> Seat:
    """Describe a seat. Raises ``ValueError``: spaces that no network here reads or fills."""
    boxed = ""
    if isinstance(seen, spaces.Dict) and _LEGAL in seen.spaces:
        rest = {name: space for name, space in seen.items() if name != _LEGAL}
        boxed, seen = next(iter(rest.items())) if len(rest) == 1 else (" ", spaces.Dict(rest))
    wanted = unfit_actions(acts)
    if wanted:
        raise ValueError(expected(key, wanted, acts))
    if not getattr(seen, "is_np_flattenable", False) or isinstance(seen, spaces.Text):
        raise ValueError(expected(key, "observations that can be flattened", seen))
    if boxed and isinstance(acts, spaces.Box):
        raise ValueError(expected(key, f"choices with {_LEGAL}", acts))
    legal = 0 if isinstance(acts, spaces.Box) or not (boxed or told) else int(flat_actions(acts).nvec.sum())
    size = spaces.flatdim(seen) + legal
    if size > MAX_NUMBERS:
        raise ValueError(expected(key, f"observations of at most {MAX_NUMBERS:,} numbers", f"{size:,}"))
    pixels = isinstance(seen, spaces.Box) and seen.dtype == np.uint8 and seen.high.max() == 255
    return Seat(seen, acts, size, legal, 255 if pixels else 1, boxed)


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
    seats = {agent: _seat(f"env_id={env_id}: {agent}", *of, told=told) for agent, of in found.items()}
    return Described(seats, game.turns)


def _masked(game: Game, now: Happened, acts: Mapping[str, spaces.Space[Any]]) -> bool:
    """Return whether anybody is told by its info which choices are legal: where one is, all are, if not at once."""
    for space in acts.values():
        space.seed(0)
    with suppress(Exception, SystemExit):  # of a stranger: it will fail again where it is played
        for _ in range(_ROUNDS * (len(acts) if game.turns else 1)):
            if any(info.get(_LEGAL) is not None for _, info in now.seen.values()):
                return True
            if not now.turn or any(_LEGAL in obs for obs, _ in now.seen.values() if isinstance(obs, Mapping)):
                return False
            now = game.play({agent: acts[agent].sample() for agent in now.turn})
    return False


def described(env_id: str, env_args: Mapping[str, Any]) -> Described:
    """Build an environment once and return what it is. Raises ``ValueError``: see :func:`open_game`."""
    return _described(env_id, json.dumps(dict(env_args), sort_keys=True))


def failed(env_id: str, call: str, got: str) -> str:
    """Return the message for an environment whose ``call`` did not answer as it should."""
    return expected(f"env_id={env_id}: {call}", "an answer as PettingZoo defines it", got)
