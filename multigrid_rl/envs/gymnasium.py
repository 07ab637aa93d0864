"""Every environment that is registered with Gymnasium, ``N`` side by side.

One agent, ``agent_0``, plays each of them. Its observation is a vector of floats (Gymnasium's ``FlattenObservation``
where the environment's own is none); its action one choice, several, or a vector.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray

from multigrid_rl.config.scenario import EnvironmentKind, OneAgent
from multigrid_rl.envs.base import (
    AGENT,
    TEAM,
    TRIED,
    BrokenEnvError,
    OwnReward,
    SingleAgentEnvs,
    bringing,
    flat_actions,
    unfit_actions,
)
from multigrid_rl.tables import BATCHED, find, has
from multigrid_rl.text import ConfigError, expected, suggestion
from multigrid_rl.trust import look_in_working_folder, mistake
from multigrid_rl.types import AgentSpec, EnvFactory, MultiAgentSpec, RunError

LOG = logging.getLogger(__name__)
#: What an environment answers.
ANSWERS = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}


def make_env(env_id: str, env_args: dict[str, Any], *, render: bool = False) -> gymnasium.Env[Any, Any]:
    """Build one environment whose observation is a vector.

    Raises:
        ValueError: one line naming the key and what is wrong: an unknown id, a package that is missing, arguments that
            the environment does not take, or spaces that no network here reads or fills.
    """
    env = _made(env_id, env_args, render=render)
    seen = env.observation_space
    if isinstance(seen, spaces.Box) and len(seen.shape) == 3:
        raise ValueError(expected("env_id", "an environment that shows a vector", f"{env_id}: images {seen.shape}"))
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        with suppress(NotImplementedError):
            env = FlattenObservation(env)
        if not isinstance(env.observation_space, spaces.Box):
            wanted = "an environment whose observations can be flattened"
            raise ValueError(expected("env_id", wanted, f"{env_id}: {seen}"))
    wanted = unfit_actions(env.action_space)
    if wanted:
        raise ValueError(expected("env_id", f"an environment with {wanted}", f"{env_id}: {env.action_space}"))
    return env


def _made(env_id: str, env_args: dict[str, Any], *, render: bool) -> gymnasium.Env[Any, Any]:
    if "render_mode" in env_args:  # a window would end a process without a screen
        wanted = "no render_mode (`multigrid-rl video` and `report` draw)"
        raise ValueError(expected("env_args", wanted, env_args["render_mode"]))
    mode = {"render_mode": "rgb_array"} if render else {}
    if ":" in env_id:
        look_in_working_folder()
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **mode, **env_args)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ValueError(_missing(env_id, error)) from error
    except SyntaxError as error:
        raise ValueError(
            expected("env_id", "an environment whose module can be imported", f"{env_id}: {error}")
        ) from error
    except gymnasium.error.Error as error:
        got = f"{env_id}{suggestion(env_id, gymnasium.registry)}: {error}"
        raise ValueError(expected("env_id", "the id of a registered environment", got)) from error
    # An environment checks its arguments as it likes; MuJoCo's say ValueError or OSError of a model file.
    except (TypeError, ValueError, AssertionError, OSError) as error:
        raise ValueError(expected("env_args", f"arguments of {env_id}", f"{env_args}: {error}")) from error
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        raise ValueError(
            expected("env_id", "an environment that can be made", f"{env_id}: {mistake(error)}")
        ) from error


def try_out(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    """Reset an environment and step it once. Raises ``ValueError``: it cannot, or answers something else."""
    shape = env.observation_space.shape
    env.action_space.seed(0)
    for call, wanted in ANSWERS.items():
        try:
            answer: Any = env.reset(seed=0) if call == "reset" else env.step(env.action_space.sample())
            seen = np.shape(answer[0])
            float(answer[1] if call == "step" else 0)
        except (Exception, SystemExit) as error:  # a stranger's code may raise anything
            raise ValueError(_failed(env_id, call, mistake(error))) from error
        if not isinstance(answer, tuple) or len(answer) != wanted.count(",") + 1:
            got = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__} alone"
            raise ValueError(_failed(env_id, call, got))
        if seen != shape:
            raise ValueError(expected(f"env_id={env_id}: {call}: observation", f"shape {shape} of its space", seen))


def _failed(env_id: str, call: str, got: str) -> str:
    return expected(f"env_id={env_id}: {call}", ANSWERS[call], got)


def _missing(env_id: str, error: Exception) -> str:
    """Say what to install: Gymnasium's own advice is an extra that builds Box2D from source."""
    name = str(getattr(error.__cause__ or error, "name", None) or "").partition(".")[0]
    module, colon, _ = env_id.partition(":")
    if not name or (colon and module.partition(".")[0] == name):
        return expected("env_id", "an environment whose module can be imported", f"{env_id}: {error}")
    got = f"{env_id} without {name}: {bringing(name)}"
    return expected("env_id", "an environment whose packages are installed", got)


