"""Assignment 1, task 3: GAE as the weighted mean of n-step advantages, written forwards."""

import numpy as np


def gae(rewards, values, ends, gamma, lam):
    """Rewards (T, N), values (T + 1, N), ends (T, N); returns weights and targets, both (T, N).

    A_t is the sum over n of (1 - lam) lam^(n-1) A_t^(n); the last n that there is gets all the weight that is left.
    """
    steps, games = rewards.shape
    weights = np.zeros_like(rewards)
    for t in range(steps):
        for k in range(games):
            gained, left = 0.0, 1.0
            for n in range(1, steps - t + 1):
                gained += gamma ** (n - 1) * rewards[t + n - 1, k]
                over = ends[t + n - 1, k]
                last = over or t + n == steps
                guess = 0.0 if over else gamma**n * values[t + n, k]
                weight = left if last else left * (1 - lam)
                weights[t, k] += weight * (gained + guess - values[t, k])
                left -= weight
                if last:
                    break
    return weights, weights + values[:-1]
