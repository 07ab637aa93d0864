"""One environment of PettingZoo's kind, parallel or turn by turn, and how others look like one.

What an agent sees becomes a vector of floats, flattened as Gymnasium does it; pixels of a byte become 0 to 1. Flags of
the legal choices, where a game has such, come behind it: ``action_mask`` of a dictionary that it sees, or of its info.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pettingzoo
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper, TerminateIllegalWrapper

from multigrid_rl.envs.base import PACKAGE_OF, TimeLimit, flat_actions, unfit_actions
from multigrid_rl.tables import entries, find
from multigrid_rl.text import ConfigError, expected, suggestion
from multigrid_rl.trust import look_in_working_folder, mistake
from multigrid_rl.types import MAX_NUMBERS

Array = NDArray[Any]
#: Where environments are registered, by how their agents move.
_REGISTRIES = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
#: Wrappers that complain of actions out of order, out of bounds or against the rules, and change nothing else.
_CHECKS = (OrderEnforcingWrapper, AssertOutOfBoundsWrapper, TerminateIllegalWrapper)
#: Argument of every environment: an episode is truncated after so many steps.
LIMIT = "max_episode_steps"
#: Where is said which choices are legal.
_LEGAL = "action_mask"
#: How a game is drawn: as text, or as a picture (H, W, 3) uint8.
How = Literal["text", "picture"]
#: PettingZoo's ``render_mode`` for each, and steps a second of a game that says none.
_MODES: dict[How, str] = {"text": "ansi", "picture": "rgb_array"}
_USUAL_FPS = 4.0


@dataclass
class Happened:
    """What came of a start or of one step of one environment; every mapping is by agent."""

    seen: dict[str, tuple[Any, Mapping[str, Any]]]  # observation and info of whom it shows something
    turn: tuple[str, ...]  # who moves next; nobody: the episode is over
    paid: dict[str, float] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)  # whose episode ended: for good, or else by a time limit


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
        env_args: arguments of it; ``max_episode_steps`` is not told to it: see :class:`PettingZooEnvs`.
        how: to be drawn so; ``None``: not at all.

    Raises:
        ValueError: one line naming the key and what is wrong, or that it cannot be drawn so.
    """
    if env_args.get("render_mode") is not None:
        raise ValueError(expected("env_args", "no render_mode (pages and films ask for it)", env_args["render_mode"]))
    most, env_args = env_args.get(LIMIT, 1), {key: value for key, value in env_args.items() if key != LIMIT}
    if type(most) is not int or most < 1:
        raise ValueError(expected(f"env_args.{LIMIT}", "a whole number of at least 1", most))
    beginning, _, rest = env_id.partition(":")
    table = entries("games")
    name, build = (rest, find(table, beginning)) if beginning in table else (env_id, zoo_game)
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


def zoo_game(name: str, env_args: Mapping[str, Any]) -> Game:
    """Build a PettingZoo environment: a ``ParallelEnv`` where there is one, else an ``AECEnv``."""
    build = _maker(name)
    try:
        env = build(**env_args)
    except ModuleNotFoundError as error:
        raise ValueError(_missing(name, error)) from error
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        raise ValueError(expected("env_args", f"arguments of {name}", f"{dict(env_args)}: {mistake(error)}")) from error
    if not (getattr(env, "possible_agents", None) and hasattr(env, "reset")):
        got = f"{name}: {type(env).__name__} without any"
        raise ValueError(expected("env_id", "an environment of PettingZoo's with possible_agents", got))
    if getattr(env, "render_mode", None) == "human":
        wanted = "render_mode: null, as this environment opens a window by itself"
        raise ValueError(expected("env_args", wanted, dict(env_args)))
    if hasattr(env, "agent_iter"):
        return Turns(_unchecked(env))
    if type(env) is aec_to_parallel_wrapper:
        env.aec_env = _unchecked(env.aec_env)
        # In each step it asks what every agent sees before it moves, and throws it away.
        env.aec_env.last = partial(env.aec_env.last, observe=False)
    return Parallel(env)


def _unchecked(env: Any) -> Any:
    """Return an environment without those of PettingZoo's wrappers that check who plays it: we play by its rules."""
    # They take more than half of the time of a small game.
    while type(env) in _CHECKS:
        env = env.env
    return env


def _maker(name: str) -> Callable[..., Any]:
    if "/" in name:
        kind = next((kind for kind, known in _REGISTRIES.items() if name in known), None)
        if kind is None:
            known = sorted({one for of in _REGISTRIES.values() for one in of})
            raise ValueError(expected("env_id", "a registered environment", f"{name}{suggestion(name, known)}"))
        return partial(pettingzoo.make, kind, name)
    module, colon, function = name.partition(":")
    look_in_working_folder()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(_missing(name, error)) from error
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        raise ValueError(expected("env_id", "a module that can be imported", f"{name}: {mistake(error)}")) from error
    wanted = [function] if colon else ["parallel_env", "env"]
    build = next((getattr(found, part) for part in wanted if callable(getattr(found, part, None))), None)
    if build is None:
        raise ValueError(expected("env_id", f"a module with {' or '.join(wanted)}", name))
    made: Callable[..., Any] = build
    return made


def _missing(name: str, error: ModuleNotFoundError) -> str:
    """Say what to install, or which module of an installed package was meant."""
    folder, _, module = str(error.name).rpartition(".")
    package = sys.modules.get(folder)
    if package is None:
        lacking = str(error.name).partition(".")[0]
        hint = f" (pip install {PACKAGE_OF.get(lacking, lacking)})"
    else:
        hint = suggestion(module, [one.name for one in pkgutil.iter_modules(package.__path__)])
    return expected("env_id", "a module that is installed", f"{name}: {error}{hint}")


