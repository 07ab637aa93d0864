"""Generalised advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438), in its notation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


def gae(  # noqa: PLR0913 - all arrays of a rollout that it reads
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    *,
    terminated: Flags,
    done: Flags,
    active: Flags,
    gamma: float,
    lam: float,
) -> Floats:
    """Compute advantages (T, N): ``A_t = delta_t + gamma lam A_{t+1}``, ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``.

    Termination drops ``V(s_{t+1})``; truncation keeps it (it bootstraps from the final observation). Neither lets ``A``
    of the next episode flow back.

    Args:
        rewards: (T, N).
        values: (T, N) ``V(s_t)``.
        next_values: (T, N) ``V(s_{t+1})``; of the final observation where the episode ended in this step.
        terminated: (T, N) the agent's episode ended for good: nothing is bootstrapped.
        done: (T, N) the environment's episode ended in this step, by termination or truncation.
        active: (T, N) the agent was still in the game; other rows are no experience and get 0.
        gamma: discount per step.
        lam: weight of later residuals.
    """
    result = np.zeros_like(values)
    following = np.zeros(values.shape[1], np.float32)
    for t in range(len(values) - 1, -1, -1):
        discount = np.where(terminated[t], np.float32(0), np.float32(gamma))
        delta = rewards[t] + discount * next_values[t] - values[t]
        carry = np.where(terminated[t] | done[t], np.float32(0), np.float32(gamma * lam))
        following = np.where(active[t], delta + carry * following, np.float32(0))
        result[t] = following
    return result


def standardise(values: Floats) -> Floats:
    """Scale to zero mean and unit variance over all rows (a constant column becomes zeros)."""
    centred = values - values.mean(dtype=np.float64)
    result: Floats = (centred / max(float(values.std(dtype=np.float64)), 1e-8)).astype(np.float32)
    return result
