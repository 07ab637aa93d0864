"""Batches of ``N`` environments that are registered with Gymnasium.

One agent, ``agent_0``, plays each of them. It sees a vector of floats, which ends with flags of the legal choices if
the environment has them (:class:`~multigrid_rl.envs.zoo.Seat`); its action is one choice, several, or a vector.
"""

import importlib
import inspect
import logging
import warnings
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from multigrid_rl.config.scenario import EnvironmentKind, OneAgent
from multigrid_rl.envs.base import (
    AGENT,
    TEAM,
    TRIAL_STEPS,
    SingleAgentEnvs,
    UserReward,
    flat_actions,
    install_command_for,
    native,
    one_number,
    reset_with_seed,
    unsupported_actions,
)
from multigrid_rl.envs.zoo import LEGAL, LIMIT, Seat, seat_of
from multigrid_rl.tables import BATCHED, find, has
from multigrid_rl.text import ConfigError, expected, suggestion
from multigrid_rl.trust import add_module_folders, mistake
from multigrid_rl.types import AgentSpec, BatchedStep, EnvFactory, MultiAgentSpec, RunError

LOG = logging.getLogger(__name__)
#: Form of an environment's answers.
ANSWERS = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}


def make_env(env_id: str, env_args: dict[str, Any], *, render: bool = False) -> gymnasium.Env[Any, Any]:
    """Build one environment.

    Raises ``ValueError``: one line with the key and the mistake: an unknown id, a missing package, unsupported
    arguments, or actions that our networks cannot fill.
    """
    env = _make_registered(env_id, env_args, render=render)
    if wanted := unsupported_actions(env.action_space):
        several = " (of several agents: a ParallelEnv around it, env_id=pettingzoo:MODULE:FUNCTION, docs/games.md)"
        wanted += several if isinstance(env.action_space, spaces.Tuple | spaces.Dict) else ""
        raise ValueError(expected("env_id", f"an environment with {wanted}", f"{env_id}: {env.action_space}"))
    return env


def _make_registered(env_id: str, env_args: dict[str, Any], *, render: bool) -> gymnasium.Env[Any, Any]:
    if env_args.get("render_mode") is not None:  # a window would end a process without a screen
        wanted = "no render_mode (`multigrid-rl video` and `report` draw)"
        raise ValueError(expected("env_args", wanted, env_args["render_mode"]))
    module, colon, name = env_id.partition(":")
    if colon:
        add_module_folders()
    try:
        home = importlib.import_module(module) if colon else None
        with warnings.catch_warnings():  # it would stand before our one line
            warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
            env = _build(env_id, env_args, render=render)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ValueError(_missing(env_id, error)) from error
    except gymnasium.error.Error as error:
        hint = f" (register it, or of PettingZoo: env_id=pettingzoo:{env_id})" if hasattr(home, name) else ""
        got = f"{env_id}{hint or suggestion(env_id, gymnasium.registry)}: {error}"
        raise ValueError(expected("env_id", "the id of a registered environment", got)) from error
    # Environments check their arguments in their own ways; MuJoCo's raise ValueError or OSError for a model file.
    except (TypeError, ValueError, AssertionError, OSError) as error:
        raise ValueError(expected("env_args", f"arguments of {env_id}", f"{env_args}: {error}")) from error
    except (Exception, SystemExit) as error:  # untrusted code may raise anything
        got = f"{env_id}: {mistake(error)}"
        raise ValueError(expected("env_id", "an environment that can be made", got)) from error
    if env.render_mode == "human":
        env.close()
        wanted = "render_mode: null, as this environment opens a window by itself"
        raise ValueError(expected("env_args", wanted, env_args))
    return env