class GymnasiumEnvs(SingleAgentEnvs):
    """``num_envs`` environments of one id; implements ``types.BatchedEnv``.

    What environment ``k`` does follows from ``seed``, ``k``, the number of its episode and the actions alone, as far as
    the environment keeps Gymnasium's seeding.

    Args:
        env_id: id of a registered environment, or ``module:Id``.
        num_envs: how many environments ``N``.
        env_args: arguments of the environment.
        seed: of everything random.
        first: number of the first environment.

    Raises:
        ValueError: see :func:`make_env`.
    """

    def __init__(
        self, env_id: str, num_envs: int, *, env_args: dict[str, Any] | None = None, seed: int = 0, first: int = 0
    ) -> None:
        # Not Gymnasium's SyncVectorEnv: it collects info dictionaries that are not read, a fifth of CartPole's time.
        self.envs = [make_env(env_id, env_args or {}) for _ in range(num_envs)]
        seen = self.envs[0].observation_space
        super().__init__(env_id, num_envs, self.envs[0].action_space, int(np.prod(seen.shape)), first)
        self._played: list[list[Any]] = [[] for _ in range(num_envs)]
        self.reset(seed)

    def get_state(self) -> dict[str, Any]:
        """Return the actions since each episode began: environments of strangers cannot be copied."""
        return {**super().get_state(), "played": [list(rows) for rows in self._played]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked: begins the same episodes again and plays the same actions.

        Raises:
            ValueError: a state of other environments.
        """
        super().set_state(state)
        shown = self._obs
        self._begin(np.ones(self.num_envs, np.bool_))
        for k, (env, rows) in enumerate(zip(self.envs, state["played"], strict=True)):
            try:
                for action in rows:
                    obs, *_ = env.step(action)
            except (Exception, SystemExit) as error:  # a stranger's code may raise anything
                raise BrokenEnvError(_failed(self.env_id, "step", mistake(error))) from error
            if rows:
                self._obs[k] = obs
            self._played[k] = list(rows)
        if (self._obs != shown).any():
            LOG.warning(
                "env_id=%s: played again, it shows something else: the run goes on, but not exactly", self.env_id
            )
        super().set_state({**state, "arrays": [*state["arrays"][:-1], self._obs]})  # beginning counted from zero

    def _play(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        count = self.num_envs
        obs, rewards = np.empty(self._obs.shape), np.empty(count)
        terminated, truncated = np.empty(count, np.bool_), np.empty(count, np.bool_)
        # Plain integers: many environments look an action up, and numpy's scalars are slow at that.
        rows = actions.tolist() if actions.ndim == 1 else actions
        try:
            for k, (env, action) in enumerate(zip(self.envs, rows, strict=True)):
                obs[k], rewards[k], terminated[k], truncated[k], self._infos[k] = env.step(action)
                self._played[k].append(action)
        except (Exception, SystemExit) as error:  # a stranger's code may raise anything
            raise BrokenEnvError(_failed(self.env_id, "step", mistake(error))) from error
        return obs, rewards, terminated, truncated

    def _start(self, seeds: dict[int, int]) -> NDArray[Any]:
        for k in seeds:
            self._played[k] = []
        try:
            return np.stack([np.array(self.envs[k].reset(seed=seed)[0]) for k, seed in seeds.items()])
        except (Exception, SystemExit) as error:  # a stranger's code may raise anything
            raise BrokenEnvError(_failed(self.env_id, "reset", mistake(error))) from error


@dataclass(frozen=True)
class GymnasiumFactory(EnvFactory):
    """Builds environments of one id, in this process or another.

    Args:
        env_id: id of a registered environment, or ``module:Id``.
        seed: of all environments.
        env_args: arguments of the environment.
        shaping: ``module:function`` of a training reward, or ``None``.
    """

    env_id: str
    seed: int
    env_args: dict[str, Any] = field(default_factory=dict)
    shaping: str | None = None

    @cached_property
    def specs(self) -> MultiAgentSpec:
        """Who is in the environments: one agent. Raises ``ConfigError``: see :func:`make_env`."""
        try:
            env = make_env(self.env_id, self.env_args)
            try_out(self.env_id, env)
        except ValueError as error:
            raise ConfigError(f"scenario.{error}") from error
        agent = AgentSpec(AGENT, AGENT, (AGENT,), env.observation_space, flat_actions(env.action_space))
        env.close()
        return MultiAgentSpec(
            agents=(agent,), seats=(AGENT,), teams=(TEAM,), team_names=(TEAM,), events=(), has_winner=False
        )

    def check_reward(self) -> None:
        """Try the training reward of the user's own in random steps. Raises ``ConfigError``: it cannot be used."""
        if self.shaping:
            envs, acts = self.build(1, 0), self.specs.agents[0].action_space
            acts.seed(0)
            try:
                for _ in range(TRIED):
                    envs.step({AGENT: acts.sample()[None]})
            except RunError as error:
                raise ConfigError(str(error)) from error

    def build(self, num_envs: int, first: int) -> SingleAgentEnvs:
        """Build environments number ``first`` to ``first + num_envs - 1``, by a faster way where there is one."""
        envs = self._environments(num_envs, first)
        envs.shaping = OwnReward(self.shaping) if self.shaping else None
        return envs

    def _environments(self, num_envs: int, first: int) -> SingleAgentEnvs:
        spec = gymnasium.registry.get(self.env_id)
        if spec is not None and has(BATCHED, str(spec.entry_point)):
            build = find(BATCHED, str(spec.entry_point))
            envs: SingleAgentEnvs | None = build(make_env(self.env_id, self.env_args), num_envs, self.seed, first)
            if envs is not None:
                return envs
        return GymnasiumEnvs(self.env_id, num_envs, env_args=self.env_args, seed=self.seed, first=first)


class Gymnasium(EnvironmentKind):
    """Environments that are registered with Gymnasium: one agent learns."""

    vectors: ClassVar[bool] = True
    shaped: ClassVar[bool] = True
    discriminators: ClassVar[bool] = True
    may_not_end: ClassVar[bool] = True

    env_id: str
    env_args: dict[str, Any]
    agents: OneAgent

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:  # noqa: ARG002 - nobody is seated
        """Return the recipe for a run's environments."""
        return GymnasiumFactory(self.env_id, config.seed, self.env_args, config.train.shaping)
