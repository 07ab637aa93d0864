"""The interface of games of PettingZoo's kind, from any package, and the observations and actions of their seats.

An observation becomes a vector of floats, flattened as Gymnasium does it; pixels of a byte become 0 to 1. Flags of the
legal choices, if a game has them, follow: ``action_mask`` of an observation that is a dictionary, or of the info.
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

from multigrid_rl.envs.base import TimeLimit, flat_actions, reset_seed, unsupported_actions
from multigrid_rl.tables import entries, find
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.trust import mistake
from multigrid_rl.types import MAX_NUMBERS

LOG = logging.getLogger(__name__)
Array = NDArray[Any]
#: Argument of every environment: number of steps after which an episode is truncated.
LIMIT = "max_episode_steps"
#: Number of starts without a mover after which an environment counts as one in which no agent moves.
_STARTS = 100
#: Rounds in which flags of legal choices are looked for, if the start has none.
_ROUNDS = 3
#: Observation and info of each agent.
Observations = dict[str, tuple[Any, Mapping[str, Any]]]
#: Key of the flags of legal choices.
LEGAL = "action_mask"
#: Environment variables that let pygame draw without a window.
QUIET = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
#: Form of a drawing: text, or a picture (H, W, 3) uint8.
DrawMode = Literal["text", "picture"]


@dataclass
class StepResult:
    """Result of a start or of one step of one environment; every mapping is by agent."""

    observations: Observations  # of agents that see something
    turn: tuple[str, ...]  # agents to move next; empty: the episode is over
    rewards: dict[str, float] = field(default_factory=dict)
    endings: dict[str, bool] = field(default_factory=dict)  # agents that ended: True terminated, False truncated
    pending_rewards: dict[str, float] = field(default_factory=dict)  # paid at their next move or at a cut before it
    observe_others: Callable[[], Observations] = dict  # observations of the others, called when the episode is cut


class Game(Protocol):
    """One environment, parallel or in turns: an entry of ``tables.GAMES`` opens one.

    Attributes:
        agents: all possible agents.
        turns: agents move one after the other.
        draws: supported drawings, with the additional arguments for an environment that draws so.
        fps: steps a second in a film.
    """

    agents: tuple[str, ...]
    turns: bool
    draws: Mapping[DrawMode, Mapping[str, Any]]
    fps: float

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Return the observation and action space of an agent."""

    def start(self, seed: int) -> StepResult:
        """Begin an episode."""

    def play(self, actions: dict[str, Any]) -> StepResult:
        """Play one step with the actions of the agents to move."""

    def drawn(self, mode: DrawMode, agent: str | None = None) -> Any:
        """Draw the current state; as text only what ``agent`` may know."""

    def named(self, agent: str, action: int) -> str:  # noqa: ARG002 - for games that name choices
        """Return the name of a choice: its number if the game has no names."""
        return str(action)

    def close(self) -> None:
        """Release windows, threads and files."""


def open_game(env_id: str, env_args: Mapping[str, Any], draw_mode: DrawMode | None = None) -> Game:
    """Build one environment.

    Args:
        env_id: ``pettingzoo:FAMILY/NAME-vN`` as registered, ``pettingzoo:MODULE`` with ``parallel_env`` or ``env`` in
            it, ``pettingzoo:MODULE:FUNCTION``, or an id of another entry of ``tables.GAMES``: ``openspiel:GAME``.
        env_args: its arguments; ``max_episode_steps`` also truncates its episodes: see :class:`PettingZooEnvs`.
        draw_mode: form in which it must draw; ``None``: it need not draw.

    Raises ``ValueError``: one line with the key and the mistake, such as a game that cannot draw.
    """
    if env_args.get("render_mode") is not None:
        raise ValueError(expected("env_args", "no render_mode (pages and films ask for it)", env_args["render_mode"]))
    limit = env_args.get(LIMIT, 1)
    if type(limit) is not int or limit < 1:
        raise ValueError(expected(f"env_args.{LIMIT}", "a whole number of at least 1", limit))
    beginning, _, rest = env_id.partition(":")
    table = entries("games")
    name, build = (rest, find(table, beginning)) if beginning in table else (env_id, find(table, "pettingzoo"))
    game: Game = build(name, env_args)
    if draw_mode is None:
        return game
    if draw_mode not in game.draws:
        got = " or a ".join(game.draws) or "none"
        raise ValueError(expected(f"env_id={env_id}", f"a game that draws a {draw_mode}", got))
    if draw_mode == "picture":  # pygame opens no window, plays no sound and prints no greeting
        os.environ.update({**QUIET, **os.environ})
    drawable: Game = build(name, {**env_args, **game.draws[draw_mode]})
    return drawable


