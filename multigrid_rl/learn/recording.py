"""Recording of demonstrations: any player acts in place of the learners, and every step is stored."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.envs.grouping import GroupedEnv
from multigrid_rl.learn.demonstrations import Episode
from multigrid_rl.players.match import LEARNER_PURPOSE, Match
from multigrid_rl.types import AgentSpec, BatchedEnv, BatchedStep, EnvFactory, Policy, SeatView
from multigrid_rl.world.streams import Streams

Array = NDArray[Any]


class Actor:
    """A player in place of a learning agent: it gets the agent's observations; scripted players also read the board.

    Args:
        player: the player.
        agent: the agent it replaces.
        env: the environments.
        streams: random numbers, one stream for each environment.
    """

    def __init__(self, player: Policy, agent: AgentSpec, env: BatchedEnv, streams: Streams) -> None:
        self.player, self.streams = player, streams
        self.memory: Any = player.initial_state(env.num_envs)
        self._width = int(np.prod(agent.observation_space.shape or (1,)))
        inner = env.env if isinstance(env, GroupedEnv) else env
        match = inner if isinstance(inner, Match) else None
        self._board = None if match is None else match.board
        self._seat = 0 if match is None else match.spec.seats.index(agent.seats[0])

    def act(self, obs: Array) -> Array:
        """Return actions (N, C) or (N, A) for observations (N, D)."""
        view = SeatView(obs[:, : self._width], self._board, self._seat)
        actions, self.memory = self.player.act(view, self.memory, self.streams)
        return actions[:, None] if actions.ndim == 1 else actions

    def restart(self, done: NDArray[np.bool_]) -> None:
        """Reset the memory of the environments ``done`` (N,)."""
        if done.any():
            self.memory = self.player.reset_state(self.memory, done)


def record(
    factory: EnvFactory, player_of: Callable[[AgentSpec], Policy], steps: int, num_envs: int, seed: int
) -> Iterator[Episode]:
    """Yield episodes in which ``player_of(agent)`` plays every agent, as they end.

    ``num_envs`` environments play equally many steps, to avoid a bias towards short episodes; unfinished episodes are
    cut at the end. Steps in which an agent is out of its game are not part of its episode.

    Args:
        factory: recipe of the environments.
        player_of: gives each agent its player.
        steps: environment steps, at least ``num_envs``, rounded up to equally many in each environment.
        num_envs: parallel environments.
        seed: of environments and action sampling.
    """
    env = factory.build(num_envs, 0)
    obs = env.reset(seed)
    numbers = np.arange(num_envs, dtype=np.int64)
    agents = factory.specs.agents
    actors = {
        agent.name: Actor(player_of(agent), agent, env, Streams(seed, numbers, LEARNER_PURPOSE + k))
        for k, agent in enumerate(agents)
    }
    buffers = {agent.name: _EpisodeBuffer(agent, num_envs, seed) for agent in agents}
    for left in range(-(-steps // num_envs) - 1, -1, -1):
        current = {name: obs[name].copy() for name in actors}
        actions = {name: actor.act(current[name]) for name, actor in actors.items()}
        step = env.step(actions)
        for name, actor in actors.items():
            buffers[name].add(current[name], actions[name], step)
            yield from buffers[name].close(step.done if left else np.ones(num_envs, np.bool_), step)
            actor.restart(step.done)
        obs = step.observations


class _EpisodeBuffer:
    """Steps of one agent in ``N`` environments since the start of the oldest unfinished episode."""

    def __init__(self, agent: AgentSpec, num_envs: int, seed: int) -> None:
        self._agent, self._seed = agent, seed
        self._width = int(np.prod(agent.observation_space.shape or (1,)))
        self._columns: list[Array] = []
        self._steps = 0
        self._start, self._number = np.zeros((2, num_envs), np.int64)

    def add(self, obs: Array, actions: Array, step: BatchedStep) -> None:
        """Add one step of all environments."""
        name = self._agent.name
        row = (obs[:, : self._width], actions, step.rewards[name], step.mask[name].any(axis=1), step.terminated[name])
        if not self._columns:
            self._columns = [np.empty((256, *part.shape), part.dtype) for part in row]
        if self._steps == len(self._columns[0]):
            unused = int(self._start.min())
            growth = self._steps if unused < self._steps // 2 else 0
            self._columns = [
                np.concatenate([part[unused:], np.empty((growth + unused, *part.shape[1:]), part.dtype)])
                for part in self._columns
            ]
            self._steps -= unused
            self._start -= unused
        for column, part in zip(self._columns, row, strict=True):
            column[self._steps] = part
        self._steps += 1

    def close(self, which: NDArray[np.bool_], step: BatchedStep) -> Iterator[Episode]:
        """Yield the episodes of the environments ``which`` (N,), which end with this step."""
        final, after = (observations[self._agent.name] for observations in (step.final_observations, step.observations))
        for k in np.flatnonzero(which).tolist():
            obs, actions, rewards, active, terminated = (
                column[self._start[k] : self._steps, k] for column in self._columns
            )
            yield Episode(
                observations=obs[active],
                actions=actions[active],
                rewards=rewards[active],
                terminated=bool(terminated[active][-1]),
                truncated=bool(step.truncated[k] and not terminated[active][-1]),
                final_observation=(final if step.done[k] else after)[k, : self._width],
                seed=(self._seed, k, int(self._number[k])),
            )
            self._start[k], self._number[k] = self._steps, self._number[k] + 1
