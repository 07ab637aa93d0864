"""Clipping of a gradient and Adam's step, over all weights of a network in one row, with torch's own arithmetic."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from multigrid_rl.jit import float_shared, inlined

Array = NDArray[Any]


class Adam(NamedTuple):
    """Weights in one row, and Adam's moments of each (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980)."""

    weights: Array  # (P,) float32
    gradient: Array  # (P,)
    mean: Array  # (P,)
    square: Array  # (P,)


#: Weights that torch steps at a time; it rounds the remaining ones differently.
TORCH_LANES = 8


@inlined
def _fused(a: Any, b: Any, c: Any) -> Any:
    """Return ``a b + c``, rounded once."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


@inlined
def _step_tail(lanes_end: int, weights: Array, gradient: Array, mean: Array, square: Array, factors: Array) -> None:
    for i in range(lanes_end, len(weights)):
        mean[i] = _fused(factors[0], gradient[i] - mean[i], mean[i])
        square[i] = _fused(square[i], factors[1], factors[2] * gradient[i] * gradient[i])
        weights[i] = weights[i] + factors[3] * mean[i] / (np.sqrt(square[i]) / factors[4] + factors[5])


@float_shared
def adam_step(weights: Array, gradient: Array, mean: Array, square: Array, factors: Array) -> None:
    """Take a step with torch's fused kernel's arithmetic, to the last bit; each thread takes a part of the row."""
    # m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w -= lr m' / (sqrt(v') + eps), with m' and v' corrected for
    # their start at 0: algorithm 1 of the paper. The order of terms decides which product is rounded.
    c1, b2, c2, size, root, eps = factors[0], factors[1], factors[2], factors[3], factors[4], factors[5]
    lanes_end = len(weights) - len(weights) % TORCH_LANES
    for i in prange(lanes_end):
        mean[i] = mean[i] + c1 * (gradient[i] - mean[i])
        square[i] = c2 * gradient[i] * gradient[i] + square[i] * b2
        weights[i] = weights[i] + size * mean[i] / (np.sqrt(square[i]) / root + eps)
    _step_tail(lanes_end, weights, gradient, mean, square, factors)


@inlined
def clip_gradient(values: Array, largest: float) -> Any:
    """Scale ``values`` to a norm of at most ``largest``, or to 0 where it is not finite; returns the norm before."""
    # As torch adds it up: in eight lanes, which are no fused products, and the rest, which are. Each lane is a number
    # of its own and stays in a register: in an array, every addition waited for memory, four times as long.
    lanes_end = len(values) - len(values) % TORCH_LANES
    zero = np.float32(0)
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(0, lanes_end, TORCH_LANES):
        a += values[i] * values[i]
        b += values[i + 1] * values[i + 1]
        c += values[i + 2] * values[i + 2]
        d += values[i + 3] * values[i + 3]
        e += values[i + 4] * values[i + 4]
        f += values[i + 5] * values[i + 5]
        g += values[i + 6] * values[i + 6]
        h += values[i + 7] * values[i + 7]
    total = a + b + c + d + e + f + g + h
    for i in range(lanes_end, len(values)):
        total = _fused(values[i], values[i], total)
    norm = np.sqrt(total)
    if not norm < np.inf:
        values[:] = 0  # one such step would spoil Adam's moments for good
    elif norm > largest:
        factor = np.float32(largest / (np.float64(norm) + 1e-6))
        for i in range(len(values)):
            values[i] *= factor
    return norm
