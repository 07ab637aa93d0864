"""The sampling path: play ``T`` steps of ``N`` environments.

Read :class:`StepCollector` first: the others compute the same numbers faster, or for agents that take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl import fast, jit
from multigrid_rl.learn.batches import Paths, Rollout
from multigrid_rl.models.distributions import Bound, distribution_of
from multigrid_rl.streams import LEARNER_PURPOSE, Streams, purpose_of
from multigrid_rl.types import BatchedEnv, BatchedStep, Clock, MultiAgentSpec

Array = NDArray[Any]


class StepCollector:
    """Plays environments with networks step by step, batch after batch.

    Args:
        env: ``N`` environments.
        networks: by module; :meth:`collect` uses their current weights.
        seed: of action sampling.
        first: number of the first environment; each has its own random streams.
        steps: ``T`` of one batch.
        bound: how a Gaussian's draws become actions.
    """

    #: The first row that a batch's steps fill.
    _first_row = 0

    def __init__(  # noqa: PLR0913 - all by keyword but three
        self,
        env: BatchedEnv,
        specs: MultiAgentSpec,
        networks: Mapping[str, Any],
        *,
        seed: int,
        first: int,
        steps: int,
        bound: Bound | None = None,
    ) -> None:
        self.env = env
        self.agents = {agent.name: agent for agent in specs.agents}
        self.networks = networks
        self.clock = Clock()
        # Random streams by game and agent: a game draws the same numbers in every process.
        numbers = np.arange(first, first + env.num_envs, dtype=np.int64)
        purposes = {name: purpose_of(LEARNER_PURPOSE, k) for k, name in enumerate(self.agents)}
        self.streams = {name: Streams(seed, numbers, purpose) for name, purpose in purposes.items()}
        self.distributions = {
            name: distribution_of(agent.action_space, bound, self._net(name)) for name, agent in self.agents.items()
        }
        obs = env.observations()
        self._done = np.empty((self._first_row + steps, env.num_envs), np.bool_)
        self.rollouts = {
            name: Rollout.empty(self._done, obs[name], self.distributions[name], self._net(name).state_size)
            for name in self.agents
        }
        self._memory = {name: torch.zeros(rollout.memory.shape) for name, rollout in self.rollouts.items()}
        self._fresh = dict.fromkeys(self.agents, np.ones(env.num_envs, np.bool_))  # the next step begins an episode
        self._cut = dict.fromkeys(self.agents, np.empty_like(self._done))  # where a time limit ended an episode
        self._finals: dict[str, list[Array]] = {name: [] for name in self.agents}  # what came after those steps
        self._last = dict(obs)

    def _net(self, name: str) -> Any:
        return self.networks[self.agents[name].module]

    def collect(self) -> dict[str, Rollout]:
        """Play ``T`` steps of every environment."""
        with torch.inference_mode():
            self._begin()
            obs = self._play(self.env.observations())
            for name, rollout in self.rollouts.items():
                self._last[name] = obs[name]
                # Where an episode went on, the next row's value is the bootstrap; where it ended, `_store` put the
                # final observation's value.
                next_values = np.concatenate([rollout.values[1:], self._end(name)[None]])
                np.copyto(rollout.next_values, next_values, where=~rollout.done)
        return self.rollouts

    @property
    def ended(self) -> Array:
        """Where episodes of the last batch ended (T, N), before any agent's rows moved."""
        return self._done[self._first_row :]

    def paths(self) -> dict[str, Paths]:
        """Return the inputs for recomputing the last batch's advantages, by agent, copied."""
        last = self._last
        return {
            name: Paths(
                rewards=rollout.rewards.copy(),
                terminated=rollout.terminated.copy(),
                done=rollout.done.copy(),
                active=rollout.active,
                starts=rollout.starts.copy(),
                cut=self._cut[name].copy(),
                final_obs=np.concatenate([last[name][:0], *self._finals[name]]),
                last_obs=last[name].copy(),
            )
            for name, rollout in self.rollouts.items()
        }

    def _begin(self) -> None:
        for name, rollout in self.rollouts.items():
            rollout.memory[:] = self._memory[name].numpy()
            self._finals[name] = []

    def _play(self, obs: dict[str, Array]) -> dict[str, Array]:
        """Play all steps, and return the last observations."""
        for t in range(self._first_row, len(self._done)):
            step = self.env.step({name: self._act(name, t, obs[name]) for name in self.agents})
            self._store(t, step)
            obs = step.observations
        return obs

    def _act(self, name: str, t: int, obs: Array) -> Array:
        # Rollouts hold the draws before bounds: the log-probability belongs to the draw, not to the bounded action.
        rollout, distribution = self.rollouts[name], self.distributions[name]
        self.clock.begin()
        rollout.obs[t] = obs
        rollout.starts[t] = self._fresh[name]
        self.clock.lap("tokens")
        outputs = self._outputs(name, t)
        self.clock.lap("forward")
        draws = distribution.draw(outputs, self.streams[name])
        rollout.actions[t], rollout.logp[t], rollout.entropy[t] = draws
        self.clock.lap("draw")
        return distribution.bounded(rollout.actions[t])

    def _outputs(self, name: str, t: int) -> Array:
        """Return the network's outputs (N, K) for row ``t``, whose values it stores."""
        rollout = self.rollouts[name]
        logits, values, self._memory[name] = fast.step(
            self._net(name), torch.from_numpy(rollout.obs[t]), self._memory[name]
        )
        rollout.values[t] = values.numpy()
        return logits.numpy()

    def _store(self, t: int, step: BatchedStep) -> None:
        cut, ended = step.done & step.truncated, np.count_nonzero(step.done)
        self._done[t] = step.done
        for name, rollout in self.rollouts.items():
            rollout.done[t] = step.done
            self._cut[name][t] = cut
            rollout.rewards[t] = step.rewards[name]
            rollout.terminated[t] = step.terminated[name]
            rollout.mask[t] = step.mask[name]
            rollout.next_values[t] = 0.0
            memory = self._memory[name]
            # A time limit is no end of the task: what would have come counts (https://arxiv.org/abs/1712.00378).
            if ended and cut.any():
                final = step.final_observations[name][cut]
                rollout.next_values[t, cut] = self._values(name, final, memory[torch.from_numpy(cut)])
                self._finals[name].append(final)
            if ended and memory.shape[1]:
                self._memory[name] = memory * torch.from_numpy(~step.done).unsqueeze(1)
        self._fresh = dict.fromkeys(self.agents, step.done)

    def _end(self, name: str) -> Array:
        """Return the values of the last observations."""
        return self._values(name, self._last[name], self._memory[name])

    def _values(self, name: str, obs: Array, memory: Tensor) -> Array:
        self.clock.begin()
        rows = torch.from_numpy(np.ascontiguousarray(obs))
        values: Array = fast.step(self._net(name), rows, memory)[1].numpy()
        self.clock.lap("forward")
        return values

    def get_state(self) -> dict[str, Any]:
        """Return the state of environments, players and random streams, without the weights."""
        return {
            "env": self.env.get_state(),
            "streams": {name: stream.state.copy() for name, stream in self.streams.items()},
            "memory": {name: memory.numpy().copy() for name, memory in self._memory.items()},
            "fresh": {name: fresh.copy() for name, fresh in self._fresh.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for other agents or environments."""
        if set(state["streams"]) != set(self.streams):
            raise ValueError(f"state: expected the agents {', '.join(self.streams)}, got {', '.join(state['streams'])}")
        self.env.set_state(state["env"])
        for name, stream in self.streams.items():
            stream.state[:] = state["streams"][name]
            self._memory[name] = torch.from_numpy(state["memory"][name].copy())
        if state["env"]:  # else it cannot be restored: its episodes are fresh
            fresh = state["fresh"] if isinstance(state["fresh"], dict) else dict.fromkeys(self.agents, state["fresh"])
            self._fresh = {name: column.copy() for name, column in fresh.items()}


class CompiledCollector(StepCollector):
    """Plays with compiled networks: values of all steps at once and, if the environment can, all steps in one call.

    In a compiled pass, a row's result does not depend on other rows. Networks with memory act step by step as above.
    """

    def _begin(self) -> None:
        super()._begin()
        self._passes = {
            name: None if self._net(name).state_size else fast.compile_network(self._net(name)) for name in self.agents
        }

    def _play(self, obs: dict[str, Array]) -> dict[str, Array]:
        return self._play_in_one_call() or super()._play(obs)

    def _play_in_one_call(self) -> dict[str, Array] | None:
        """Play all steps in one call and return the last observations; ``None`` where network or environment cannot."""
        play = getattr(self.env, "play", None)
        if play is None or None in self._passes.values():
            return None
        acting = {}
        for name, rollout in self.rollouts.items():
            drawing = self._passes[name], self.distributions[name], self.streams[name].state
            acting[name] = fast.Actor(*drawing, rollout.obs, rollout.actions, rollout.logp, rollout.entropy)
        step: BatchedStep | None = play(acting)
        if step is None:
            return None
        for name, rollout in self.rollouts.items():
            rollout.starts[0], rollout.starts[1:] = self._fresh[name], step.done[:-1]
            rollout.done[:], self._cut[name][:] = step.done, step.truncated
            rollout.rewards[:], rollout.terminated[:] = step.rewards[name], step.terminated[name]
            rollout.mask[:], rollout.next_values[:] = step.mask[name], 0.0
            self._finals[name].append(step.final_observations[name].copy())
        self._fresh = dict.fromkeys(self.agents, step.done[-1].copy())
        return step.observations

    def _outputs(self, name: str, t: int) -> Array:
        compiled = self._passes[name]
        return super()._outputs(name, t) if compiled is None else compiled.policy(self.rollouts[name].obs[t])

    def _values(self, name: str, obs: Array, memory: Tensor) -> Array:
        # Values of compiled networks are computed at the end, all at once.
        return np.zeros(len(obs)) if self._passes[name] is not None else super()._values(name, obs, memory)

    def _end(self, name: str) -> Array:
        rollout, last, compiled = self.rollouts[name], self._last[name], self._passes[name]
        if compiled is None:
            return super()._end(name)
        self.clock.begin()
        steps, last_values, *ends = compiled.values([rollout.obs.reshape(-1, last.shape[1]), last, *self._finals[name]])
        rollout.values[:] = steps.reshape(rollout.values.shape)
        if ends:
            rollout.next_values[self._cut[name]] = np.concatenate(ends)
        self.clock.lap("forward")
        return last_values


def collector_of(env: BatchedEnv, *args: Any, **options: Any) -> StepCollector:
    """Return the collector that fits an environment, and ``train.compiled``; arguments as :class:`StepCollector`."""
    if getattr(env, "deciding", None) is not None:
        from multigrid_rl.learn.turns import TurnCollector  # noqa: PLC0415 - in most games every agent always decides

        return TurnCollector(env, *args, **options)
    return (CompiledCollector if jit.state.networks else StepCollector)(env, *args, **options)
