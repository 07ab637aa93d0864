"""The sampling path: whole batches of games, no per-episode objects."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable

from multigrid_rl.models.registry import fingerprint
from multigrid_rl.players.match import LEARNER_PURPOSE
from multigrid_rl.players.sampling import sample
from multigrid_rl.rllib.advantages import Trajectories, advantages
from multigrid_rl.types import BatchedStep, EpisodeTable
from multigrid_rl.world.streams import Streams

Array = NDArray[Any]


class SeatBatch(NamedTuple):
    """Experience of one seat, ready for a learner but for standardisation (``B`` rows)."""

    obs: Array  # (B, D)
    actions: Array  # (B,) int64
    logp: Array  # (B,) float32, of the behaviour policy
    logits: Array  # (B, K) float32
    values: Array  # (B,) float32
    advantages: Array  # (B,) float32, not standardised
    targets: Array  # (B,) float32, advantages + values
    entropy: Array  # (B,) float32


class Rollout(NamedTuple):
    """What one env runner hands over for one iteration."""

    seats: dict[str, SeatBatch]
    episodes: EpisodeTable
    env_steps: int
    weights: dict[str, str]  # fingerprint of the weights that played, by module
    seconds: float


class _Buffer:
    """Preallocated (T, N, ...) columns of one seat."""

    def __init__(self, steps: int, games: int, example: Array, actions: int) -> None:
        self.obs = np.empty((steps, *example.shape), example.dtype)
        self.actions = np.empty((steps, games), np.int64)
        self.logits = np.empty((steps, games, actions), np.float32)
        self.logp, self.values, self.next_values, self.entropy, self.rewards = (
            np.empty((steps, games), np.float32) for _ in range(5)
        )
        self.terminated, self.acted = (np.empty((steps, games), np.bool_) for _ in range(2))


class BatchedEnvRunner(EnvRunner, Checkpointable):
    """Plays ``num_envs`` games for ``num_steps`` steps with the current weights.

    ``config.env_config`` holds ``factory`` (builds the batched environment), ``num_envs``, ``num_steps`` and
    ``torch_threads``. Game numbers are shared out so that game ``k`` is the same whoever plays it.
    """

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        settings = self.config.env_config
        remote = bool(self.worker_index)
        if remote:
            torch.set_num_threads(1)  # runners share the cores; a second thread each would only fight
        self.games: int = settings["num_envs"]
        self.steps: int = settings["num_steps"]
        first = (self.worker_index - 1) * self.games if remote else 0
        self.env = settings["factory"].build(self.games, first)
        numbers = np.arange(first, first + self.games, dtype=np.int64)
        seed = self.config.seed or 0
        self.streams = {seat: Streams(seed, numbers, LEARNER_PURPOSE + k) for k, seat in enumerate(self.env.seats)}
        self.module = self.config.get_multi_rl_module_spec(spaces=self.get_spaces(), inference_only=False).build()
        self.boundary = np.empty((self.steps, self.games), np.bool_)
        shown = self.env.observations()
        self.buffers = {
            seat: _Buffer(self.steps, self.games, shown[seat], int(self.module[seat].action_space.n))
            for seat in self.env.seats
        }

    def sample(self, **kwargs: Any) -> Rollout:  # noqa: ARG002
        """Play ``num_steps`` steps of every game."""
        began = time.perf_counter()
        with torch.inference_mode():
            shown = self.env.observations()
            for t in range(self.steps):
                actions = {seat: self._act(seat, t, shown[seat]) for seat in self.env.seats}
                step = self.env.step(actions)
                self._store(t, step)
                shown = step.observations
            for seat, buffer in self.buffers.items():
                last = self._values(seat, shown[seat])
                # Where an episode went on, the next row's value is the bootstrap; where it ended, `_store` put the
                # final observation's value.
                following = np.concatenate([buffer.values[1:], last[None]])
                np.copyto(buffer.next_values, following, where=~self.boundary)
        return Rollout(
            {seat: self._finish(buffer) for seat, buffer in self.buffers.items()},
            self.env.drain_episodes(),
            self.steps * self.games,
            self.weights_hash(),
            time.perf_counter() - began,
        )

    def _act(self, seat: str, t: int, shown: Array) -> Array:
        buffer = self.buffers[seat]
        buffer.obs[t] = shown
        logits, values = self.module[seat].net(torch.from_numpy(buffer.obs[t]))
        buffer.logits[t] = logits.numpy()
        buffer.values[t] = values.numpy()
        drawn = sample(buffer.logits[t], self.streams[seat].uniform(1))
        buffer.actions[t], buffer.logp[t], buffer.entropy[t] = drawn
        return drawn.actions

    def _store(self, t: int, step: BatchedStep) -> None:
        self.boundary[t] = step.done
        cut = step.done & step.truncated
        for seat, buffer in self.buffers.items():
            buffer.rewards[t] = step.rewards[seat]
            buffer.terminated[t] = step.terminated[seat]
            buffer.acted[t] = step.acted[seat]
            buffer.next_values[t] = 0.0
            if cut.any():
                buffer.next_values[t, cut] = self._values(seat, step.final_observations[seat][cut])

    def _values(self, seat: str, observations: Array) -> Array:
        values: Array = self.module[seat].net(torch.from_numpy(np.ascontiguousarray(observations)))[1].numpy()
        return values

    def _finish(self, buffer: _Buffer) -> SeatBatch:
        path = Trajectories(
            buffer.rewards, buffer.values, buffer.next_values, buffer.terminated, self.boundary, buffer.acted
        )
        gained = advantages(path, self.config.gamma, self.config.lambda_)
        rows = np.flatnonzero(buffer.acted.reshape(-1))
        columns = (
            buffer.obs, buffer.actions, buffer.logp, buffer.logits, buffer.values, gained,
            gained + buffer.values, buffer.entropy,
        )  # fmt: skip
        # `take` copies: the buffers are written again while the learner still reads this batch.
        return SeatBatch(*(column.reshape(-1, *column.shape[2:]).take(rows, axis=0) for column in columns))

    def weights_hash(self) -> dict[str, str]:
        """Fingerprint of each module's weights."""
        return {seat: fingerprint(self.module[seat].state_dict()) for seat in self.env.seats}

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Observation and action space of each module."""
        specs = self.config.rl_module_spec.rl_module_specs
        return {seat: (spec.observation_space, spec.action_space) for seat, spec in specs.items()}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Weights, as RLlib's group asks for them."""
        return {COMPONENT_RL_MODULE: self.module.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over weights."""
        if COMPONENT_RL_MODULE in state:
            modules = state[COMPONENT_RL_MODULE]
            # RLlib's weight sync sends a reference inside the dictionary.
            self.module.set_state(ray.get(modules) if isinstance(modules, ray.ObjectRef) else modules)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        """How RLlib builds this runner again from a checkpoint."""
        return (), {"config": self.config, "worker_index": self.worker_index, "num_workers": self.num_workers}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """The modules, as a part of their own in checkpoints."""
        return [(COMPONENT_RL_MODULE, self.module)]

    def get_metrics(self) -> Any:
        """RLlib's own metrics: none; everything is in the rollout."""
        return self.metrics.reduce()

    def assert_healthy(self) -> None:
        """Raise unless the environment was built."""
        assert self.env is not None
