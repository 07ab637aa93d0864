"""Environments of PettingZoo (https://pettingzoo.farama.org), parallel or turn by turn, as games (``envs.zoo``)."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pettingzoo
from gymnasium import spaces
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper, TerminateIllegalWrapper

from multigrid_rl.envs.base import install_command_for, reset_with_seed
from multigrid_rl.envs.zoo import LIMIT, DrawMode, Game, Observations, StepResult
from multigrid_rl.tables import entries, find
from multigrid_rl.text import ConfigError, expected, shown, suggestion
from multigrid_rl.trust import add_module_folders, mistake

#: Registries of environments with parallel moves and with turns.
_REGISTRIES = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
#: Wrappers that only check actions for order, bounds and rules.
_CHECKS = (OrderEnforcingWrapper, AssertOutOfBoundsWrapper, TerminateIllegalWrapper)
#: PettingZoo's ``render_mode`` by our drawing, and the default steps a second.
_MODES: dict[DrawMode, str] = {"text": "ansi", "picture": "rgb_array"}
_USUAL_FPS = 4.0
#: Maximum length of an agent's name, which is in cards.
_LETTERS = 100


def zoo_game(name: str, env_args: Mapping[str, Any]) -> Game:
    """Build a PettingZoo environment: a ``ParallelEnv`` if there is one, else an ``AECEnv``."""
    build = _builder(name)
    try:
        env = _build(build, env_args)
    except ModuleNotFoundError as error:
        raise ValueError(_missing(name, error)) from error
    except (Exception, SystemExit) as error:  # untrusted code may raise anything
        raise ValueError(expected("env_args", f"arguments of {name}", f"{dict(env_args)}: {mistake(error)}")) from error
    agents = getattr(env, "possible_agents", None)
    if not (isinstance(agents, Collection) and len(agents) and hasattr(env, "reset")):
        got = f"{name}: {type(env).__name__} without any"
        raise ValueError(expected("env_id", "an environment of PettingZoo's with possible_agents", got))
    if getattr(env, "render_mode", None) == "human":
        wanted = "render_mode: null, as this environment opens a window by itself"
        raise ValueError(expected("env_args", wanted, dict(env_args)))
    if hasattr(env, "agent_iter"):
        return Turns(_unchecked(env))
    if type(env) is aec_to_parallel_wrapper:
        env.aec_env = _unchecked(env.aec_env)
        # In each step it reads every agent's observation before the move and discards it.
        env.aec_env.last = partial(env.aec_env.last, observe=False)
    return Parallel(env)


def _build(build: Callable[..., Any], env_args: Mapping[str, Any]) -> Any:
    """Build an environment, with our step limit if it has an argument of that name."""
    if LIMIT in env_args:
        with suppress(Exception, SystemExit):  # untrusted code may raise anything; the next call reports it
            return build(**env_args)
    return build(**{key: value for key, value in env_args.items() if key != LIMIT})


def _unchecked(env: Any) -> Any:
    """Return an environment without PettingZoo's wrappers that check actions: ours are valid."""
    # They take more than half of the time of a small game.
    while type(env) in _CHECKS:
        env = env.env
    return env


def _builder(name: str) -> Callable[..., Any]:
    if "/" in name:
        if (kind := next((each for each, known in _REGISTRIES.items() if name in known), None)) is None:
            known = sorted({env_id for registry in _REGISTRIES.values() for env_id in registry})
            raise ValueError(expected("env_id", "a registered environment", f"{name}{suggestion(name, known)}"))
        return partial(pettingzoo.make, kind, name)
    module, colon, function = name.partition(":")
    add_module_folders()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(_missing(name, error)) from error
    except (Exception, SystemExit) as error:  # untrusted code may raise anything
        raise ValueError(expected("env_id", "a module that can be imported", f"{name}: {mistake(error)}")) from error
    wanted = [function] if colon else ["parallel_env", "env"]
    build = next((getattr(found, part) for part in wanted if callable(getattr(found, part, None))), None)
    if build is None:
        raise ValueError(expected("env_id", f"a module with {' or '.join(wanted)}", name))
    made: Callable[..., Any] = build
    return made


