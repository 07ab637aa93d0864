"""Assignment 5, task 4: Walker-v0 paid by a reward of one's own; ``own_pay`` is what the wrapper of the sheet calls."""

import gymnasium
import numpy as np


def own_pay(seen, action, after, reward, info):
    """Return the environment's reward, more for an upright torso, less for effort."""
    upright, effort = max(0.0, float(after[6])), float(np.mean((np.asarray(action) / 0.4) ** 2))
    return reward + 0.1 * upright - 0.05 * effort


class Paid(gymnasium.Wrapper):
    """Walker-v0 with a reward of one's own."""

    def reset(self, **options):
        """Begin an episode."""
        self.seen, info = self.env.reset(**options)
        return self.seen, info

    def step(self, action):
        """Take a step and pay for it."""
        after, reward, terminated, truncated, info = self.env.step(action)
        own = own_pay(self.seen, action, after, float(reward), info)
        self.seen = after
        return after, own, terminated, truncated, info


def made(**options):
    """Return the environment."""
    return Paid(gymnasium.make("multigrid_rl.envs:Walker-v0", **options))


gymnasium.register("PaidWalker-v0", made)
