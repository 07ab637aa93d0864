"""Gradient steps of PPO with two towers, all of an update's minibatches in one compiled call.

A minibatch is rows by number: only its distinct rows are copied. Forward pass, loss, backward pass, clipping
of the gradient's norm and Adam follow one another without Python in between; threads share each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from multigrid_rl.fast.adam import Adam, adam_step, clip_gradient
from multigrid_rl.fast.distinct import number_rows
from multigrid_rl.fast.loss import categorical_rows, gaussian_rows, kernel_columns, row_scale, shapes, sum_parts
from multigrid_rl.fast.towers import Towers, both_backward, both_forward
from multigrid_rl.jit import float_inlined, float_shared, inlined
from multigrid_rl.models.distributions import Distribution

Array = NDArray[Any]
#: Weight of a penalty, and outputs of the policy that played: (R, K), as kernels read them (R, C, K) or (R, 2 A).
Penalty = tuple[float, Array]


@inlined
def copy_rows(rows: Array, numbers: Array, count: int, out: Array) -> None:
    """Fill ``out`` with the first ``count`` of the rows ``numbers``."""
    for u in range(count):
        for d in range(rows.shape[1]):
            out[u, d] = rows[numbers[u], d]


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
def _sum_up(count: int, sources: Array, extras: Any, gradients: tuple[Array, Array], out: tuple[Array, Array]) -> None:
    """Sum a minibatch's gradients of outputs and values by distinct row, and the spread's gradient over all rows."""
    scale, _, _, by_log_std = extras
    by_outputs, by_values = gradients
    width = out[0].shape[1]
    out[0][:count] = 0
    out[1][:count] = 0
    for b in range(len(sources)):
        u = sources[b]
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
    net: tuple[Array, Array, Array], chosen: Array, mask: Array, penalty: Penalty, out: Array, parts: Array, sums: Array
) -> None:
    """Add the gradient of a penalty on the divergence of this policy from the one that played, and set its mean.

    Torch's form is ``learn.losses.KlPenalty``.

    Args:
        net, chosen, parts, sums: as :func:`~multigrid_rl.fast.loss.categorical_rows` takes and leaves them.
        mask: (R, C).
        penalty: with outputs (R, C, K).
        out: gradients of the outputs (B, C, K).
    """
    outputs, _, sources = net
    weight, behaviour = penalty
    scale = row_scale(mask, chosen)
    for b in prange(len(chosen)):
        parts[b, 3] = 0.0
        for c in range(mask.shape[1]):
            if not mask[chosen[b], c]:
                continue
            old, new = behaviour[chosen[b], c], outputs[sources[b], c]
            total, total_new = _log_total(old), _log_total(new)
            for k in range(len(old)):
                log_p, log_q = old[k] - total, new[k] - total_new
                parts[b, 3] += np.exp(log_p) * (log_p - log_q)
                out[b, c, k] += weight * scale * (np.exp(log_q) - np.exp(log_p))  # d KL / d logit = q - p
    sum_parts(parts, scale, sums)


@float_shared
def gaussian_penalty(
    net: tuple[Array, Array, Array], chosen: Array, mask: Array, penalty: Penalty, out: Array, parts: Array, sums: Array
) -> None:
    """As :func:`categorical_penalty`, for outputs (R, 2 A)."""
    outputs, _, sources = net
    weight, behaviour = penalty
    scale, width = row_scale(mask, chosen), outputs.shape[1] // 2
    for b in prange(len(chosen)):
        old, new = behaviour[chosen[b]], outputs[sources[b]]
        parts[b, 3] = 0.0
        for a in range(width if mask[chosen[b], 0] else 0):
            shift, growth, inverse = new[a] - old[a], new[width + a] - old[width + a], np.exp(-2.0 * new[width + a])
            variance_ratio = np.exp(-2.0 * growth) + shift * shift * inverse
            parts[b, 3] += growth + 0.5 * (variance_ratio - 1.0)
            # d KL / d mean = moved / std^2; d KL / d log std = 1 - (std_old^2 + moved^2) / std^2
            out[b, a] += weight * scale * shift * inverse
            out[b, width + a] += weight * scale * (1.0 - variance_ratio)
    sum_parts(parts, scale, sums)


@float_shared
def _descend(
    minibatches: Array,
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
    penalty: Any,
    results: tuple[Array, Array],
) -> int:
    """Take a step with each of ``M`` minibatches; returns the number taken before the policy has moved too far.

    Args:
        minibatches: (M, S) rows of each.
        batch: tokens (R, D), numbers (R, V), and the number of each row among the distinct ones (R,): see
            :meth:`~multigrid_rl.fast.towers.Towers.rows`.
        columns: see :func:`categorical_rows`.
        towers: arguments of :func:`both_forward`, then of :func:`both_backward`, for each tower.
        extras: scale of the values, a Gaussian's spread, what is added to outputs (R, K), the spread's gradient.
        outputs: buffer as the loss reads it: (S, C, K), or (S, 2 A).
        row: the weights; the towers' are parts of them, and so are their gradients.
        factors: (M, 6) of :func:`adam_step`.
        limits: weights of the loss (4,), largest norm of a gradient, largest divergence.
        penalty: see :func:`categorical_penalty`, or ``None``.
        results: become the loss's statistics (M, 6) and the norms (M,).
    """
    (first, second), (first_back, second_back) = towers
    flat, by_outputs, by_flat, values, by_values, parts, seats, tokens, numbers, sources, distinct, assigned = buffers
    sums, norms = results
    size = minibatches.shape[1]
    for m in range(len(minibatches)):
        row.gradient[:] = 0
        rows = minibatches[m]
        count = number_rows(batch[2], rows, m * size, assigned, sources, distinct)
        copy_rows(batch[0], distinct, count, tokens)
        copy_rows(batch[1], distinct, count, numbers)
        inputs = (tokens[:count], numbers[:count])
        both_forward(inputs, kind, np.int64(2), first, second)  # not a constant, which would be compiled separately
        _outputs(count, distinct, (first[-1][-1], second[-1][-1]), extras, flat, values)
        net, weighting = (outputs, values, sources), limits[:4]
        if outputs.ndim == 3:
            categorical_rows(net, rows, columns, weighting, by_outputs, by_values, parts, seats, sums[m])
            if penalty is not None:  # without one, none is compiled
                categorical_penalty(net, rows, columns[1], penalty, by_outputs, parts, sums[m])
        else:
            gaussian_rows(net, rows, columns, weighting, by_outputs, by_values, parts, seats, sums[m])
            if penalty is not None:
                gaussian_penalty(net, rows, columns[1], penalty, by_outputs, parts, sums[m])
        # Early stopping as in Spinning Up, with its factor: before the step, so that the policy never moves
        # beyond the limit.
        if sums[m, 3] > limits[5]:
            return m
        _sum_up(count, sources, extras, (by_flat, by_values), (first_back[4][-1], second_back[4][-1]))
        both_backward(inputs, kind, first_back, second_back)
        norms[m] = clip_gradient(row.gradient, limits[4])
        adam_step(row.weights, row.gradient, row.mean, row.square, factors[m])
    return len(minibatches)


def descend(
    towers: Towers,
    rows: Sequence[Array],
    minibatches: Array,
    distribution: Distribution,
    limits: Sequence[float],
    row: Adam,
    factors: Array,
    penalty: Penalty | None = None,
) -> tuple[Array, Array]:
    """Take a step with each minibatch; returns the loss's statistics (M', 6) and norms of gradients (M,).

    Where the divergence exceeds its limit, no more steps are taken: that minibatch has statistics, and no norm.

    Args:
        rows: observations, then columns of ``learn.losses.Rows``, as arrays; then what networks with memory begin with.
        minibatches: (M, S) rows of each.
        distribution: one that :func:`~multigrid_rl.fast.loss.supports` knows.
        limits: clip, weight of the value loss, weight of the entropy, largest norm of a gradient, largest divergence.
        row: the weights, of which all of the network's are parts.
        factors: (M, 6) of :func:`adam_step`.
        penalty: weight of a penalty on divergence, and outputs (R, K) of the policy that played.
    """
    obs, *columns = rows[:7]
    loss_columns, weights = kernel_columns(columns, limits)
    batch, extras = towers.rows(obs)
    size, width = minibatches.shape[1], distribution.outputs
    shape, (parts, seats) = shapes(size, distribution)
    flat, by_flat = np.empty((2, size, width), np.float32)
    floats, indices = np.empty((2, size), np.float32), np.empty((2, size), np.int64)
    tokens, numbers = (np.empty((size, part.shape[1]), part.dtype) for part in batch[:2])
    assigned = np.full(batch[2].max(initial=0) + 1, -1)
    buffers = (flat, by_flat.reshape(shape), by_flat, *floats, parts, seats, tokens, numbers, *indices, assigned)
    sums, norms = np.empty((len(minibatches), 6), np.float32), np.empty(len(minibatches), np.float32)
    arguments = towers.kind, towers.both(size), extras, flat.reshape(shape), buffers
    shaped = None if penalty is None else (penalty[0], penalty[1].reshape(-1, *shape[1:]))
    steps = _descend(minibatches, batch, loss_columns, *arguments, row, factors, weights, shaped, (sums, norms))
    return sums[: steps + 1], norms[:steps]
