"""The sampling path: play ``T`` steps of ``N`` environments and turn them into training rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.clock import Clock
from multigrid_rl.fast.towers import Towers
from multigrid_rl.learn.advantages import Estimator, standardise, weigh
from multigrid_rl.learn.gaps import Ends, Gaps
from multigrid_rl.models.distributions import Bound, Distribution, distribution_of
from multigrid_rl.players.match import LEARNER_PURPOSE
from multigrid_rl.types import BatchedEnv, BatchedStep, EpisodeTable, MultiAgentSpec
from multigrid_rl.world.streams import Streams

Array = NDArray[Any]


class Rollout(NamedTuple):
    """``T`` steps of ``N`` environments for one agent with ``C`` action components.

    The collector overwrites it with every batch.
    """

    obs: Array  # (T, N, D)
    actions: Array  # (T, N, C) int64 or (T, N, A) float32, as drawn
    mask: Array  # (T, N, C) bool: the component's seat was in the game
    logp: Array  # (T, N, C) float32, of the behaviour policy
    entropy: Array  # (T, N, C) float32
    values: Array  # (T, N) float32 V(s_t)
    next_values: Array  # (T, N) V(s_{t+1}); of the final observation where the episode ended in this step
    rewards: Array  # (T, N) float32
    terminated: Array  # (T, N) bool
    done: Array  # (T, N) bool: the environment's episode ended in this step; one array for all agents
    starts: Array  # (T, N) bool: a new episode begins with this step
    memory: Array  # (N, S) float32, before the first step; S = 0 without memory

    @classmethod
    def empty(cls, done: Array, obs: Array, distribution: Distribution, memory: int) -> "Rollout":
        """Allocate one for the shape (T, N) of ``done``; ``obs`` (N, D) is an example."""
        shape, parts = done.shape, (*done.shape, distribution.components)
        return cls(
            obs=np.empty((shape[0], *obs.shape), obs.dtype),
            actions=np.empty((*shape, distribution.width), distribution.dtype),
            mask=np.empty(parts, np.bool_),
            logp=np.empty(parts, np.float32),
            entropy=np.empty(parts, np.float32),
            values=np.empty(shape, np.float32),
            next_values=np.empty(shape, np.float32),
            rewards=np.empty(shape, np.float32),
            terminated=np.empty(shape, np.bool_),
            done=done,
            starts=np.empty(shape, np.bool_),
            memory=np.zeros((shape[1], memory), np.float32),
        )

    @property
    def active(self) -> Array:
        """Steps (T, N) in which the agent was in the game."""
        return np.asarray(self.mask.any(axis=2))

    def rows(self, columns: Sequence[Array]) -> list[Array]:
        """Return ``columns`` (T, N, ...) as rows of a :class:`Batch`, then its memory and starts, copied."""
        if self.memory.shape[1]:
            return [*(column.swapaxes(0, 1).copy() for column in columns), self.memory.copy(), self.starts.T.copy()]
        steps = np.flatnonzero(self.active)
        rows = [column.reshape(-1, *column.shape[2:]).take(steps, axis=0) for column in columns]
        return [*rows, np.empty((len(steps), 0), np.float32), np.empty((len(steps), 0), np.bool_)]


class Batch(NamedTuple):
    """Training data of one network.

    Networks without memory get one row for each step in which the agent was in the game (``B`` rows). Networks with
    memory get one row for each environment, ``T`` steps long: shapes then start with ``(B, T, ...)``, and steps in
    which the agent was out of the game have an empty mask.
    """

    obs: Array  # (B, D)
    actions: Array  # (B, C) int64 or (B, A) float32
    mask: Array  # (B, C) bool: the component's seat was in the game
    logp: Array  # (B,) float32, of the behaviour policy, summed over seats in the game
    values: Array  # (B,) float32
    advantages: Array  # (B,) float32: weight of the log-probability, ``Psi`` of the estimator
    targets: Array  # (B,) float32 of the values
    entropy: Array  # (B,) float32, summed over seats in the game
    memory: Array  # (B, S) float32, before the first step of each row; S = 0 without memory
    starts: Array  # (B, T) bool: a new episode begins with this step; T = 0 without memory

    @classmethod
    def concatenate(cls, parts: "list[Batch]") -> "Batch":
        """Join rows of one network (at least one part), in order."""
        return parts[0] if len(parts) == 1 else cls._make(map(np.concatenate, zip(*parts, strict=True)))

    def rows(self, which: Any) -> "Batch":
        """Return the rows ``which``, an array of numbers or a slice."""
        if isinstance(which, slice):
            return Batch._make(column[which] for column in self)
        return Batch._make(column.take(which, axis=0) for column in self)

    def for_learning(self) -> "Batch":
        """Return the batch without the columns that no gradient step reads, so that they are not copied."""
        none = self.values[..., :0].reshape(len(self.values), -1)
        return self._replace(values=none, entropy=none)

    @property
    def active(self) -> Array:
        """Steps (B,) or (B, T) in which the agent was in the game."""
        return np.asarray(self.mask.any(axis=-1))

    def standardised(self) -> "Batch":
        """Return the batch with advantages of zero mean and unit variance over the active steps."""
        active = self.active
        advantages = np.zeros_like(self.advantages)
        advantages[active] = standardise(self.advantages[active])
        return self._replace(advantages=advantages)


class Paths(NamedTuple):
    """Inputs for recomputing advantages when values have changed: a batch in its ``(T, N)`` layout."""

    rewards: Array  # (T, N) float32
    terminated: Array  # (T, N) bool
    done: Array  # (T, N) bool
    active: Array  # (T, N) bool: rows of the batch, in this order
    starts: Array  # (T, N) bool
    cut: Array  # (T, N) bool: the episode was truncated in this step
    final_obs: Array  # (F, D) final observation of each of these steps, in the order of ``cut``
    last_obs: Array  # (N, D) observation after the last step

    def with_next(self, rows: Array, final: Array, last: Array) -> tuple[Array, Array]:
        """Return ``rows`` (B, ...) of a batch as (T, N, ...), and the rows one step later; zeros after an end.

        ``final`` belongs to ``final_obs``, and ``last`` to ``last_obs``.
        """
        current = np.zeros((*self.active.shape, *rows.shape[1:]), np.float32)
        current[self.active] = rows
        shifted = np.concatenate([current[1:], last[None]])
        shifted[self.done] = 0.0
        shifted[self.cut] = final
        return current, shifted

    def weigh(self, values: Array, final: Array, last: Array, how: Estimator) -> tuple[Array, Array]:
        """Return weights and targets (B,) of a batch from values of its rows (B,), ``final_obs`` and ``last_obs``."""
        current, next_values = self.with_next(values, final, last)
        flags = {"terminated": self.terminated, "done": self.done, "active": self.active, "starts": self.starts}
        weights, targets = weigh(self.rewards, current, next_values, how, **flags)
        return weights[self.active], targets[self.active]


class Experience(NamedTuple):
    """Result of one sampling process in one iteration."""

    batches: dict[str, Batch]  # by agent; advantages not standardised yet
    paths: dict[str, Paths]  # by agent; empty unless advantages are recomputed
    episodes: EpisodeTable | None  # None: it is no measure of the weights
    env_steps: int
    weights: dict[str, str]  # checksum of the sampling weights, by module; empty: not compared
    seconds: dict[str, float]  # spent on engine, players, tokens, forward, draw and gae


def estimate(rollout: Rollout, how: Estimator) -> Batch:
    """Turn a rollout into rows with advantages, copied."""
    r = rollout
    values, next_values = (r.values, r.next_values) if how.critic else (np.zeros_like(r.values),) * 2
    flags = {"terminated": r.terminated, "done": r.done, "active": r.active, "starts": r.starts}
    weights, targets = weigh(r.rewards, values, next_values, how, **flags)
    logp, entropy = ((column * r.mask).sum(axis=2) for column in (r.logp, r.entropy))
    return Batch._make(r.rows((r.obs, r.actions, r.mask, logp, values, weights, targets, entropy)))


class Collector:
    """Plays environments with networks, batch after batch.

    Args:
        env: ``N`` environments.
        specs: their agents.
        networks: by module; :meth:`collect` uses their current weights.
        seed: of action sampling.
        first: number of the first environment; each has its own random streams.
        steps: ``T`` of one batch.
        bound: how a Gaussian's draws become actions.
    """

    def __init__(  # noqa: PLR0913 - all by keyword but three
        self,
        env: BatchedEnv,
        specs: MultiAgentSpec,
        networks: Mapping[str, Any],
        *,
        seed: int,
        first: int,
        steps: int,
        bound: Bound = "clip",
    ) -> None:
        self.env = env
        self.agents = {agent.name: agent for agent in specs.agents}
        self.networks = networks
        self.clock = Clock()
        numbers = np.arange(first, first + env.num_envs, dtype=np.int64)
        self.streams = {name: Streams(seed, numbers, LEARNER_PURPOSE + k) for k, name in enumerate(self.agents)}
        self.distributions = {
            name: distribution_of(agent.action_space, bound, self._net(name)) for name, agent in self.agents.items()
        }
        obs = env.observations()
        deciding = getattr(env, "deciding", None)  # agents come and go: see learn.gaps
        self._done = np.empty((steps + (deciding is not None), env.num_envs), np.bool_)
        self.rollouts = {
            name: Rollout.empty(self._done, obs[name], self.distributions[name], self._net(name).state_size)
            for name in self.agents
        }
        self._memory = {name: torch.zeros(rollout.memory.shape) for name, rollout in self.rollouts.items()}
        self._fresh = np.ones(env.num_envs, np.bool_)
        self._cut = np.empty_like(self._done)
        self._finals: dict[str, list[Array]] = {name: [] for name in self.agents}
        # With compiled towers, a row's result does not depend on other rows: values of all steps are computed at once.
        self._towers: dict[str, Towers | None] = {}
        self._gaps: Gaps | None = None
        if deciding is not None:
            ((name, rollout),) = self.rollouts.items()
            if self._net(name).state_size:
                raise ValueError("model: expected a network without memory where agents come and go")
            columns = {column: array for column, array in rollout._asdict().items() if column != "memory"}
            self._gaps = Gaps(columns, self._cut, deciding)
        self._last = dict(obs)

    def _net(self, name: str) -> Any:
        return self.networks[self.agents[name].module]

    def collect(self) -> dict[str, Rollout]:
        """Play ``T`` steps of every environment."""
        with torch.inference_mode():
            obs = self.env.observations()
            for name, rollout in self.rollouts.items():
                rollout.memory[:] = self._memory[name].numpy()
                self._finals[name] = []
                compiled = getattr(self._net(name), "compiled", None)
                self._towers[name] = None if compiled is None or self._gaps is not None else compiled()
            if self._gaps is not None:
                self._gaps.open()
            for t in range(self._gaps is not None, len(self._done)):
                actions = {name: self._act(name, t, obs[name]) for name in self.agents}
                step = self.env.step(actions)
                self._store(t, step)
                obs = step.observations
            for name, rollout in self.rollouts.items():
                last = self._late_values(name, obs[name])
                self._last[name] = obs[name]
                if self._gaps is not None:
                    finals = np.concatenate([obs[name][:0], *self._finals[name]])
                    ends = self._gaps.close(Ends(obs[name], last, finals))
                    self._last[name], last, self._finals[name] = ends.obs, ends.values, [ends.finals]
                # Where an episode went on, the next row's value is the bootstrap; where it ended, `_store` put the
                # final observation's value.
                next_values = np.concatenate([rollout.values[1:], last[None]])
                np.copyto(rollout.next_values, next_values, where=~self._done)
        return self.rollouts

    def paths(self) -> dict[str, Paths]:
        """Return the inputs for recomputing the last batch's advantages, by agent, copied."""
        last = self._last
        return {
            name: Paths(
                rewards=r.rewards.copy(),
                terminated=r.terminated.copy(),
                done=self._done.copy(),
                active=r.active,
                starts=r.starts.copy(),
                cut=self._cut.copy(),
                final_obs=np.concatenate([last[name][:0], *self._finals[name]]),
                last_obs=last[name].copy(),
            )
            for name, r in self.rollouts.items()
        }

    def _act(self, name: str, t: int, obs: Array) -> Array:
        rollout, distribution = self.rollouts[name], self.distributions[name]
        self.clock.begin()
        rollout.obs[t] = obs
        rollout.starts[t] = self._fresh
        self.clock.lap("tokens")
        towers = self._towers[name]
        if towers is not None:
            outputs = towers.policy(rollout.obs[t])
        else:
            inputs = torch.from_numpy(rollout.obs[t])
            logits, values, self._memory[name] = self._forward(name, inputs, self._memory[name])
            outputs, rollout.values[t] = logits.numpy(), values.numpy()
        self.clock.lap("forward")
        drawn = distribution.draw(outputs, self.streams[name])
        rollout.actions[t], rollout.logp[t], rollout.entropy[t] = drawn
        self.clock.lap("draw")
        return distribution.bounded(rollout.actions[t])

    def _forward(self, name: str, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        net = self._net(name)
        if net.state_size:
            outputs, values, next_memory = net(obs, memory)
            return outputs, values, next_memory
        return *net(obs), memory

    def _store(self, t: int, step: BatchedStep) -> None:
        self._done[t] = step.done
        self._cut[t] = cut = step.done & step.truncated
        for name, rollout in self.rollouts.items():
            rollout.rewards[t] = step.rewards[name]
            rollout.terminated[t] = step.terminated[name]
            rollout.mask[t] = step.mask[name]
            rollout.next_values[t] = 0.0
            memory = self._memory[name]
            if cut.any():
                final = step.final_observations[name][cut]
                if self._towers[name] is None:
                    rollout.next_values[t, cut] = self._values(name, final, memory[torch.from_numpy(cut)])
                self._finals[name].append(final)
            if step.done.any() and memory.shape[1]:
                self._memory[name] = memory * torch.from_numpy(~step.done).unsqueeze(1)
        # An episode begins with its first decision.
        waits = False if self._gaps is None else self._fresh & ~next(iter(step.mask.values()))[:, 0]
        self._fresh = step.done | waits

    def _late_values(self, name: str, last: Array) -> Array:
        """Return the values of the observations ``last`` (N, D), and fill in missing values of all steps."""
        rollout, towers = self.rollouts[name], self._towers[name]
        if towers is None:
            return self._values(name, last, self._memory[name])
        self.clock.begin()
        finals = self._finals[name]
        steps, last_values, *ends = towers.values([rollout.obs.reshape(-1, last.shape[1]), last, *finals])
        rollout.values[:] = steps.reshape(rollout.values.shape)
        if ends:
            rollout.next_values[self._cut] = np.concatenate(ends)
        self.clock.lap("forward")
        return last_values

    def _values(self, name: str, obs: Array, memory: Tensor) -> Array:
        self.clock.begin()
        values: Array = self._forward(name, torch.from_numpy(np.ascontiguousarray(obs)), memory)[1].numpy()
        self.clock.lap("forward")
        return values

    def get_state(self) -> dict[str, Any]:
        """Return the state of environments, players and random streams, without the weights."""
        return {
            "env": self.env.get_state(),
            "streams": {name: stream.state.copy() for name, stream in self.streams.items()},
            "memory": {name: memory.numpy().copy() for name, memory in self._memory.items()},
            "fresh": self._fresh.copy(),
            "waiting": {k: v.copy() for k, v in self._gaps.waiting.items()} if self._gaps is not None else {},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for other agents or environments."""
        if set(state["streams"]) != set(self.streams):
            raise ValueError(f"state: expected the agents {', '.join(self.streams)}, got {', '.join(state['streams'])}")
        self.env.set_state(state["env"])
        for name, stream in self.streams.items():
            stream.state[:] = state["streams"][name]
            self._memory[name] = torch.from_numpy(state["memory"][name].copy())
        if not state["env"]:  # not restorable: its episodes are fresh, and nothing waits
            return
        self._fresh = state["fresh"].copy()
        if self._gaps is not None:
            self._gaps.waiting = {name: column.copy() for name, column in state["waiting"].items()}
