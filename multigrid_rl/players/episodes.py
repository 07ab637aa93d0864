"""Players in place of agents, step after step: the one loop of evaluations, films, recordings and experts' labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.envs.grouping import GroupedEnv
from multigrid_rl.players.match import Match
from multigrid_rl.streams import LEARNER_PURPOSE, Streams
from multigrid_rl.types import AgentSpec, BatchedEnv, BatchedStep, Policy, SeatView

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


class Turn(NamedTuple):
    """One step of ``N`` environments and what led to it; arrays by agent."""

    observations: dict[str, Array]  # (N, D) that the players acted on; copies
    actions: dict[str, Array]  # (N, C) or (N, A)
    step: BatchedStep


def turns(
    env: BatchedEnv, agents: Sequence[AgentSpec], players: Mapping[str, Policy], *, seed: int, first: int = 0
) -> Iterator[Turn]:
    """Let players act in place of agents, from fresh episodes on and without an end.

    Args:
        env: the environments; they are reset with ``seed``.
        agents: of the environments.
        players: by agent.
        seed: of environments and drawn actions.
        first: number of the first environment; each has its own random streams.
    """
    obs = env.reset(seed)
    numbers = np.arange(first, first + env.num_envs, dtype=np.int64)
    actors = {
        agent.name: Actor(players[agent.name], agent, env, Streams(seed, numbers, LEARNER_PURPOSE + k))
        for k, agent in enumerate(agents)
    }
    while True:
        current = {name: obs[name].copy() for name in actors}
        actions = {name: actor.act(current[name]) for name, actor in actors.items()}
        step = env.step(actions)
        yield Turn(current, actions, step)
        for actor in actors.values():
            actor.restart(step.done)
        obs = step.observations


class Quota:
    """How many episodes each of several environments still has to play, settled before the first step.

    To keep whichever episodes end first would prefer short ones: a mean over them is biased.

    Args:
        episodes: how many in all.
        envs: environments that share them, as equally as possible.
    """

    def __init__(self, episodes: int, envs: int) -> None:
        self._left = (episodes - np.arange(envs) + envs - 1) // envs

    def count(self, done: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the episodes that ended in the environments ``done`` (N,) count (M,)."""
        counted: NDArray[np.bool_] = self._left[done] > 0
        self._left -= done
        return counted

    @property
    def met(self) -> bool:
        """Whether every environment has played its episodes."""
        return bool((self._left <= 0).all())
