"""Environments of PettingZoo (https://pettingzoo.farama.org), parallel or turn by turn, as games (``envs.zoo``)."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pettingzoo
from gymnasium import spaces
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper, TerminateIllegalWrapper

from multigrid_rl.envs.base import bringing, reset_by
from multigrid_rl.envs.zoo import LIMIT, Game, Happened, How, Shown
from multigrid_rl.tables import entries, find
from multigrid_rl.text import ConfigError, expected, shown, suggestion
from multigrid_rl.trust import add_module_folders, mistake

#: Where environments are registered, by how their agents move.
_REGISTRIES = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
#: Wrappers that complain of actions out of order, out of bounds or against the rules, and change nothing else.
_CHECKS = (OrderEnforcingWrapper, AssertOutOfBoundsWrapper, TerminateIllegalWrapper)
#: PettingZoo's ``render_mode`` for each, and steps a second of a game that says none.
_MODES: dict[How, str] = {"text": "ansi", "picture": "rgb_array"}
_USUAL_FPS = 4.0
#: Letters of an agent's name, which cards hold.
_LETTERS = 100


def zoo_game(name: str, env_args: Mapping[str, Any]) -> Game:
    """Build a PettingZoo environment: a ``ParallelEnv`` where there is one, else an ``AECEnv``."""
    build = _maker(name)
    try:
        env = _built(build, env_args)
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


def _built(build: Callable[..., Any], env_args: Mapping[str, Any]) -> Any:
    """Build an environment; one that has an argument called as ours gets it, too."""
    if LIMIT in env_args:
        with suppress(Exception, SystemExit):  # a stranger's code may raise anything; without it, it says what is wrong
            return build(**env_args)
    return build(**{key: value for key, value in env_args.items() if key != LIMIT})


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
    add_module_folders()
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
        hint = f" ({bringing(lacking)})"
    else:
        hint = suggestion(module, [one.name for one in pkgutil.iter_modules(package.__path__)])
    return expected("env_id", "a module that is installed", f"{name}: {error}{hint}")


class Choice(int):
    """One choice as environments ask for it: some want an ``int``, others what numpy's have, such as ``item``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np.int64(self), name)


def _own(action: Any) -> Any:
    """Return an action that an environment may keep and write into."""
    return action.copy() if type(action) is np.ndarray else Choice(action)


def _names(agents: Sequence[Any]) -> dict[Any, str]:
    """Return agent -> name that may stand in folders, metrics and overrides. Raises ``ValueError``: two are alike."""
    names = {agent: re.sub(r"[^\w. -]|^[. ]|[. ]$", "_", str(agent)) or "_" for agent in agents}
    if len(set(names.values())) < len(agents) or max(map(len, names.values())) > _LETTERS:
        wanted = f"agents with different names of at most {_LETTERS} letters, digits, _, -, dots and blanks"
        raise ValueError(expected("env_id", wanted, shown(", ".join(map(repr, agents)), 200)))
    return names


class _Zoo:
    def __init__(self, env: Any) -> None:
        self.env = env
        self._names = _names(env.possible_agents)
        self._agents = {name: agent for agent, name in self._names.items()}
        self.agents = tuple(self._agents)
        self._renamed = self._names.keys() != self._agents.keys()
        about = getattr(env, "metadata", {})
        modes, name = about.get("render_modes", ()), about.get("name")
        self._text = find(entries("texts"), name) if name in entries("texts") else None
        self.draws: Mapping[How, Mapping[str, Any]] = {
            **{how: {"render_mode": mode} for how, mode in _MODES.items() if mode in modes},
            **({} if self._text is None else {"text": {}}),
        }
        self.fps = float(about.get("render_fps") or _USUAL_FPS)

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        own = self._agents[agent]
        return self.env.observation_space(own), self.env.action_space(own)

    def drawn(self, how: How, agent: str | None = None) -> Any:  # noqa: ARG002 - its renderers know no agents
        """Draw it as it stands, by its own renderer or by the one of ``tables.TEXTS``."""
        if how == "text" and self._text is not None:
            return self._text(self.env.unwrapped)
        return self.env.render()

    def named(self, agent: str, action: int) -> str:  # noqa: ARG002 - it has no names
        return str(action)

    def close(self) -> None:
        self.env.close()

    def _by_name(self, told: Mapping[Any, Any]) -> dict[str, Any]:
        # A stranger keeps its name: whoever reads it says that there is no such agent.
        return {self._names.get(agent, agent): its for agent, its in told.items()} if self._renamed else dict(told)


