"""Drawing actions from logits, one pass for action, log-probability and entropy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import kernel


class Sampled(NamedTuple):
    """Actions drawn for ``N`` rows."""

    actions: NDArray[np.int8]  # (N,)
    logp: NDArray[np.float32]  # (N,) log-probability of each action
    entropy: NDArray[np.float32]  # (N,) of the distribution, in nats


@kernel
def _sample(
    logits: NDArray[np.float32],
    uniform: NDArray[np.float64],
    actions: NDArray[np.int8],
    logp: NDArray[np.float32],
    entropy: NDArray[np.float32],
) -> None:
    count = logits.shape[1]
    for n in range(logits.shape[0]):
        top = logits[n, 0]
        for k in range(1, count):
            top = max(top, logits[n, k])
        total = 0.0
        weighted = 0.0
        for k in range(count):
            weight = np.exp(float(logits[n, k] - top))
            total += weight
            weighted += weight * float(logits[n, k] - top)
        log_total = np.log(total)
        entropy[n] = log_total - weighted / total
        # Inverse of the cumulative distribution; the last action also takes what rounding leaves over.
        rest = uniform[n, 0] * total
        choice = count - 1
        for k in range(count - 1):
            rest -= np.exp(float(logits[n, k] - top))
            if rest < 0.0:
                choice = k
                break
        actions[n] = choice
        logp[n] = float(logits[n, choice] - top) - log_total


def sample(logits: NDArray[np.float32], uniform: NDArray[np.float64]) -> Sampled:
    """Draw one action per row.

    Args:
        logits: (N, K) float32.
        uniform: (N, 1) numbers in [0, 1).
    """
    rows = len(logits)
    drawn = Sampled(np.empty(rows, np.int8), np.empty(rows, np.float32), np.empty(rows, np.float32))
    _sample(np.ascontiguousarray(logits), uniform, *drawn)
    return drawn