def start_episode(game: Game, seed: int) -> StepResult:
    """Begin an episode; a start without an agent to move is drawn again."""
    result = game.start(seed)
    for again in range(1, _STARTS):
        if result.turn:
            break
        result = game.start(reset_seed(seed, again, 0))
    return result


class Seat(NamedTuple):
    """Observations and actions of one agent of an environment."""

    observation_space: spaces.Space[Any]  # the environment's, without flags of legal choices
    action_space: spaces.Space[Any]  # the environment's
    size: int  # D: numbers of the flattened observation, flags included
    legal: int  # number of flags of legal choices, the last of these numbers
    pixels: tuple[tuple[int, int], ...]  # ranges of numbers that are bytes of 0 to 255 and become 0 to 1
    inner_key: str  # of the observation in a dictionary with flags; " ": all other keys; empty: no dictionary

    @property
    def space(self) -> spaces.Box:
        """Observation space of its network."""
        return spaces.Box(-np.inf, np.inf, (self.size,), np.float32)

    @property
    def image(self) -> tuple[int, ...]:
        """Height, width and channels of an image, the first numbers; empty without an image."""
        shape = self.observation_space.shape if isinstance(self.observation_space, spaces.Box) else ()
        return shape if len(shape) == 3 else ()

    @property
    def copied_shape(self) -> tuple[int, ...] | None:
        """Shape of an observation that :meth:`read` copies unchanged; ``None``: it converts all observations."""
        vector = isinstance(self.observation_space, spaces.Box) and len(self.observation_space.shape) == 1
        return self.observation_space.shape if vector and not (self.pixels or self.legal) else None

    @property
    def card_fields(self) -> dict[str, Any]:
        """Part of a card with the form of actions in the environment."""
        space, start = self.action_space, np.reshape(getattr(self.action_space, "start", []), -1).tolist()
        return {"taken": {"shape": list(space.shape), "dtype": str(space.dtype), "start": start}}

    @property
    def parts(self) -> tuple[int, ...]:
        """Index of the first flag of each part of an action."""
        return (0, *np.cumsum(flat_actions(self.action_space).nvec)[:-1].tolist())

    def read(self, obs: Any, info: Mapping[str, Any], row: NDArray[np.float32]) -> None:
        """Write an observation into ``row`` (D,). Raises ``ConfigError``: it is not of its space."""
        legal = obs[LEGAL] if self.inner_key else info.get(LEGAL)
        if self.inner_key:
            obs = obs[self.inner_key] if self.inner_key in obs else {key: obs[key] for key in obs if key != LEGAL}
        size, space = self.size - self.legal, self.observation_space
        if isinstance(space, spaces.Box):
            flat = np.asarray(obs)
            if flat.shape != space.shape:
                raise ConfigError(expected("observation", f"shape {space.shape} of its space", flat.shape))
        else:
            flat = spaces.flatten(space, obs)
            if len(flat) != size:  # numpy would stretch a single number
                raise ConfigError(expected("observation", f"{size} numbers of {space}", len(flat)))
        row[:size] = flat.reshape(-1)
        for begin, end in self.pixels:
            row[begin:end] /= 255
        if self.legal and legal is None:
            row[size:] = 1.0  # flags may be left out if all choices are legal, or no agent decides
        elif self.legal:
            flags = np.concatenate(legal) if isinstance(legal, tuple) else np.asarray(legal).reshape(-1)
            if len(flags) != self.legal:
                raise ConfigError(expected(LEGAL, f"{self.legal} flags", len(flags)))
            row[size:] = flags
        elif legal is not None and not isinstance(self.action_space, spaces.Box):
            raise ConfigError(expected(LEGAL, f"flags within the first {_ROUNDS} rounds", "the first ones later"))


