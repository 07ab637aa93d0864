"""Generalised advantage estimation (Schulman et al. 2016), in the paper's notation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


class Trajectories(NamedTuple):
    """``T`` steps of ``N`` environments as one seat lived them."""

    rewards: Floats  # (T, N)
    values: Floats  # (T, N) V(s_t)
    next_values: Floats  # (T, N) V(s_{t+1}); of the final observation where the episode ended in this step
    terminated: Flags  # (T, N) the seat's episode ended for good: nothing is bootstrapped
    done: Flags  # (T, N) the environment's episode ended in this step, by termination or truncation
    acted: Flags  # (T, N) the seat was still in the game; other rows are no experience


def advantages(path: Trajectories, gamma: float, lam: float) -> Floats:
    """Advantages (T, N): ``A_t = delta_t + gamma lam A_{t+1}``, ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``.

    Termination drops ``V(s_{t+1})``; truncation keeps it (it bootstraps from the final observation). Neither lets ``A``
    of the next episode flow back. Rows with ``acted`` false are 0.
    """
    result = np.zeros_like(path.values)
    following = np.zeros(path.values.shape[1], np.float32)
    for t in range(len(path.values) - 1, -1, -1):
        alive = np.where(path.terminated[t], np.float32(0), np.float32(gamma))
        delta = path.rewards[t] + alive * path.next_values[t] - path.values[t]
        carry = np.where(path.terminated[t] | path.done[t], np.float32(0), np.float32(gamma * lam))
        following = np.where(path.acted[t], delta + carry * following, np.float32(0))
        result[t] = following
    return result


def standardise(values: Floats) -> Floats:
    """Zero mean and unit variance over all rows (a constant column becomes zeros)."""
    centred = values - values.mean(dtype=np.float64)
    result: Floats = (centred / max(float(values.std(dtype=np.float64)), 1e-8)).astype(np.float32)
    return result
