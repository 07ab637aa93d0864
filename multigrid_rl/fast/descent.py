"""Gradient steps of PPO with two towers, all of an update's minibatches in one compiled call.

A minibatch is rows by number: nothing is copied but what is distinct of it. Forward pass, loss, backward pass, clipping
of the gradient's norm and Adam follow one another without Python in between; threads share each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from multigrid_rl.fast.adam import Adam, adam_step, clip_gradient
from multigrid_rl.fast.distinct import number
from multigrid_rl.fast.loss import add_up, as_read, categorical_rows, gaussian_rows, per_row, shapes
from multigrid_rl.fast.towers import Towers, both_backward, both_forward
from multigrid_rl.jit import float_inlined, float_shared, inlined
from multigrid_rl.models.distributions import Distribution

Array = NDArray[Any]
#: Weight of a penalty, and outputs of the policy that played: (R, K), as kernels read them (R, C, K) or (R, 2 A).
Held = tuple[float, Array]


@inlined
def take(rows: Array, which: Array, count: int, out: Array) -> None:
    """Fill ``out`` with the first ``count`` of the rows ``which``."""
    for u in range(count):
        for d in range(rows.shape[1]):
            out[u, d] = rows[which[u], d]


@float_inlined
def _outputs(count: int, rows: Array, layers: tuple[Array, Array], extras: Any, out: Array, values: Array) -> None:
    """Fill the policy's outputs and the values of ``count`` distinct rows."""
    scale, log_std, shift, _ = extras
    width = layers[0].shape[1]
    for u in range(count):
        values[u] = layers[1][u, 0] * scale
        for k in range(width):
            out[u, k] = layers[0][u, k]
        for k in range(len(log_std)):
            out[u, width + k] = log_std[k]
        for k in range(shift.shape[1]):
            out[u, k] += shift[rows[u], k]


