"""Every environment that is registered with Gymnasium, ``N`` side by side in Gymnasium's own vector environment.

One agent, ``agent_0``, plays each of them. Its observation is a vector of floats (Gymnasium's ``FlattenObservation``
where the environment's own is none); its action one choice, several, or a bounded vector.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray

from multigrid_rl.clock import Clock
from multigrid_rl.types import AgentSpec, BatchedStep, EpisodeTable, MultiAgentSpec

AGENT, TEAM = "agent_0", "agents"
#: As many as a player's card may name.
MAX_CHOICES = 100


def make_env(env_id: str, env_args: dict[str, Any], *, render: bool = False) -> gymnasium.Env[Any, Any]:
    """Build one environment whose observation is a vector.

    Raises:
        ValueError: one line naming the key and what is wrong: an unknown id, a package that is missing, arguments that
            the environment does not take, or spaces that no network here reads or fills.
    """
    mode = {"render_mode": "rgb_array"} if render else {}
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **mode, **env_args)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"env_id={env_id}: {' '.join(str(error).split())}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        known = sorted(gymnasium.registry)
        close = difflib.get_close_matches(env_id, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(f"env_id={env_id}: expected the id of a registered environment{hint}: {error}") from error
    except TypeError as error:
        raise ValueError(f"env_args={env_args}: expected arguments of {env_id}: {error}") from error
    seen = env.observation_space
    if isinstance(seen, spaces.Box) and len(seen.shape) == 3:
        raise ValueError(f"env_id={env_id}: expected a vector, got images of shape {seen.shape}")
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        try:
            env = FlattenObservation(env)
        except NotImplementedError as error:
            raise ValueError(f"env_id={env_id}: expected observations that can be flattened, got {seen}") from error
    acts = env.action_space
    if not isinstance(acts, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        raise ValueError(f"env_id={env_id}: expected Discrete, MultiDiscrete or Box actions, got {acts}")
    counts = _flat(acts).nvec if not isinstance(acts, spaces.Box) else np.zeros(1)
    if counts.max() > MAX_CHOICES:
        raise ValueError(f"env_id={env_id}: expected at most {MAX_CHOICES} choices of an action, got {counts.max()}")
    if isinstance(acts, spaces.Box) and not (np.isfinite(acts.low).all() and np.isfinite(acts.high).all()):
        raise ValueError(f"env_id={env_id}: expected bounded actions, got {acts}")
    return env


def _flat(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the action space as networks fill it: components (C,) or numbers (A,)."""
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32))
    choices = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1).tolist()
    return spaces.MultiDiscrete([int(count) for count in choices])