def _build(env_id: str, env_args: dict[str, Any], *, render: bool) -> gymnasium.Env[Any, Any]:
    """Build an environment with its arguments, also if ``gymnasium.make`` has one of the same name."""
    limit, args = env_args.get(LIMIT), {key: value for key, value in env_args.items() if key != LIMIT}
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    if spec is None:  # known under another version, or not at all
        return gymnasium.make(env_id, max_episode_steps=limit, disable_env_checker=True, **args)
    kwargs, parameters = {**spec.kwargs, **args}, _parameters(spec.entry_point)
    if limit is not None and LIMIT in parameters:
        kwargs[LIMIT] = limit
    if render or "render_mode" in {*parameters, *kwargs}:
        kwargs["render_mode"] = "rgb_array" if render else None
    # No check in each step that it was reset before: it was.
    spec = replace(spec, kwargs=kwargs, order_enforce=False)
    return gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True)


def _parameters(entry_point: Any) -> Collection[str]:
    """Return the names of an environment's parameters; empty if they cannot be found."""
    build = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    try:
        return inspect.signature(build).parameters
    except (TypeError, ValueError):  # not written in Python
        return ()


def describe_env(env_id: str, env_args: dict[str, Any]) -> Seat:
    """Build an environment, reset it and step it once; returns the observations and actions of its agent.

    Raises ``ValueError``: see :func:`make_env`; it fails, answers in another form, or with unsupported observations.
    """
    env, key = make_env(env_id, env_args), f"env_id={env_id}"
    env.action_space.seed(0)
    obs, info = _answer(env_id, "reset", lambda: reset_with_seed(env.reset, 0))
    flags = (obs if isinstance(obs, Mapping) else info).get(LEGAL)
    next_obs, reward, *ends, next_info = _answer(env_id, "step", lambda: env.step(_trial(env.action_space, flags)))
    masked = any(LEGAL in infos for infos in (info, next_info))
    seat = seat_of(key, env.observation_space, env.action_space, masked=masked)
    env.close()
    numbers = zip(("reward", "terminated", "truncated"), (reward, *ends), strict=True)
    for call, sample, infos, results in (("reset", obs, info, ()), ("step", next_obs, next_info, numbers)):
        try:
            seat.read(sample, infos, np.zeros(seat.size, np.float32))
            for name, value in results:
                one_number(name, value)
        except (Exception, SystemExit) as error:  # its space may have untrusted code, too
            raise ValueError(f"{key}: {call}: {mistake(error)}") from error
    return seat


def _trial(space: spaces.Space[Any], flags: Any) -> Any:
    """Return a random action, or the first one that ``flags`` allow."""
    if flags is None:
        return space.sample()
    flat = np.concatenate(flags) if isinstance(flags, tuple) else np.asarray(flags).reshape(-1)
    parts = np.split(flat, np.cumsum(flat_actions(space).nvec)[:-1])
    return native(space, np.array([[part.argmax() for part in parts]]))[0]


def _answer(env_id: str, call: str, ask: Callable[[], Any]) -> Any:
    """Return an environment's answer. Raises ``ValueError``: it fails, or answers in another form."""
    try:
        answer = ask()
    except (Exception, SystemExit) as error:  # untrusted code may raise anything
        raise ValueError(_failure(env_id, call, mistake(error))) from error
    if not isinstance(answer, tuple) or len(answer) != ANSWERS[call].count(",") + 1:
        got = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__} alone"
        raise ValueError(_failure(env_id, call, got))
    if not isinstance(answer[-1], Mapping):
        raise ValueError(_failure(env_id, call, f"{answer[-1]!r:.80} as info"))
    return answer


def _failure(env_id: str, call: str, got: str) -> str:
    return expected(f"env_id={env_id}: {call}", ANSWERS[call], got)


def _missing(env_id: str, error: Exception) -> str:
    """Return what to install: Gymnasium's advice is an extra that builds Box2D from source."""
    name = str(getattr(error.__cause__ or error, "name", None) or "").partition(".")[0]
    module, colon, _ = env_id.partition(":")
    if not name or (colon and module.partition(".")[0] == name):
        return expected("env_id", "an environment whose module can be imported", f"{env_id}: {error}")
    got = f"{env_id} without {name}: {install_command_for(name)}"
    return expected("env_id", "an environment whose packages are installed", got)