# --- what a seat sees and does


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
            row[:own] = spaces.flatten(self.seen, obs)
        if self.legal:
            if isinstance(legal, tuple):
                legal = np.concatenate(legal)
            # Who may do anything, or has nothing to decide, need not say so.
            if legal is not None and np.size(legal) != self.legal:
                raise ConfigError(expected(_LEGAL, f"{self.legal} flags", np.size(legal)))
            row[own:] = 1.0 if legal is None else np.reshape(legal, -1)


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
    if (boxed or told) and isinstance(acts, spaces.Box):
        raise ValueError(expected(key, f"choices with {_LEGAL}", acts))
    legal = int(flat_actions(acts).nvec.sum()) if boxed or told else 0
    size = spaces.flatdim(seen) + legal
    if size > MAX_NUMBERS:
        raise ValueError(expected(key, f"observations of at most {MAX_NUMBERS:,} numbers", f"{size:,}"))
    pixels = isinstance(seen, spaces.Box) and seen.dtype == np.uint8 and seen.high.max() == 255
    return Seat(seen, acts, size, legal, 255 if pixels else 1, boxed)


# --- one environment of PettingZoo's, parallel or turn by turn


class _Zoo:
    """An environment of PettingZoo's."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents = tuple(env.possible_agents)
        about = getattr(env, "metadata", {})
        modes, name = about.get("render_modes", ()), about.get("name")
        self._text = find(entries("texts"), name) if name in entries("texts") else None
        self.draws: Mapping[How, Mapping[str, Any]] = {
            **{how: {"render_mode": mode} for how, mode in _MODES.items() if mode in modes},
            **({} if self._text is None else {"text": {}}),
        }
        self.fps = float(about.get("render_fps") or _USUAL_FPS)

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Return what an agent sees and what it does."""
        return self.env.observation_space(agent), self.env.action_space(agent)

    def drawn(self, how: How, agent: str | None = None) -> Any:  # noqa: ARG002 - its renderers know no agents
        """Draw it as it stands, by its own renderer or by the one of ``tables.TEXTS``."""
        if how == "text" and self._text is not None:
            return self._text(self.env.unwrapped)
        return self.env.render()

    def named(self, agent: str, action: int) -> str:  # noqa: ARG002 - it has no names
        """Return the number of a choice."""
        return str(action)

    def close(self) -> None:
        """Let go of windows, threads and files."""
        self.env.close()


class Parallel(_Zoo):
    """Agents that move at the same time (https://pettingzoo.farama.org/api/parallel/)."""

    turns = False

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        seen, infos = self.env.reset(seed=seed)
        return Happened(self._shown(seen, infos), tuple(self.env.agents))

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one step."""
        seen, paid, ended, cut, infos = self.env.step(actions)
        for what, told in (("reward", paid), ("termination", ended), ("truncation", cut)):
            if not told.keys() >= actions.keys():
                raise ConfigError(expected(f"{min(actions.keys() - told.keys())}: {what}", "one", "none"))
        over = {agent: ended[agent] for agent in ended if ended[agent] or cut.get(agent)}
        return Happened(self._shown(seen, infos), tuple(self.env.agents), dict(paid), over)

    def _shown(self, seen: dict[str, Any], infos: dict[str, Any]) -> dict[str, tuple[Any, Mapping[str, Any]]]:
        # What belongs to no agent may stand beside, as "common" does in PettingZoo's own test.
        return {agent: (seen[agent], infos.get(agent, {})) for agent in self.agents if agent in seen}


class Turns(_Zoo):
    """Agents that move one after the other (https://pettingzoo.farama.org/api/aec/)."""

    turns = True

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        self.env.reset(seed=seed)
        return self._next()

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one move."""
        self.env.step(actions[self.env.agent_selection])
        return self._next()

    def _next(self) -> Happened:
        # Who has ended is asked once more, for nothing but what it is owed.
        now = Happened({}, ())
        env = self.env
        while env.agents:
            agent = env.agent_selection
            obs, paid, ended, cut, info = env.last()
            now.seen[agent] = obs, info
            now.paid[agent] = now.paid.get(agent, 0.0) + paid
            if not (ended or cut):
                now.turn = (agent,)
                break
            now.ended[agent] = ended
            env.step(None)
        return now


class Described(NamedTuple):
    """What is known of an environment before any is built to be played."""

    seats: dict[str, Seat]
    turns: bool


@lru_cache(maxsize=8)
def _described(env_id: str, env_args: str) -> Described:
    game = open_game(env_id, json.loads(env_args))
    try:
        with TimeLimit():
            # Who is not to move first need not be shown yet: where one is told what is legal, all are.
            told = any(_LEGAL in info for _, info in game.start(0).seen.values())
            found = {agent: game.spaces(agent) for agent in game.agents}
            game.close()
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        raise ValueError(failed(env_id, "reset", mistake(error))) from error
    seats = {agent: _seat(f"env_id={env_id}: {agent}", *of, told=told) for agent, of in found.items()}
    return Described(seats, game.turns)


def described(env_id: str, env_args: Mapping[str, Any]) -> Described:
    """Build an environment once and return what it is. Raises ``ValueError``: see :func:`open_game`."""
    return _described(env_id, json.dumps(dict(env_args), sort_keys=True))


def failed(env_id: str, call: str, got: str) -> str:
    """Return the message for an environment whose ``call`` did not answer as it should."""
    return expected(f"env_id={env_id}: {call}", "an answer as PettingZoo defines it", got)
