"""The sampling path: whole batches of games, no per-episode objects."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable
from torch import Tensor

from multigrid_rl.clock import Clock
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.players.match import LEARNER_PURPOSE
from multigrid_rl.players.sampling import sample
from multigrid_rl.rllib.advantages import Trajectories, advantages
from multigrid_rl.rllib.cluster import installed
from multigrid_rl.types import BatchedStep, EnvFactory, EpisodeTable, Unit
from multigrid_rl.world.streams import Streams

Array = NDArray[Any]


class UnitBatch(NamedTuple):
    """Experience of one unit, ready for a learner but for standardisation.

    Networks without memory get one row for each step in which the unit was in the game (``B`` rows). Networks with
    memory get one row for each game, ``T`` steps long: shapes then start with ``(B, T, ...)``, and steps in which the
    unit was out of the game have no ``alive`` seat.
    """

    obs: Array  # (B, D)
    actions: Array  # (B, C) int64
    alive: Array  # (B, C) bool: the seat was in the game
    logp: Array  # (B,) float32, of the behaviour policy, summed over living seats
    values: Array  # (B,) float32
    advantages: Array  # (B,) float32, not standardised
    targets: Array  # (B,) float32, advantages + values
    entropy: Array  # (B,) float32, summed over living seats
    memory: Array  # (B, S) float32, before the first step of each row; S = 0 without memory
    starts: Array  # (B, T) bool: a new episode begins with this step; T = 0 without memory


class Rollout(NamedTuple):
    """What one env runner hands over for one iteration."""

    units: dict[str, UnitBatch]
    episodes: EpisodeTable
    env_steps: int
    weights: dict[str, str]  # fingerprint of the weights that played, by module
    seconds: dict[str, float]  # spent on engine, players, tokens, forward, draw and gae


class _Buffer:
    """Preallocated (T, N, ...) columns of one unit, and its memory (N, S)."""

    def __init__(self, steps: int, games: int, unit: Unit, example: Array, state_size: int) -> None:
        seats = len(unit.seats)
        self.obs = np.empty((steps, *example.shape), example.dtype)
        self.actions = np.empty((steps, games, seats), np.int64)
        self.alive = np.empty((steps, games, seats), np.bool_)
        self.logp, self.entropy = (np.empty((steps, games, seats), np.float32) for _ in range(2))
        self.values, self.next_values, self.rewards = (np.empty((steps, games), np.float32) for _ in range(3))
        self.terminated, self.starts = (np.empty((steps, games), np.bool_) for _ in range(2))
        self.state = torch.zeros(games, state_size)
        self.first_state = self.state
        self.fresh = np.ones(games, np.bool_)


class BatchedEnvRunner(EnvRunner, Checkpointable):
    """Plays ``num_envs`` games for ``num_steps`` steps with the current weights.

    ``config.env_config`` holds ``factory`` (a ``types.EnvFactory``), ``num_envs`` and ``num_steps``. Game numbers are
    shared out so that game ``k`` is the same whoever plays it. A remote runner is sent its games with :meth:`begin`:
    what the configuration holds stays small enough for every checkpoint.
    """

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        settings = self.config.env_config
        remote = bool(self.worker_index)
        if remote:
            torch.set_num_threads(1)  # runners share the cores; a second thread each would only fight
        self.games: int = settings["num_envs"]
        self.steps: int = settings["num_steps"]
        self.module = self.config.get_multi_rl_module_spec(spaces=self.get_spaces(), inference_only=False).build()
        self._clock = Clock()
        self.boundary = np.empty((self.steps, self.games), np.bool_)
        if not remote:
            self.begin(settings["factory"], 0)

    def begin(self, factory: EnvFactory, offset: int) -> dict[str, str]:
        """Play the games of ``factory`` from now on, all of them fresh; returns what is installed here, by package.

        Args:
            factory: recipe of the games.
            offset: added to the numbers of this runner's games.

        Raises:
            PlayerError: a background player is damaged or not the one that was announced.
        """
        self.offset = offset
        first = offset + max(self.worker_index - 1, 0) * self.games
        self.env = factory.build(self.games, first)
        self.units = {unit.name: unit for unit in self.env.cast.units}
        numbers = np.arange(first, first + self.games, dtype=np.int64)
        seed = self.config.seed or 0
        self.streams = {name: Streams(seed, numbers, LEARNER_PURPOSE + k) for k, name in enumerate(self.units)}
        shown = self.env.observations()
        self.buffers = {
            name: _Buffer(self.steps, self.games, unit, shown[name], self._net(name).state_size)
            for name, unit in self.units.items()
        }
        return installed() if self.worker_index else {}

    def get_games(self) -> dict[str, Any]:
        """Everything that the games, players and random streams will do follows from this and the weights."""
        return {
            "offset": self.offset,
            "env": self.env.get_state(),
            "streams": {name: stream.state.copy() for name, stream in self.streams.items()},
            "memory": {name: (b.state.numpy().copy(), b.fresh.copy()) for name, b in self.buffers.items()},
        }

    def set_games(self, games: dict[str, Any]) -> None:
        """Go on where :meth:`get_games` was asked. Raises ``ValueError`` for other games than this runner plays."""
        if games["offset"] != self.offset or set(games["streams"]) != set(self.streams):
            raise ValueError(f"games from number {games['offset']}; allowed are those from number {self.offset}")
        self.env.set_state(games["env"])
        for name, buffer in self.buffers.items():
            self.streams[name].state[:] = games["streams"][name]
            memory, fresh = games["memory"][name]
            buffer.state, buffer.fresh = torch.from_numpy(memory.copy()), fresh.copy()
            buffer.first_state = buffer.state

    def _net(self, unit: str) -> Any:
        return self.module[self.units[unit].module].net

    def sample(self, **kwargs: Any) -> Rollout:  # noqa: ARG002
        """Play ``num_steps`` steps of every game."""
        with torch.inference_mode():
            shown = self.env.observations()
            for buffer in self.buffers.values():
                buffer.first_state = buffer.state
            for t in range(self.steps):
                actions = {name: self._act(name, t, shown[name]) for name in self.units}
                step = self.env.step(actions)
                self._store(t, step)
                shown = step.observations
            for name, buffer in self.buffers.items():
                last = self._values(name, shown[name], buffer.state)
                # Where an episode went on, the next row's value is the bootstrap; where it ended, `_store` put the
                # final observation's value.
                following = np.concatenate([buffer.values[1:], last[None]])
                np.copyto(buffer.next_values, following, where=~self.boundary)
            units = {name: self._finish(buffer) for name, buffer in self.buffers.items()}
        return Rollout(
            units,
            self.env.drain_episodes(),
            self.steps * self.games,
            self.weights_hash(),
            {**self._clock.drain(), **self.env.drain_seconds()},
        )

    def _act(self, name: str, t: int, shown: Array) -> Array:
        buffer, unit = self.buffers[name], self.units[name]
        self._clock.begin()
        buffer.obs[t] = shown
        buffer.starts[t] = buffer.fresh
        self._clock.lap("tokens")
        logits, values, buffer.state = self._forward(name, torch.from_numpy(buffer.obs[t]), buffer.state)
        buffer.values[t] = values.numpy()
        self._clock.lap("forward")
        seats = len(unit.seats)
        rows = self.games * seats
        drawn = sample(logits.numpy().reshape(rows, -1), self.streams[name].uniform(seats).reshape(rows, 1))
        columns = (column.reshape(self.games, seats) for column in drawn)
        buffer.actions[t], buffer.logp[t], buffer.entropy[t] = columns
        self._clock.lap("draw")
        chosen: Array = buffer.actions[t]
        return chosen

    def _forward(self, name: str, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        net = self._net(name)
        if net.state_size:
            logits, values, following = net(tokens, state)
            return logits, values, following
        return *net(tokens), state

    def _store(self, t: int, step: BatchedStep) -> None:
        self.boundary[t] = step.done
        cut = step.done & step.truncated
        for name, buffer in self.buffers.items():
            buffer.rewards[t] = step.rewards[name]
            buffer.terminated[t] = step.terminated[name]
            buffer.alive[t] = step.acted[name]
            buffer.next_values[t] = 0.0
            if cut.any():
                final = step.final_observations[name][cut]
                buffer.next_values[t, cut] = self._values(name, final, buffer.state[torch.from_numpy(cut)])
            buffer.fresh = step.done.copy()
            if step.done.any() and buffer.state.shape[1]:
                buffer.state = buffer.state * torch.from_numpy(~step.done).unsqueeze(1)

    def _values(self, name: str, observations: Array, state: Tensor) -> Array:
        tokens = torch.from_numpy(np.ascontiguousarray(observations))
        self._clock.begin()
        values: Array = self._forward(name, tokens, state)[1].numpy()
        self._clock.lap("forward")
        return values

    def _finish(self, buffer: _Buffer) -> UnitBatch:
        acted: NDArray[np.bool_] = np.any(buffer.alive, axis=2)
        path = Trajectories(buffer.rewards, buffer.values, buffer.next_values, buffer.terminated, self.boundary, acted)
        self._clock.begin()
        gained = advantages(path, self.config.gamma, self.config.lambda_)
        self._clock.lap("gae")
        logp, entropy = ((column * buffer.alive).sum(axis=2) for column in (buffer.logp, buffer.entropy))
        columns = (
            buffer.obs, buffer.actions, buffer.alive, logp, buffer.values, gained, gained + buffer.values, entropy,
        )  # fmt: skip
        # Everything is copied: the buffers are written again while the learner still reads this batch.
        if buffer.state.shape[1]:
            rows = [np.ascontiguousarray(column.swapaxes(0, 1)) for column in columns]
            rows += [buffer.first_state.numpy().copy(), np.ascontiguousarray(buffer.starts.T)]
            return UnitBatch(*rows)
        living = np.flatnonzero(acted.reshape(-1))
        rows = [column.reshape(-1, *column.shape[2:]).take(living, axis=0) for column in columns]
        rows += [np.empty((len(living), 0), np.float32), np.empty((len(living), 0), np.bool_)]
        return UnitBatch(*rows)

    def weights_hash(self) -> dict[str, str]:
        """Fingerprint of each module's weights."""
        return {name: fingerprint(self.module[name].state_dict()) for name in self.env.cast.modules}

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Observation and action space of each module."""
        specs = self.config.rl_module_spec.rl_module_specs
        return {name: (spec.observation_space, spec.action_space) for name, spec in specs.items()}

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
        """Raise unless the networks were built."""
        assert self.module is not None
