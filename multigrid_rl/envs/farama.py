"""Environments of PettingZoo (https://pettingzoo.farama.org), parallel or turn by turn, as games (``envs.zoo``)."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pettingzoo
from gymnasium import spaces
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper, TerminateIllegalWrapper

from multigrid_rl.envs.base import bringing
from multigrid_rl.envs.zoo import Game, Happened, How
from multigrid_rl.tables import entries, find
from multigrid_rl.text import ConfigError, expected, suggestion
from multigrid_rl.trust import look_in_working_folder, mistake

#: Where environments are registered, by how their agents move.
_REGISTRIES = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
#: Wrappers that complain of actions out of order, out of bounds or against the rules, and change nothing else.
_CHECKS = (OrderEnforcingWrapper, AssertOutOfBoundsWrapper, TerminateIllegalWrapper)
#: PettingZoo's ``render_mode`` for each, and steps a second of a game that says none.
_MODES: dict[How, str] = {"text": "ansi", "picture": "rgb_array"}
_USUAL_FPS = 4.0


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
        hint = f" ({bringing(lacking)})"
    else:
        hint = suggestion(module, [one.name for one in pkgutil.iter_modules(package.__path__)])
    return expected("env_id", "a module that is installed", f"{name}: {error}{hint}")


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
                now.owed = {other: more for other, more in env._cumulative_rewards.items() if other != agent}
                break
            now.ended[agent] = ended
            env.step(None)
        return now