def rows_of(observation: Any, size: int, seat: Seat | None) -> tuple[Array, bool]:
    """Return the input of a network (N, D), and whether there are several observations.

    Args:
        observation: numbers, or an environment's observation; with flags of ``info``, a dictionary of both.
        size: length ``D``.
        seat: the agent of that environment.

    Raises ``ConfigError``: anything else.
    """
    shape = () if isinstance(observation, Mapping | tuple) else np.shape(observation)
    is_bytes = seat is not None and bool(seat.pixels) and getattr(observation, "dtype", None) == np.uint8
    is_own = seat is not None and shape == seat.observation_space.shape  # which may be (1, D)
    if shape[-1:] == (size,) and len(shape) <= 2 and not is_bytes:
        return np.atleast_2d(np.asarray(observation, np.float32)), len(shape) > 1 and not is_own
    if seat is None:
        raise ConfigError(expected("observation", f"{size} numbers", f"shape {shape}"))
    row = np.zeros((1, size), np.float32)
    has_flags = isinstance(observation, Mapping) and seat.legal and not seat.inner_key
    try:
        seat.read(observation["observation"] if has_flags else observation, observation if has_flags else {}, row[0])
    except (ConfigError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        wanted = f"{size} numbers, or what the environment shows: {seat.observation_space}"
        raise ConfigError(expected("observation", wanted, shown(repr(observation), 80))) from error
    return row, False


def _pixels(space: spaces.Space[Any], first: int = 0) -> tuple[tuple[int, int], ...]:
    """Return which numbers of a flattened observation are bytes of 0 to 255; ``first``: index of its first number."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [*(space.values() if isinstance(space, spaces.Dict) else space)]
        begins = first + np.cumsum([0, *map(spaces.flatdim, parts)])
        return tuple(pair for part, begin in zip(parts, begins.tolist(), strict=False) for pair in _pixels(part, begin))
    bytes_ = isinstance(space, spaces.Box) and space.dtype == np.uint8 and space.high.max() == 255
    return ((first, first + spaces.flatdim(space)),) if bytes_ else ()


def _without_text(key: str, space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return an observation space without text, which networks cannot read, and warn of it."""
    if not isinstance(space, spaces.Dict):
        return space
    rest = {name: part for name, part in space.items() if part.dtype is None or part.dtype.kind != "U"}
    if len(rest) == len(space):
        return space
    omitted = [*space.keys() - rest.keys()]
    LOG.warning("%s: what it says in words is left out, as networks read numbers: %s", key, omitted)
    return spaces.Dict(rest)


def seat_of(key: str, observations: spaces.Space[Any], actions: spaces.Space[Any], *, masked: bool) -> Seat:
    """Describe a seat. Raises ``ValueError``: spaces that our networks cannot read or fill."""
    inner_key, observations = "", _without_text(key, observations)
    if isinstance(observations, spaces.Dict) and LEGAL in observations.spaces:
        rest = {name: space for name, space in observations.items() if name != LEGAL}
        inner_key, observations = next(iter(rest.items())) if len(rest) == 1 else (" ", spaces.Dict(rest))
    if wanted := unsupported_actions(actions):
        raise ValueError(expected(key, wanted, actions))
    if not getattr(observations, "is_np_flattenable", False) or isinstance(observations, spaces.Text):
        parts = observations.items() if isinstance(observations, spaces.Dict) else ()
        bad = [name for name, part in parts if not part.is_np_flattenable] or [observations]
        wanted = "observations that can be flattened (an ObservationWrapper in a module of yours makes others of them)"
        raise ValueError(expected(key, wanted, shown(", ".join(f"{name}" for name in bad), 200)))
    if inner_key and isinstance(actions, spaces.Box):
        raise ValueError(expected(key, f"choices with {LEGAL}", actions))
    legal = 0 if isinstance(actions, spaces.Box) or not (inner_key or masked) else int(flat_actions(actions).nvec.sum())
    size = spaces.flatdim(observations) + legal
    if not legal < size <= MAX_NUMBERS:
        smaller = "in a module of yours ResizeObservation of Gymnasium, or SuperSuit, makes images smaller"
        wanted = f"observations of 1 to {MAX_NUMBERS:,} numbers ({smaller})"
        raise ValueError(expected(key, wanted, f"{size - legal:,}"))
    return Seat(observations, actions, size, legal, _pixels(observations), inner_key)


class GameDescription(NamedTuple):
    """Seats of an environment, known before one is built for play."""

    seats: dict[str, Seat]
    turns: bool


@lru_cache(maxsize=8)
def _describe_cached(env_id: str, env_args: str) -> GameDescription:
    game = open_game(env_id, json.loads(env_args))
    try:
        with TimeLimit():
            found = {agent: game.spaces(agent) for agent in game.agents}
            has_mask = _info_has_mask(game, start_episode(game, 0), {agent: acts for agent, (_, acts) in found.items()})
            game.close()
    except (Exception, SystemExit) as error:  # untrusted code may raise anything
        raise ValueError(failure_message(env_id, "reset", mistake(error))) from error
    seats = {agent: seat_of(f"env_id={env_id}: {agent}", *pair, masked=has_mask) for agent, pair in found.items()}
    return GameDescription(seats, game.turns)


def _info_has_mask(game: Game, result: StepResult, action_spaces: Mapping[str, spaces.Space[Any]]) -> bool:
    """Return whether an agent's info has flags of legal choices; then all agents have them, though maybe later."""
    for space in action_spaces.values():
        space.seed(0)
    with suppress(Exception, SystemExit):  # of untrusted code: it fails again in play
        for _ in range(_ROUNDS * (len(action_spaces) if game.turns else 1)):
            pairs = result.observations.values()
            if any(info.get(LEGAL) is not None for _, info in pairs):
                return True
            if not result.turn or any(LEGAL in obs for obs, _ in pairs if isinstance(obs, Mapping)):
                return False
            result = game.play({agent: action_spaces[agent].sample() for agent in result.turn})
    return False


def describe_game(env_id: str, env_args: Mapping[str, Any]) -> GameDescription:
    """Build an environment once and describe it. Raises ``ValueError``: see :func:`open_game`."""
    return _describe_cached(env_id, json.dumps(dict(env_args), sort_keys=True))


def failure_message(env_id: str, call: str, got: str) -> str:
    """Return the message for an invalid answer of an environment to ``call``."""
    return expected(f"env_id={env_id}: {call}", "an answer as PettingZoo defines it", got)


#: Purpose of the random numbers that assign roles.
_ROLES = 1


def roles_of(seed: int, agents: Iterable[str], groups: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Return agent -> role in an episode, drawn anew within each of the ``groups``."""
    # Not the game's random numbers: its cards must not reveal the roles.
    rng = np.random.default_rng((seed, _ROLES))
    roles = {agent: agent for agent in agents}
    for group in groups:
        roles |= dict(zip(group, (group[k] for k in rng.permutation(len(group))), strict=True))
    return roles


class SwappedRoles:
    """A game that draws the roles of the agents in each group anew for each episode.

    ``groups``: agents with the same spaces.
    """

    def __init__(self, game: Game, groups: Iterable[tuple[str, ...]]) -> None:
        self.game, self.groups = game, tuple(groups)
        self.agents = game.agents

    def start(self, seed: int) -> StepResult:
        """Begin an episode."""
        self._roles = roles_of(seed, self.agents, self.groups)
        self._agents = {role: agent for agent, role in self._roles.items()}
        return self._renamed(self.game.start(seed))

    def play(self, actions: dict[str, Any]) -> StepResult:
        """Play one step with the actions of the agents to move."""
        return self._renamed(self.game.play({self._roles[agent]: action for agent, action in actions.items()}))

    def _renamed(self, result: StepResult) -> StepResult:
        agents = self._agents
        return StepResult(
            {agents[role]: value for role, value in result.observations.items()},
            tuple(agents[role] for role in result.turn),
            {agents[role]: value for role, value in result.rewards.items()},
            {agents[role]: value for role, value in result.endings.items()},
            {agents[role]: value for role, value in result.pending_rewards.items()},
            lambda: {agents[role]: value for role, value in result.observe_others().items()},
        )