@float_inlined
def _upstream(count: int, which: Array, extras: Any, gradients: tuple[Array, Array], out: tuple[Array, Array]) -> None:
    """Sum the gradients of a minibatch's outputs and values by distinct row; that of the spread over all rows."""
    scale, _, _, by_log_std = extras
    by_outputs, by_values = gradients
    width = out[0].shape[1]
    out[0][:count] = 0
    out[1][:count] = 0
    for b in range(len(which)):
        u = which[b]
        out[1][u, 0] += by_values[b] * scale
        for k in range(width):
            out[0][u, k] += by_outputs[b, k]
        # The spread is the same in every state, so its gradient is a sum over rows.
        for k in range(len(by_log_std)):
            by_log_std[k] += by_outputs[b, width + k]


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
    passed: tuple[Array, Array, Array], chosen: Array, mask: Array, held: Held, out: Array, parts: Array, sums: Array
) -> None:
    """Add the gradient of a penalty on the divergence of this policy from that which played, and tell its mean.

    Torch's form is ``learn.penalty.KlPenalty``.

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
    passed: tuple[Array, Array, Array], chosen: Array, mask: Array, held: Held, out: Array, parts: Array, sums: Array
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


@float_shared
def _descend(
    chosen: Array,
    batch: tuple[Array, ...],
    columns: tuple[Array, ...],
    kind: int,
    towers: Any,
    extras: Any,
    outputs: Array,
    buffers: tuple[Array, ...],
    row: Adam,
    factors: Array,
    limits: Array,
    held: Any,
    told: tuple[Array, Array],
) -> int:
    """Take a step with each of ``M`` minibatches; returns how many were taken before the policy had moved too far.

    Args:
        chosen: (M, S) rows of each minibatch.
        batch: tokens (R, D), numbers (R, V), and the number of each row among the distinct ones (R,): see
            :meth:`~multigrid_rl.fast.towers.Towers.rows`.
        columns: see :func:`categorical_rows`.
        towers: arguments of :func:`both_forward`, then of :func:`both_backward`, for each tower.
        extras: scale of the values, a Gaussian's spread, what is added to outputs (R, K), the spread's gradient.
        outputs: buffer as the loss reads it: (S, C, K), or (S, 2 A).
        row: the weights; the towers' are parts of them, and so are their gradients.
        factors: (M, 6) of :func:`adam_step`.
        limits: weights of the loss (4,), largest norm of a gradient, largest divergence.
        held: see :func:`categorical_penalty`, or ``None``.
        told: become the loss's statistics (M, 6) and the norms (M,).
    """
    (first, second), (first_back, second_back) = towers
    flat, by_outputs, by_flat, values, by_values, parts, seats, tokens, numbers, which, distinct, seen = buffers
    sums, norms = told
    size = chosen.shape[1]
    for m in range(len(chosen)):
        row.gradient[:] = 0
        rows = chosen[m]
        count = number(batch[2], rows, m * size, seen, which, distinct)
        take(batch[0], distinct, count, tokens)
        take(batch[1], distinct, count, numbers)
        inputs = (tokens[:count], numbers[:count])
        both_forward(inputs, kind, np.int64(2), first, second)  # not a constant, which would be a form of its own
        _outputs(count, distinct, (first[-1][-1], second[-1][-1]), extras, flat, values)
        passed, weighting = (outputs, values, which), limits[:4]
        if outputs.ndim == 3:
            categorical_rows(passed, rows, columns, weighting, by_outputs, by_values, parts, seats, sums[m])
            if held is not None:  # without one nothing of it is compiled
                categorical_penalty(passed, rows, columns[1], held, by_outputs, parts, sums[m])
        else:
            gaussian_rows(passed, rows, columns, weighting, by_outputs, by_values, parts, seats, sums[m])
            if held is not None:
                gaussian_penalty(passed, rows, columns[1], held, by_outputs, parts, sums[m])
        # Early stopping as in Spinning Up, with its factor: before the step, so that the policy never moves further
        # than where that was seen.
        if sums[m, 3] > limits[5]:
            return m
        _upstream(count, which, extras, (by_flat, by_values), (first_back[4][-1], second_back[4][-1]))
        both_backward(inputs, kind, first_back, second_back)
        norms[m] = clip_gradient(row.gradient, limits[4])
        adam_step(row.weights, row.gradient, row.mean, row.square, factors[m])
    return len(chosen)


def descend(
    towers: Towers,
    rows: Sequence[Array],
    chosen: Array,
    distribution: Distribution,
    limits: Sequence[float],
    row: Adam,
    factors: Array,
    held: Held | None = None,
) -> tuple[Array, Array]:
    """Take a step with each minibatch; returns the loss's statistics (M', 6) and norms of gradients (M,).

    Where the divergence exceeds its limit, no more steps are taken: that minibatch has statistics, and no norm.

    Args:
        rows: observations, then columns of ``learn.losses.Rows``, as arrays; then what networks with memory begin with.
        chosen: (M, S) rows of each minibatch.
        distribution: one that :func:`~multigrid_rl.fast.loss.supports` knows.
        limits: clip, weight of the value loss, weight of the entropy, largest norm of a gradient, largest divergence.
        row: the weights, of which all of the network's are parts.
        factors: (M, 6) of :func:`adam_step`.
        held: weight of a penalty on divergence, and outputs (R, K) of the policy that played.
    """
    obs, *columns = rows[:7]
    read, weights = as_read(columns, limits)
    batch, extras = towers.rows(obs)
    size, width = chosen.shape[1], distribution.outputs
    shape, (parts, seats) = shapes(size, distribution)
    flat, by_flat = np.empty((2, size, width), np.float32)
    floats, whole = np.empty((2, size), np.float32), np.empty((2, size), np.int64)
    tokens, numbers = (np.empty((size, part.shape[1]), part.dtype) for part in batch[:2])
    seen = np.full(batch[2].max(initial=0) + 1, -1)
    buffers = (flat, by_flat.reshape(shape), by_flat, *floats, parts, seats, tokens, numbers, *whole, seen)
    sums, norms = np.empty((len(chosen), 6), np.float32), np.empty(len(chosen), np.float32)
    arguments = towers.kind, towers.both(size), extras, flat.reshape(shape), buffers
    penalty = None if held is None else (held[0], held[1].reshape(-1, *shape[1:]))
    taken = _descend(chosen, batch, read, *arguments, row, factors, weights, penalty, (sums, norms))
    return sums[: taken + 1], norms[:taken]
