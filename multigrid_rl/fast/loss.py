"""PPO's loss and its gradient with respect to a network's outputs, in one compiled pass.

The equations of :func:`multigrid_rl.learn.losses.reference`, with their derivatives written out. For a row with ratio
``r = pi(a|s) / pi_old(a|s)`` and advantage ``A`` (Schulman et al. 2017, equation 7, https://arxiv.org/abs/1707.06347)::

    L = -min(r A, clip(r, 1 - eps, 1 + eps) A) + c_v (V - V_target)^2 - c_e H(pi)

Where a value moved beyond a reach from its old one, the square is the one at the reach, if that is larger.
As ``d r / d log pi = r``, the first part's derivative by the log-probability is ``-r A``, or 0 where the clipped one is
smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from multigrid_rl.jit import float_inlined, float_shared
from multigrid_rl.models.distributions import HALF_LOG_2PI, Categorical, Distribution, Gaussian

Array = NDArray[Any]


@float_inlined
def row_scale(mask: Array, chosen: Array) -> float:
    """Return 1 / the number of the ``chosen`` rows of ``mask`` (R, C) in the loss."""
    active = 0
    for b in range(len(chosen)):
        for c in range(mask.shape[1]):
            if mask[chosen[b], c]:
                active += 1
                break
    return 1.0 / max(active, 1)


@float_inlined
def sum_parts(parts: Array, scale: float, sums: Array) -> None:
    """Set ``sums`` (6,) to ``scale`` times the sums of ``parts`` (B, 6): in row order, whatever thread filled them."""
    sums[:] = 0.0
    for b in range(len(parts)):
        for k in range(len(sums)):
            sums[k] += parts[b, k]
    sums *= scale


@float_inlined
def _row(
    b: int,
    row: int,
    log_prob: float,
    entropy: float,
    scale: float,
    value: float,
    columns: Any,
    weighting: Array,
    by_values: Array,
    parts: Array,
) -> float:
    """Fill row ``b`` of ``by_values`` and ``parts``; returns the derivative by the log-probability."""
    # r = exp(log pi - log pi_old); the value's derivative is 2 c_v (V - V_target), and both are means: times `scale`.
    _, _, logp, advantages, targets, old_values = columns
    clip = weighting[0]
    ratio = np.exp(log_prob - logp[row])
    surr1 = advantages[row] * ratio
    surr2 = advantages[row] * min(max(ratio, 1.0 - clip), 1.0 + clip)
    error = value - targets[row]
    parts[b, 0] = -min(surr1, surr2)
    parts[b, 1] = error * error
    parts[b, 2] = entropy
    parts[b, 3] = (ratio - 1.0) - (log_prob - logp[row])  # k3 of http://joschu.net/blog/kl-approx.html
    parts[b, 4] = abs(ratio - 1.0) > clip
    parts[b, 5] = logp[row] - log_prob  # k1 of the same page
    by_values[b] = 2.0 * weighting[1] * scale * error
    change, reach = value - old_values[row], weighting[3]
    if abs(change) > reach:
        bounded_error = old_values[row] + (reach if change > 0.0 else -reach) - targets[row]
        if bounded_error * bounded_error > parts[b, 1]:
            parts[b, 1], by_values[b] = bounded_error * bounded_error, 0.0
    # Where surr2 is smaller, the loss does not depend on the policy.
    return 0.0 if surr1 > surr2 else -surr1 * scale


@float_shared
def categorical_rows(
    net: tuple[Array, Array, Array],
    chosen: Array,
    columns: tuple[Array, ...],
    weighting: Array,
    by_outputs: Array,
    by_values: Array,
    parts: Array,
    seats: Array,
    sums: Array,
) -> None:
    """Fill ``gradients`` and ``sums`` for logits.

    Args:
        net: the network's logits (U, C, K) and values (U,); the row of both that each of the ``B`` rows has.
        chosen: (B,) rows of the columns.
        columns: actions (R, C), mask (R, C), log-probabilities, advantages, targets and old values (R,).
        weighting: clip, weight of the value loss, weight of the entropy, reach of the values.
        by_outputs: (B, C, K) become the gradients of the logits.
        by_values: (B,) become those of the values.
        parts: buffer (B, 6) for what is added up.
        seats: buffer (B, C, 3) for a component's weight, its logarithm and entropy.
        sums: become the statistics (6,).
    """
    # Threads write to separate arguments: numba may drop what is written to a part of a tuple.
    logits, values, sources = net
    actions, mask = columns[0], columns[1]
    count, choices = logits.shape[1:]
    entropy_coef, scale = weighting[2], row_scale(mask, chosen)
    parts[:] = 0.0
    by_values[:] = 0.0
    by_outputs[:] = 0.0
    for b in prange(len(chosen)):
        row, u = chosen[b], sources[b]
        seat = seats[b]
        log_prob = 0.0
        entropy = 0.0
        active = False
        for c in range(count):
            if not mask[row, c]:
                continue
            active = True
            top = logits[u, c, 0]  # subtracted from all, so that no exponential overflows
            for k in range(1, choices):
                top = max(top, logits[u, c, k])
            total = 0.0
            weighted = 0.0
            for k in range(choices):
                shifted = logits[u, c, k] - top
                weight = np.exp(shifted)
                by_outputs[b, c, k] = weight
                total += weight
                weighted += weight * shifted
            log_total = np.log(total)
            seat[c, 0] = total
            seat[c, 1] = top + log_total
            seat[c, 2] = log_total - weighted / total
            entropy += seat[c, 2]
            log_prob += logits[u, c, actions[row, c]] - seat[c, 1]
        if not active:
            continue
        slope = _row(b, row, log_prob, entropy, scale, values[u], columns, weighting, by_values, parts)
        for c in range(count):
            if not mask[row, c]:
                continue
            is_certain = by_outputs[b, c, actions[row, c]] == seat[c, 0]
            action_slope = 0.0 if is_certain else slope  # rounding would leave a gradient without an alternative
            for k in range(choices):
                p = by_outputs[b, c, k] / seat[c, 0]
                # d H / d logit = -p (log p + H); d log pi(a) / d logit = [a] - p
                decrease = p * (logits[u, c, k] - seat[c, 1] + seat[c, 2])
                by_outputs[b, c, k] = entropy_coef * scale * decrease - action_slope * p
            by_outputs[b, c, actions[row, c]] += action_slope
    sum_parts(parts, scale, sums)


@float_shared
def gaussian_rows(
    net: tuple[Array, Array, Array],
    chosen: Array,
    columns: tuple[Array, ...],
    weighting: Array,
    by_outputs: Array,
    by_values: Array,
    parts: Array,
    seats: Array,  # noqa: ARG001 - there is one component
    sums: Array,
) -> None:
    """As :func:`categorical_rows`, for outputs (U, 2 A): means, then logarithms of standard deviations."""
    outputs, values, sources = net
    actions, mask = columns[0], columns[1]
    width = actions.shape[1]
    entropy_coef, scale = weighting[2], row_scale(mask, chosen)
    parts[:] = 0.0
    by_values[:] = 0.0
    by_outputs[:] = 0.0
    for b in prange(len(chosen)):
        row, u = chosen[b], sources[b]
        if not mask[row, 0]:
            continue
        log_prob = entropy = 0.0
        for a in range(width):
            log_std = outputs[u, width + a]
            normal = (actions[row, a] - outputs[u, a]) * np.exp(-log_std)
            log_prob -= 0.5 * normal * normal + log_std + HALF_LOG_2PI
            entropy += log_std + 0.5 + HALF_LOG_2PI
        slope = _row(b, row, log_prob, entropy, scale, values[u], columns, weighting, by_values, parts)
        for a in range(width):
            inverse = np.exp(-outputs[u, width + a])
            normal = (actions[row, a] - outputs[u, a]) * inverse
            # d log N / d mean = z / std; d log N / d log std = z^2 - 1; d H / d log std = 1
            by_outputs[b, a] = slope * normal * inverse
            by_outputs[b, width + a] = slope * (normal * normal - 1.0) - entropy_coef * scale
    sum_parts(parts, scale, sums)


def supports(distribution: Distribution) -> bool:
    """Whether :func:`ppo_gradient` knows the distribution: a Gaussian, or equally many choices in each component."""
    return isinstance(distribution, Gaussian) or (isinstance(distribution, Categorical) and distribution.equal)


def ppo_gradient(
    outputs: Array, values: Array, rows: Sequence[Any], distribution: Distribution, weighting: Sequence[float]
) -> tuple[Array, Array, Array]:
    """Return gradients of PPO's loss with respect to outputs (B, K) and values (B,), and the statistics (6,).

    Args:
        outputs: (B, K) of the policy.
        values: (B,).
        rows: columns of ``learn.losses.Rows`` as arrays.
        distribution: one that :func:`supports` knows.
        weighting: clip, weight of the value loss, weight of the entropy.
    """
    # Torch needs 25 operations for the same, and a graph; sums are in float64, rounded once at the end.
    by_outputs, by_values, sums = np.empty_like(outputs), np.empty_like(values), np.empty(6, np.float32)
    shape, buffers = shapes(len(outputs), distribution)
    all_rows, fill_rows = np.arange(len(outputs)), (gaussian_rows if len(shape) == 2 else categorical_rows)
    net, kernel_inputs = (outputs.reshape(shape), values, all_rows), kernel_columns(rows, weighting)
    fill_rows(net, all_rows, *kernel_inputs, by_outputs.reshape(shape), by_values, *buffers, sums)
    return by_outputs, by_values, sums


def kernel_columns(rows: Sequence[Any], weighting: Sequence[float]) -> tuple[tuple[Array, ...], Array]:
    """Return columns and weights as kernels read them: old values bound the new ones where a loss reads them."""
    *columns, old = (*rows, None)[:6]
    reach = np.inf if old is None else weighting[0]
    return (*columns, columns[-1] if old is None else old), np.array([*weighting[:3], reach, *weighting[3:]])


def shapes(rows: int, distribution: Distribution) -> tuple[tuple[int, ...], tuple[Array, Array]]:
    """Return the shape of outputs as :func:`categorical_rows` or :func:`gaussian_rows` read them, and buffers."""
    if isinstance(distribution, Categorical):
        shape: tuple[int, ...] = (rows, distribution.components, distribution.choices[0])
    else:
        shape = (rows, distribution.outputs)
    return shape, (np.empty((rows, 6)), np.empty((*shape[:2], 3)))


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, values: Tensor, rows: Any, distribution: Distribution, weighting: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        columns = [None if column is None else column.numpy() for column in rows]
        arrays = (outputs.detach().contiguous().numpy(), values.detach().contiguous().numpy())
        by_outputs, by_values, sums = map(torch.from_numpy, ppo_gradient(*arrays, columns, distribution, weighting))
        ctx.save_for_backward(by_outputs, by_values)
        # The gradient is known already: the backward pass only scales it.
        ctx.mark_non_differentiable(sums)
        return (sums[0] + weighting[1] * sums[1] - weighting[2] * sums[2]).to(outputs.dtype), sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        by_outputs, by_values = ctx.saved_tensors
        return by_outputs * upstream, by_values * upstream, None, None, None


def ppo_loss(
    outputs: Tensor, values: Tensor, rows: Sequence[Tensor], distribution: Distribution, weighting: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return PPO's loss, differentiable, and its statistics (6,), for tensors on the CPU: see :func:`ppo_gradient`."""
    loss, sums = _Loss.apply(outputs, values, rows, distribution, weighting)  # type: ignore[no-untyped-call]
    return loss, sums
