"""A game of two seats that see and do different things, for tests: one moves in two parts, one by numbers."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

WIDE = 300


class Chords(ParallelEnv):
    """Three steps; each seat is paid what it did, summed."""

    metadata = {"name": "chords"}  # noqa: RUF012 - as PettingZoo has it
    possible_agents = ["keys", "pedal"]  # noqa: RUF012

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (WIDE if agent == "keys" else 2,), np.float32)

    def action_space(self, agent):
        return spaces.MultiDiscrete([3, 5]) if agent == "keys" else spaces.Box(-0.7, 0.7, (2,), np.float32)

    def shown(self):
        return {a: np.full(self.observation_space(a).shape, 0.1 * self.t, np.float32) for a in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.shown(), {}

    def step(self, actions):
        self.t += 1
        seen, over = self.shown(), dict.fromkeys(self.agents, self.t == 3)
        paid = {agent: float(np.sum(action)) for agent, action in actions.items()}
        self.agents = [] if self.t == 3 else self.agents
        return seen, paid, over, dict.fromkeys(over, False), {agent: {} for agent in over}


def parallel_env():
    """Build the game."""
    return Chords()