class GymnasiumEnvs(SingleAgentEnvs):
    """``num_envs`` environments of one id; implements ``types.BatchedEnv``.

    ``seed``, ``k``, the number of its episode and the actions determine environment ``k``, if it follows Gymnasium's
    rules of seeding. Raises ``ValueError``: see :func:`describe_env`.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        env_args: dict[str, Any] | None = None,
        seed: int = 0,
        first: int = 0,
        seat: Seat | None = None,
    ) -> None:
        self._seat = seat = seat or describe_env(env_id, env_args or {})
        # Not Gymnasium's SyncVectorEnv: it collects info dictionaries that are not read, a fifth of CartPole's time.
        self.envs = [make_env(env_id, env_args or {}) for _ in range(num_envs)]
        super().__init__(env_id, num_envs, seat.action_space, seat.size, first)
        self._copied_shape = seat.copied_shape
        self._played: list[list[Any]] = [[] for _ in range(num_envs)]
        self.reset(seed)

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step, see ``SingleAgentEnvs``. Raises ``RunError`` also if no choice is legal."""
        step = super().step(actions)
        self._check_legal("step")
        return step

    def _begin(self, which: NDArray[np.bool_]) -> None:
        super()._begin(which)
        self._check_legal("reset")

    def _check_legal(self, call: str) -> None:
        if self._seat.legal:
            flags = self._obs[:, -self._seat.legal :]
            stuck = ~np.add.reduceat(flags, self._seat.parts, axis=1).all(axis=1)
            if stuck.any():
                where = f"environment {self._first + int(np.flatnonzero(stuck)[0])}"
                raise RunError(_failure(self.env_id, call, f"{LEGAL} without a legal choice in {where}"))

    def _read(self, obs: Any, info: Any, row: NDArray[Any]) -> None:
        """Write an observation into ``row`` (D,). Raises ``ConfigError``: it is not of its space."""
        if LEGAL in info and not self._seat.legal:
            raise ConfigError(expected(LEGAL, "from the first step of an episode on", "none there"))
        self._seat.read(obs, info, row)

    def get_state(self) -> dict[str, Any]:
        """Return the actions since each episode began: environments of other packages cannot be copied."""
        return {**super().get_state(), "played": [list(rows) for rows in self._played]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`: begins the same episodes again and plays the same actions.

        Raises ``ValueError``: a state of other environments.
        """
        super().set_state(state)
        saved = self._obs
        self._begin(np.ones(self.num_envs, np.bool_))
        for k, (env, rows) in enumerate(zip(self.envs, state["played"], strict=True)):
            try:
                for action in rows:  # copies: the environment may change them
                    obs, *_, info = env.step(copy(action))
                if rows:
                    self._read(obs, info, self._obs[k])
            except (Exception, SystemExit) as error:  # untrusted code may raise anything
                raise RunError(_failure(self.env_id, "step", mistake(error))) from error
            self._played[k] = list(rows)
        if (self._obs != saved).any():
            LOG.warning("env_id=%s: played again, it shows something else: the run goes on, not exactly", self.env_id)
        super().set_state({**state, "arrays": [*state["arrays"][:-1], self._obs]})  # the replay counted from zero

    def _play(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        obs, rewards = np.empty(self._obs.shape), np.empty(self.num_envs)
        terminated, truncated = np.empty((2, self.num_envs), np.bool_)
        # Numpy's scalars and arrays, as its space samples them; copies, as an environment may change them.
        rows, copied_shape = [*actions], self._copied_shape
        copies = rows if actions.ndim == 1 else actions.copy()
        try:
            for k, (env, action, recorded) in enumerate(zip(self.envs, copies, rows, strict=True)):
                observed, reward, end, time_limit, info = env.step(action)
                self._infos[k] = info
                if type(observed) is np.ndarray and observed.shape == copied_shape and LEGAL not in info:
                    obs[k] = observed
                else:
                    self._read(observed, info, obs[k])
                rewards[k] = reward if isinstance(reward, float) else one_number("reward", reward)
                terminated[k] = end if isinstance(end, bool) else one_number("terminated", end)
                truncated[k] = time_limit if isinstance(time_limit, bool) else one_number("truncated", time_limit)
                self._played[k].append(recorded)
        except (Exception, SystemExit) as error:  # untrusted code may raise anything
            raise RunError(_failure(self.env_id, "step", mistake(error))) from error
        return obs, rewards, terminated, truncated

    def _start(self, seeds: dict[int, int]) -> NDArray[Any]:
        rows = np.empty((len(seeds), self._seat.size))
        try:
            for row, (k, seed) in zip(rows, seeds.items(), strict=True):
                self._played[k] = []
                observed, info = reset_with_seed(self.envs[k].reset, seed)
                self._read(observed, info, row)
        except (Exception, SystemExit) as error:  # untrusted code may raise anything
            raise RunError(_failure(self.env_id, "reset", mistake(error))) from error
        return rows


@dataclass(frozen=True)
class GymnasiumFactory(EnvFactory):
    """Builds environments of one id, in this process or another.

    Args:
        env_id: id of a registered environment, or ``module:Id``.
        shaping: ``module:function`` of a training reward, or ``None``.
    """

    env_id: str
    seed: int
    env_args: dict[str, Any] = field(default_factory=dict)
    shaping: str | None = None

    @cached_property
    def specs(self) -> MultiAgentSpec:
        """The only agent. Raises ``ConfigError``: see :func:`make_env`."""
        try:
            seat = describe_env(self.env_id, self.env_args)
        except ValueError as error:
            raise ConfigError(f"scenario.{error}") from error
        observations = seat.space if seat.pixels or seat.legal else spaces.flatten_space(seat.observation_space)
        actions = flat_actions(seat.action_space)
        agent = AgentSpec(AGENT, AGENT, (AGENT,), observations, actions, legal=seat.legal, image=seat.image, own=seat)
        return MultiAgentSpec((agent,), (AGENT,), (TEAM,), (TEAM,), events=(), has_winner=False)

    def check_reward(self) -> None:
        """Try the user's training reward in random steps. Raises ``ConfigError``: it cannot be used."""
        if self.shaping:
            envs, action_space = self.build(1, 0), self.specs.agents[0].action_space
            action_space.seed(0)
            try:
                for _ in range(TRIAL_STEPS):
                    envs.step({AGENT: action_space.sample()[None]})
            except RunError as error:
                raise ConfigError(str(error)) from error

    def build(self, num_envs: int, first: int) -> SingleAgentEnvs:
        """Build environments number ``first`` to ``first + num_envs - 1``, batched if there is a faster way."""
        spec = gymnasium.registry.get(self.env_id)
        envs: SingleAgentEnvs | None = None
        if spec is not None and has(BATCHED, str(spec.entry_point)):
            env = make_env(self.env_id, self.env_args)  # reports a missing package
            envs = find(BATCHED, str(spec.entry_point))(env, num_envs, self.seed, first)
        if envs is None:
            options: dict[str, Any] = {"env_args": self.env_args, "seat": self.specs.agents[0].own}
            envs = GymnasiumEnvs(self.env_id, num_envs, seed=self.seed, first=first, **options)
        envs.shaping = UserReward(self.shaping) if self.shaping else None
        return envs


class Gymnasium(EnvironmentKind):
    """Environments that are registered with Gymnasium: one agent learns."""

    vectors: ClassVar[bool] = True
    shaped: ClassVar[bool] = True
    discriminators: ClassVar[bool] = True
    may_not_end: ClassVar[bool] = True

    env_id: str
    env_args: dict[str, Any]
    agents: OneAgent

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:  # noqa: ARG002 - no seated players
        """Return the recipe for a run's environments."""
        return GymnasiumFactory(self.env_id, config.seed, self.env_args, config.train.shaping)