class GymnasiumEnvs:
    """``num_envs`` environments of one id; implements ``types.BatchedEnv``.

    Finished environments start afresh at once. What environment ``k`` does follows from ``seed``, ``k``, the number of
    its episode and the actions alone, as far as the environment keeps Gymnasium's seeding.

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
        self.num_envs = num_envs
        args = env_args or {}
        self.envs = SyncVectorEnv(
            [lambda: make_env(env_id, args)] * num_envs, copy=False, autoreset_mode=AutoresetMode.DISABLED
        )
        self._action_space = self.envs.single_action_space
        self._first = first
        self._clock = Clock()
        self._returns = np.zeros((num_envs, 1))
        self._length = np.zeros(num_envs, np.int32)
        self._episode = np.zeros(num_envs, np.int64)
        self._played: list[list[Any]] = [[] for _ in range(num_envs)]
        self._finished: list[EpisodeTable] = []
        self.reset(seed)

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Start all environments afresh under ``seed``, from their first episode; returns observations (N, D)."""
        self._seed = seed
        self._episode[:] = 0
        self._finished = []
        self._begin(np.ones(self.num_envs, np.bool_))
        return self.observations()

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the observations (N, D) float32 as the environments stand."""
        return {AGENT: self._obs}

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N, C) integers or (N, A) numbers within the bounds of the environment."""
        taken = self._native(actions[AGENT])
        self._clock.begin()
        obs, rewards, terminated, truncated, _ = self.envs.step(taken)
        self._clock.lap("engine")
        for rows, action in zip(self._played, taken, strict=True):
            rows.append(action)
        done = terminated | truncated
        self._returns[:, 0] += rewards
        self._length += 1
        self._obs = final = np.asarray(obs, np.float32).copy()
        if done.any():
            self._close(done)
            self._clock.lap("engine")
        return BatchedStep(
            observations={AGENT: self._obs},
            final_observations={AGENT: final},
            rewards={AGENT: np.asarray(rewards, np.float64)},
            terminated={AGENT: terminated},
            mask={AGENT: np.ones((self.num_envs, 1), np.bool_)},
            truncated=truncated & ~terminated,
            done=done,
        )

    def _native(self, actions: NDArray[Any]) -> NDArray[Any]:
        space = self._action_space
        if isinstance(space, spaces.Discrete):
            return np.asarray(actions[:, 0] + space.start, np.int64)
        # A copy: these are kept for `get_state`, and the caller writes over its own.
        return np.array(actions.reshape(self.num_envs, *(space.shape or ())), space.dtype)

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call; there are no event columns, and nobody wins."""
        rows, self._finished = [EpisodeTable.empty(1, 0), *self._finished], []
        return EpisodeTable.concatenate(rows)

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on the ``engine`` since the last call; there are no background players."""
        return {"players": 0.0, "engine": 0.0, **self._clock.drain()}

    def get_state(self) -> dict[str, Any]:
        """Return the actions since each episode began: environments of strangers cannot be copied."""
        arrays = [array.copy() for array in (self._returns, self._length, self._episode)]
        return {"seed": self._seed, "played": [list(rows) for rows in self._played], "arrays": arrays}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked: begins the same episodes again and plays the same actions.

        Raises:
            ValueError: a state of other environments.
        """
        if state["seed"] != self._seed or len(state["played"]) != self.num_envs:
            raise ValueError(
                f"state: expected {self.num_envs} environments with seed {self._seed}, got {len(state['played'])} "
                f"with seed {state['seed']}"
            )
        returns, length, self._episode = (array.copy() for array in state["arrays"])
        self._begin(np.ones(self.num_envs, np.bool_))
        for k, rows in enumerate(state["played"]):
            for action in rows:
                obs, *_ = self.envs.envs[k].step(action)
            if rows:
                self._obs[k] = obs
            self._played[k] = list(rows)
        self._returns, self._length = returns, length

    def _close(self, done: NDArray[np.bool_]) -> None:
        count = int(done.sum())
        nobody = np.full(count, -1, np.int8)
        self._finished.append(
            EpisodeTable(
                self._length[done], self._returns[done], np.zeros((count, 1, 0)), nobody, np.zeros((count, 0), np.int16)
            )
        )
        self._episode[done] += 1
        self._begin(done)

    def _begin(self, which: NDArray[np.bool_]) -> None:
        """Start the environments in ``which`` (N,) afresh."""
        seeds: list[int | None] = [None] * self.num_envs
        for k in np.flatnonzero(which).tolist():
            sequence = np.random.SeedSequence((self._seed, self._first + k, int(self._episode[k])))
            seeds[k] = int(sequence.generate_state(1)[0])
            self._played[k] = []
        obs, _ = self.envs.reset(seed=seeds, options={"reset_mask": which})
        self._obs = np.asarray(obs, np.float32).copy()
        self._returns[which] = 0.0
        self._length[which] = 0


@dataclass(frozen=True)
class GymnasiumFactory:
    """Builds environments of one id, in this process or another; implements ``types.EnvFactory``.

    Args:
        env_id: id of a registered environment, or ``module:Id``.
        seed: of all environments.
        env_args: arguments of the environment.
    """

    env_id: str
    seed: int
    env_args: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def specs(self) -> MultiAgentSpec:
        """Who is in the environments: one agent. Raises ``ValueError``: see :func:`make_env`."""
        try:
            env = make_env(self.env_id, self.env_args)
        except ValueError as error:
            raise ValueError(f"scenario.{error}") from error
        agent = AgentSpec(AGENT, AGENT, (AGENT,), env.observation_space, _flat(env.action_space))
        env.close()
        return MultiAgentSpec(agents=(agent,), seats=(AGENT,), teams=(TEAM,), team_names=(TEAM,), events=())

    def load(self) -> dict[str, tuple[Any, ...]]:
        """Check the id; there are no background players to load. Raises ``ValueError``: see :func:`make_env`."""
        _ = self.specs
        return {}

    def packed(self) -> GymnasiumFactory:
        """Return itself: there are no players whose files would have to travel."""
        return self

    def build(self, num_envs: int, first: int) -> GymnasiumEnvs:
        """Build environments number ``first`` to ``first + num_envs - 1``."""
        return GymnasiumEnvs(self.env_id, num_envs, env_args=self.env_args, seed=self.seed, first=first)
