"""The penalty on a policy's divergence from the one that played, compiled: ``learn.update_settings.KlPenalty``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from multigrid_rl.fast.loss import add_up, per_row
from multigrid_rl.jit import float_inlined, float_shared

Array = NDArray[Any]
#: Weight of a penalty, and outputs of the policy that played: (R, K), as kernels read them (R, C, K) or (R, 2 A).
Held = tuple[float, Array]
Passed = tuple[Array, Array, Array]


@float_inlined
def _log_total(logits: Array) -> float:
    """Return the logarithm of the sum of exponentials of ``logits`` (K,)."""
    top, total = logits[0], 0.0
    for k in range(1, len(logits)):
        top = max(top, logits[k])
    for k in range(len(logits)):
        total += np.exp(logits[k] - top)
    return float(top + np.log(total))


@float_shared
def categorical_penalty(
    passed: Passed, chosen: Array, mask: Array, held: Held, out: Array, parts: Array, sums: Array
) -> None:
    """Add the gradient of a penalty on the divergence of this policy from that which played, and tell its mean.

    Args:
        passed, chosen, parts, sums: as :func:`~multigrid_rl.fast.loss.categorical_rows` takes and leaves them.
        mask: (R, C).
        held: with outputs (R, C, K).
        out: gradients of the outputs (B, C, K).
    """
    outputs, _, which = passed
    weight, before = held
    scale = per_row(mask, chosen)
    for b in prange(len(chosen)):
        parts[b, 3] = 0.0
        for c in range(mask.shape[1]):
            if not mask[chosen[b], c]:
                continue
            old, new = before[chosen[b], c], outputs[which[b], c]
            total, total_new = _log_total(old), _log_total(new)
            for k in range(len(old)):
                log_p, log_q = old[k] - total, new[k] - total_new
                parts[b, 3] += np.exp(log_p) * (log_p - log_q)
                out[b, c, k] += weight * scale * (np.exp(log_q) - np.exp(log_p))  # d KL / d logit = q - p
    add_up(parts, scale, sums)


@float_shared
def gaussian_penalty(
    passed: Passed, chosen: Array, mask: Array, held: Held, out: Array, parts: Array, sums: Array
) -> None:
    """As :func:`categorical_penalty`, for outputs (R, 2 A)."""
    outputs, _, which = passed
    weight, before = held
    scale, width = per_row(mask, chosen), outputs.shape[1] // 2
    for b in prange(len(chosen)):
        old, new = before[chosen[b]], outputs[which[b]]
        parts[b, 3] = 0.0
        for a in range(width if mask[chosen[b], 0] else 0):
            moved, grown, inverse = new[a] - old[a], new[width + a] - old[width + a], np.exp(-2.0 * new[width + a])
            apart = np.exp(-2.0 * grown) + moved * moved * inverse
            parts[b, 3] += grown + 0.5 * (apart - 1.0)
            # d KL / d mean = moved / std^2; d KL / d log std = 1 - (std_old^2 + moved^2) / std^2
            out[b, a] += weight * scale * moved * inverse
            out[b, width + a] += weight * scale * (1.0 - apart)
    add_up(parts, scale, sums)
