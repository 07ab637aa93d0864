"""One game behind RLlib's own multi-agent face: for its own sampling path, and for any of its algorithms."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from multigrid_rl.types import AgentSpec, BatchedEnv, BatchedStep, EnvFactory, EpisodeTable

#: Game numbers set aside for each env runner, so that no two runners play the same games.
GAMES_PER_RUNNER = 2**20
_ALL = "__all__"
_SEEDS = 2**31


def rllib_spaces(agent: AgentSpec) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return what RLlib's connectors know: tokens (D,), and one of K actions or, for a team of C, a vector (C,)."""
    acts = agent.action_space
    assert isinstance(acts, gym.spaces.MultiDiscrete)
    return agent.observation_space, gym.spaces.Discrete(int(acts.nvec[0])) if len(acts.nvec) == 1 else acts


class GameEnv(MultiAgentEnv):
    """One game; its agents are those that learn, and background players act inside.

    An observation is the agent's token vector, uint8 of shape (D,). An agent that is out while the game goes on is
    reported as terminated once, with its last observation, and is not heard of again. When every agent is out and only
    background players are left, the game is played to its end within that step, so that its episode counts like any
    other. A truncated game says so under ``__all__`` only: RLlib takes a game whose every agent is marked as truncated
    for a terminated one, and would not bootstrap it.

    Games of different env runners and of different places in one runner's vector have different numbers; what a game
    does depends on its number and on the seed of :meth:`reset`, or on the factory's seed where none is given.

    Args:
        config: ``factory`` (a ``types.EnvFactory``); as an ``EnvContext`` it also says which game this is.

    Raises:
        KeyError: no factory.
        ValueError: agents whose critic reads more than their actor: RLlib's networks read one observation.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        factory: EnvFactory = config["factory"]
        agents = factory.specs.agents
        if any(agent.critic_space is not None for agent in agents):
            raise ValueError("scheme=ctde: allowed is dtde or ctce: RLlib's actor and critic read one observation")
        self.env: BatchedEnv = factory.build(1, _game_number(config))
        self.possible_agents = [agent.name for agent in agents]
        self.agents = list(self.possible_agents)
        spaces = {agent.name: rllib_spaces(agent) for agent in agents}
        self.observation_spaces = {name: pair[0] for name, pair in spaces.items()}
        self.action_spaces = {name: pair[1] for name, pair in spaces.items()}
        self._actions = {agent.name: np.zeros((1, len(agent.seats)), np.int64) for agent in agents}
        self._living = self.possible_agents
        #: What the next game begins with; ``None`` in the middle of a game.
        self._first: dict[str, NDArray[Any]] | None = self._copied(self.env.observations())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Start a game: the next one, or the first one under ``seed``; returns tokens (D,) by agent, and no infos."""
        super().reset(seed=seed, options=options)
        if seed is None and self._first is None:
            seed = int(self.np_random.integers(_SEEDS))
        if seed is not None:
            self._first = self._copied(self.env.reset(seed))
        first, self._first = self._first, None
        self._living = self.possible_agents
        return first or {}, {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Play one step.

        Args:
            action_dict: an action for each agent that is in the game: an integer, or (C,) integers for a team.

        Returns:
            Observations, rewards, terminated flags and (for all at once) the truncated flag, by agent, and no infos.
            Only agents that were in the game when the step began are in them.
        """
        for name, action in action_dict.items():
            self._actions[name][0] = action
        step = self.env.step(self._actions)
        done = bool(step.done[0])
        shown = step.final_observations if done else step.observations
        observations, rewards, terminated = {}, {}, {}
        for name in self._living:
            observations[name] = shown[name][0].copy()
            rewards[name] = float(step.rewards[name][0])
            terminated[name] = bool(step.terminated[name][0])
        self._living = [name for name in self._living if not terminated[name]]
        over = not self._living
        if done or over:
            self._first = self._copied(self._played_out(step).observations)
        terminated[_ALL] = over
        return observations, rewards, terminated, {_ALL: done and not over}, {}

    def _played_out(self, step: BatchedStep) -> BatchedStep:
        while not step.done[0]:
            step = self.env.step(self._actions)
        return step

    def drain_episodes(self) -> EpisodeTable:
        """Episodes that finished since the last call."""
        return self.env.drain_episodes()

    @staticmethod
    def _copied(shown: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        # The arrays of a batched environment change at its next step.
        return {name: rows[0].copy() for name, rows in shown.items()}


def _game_number(config: dict[str, Any]) -> int:
    if not isinstance(config, EnvContext):
        return 0
    # RLlib hands one context to every game of a vector and leaves its index where it is: each game takes the next.
    number: int = config.worker_index * GAMES_PER_RUNNER + config.vector_index
    config.vector_index += 1
    return number
