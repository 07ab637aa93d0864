"""PPO's loss for categorical actions and its gradient in one pass over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from multigrid_rl.jit import float_kernel

Array = NDArray[Any]


class Rows(NamedTuple):
    """What the loss reads beside the network's output; ``B`` steps of a unit with ``C`` seats."""

    actions: Tensor  # (B, C) int64
    logp: Tensor  # (B,) of the behaviour policy, summed over living seats
    advantages: Tensor  # (B,)
    targets: Tensor  # (B,) of the values
    alive: Tensor  # (B, C) bool: the seat was in the game; a step with no living seat is no part of the loss


class Weighting(NamedTuple):
    """Parts of the loss: ``policy + vf_coef * value - entropy_coef * entropy``, ratios clipped to ``1 +- clip``."""

    clip: float
    vf_coef: float
    entropy_coef: float


class Statistics(NamedTuple):
    """Means over the rows, without gradient."""

    policy_loss: Tensor
    vf_loss: Tensor
    entropy: Tensor


@float_kernel
def _rows(
    logits: Array,
    values: Array,
    actions: Array,
    logp: Array,
    advantages: Array,
    targets: Array,
    alive: Array,
    weighting: Array,
    by_logits: Array,
    by_values: Array,
    seat: Array,
    sums: Array,
) -> None:
    rows, seats, choices = logits.shape
    clip, vf_coef, entropy_coef = weighting[0], weighting[1], weighting[2]
    living = 0
    for b in range(rows):
        for c in range(seats):
            if alive[b, c]:
                living += 1
                break
    scale = 1.0 / max(living, 1)
    sums[:] = 0.0
    by_values[:] = 0.0
    by_logits[:] = 0.0
    for b in range(rows):
        chosen = 0.0
        entropy = 0.0
        some = False
        for c in range(seats):
            if not alive[b, c]:
                continue
            some = True
            top = logits[b, c, 0]
            for k in range(1, choices):
                top = max(top, logits[b, c, k])
            total = 0.0
            weighted = 0.0
            for k in range(choices):
                shifted = logits[b, c, k] - top
                weight = np.exp(shifted)
                by_logits[b, c, k] = weight
                total += weight
                weighted += weight * shifted
            log_total = np.log(total)
            seat[c, 0] = total
            seat[c, 1] = top + log_total
            seat[c, 2] = log_total - weighted / total
            entropy += seat[c, 2]
            chosen += logits[b, c, actions[b, c]] - seat[c, 1]
        if not some:
            continue
        ratio = np.exp(chosen - logp[b])
        free = advantages[b] * ratio
        clipped = advantages[b] * min(max(ratio, 1.0 - clip), 1.0 + clip)
        # Where the clipped side is the smaller one, the loss does not depend on the policy.
        slope = 0.0 if free > clipped else -free * scale  # of the loss by the log-probability
        error = values[b] - targets[b]
        sums[0] -= min(free, clipped)
        sums[1] += error * error
        sums[2] += entropy
        by_values[b] = 2.0 * vf_coef * scale * error
        for c in range(seats):
            if not alive[b, c]:
                continue
            for k in range(choices):
                p = by_logits[b, c, k] / seat[c, 0]
                # The entropy H falls by p (log p + H) for each unit of a logit.
                falls = p * (logits[b, c, k] - seat[c, 1] + seat[c, 2])
                by_logits[b, c, k] = entropy_coef * scale * falls - slope * p
            by_logits[b, c, actions[b, c]] += slope
    for k in range(3):
        sums[k] *= scale


def ppo_gradient(
    logits: Array, values: Array, rows: Sequence[Array], weighting: Weighting
) -> tuple[Array, Array, Array]:
    """Gradients of :func:`ppo_loss` by the logits (B, C, K) and the values (B,), and its three parts (3,)."""
    by_logits, by_values, sums = np.empty_like(logits), np.empty_like(values), np.empty(3, np.float32)
    seat = np.empty((logits.shape[1], 3))  # total weight, its logarithm before shifting, entropy
    actions, logp, advantages, targets, alive = rows
    given = (logits, values, actions, logp, advantages, targets, alive, np.array(weighting))
    _rows(*given, by_logits, by_values, seat, sums)
    return by_logits, by_values, sums


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, rows: Rows, weighting: Weighting) -> tuple[Tensor, Tensor]:
        columns = [column.numpy() for column in rows]
        parts = ppo_gradient(logits.detach().numpy(), values.detach().numpy(), columns, weighting)
        by_logits, by_values, sums = map(torch.from_numpy, parts)
        ctx.save_for_backward(by_logits, by_values)
        ctx.mark_non_differentiable(sums)
        total = sums[0] + weighting.vf_coef * sums[1] - weighting.entropy_coef * sums[2]
        return total.to(logits.dtype), sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        by_logits, by_values = ctx.saved_tensors
        return by_logits * by_loss, by_values * by_loss, None, None


def ppo_loss(logits: Tensor, values: Tensor, rows: Rows, weighting: Weighting) -> tuple[Tensor, Statistics]:
    """PPO's clipped loss (Schulman et al. 2017, equation 9) of joint categorical actions.

    Seats of a unit act independently given what the unit sees, so log-probabilities and entropies add up over living
    seats. The value loss is not clipped.

    Args:
        logits: (B, C, K).
        values: (B,).
        rows: what was done and what came of it.
        weighting: weights of the parts.

    Returns:
        The scalar loss, and its parts. A batch without a living seat has loss 0 and no gradient.
    """
    if logits.device.type == "cpu":
        loss, sums = _Loss.apply(logits, values, rows, weighting)  # type: ignore[no-untyped-call]
        return loss, Statistics(*sums)
    return reference(logits, values, rows, weighting)


def reference(logits: Tensor, values: Tensor, rows: Rows, weighting: Weighting) -> tuple[Tensor, Statistics]:
    """The same in torch's own operations: for other devices than the CPU, and what tests compare with."""
    living = rows.alive.any(-1)
    if not living.any():
        zero = torch.zeros((), device=logits.device)
        return 0.0 * (logits.sum() + values.sum()), Statistics(zero, zero, zero)
    logits, values = logits[living], values[living]
    rows = Rows(*(column[living] for column in rows))
    log_all = torch.log_softmax(logits, dim=-1)
    logp = (log_all.gather(2, rows.actions.unsqueeze(2)).squeeze(2) * rows.alive).sum(1)
    entropy = (-(log_all.exp() * log_all).sum(-1) * rows.alive).sum(1).mean()
    ratio = torch.exp(logp - rows.logp)
    clipped = torch.clamp(ratio, 1 - weighting.clip, 1 + weighting.clip)
    policy_loss = -torch.min(rows.advantages * ratio, rows.advantages * clipped).mean()
    vf_loss = (values - rows.targets).pow(2).mean()
    loss: Tensor = policy_loss + weighting.vf_coef * vf_loss - weighting.entropy_coef * entropy
    return loss, Statistics(policy_loss.detach(), vf_loss.detach(), entropy.detach())
