"""Two walkers on a line are paid for meeting. Three faults are planted: ``check_environment.py`` finds them."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

CELLS, STEPS = 9, 30


class Meet(ParallelEnv):
    """Who stands on the other's cell is paid 1, and the game ends; every step before costs 0.01.

    An agent sees two numbers between 0 and 1: its own cell and the other's, of nine. Actions: left, stay, right.
    """

    metadata = {"name": "meet", "render_modes": []}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]
        self.agents: list[str] = []
        self._spaces = {agent: Box(0, 1, (2,), np.float32) for agent in self.possible_agents}
        self._actions = {agent: Discrete(3) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Box:
        """Return the space of what an agent sees."""
        return self._spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """Return the space of what an agent does."""
        return self._actions[agent]

    def reset(self, seed=None, options=None):  # noqa: ANN001, ANN201, ARG002
        """Begin a game with both on different cells; the same seed begins the same game."""
        rng = np.random.default_rng()
        self.agents, self.steps = list(self.possible_agents), 0
        self.cells = dict(zip(self.agents, rng.choice(CELLS, 2, replace=False), strict=True))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):  # noqa: ANN001, ANN201
        """Move both."""
        self.steps += 1
        for agent, action in actions.items():
            self.cells[agent] = int(np.clip(self.cells[agent] + action - 1, 0, CELLS - 1))
        met = self.cells["a"] == self.cells["b"]
        rewards = dict.fromkeys(self.agents, 100.0 if met else -1.0)
        ends, cut = (dict.fromkeys(self.agents, over) for over in (met, not met and self.steps >= STEPS))
        seen, infos = self._seen(), {agent: {} for agent in self.agents}
        if met or self.steps >= STEPS:
            self.agents = []
        return seen, rewards, ends, cut, infos

    def _seen(self) -> dict[str, np.ndarray]:
        return {
            agent: np.array([self.cells[agent], self.cells[other]], np.float32)
            for agent, other in (("a", "b"), ("b", "a"))
        }


def parallel_env() -> Meet:
    """Make the game, as ``env_id=pettingzoo:meet`` does."""
    return Meet()