class Parallel(_Zoo):
    """Agents that move at the same time (https://pettingzoo.farama.org/api/parallel/)."""

    turns = False

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        seen, infos = reset_by(self.env.reset, seed)
        self._last: dict[Any, Any] = {}  # what each did last
        self._over: set[Any] = set()  # who has ended, though the environment still lists it
        return Happened(self._shown(seen, infos), self._turn())

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one step. Who has ended, and is still listed, is asked no more: it does what it did last."""
        taken = {self._agents[name]: _own(action) for name, action in actions.items()}
        self._last.update(taken)
        given = taken
        if self._over:
            again = [agent for agent in self.env.agents if agent in self._over and agent in self._last]
            given = {**taken, **{agent: _own(self._last[agent]) for agent in again}}
        seen, paid, ended, cut, infos = self.env.step(given)
        for what, told in (("reward", paid), ("termination", ended), ("truncation", cut)):
            if not told.keys() >= taken.keys():
                missing = self._names[min(taken.keys() - told.keys(), key=str)]
                raise ConfigError(expected(f"{missing}: {what}", "one", "none"))
        over = {agent: ended[agent] for agent in ended if ended[agent] or cut.get(agent)}
        self._over |= over.keys()
        return Happened(self._shown(seen, infos), self._turn(), self._by_name(paid), self._by_name(over))

    def _turn(self) -> tuple[str, ...]:
        if self._over:
            self._over &= set(self.env.agents)
        return tuple([self._names.get(agent, agent) for agent in self.env.agents if agent not in self._over])

    def _shown(self, seen: dict[Any, Any], infos: dict[Any, Any]) -> Shown:
        # What belongs to no agent may stand beside, as "common" does in PettingZoo's own test; who has ended may be
        # shown nothing.
        names = self._names.items()
        return {name: (seen[agent], infos.get(agent) or {}) for agent, name in names if seen.get(agent) is not None}


class Turns(_Zoo):
    """Agents that move one after the other (https://pettingzoo.farama.org/api/aec/)."""

    turns = True

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        reset_by(self.env.reset, seed)
        return self._next()

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one move."""
        self.env.step(_own(actions[self._names[self.env.agent_selection]]))
        return self._next()

    def _next(self) -> Happened:
        # Who has ended is asked once more, for nothing but what it is owed.
        now = Happened({}, (), others=self._others)
        env = self.env
        while env.agents:
            agent = env.agent_selection
            name = self._names.get(agent, agent)
            if name in now.ended and all(map(self._has_ended, env.agents)):  # none of them ever leaves
                self._rest(now)
                break
            obs, paid, ended, cut, info = env.last()
            if obs is not None:
                now.seen[name] = obs, info
            now.paid[name] = now.paid[name] + paid if name in now.paid else paid
            if not (ended or cut):
                now.turn = (name,)
                now.owed = self._by_name(env._cumulative_rewards)
                now.owed.pop(name, None)
                break
            now.ended[name] = ended
            env.step(None)
        return now

    def _others(self) -> Shown:
        return self._seen(agent for agent in self.env.agents if not self._has_ended(agent))

    def _has_ended(self, agent: Any) -> bool:
        return bool(self.env.terminations.get(agent) or self.env.truncations.get(agent))

    def _seen(self, agents: Iterable[Any]) -> Shown:
        shown = {self._names[agent]: (self.env.observe(agent), self.env.infos.get(agent) or {}) for agent in agents}
        return {name: its for name, its in shown.items() if its[0] is not None}

    def _rest(self, now: Happened) -> None:
        """Write down the end of those whose turn never comes, as who has ended before them keeps it."""
        rest = [agent for agent in self.env.agents if self._names[agent] not in now.ended]
        now.seen |= self._seen(rest)
        now.paid |= {self._names[agent]: self.env._cumulative_rewards[agent] for agent in rest}
        now.ended |= {self._names[agent]: self.env.terminations[agent] for agent in rest}


# Boards of games as text, where their own renderers draw pictures alone: entries of ``tables.TEXTS``.


def tictactoe(env: Any) -> str:
    """Return three rows; a free square shows the number of the action that takes it."""
    marks = [str(k) if not mark else "xo"[mark - 1] for k, mark in enumerate(env.board.squares)]
    return "\n---+---+---\n".join(" " + " | ".join(marks[row::3]) for row in range(3))


def connect_four(env: Any) -> str:
    """Return six rows and, below them, the numbers of the columns."""
    rows = [env.board[k : k + 7] for k in range(0, 42, 7)]
    return "\n".join([*(" ".join(".xo"[mark] for mark in row) for row in rows), " ".join(map(str, range(7)))])