def _missing(name: str, error: ModuleNotFoundError) -> str:
    """Return what to install, or a similar module of an installed package."""
    folder, _, module = str(error.name).rpartition(".")
    if (package := sys.modules.get(folder)) is None:
        missing = str(error.name).partition(".")[0]
        hint = f" ({install_command_for(missing)})"
    else:
        hint = suggestion(module, [module_info.name for module_info in pkgutil.iter_modules(package.__path__)])
    return expected("env_id", "a module that is installed", f"{name}: {error}{hint}")


class Choice(int):
    """One choice for any environment: an ``int`` that also has the methods of numpy's, such as ``item``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np.int64(self), name)


def _copied(action: Any) -> Any:
    """Return a copy of an action, which an environment may keep and change."""
    return action.copy() if type(action) is np.ndarray else Choice(action)


def _names(agents: Sequence[Any]) -> dict[Any, str]:
    """Return agent -> name for folders, metrics and overrides. Raises ``ValueError``: two names are equal."""
    found = {re.sub(r"[^\w. -]|^[. ]|[. ]$", "_", str(agent)) or "_": agent for agent in agents}
    if len(found) < len(agents) or max(map(len, found)) > _LETTERS or not all(isinstance(a, Hashable) for a in agents):
        wanted = f"agents with different names of at most {_LETTERS} letters, digits, _, -, dots and blanks, not lists"
        raise ValueError(expected("env_id", wanted, shown(", ".join(map(repr, agents)), 200)))
    return {agent: name for name, agent in found.items()}


class _Zoo(Game):
    def __init__(self, env: Any) -> None:
        self.env = env
        self._names = _names(env.possible_agents)
        self._agents = {name: agent for agent, name in self._names.items()}
        self.agents = tuple(self._agents)
        self._renamed = self._names.keys() != self._agents.keys()
        metadata = getattr(env, "metadata", {})
        names, name = metadata.get("render_modes", ()), metadata.get("name")
        self._text = find(entries("texts"), name) if name in entries("texts") else None
        self.draws: Mapping[DrawMode, Mapping[str, Any]] = {
            **{mode: {"render_mode": name} for mode, name in _MODES.items() if name in names},
            **({} if self._text is None else {"text": {}}),
        }
        self.fps = float(metadata.get("render_fps") or _USUAL_FPS)

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        env_agent = self._agents[agent]
        return self.env.observation_space(env_agent), self.env.action_space(env_agent)

    def drawn(self, mode: DrawMode, agent: str | None = None) -> Any:  # noqa: ARG002 - renderers have no agents
        """Draw the current state with its renderer or that of ``tables.TEXTS``."""
        if mode == "text" and self._text is not None:
            return self._text(self.env.unwrapped)
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _by_name(self, values: Mapping[Any, Any]) -> dict[str, Any]:
        # An unknown agent keeps its name: the reader reports it.
        return {self._names.get(agent, agent): x for agent, x in values.items()} if self._renamed else dict(values)


class Parallel(_Zoo):
    """Agents that move at the same time (https://pettingzoo.farama.org/api/parallel/)."""

    turns = False

    def start(self, seed: int) -> StepResult:
        """Begin an episode."""
        observations, infos = reset_with_seed(self.env.reset, seed)
        self._last_actions: dict[Any, Any] = {}  # last action of each agent
        self._ended: set[Any] = set()  # agents that ended, though the environment still lists them
        return StepResult(self._pairs(observations, infos), self._turn())

    def play(self, actions: dict[str, Any]) -> StepResult:
        """Play one step. An agent that has ended and is still listed repeats its last action."""
        moves = {self._agents[name]: _copied(action) for name, action in actions.items()}
        self._last_actions.update(moves)
        sent = moves
        if self._ended:
            repeating = [agent for agent in self.env.agents if agent in self._ended and agent in self._last_actions]
            sent = {**moves, **{agent: _copied(self._last_actions[agent]) for agent in repeating}}
        observations, rewards, terminated, truncated, infos = self.env.step(sent)
        for what, values in (("reward", rewards), ("termination", terminated), ("truncation", truncated)):
            if not values.keys() >= moves.keys():
                missing = self._names[min(moves.keys() - values.keys(), key=str)]
                raise ConfigError(expected(f"{missing}: {what}", "one", "none"))
        ended = {agent: terminated[agent] for agent in terminated if terminated[agent] or truncated.get(agent)}
        self._ended |= ended.keys()
        return StepResult(self._pairs(observations, infos), self._turn(), self._by_name(rewards), self._by_name(ended))

    def _turn(self) -> tuple[str, ...]:
        if self._ended:
            self._ended &= set(self.env.agents)
        return tuple([self._names.get(agent, agent) for agent in self.env.agents if agent not in self._ended])

    def _pairs(self, obs: dict[Any, Any], infos: dict[Any, Any]) -> Observations:
        # There may be keys of no agent, such as "common" in PettingZoo's test; an agent that has ended may have no
        # observation.
        names = self._names.items()
        return {name: (obs[agent], infos.get(agent) or {}) for agent, name in names if obs.get(agent) is not None}


class Turns(_Zoo):
    """Agents that move one after the other (https://pettingzoo.farama.org/api/aec/)."""

    turns = True

    def start(self, seed: int) -> StepResult:
        """Begin an episode."""
        reset_with_seed(self.env.reset, seed)
        return self._next()

    def play(self, actions: dict[str, Any]) -> StepResult:
        """Play one move."""
        self.env.step(_copied(actions[self._names[self.env.agent_selection]]))
        return self._next()

    def _next(self) -> StepResult:
        # An agent that has ended gets one more call, only for its rewards.
        result = StepResult({}, (), observe_others=self._others)
        env = self.env
        while env.agents:
            agent = env.agent_selection
            name = self._names.get(agent, agent)
            if name in result.endings and all(map(self._has_ended, env.agents)):  # none of them leaves
                self._end_all(result)
                break
            obs, reward, terminated, truncated, info = env.last()
            if obs is not None:
                result.observations[name] = obs, info
            result.rewards[name] = result.rewards[name] + reward if name in result.rewards else reward
            if not (terminated or truncated):
                result.turn = (name,)
                result.pending_rewards = self._by_name(env._cumulative_rewards)
                result.pending_rewards.pop(name, None)
                break
            result.endings[name] = terminated
            env.step(None)
        return result

    def _others(self) -> Observations:
        return self._observe(agent for agent in self.env.agents if not self._has_ended(agent))

    def _has_ended(self, agent: Any) -> bool:
        return bool(self.env.terminations.get(agent) or self.env.truncations.get(agent))

    def _observe(self, agents: Iterable[Any]) -> Observations:
        observed = {self._names[agent]: (self.env.observe(agent), self.env.infos.get(agent) or {}) for agent in agents}
        return {name: pair for name, pair in observed.items() if pair[0] is not None}

    def _end_all(self, result: StepResult) -> None:
        """Record the end of agents that never move, as an ended agent before them stays selected."""
        agents = [agent for agent in self.env.agents if self._names[agent] not in result.endings]
        result.observations |= self._observe(agents)
        result.rewards |= {self._names[agent]: self.env._cumulative_rewards[agent] for agent in agents}
        result.endings |= {self._names[agent]: self.env.terminations[agent] for agent in agents}


# Boards as text of games whose renderers draw only pictures: entries of ``tables.TEXTS``.


def tictactoe(env: Any) -> str:
    """Return three rows; a free square shows the number of the action that takes it."""
    marks = [str(k) if not mark else "xo"[mark - 1] for k, mark in enumerate(env.board.squares)]
    return "\n---+---+---\n".join(" " + " | ".join(marks[row::3]) for row in range(3))


def connect_four(env: Any) -> str:
    """Return six rows and, below them, the numbers of the columns."""
    rows = [env.board[k : k + 7] for k in range(0, 42, 7)]
    return "\n".join([*(" ".join(".xo"[mark] for mark in row) for row in rows), " ".join(map(str, range(7)))])
