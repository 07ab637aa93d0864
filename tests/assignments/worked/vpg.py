"""Assignment 3: the six experiments on LunarLander, and how likely an order of seeds is by chance."""

from itertools import combinations

import numpy as np

SETTING = ["scenario=lunarlander", "train=vpg", "experiment=none", "model.hidden=[200]", "train.until=150000"]
ARMS = {
    "gae": [],
    "reward-to-go": ["train.psi=future_return"],
    "vpg-10": ["train.pi_iters=10"],
    "vpg-20": ["train.pi_iters=20"],
    "ppo-20": ["train.pi_iters=20", "train.objective=ppo"],
    "kl-20": ["train.pi_iters=20", "train.target_kl=0.01"],
    "step-1e-3": ["train.lr=1e-3", "train.v_lr=1e-3"],
    "continuous": ["scenario=lunarlander-continuous"],
}


def chance(first, second):
    """Return the share of ways to deal all scores out again in which the first ones are at least as far ahead."""
    scores = np.array([*first, *second], float)
    seen = np.mean(first) - np.mean(second)
    dealt = [set(picked) for picked in combinations(range(len(scores)), len(first))]
    ahead = [scores[list(picked)].mean() - np.delete(scores, list(picked)).mean() >= seen - 1e-9 for picked in dealt]
    return float(np.mean(ahead))
