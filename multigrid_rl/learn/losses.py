"""Objectives of policy gradients: the loss, and for PPO on categorical actions its gradient in one compiled pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from multigrid_rl.jit import float_inlined, float_shared
from multigrid_rl.models.distributions import HALF_LOG_2PI, Categorical, Distribution, Gaussian
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.user_code import import_object

Array = NDArray[Any]


class Rows(NamedTuple):
    """Inputs of the loss beside the network's output; ``B`` steps of an agent with ``C`` action components."""

    actions: Tensor  # (B, C) int64 or (B, A) float32
    mask: Tensor  # (B, C) bool: the component's seat was in the game; rows without any are not part of the loss
    logp: Tensor  # (B,) of the behaviour policy, summed over seats in the game
    advantages: Tensor  # (B,)
    targets: Tensor  # (B,) of the values


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
    approx_kl: Tensor  # of the behaviour policy from this one, estimated by (r - 1) - log r: never negative
    clip_fraction: Tensor  # share of rows whose ratio is outside of 1 +- clip


#: Objective that a policy maximises in each row: (log-probabilities (B,) with gradient, rows, clip) -> (B,).
Objective = Callable[[Tensor, Rows, float], Tensor]


def ppo(logp: Tensor, rows: Rows, clip: float) -> Tensor:
    """Return PPO's clipped surrogate (Schulman et al. 2017, equation 7, https://arxiv.org/abs/1707.06347)."""
    ratio = torch.exp(logp - rows.logp)
    surr1, surr2 = rows.advantages * ratio, rows.advantages * torch.clamp(ratio, 1 - clip, 1 + clip)
    return torch.min(surr1, surr2)


def policy_gradient(logp: Tensor, rows: Rows, clip: float) -> Tensor:  # noqa: ARG001 - nothing is clipped
    """Return ``log pi(a|s) A`` (Sutton et al. 2000; as A2C: Mnih et al. 2016, https://arxiv.org/abs/1602.01783)."""
    return logp * rows.advantages


#: Built-in values of ``train.objective``; others are ``module:function``.
OBJECTIVES: dict[str, Objective] = {"ppo": ppo, "policy_gradient": policy_gradient}


def objective_of(name: str) -> Objective:
    """Return an objective by name or ``module:function``.

    Raises:
        ConfigError: neither.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if ":" not in name:
        raise ConfigError(expected("train.objective", f"{', '.join(OBJECTIVES)} or module:function", name))
    objective: Objective = import_object("train.objective", name)
    return objective


@float_inlined
def _per_row(mask: Array) -> float:
    """Return 1 / the number of rows of ``mask`` (B, C) in the loss."""
    active = 0
    for b in range(mask.shape[0]):
        for c in range(mask.shape[1]):
            if mask[b, c]:
                active += 1
                break
    return 1.0 / max(active, 1)


@float_inlined
def _add_up(parts: Array, scale: float, sums: Array) -> None:
    """Set ``sums`` (5,) to ``scale`` times the sums of ``parts`` (B, 5), added in row order."""
    sums[:] = 0.0
    for b in range(len(parts)):
        for k in range(len(sums)):
            sums[k] += parts[b, k]
    sums *= scale


@float_shared
def _rows(
    logits: Array,
    values: Array,
    actions: Array,
    logp: Array,
    advantages: Array,
    targets: Array,
    mask: Array,
    weighting: Array,
    by_logits: Array,
    by_values: Array,
    parts: Array,
    sums: Array,
    seats: Array,
) -> None:
    rows, count, choices = logits.shape
    clip, vf_coef, entropy_coef = weighting[0], weighting[1], weighting[2]
    scale = _per_row(mask)
    parts[:] = 0.0
    by_values[:] = 0.0
    by_logits[:] = 0.0
    for b in prange(rows):
        seat = seats[b]
        chosen = 0.0
        entropy = 0.0
        active = False
        for c in range(count):
            if not mask[b, c]:
                continue
            active = True
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
        if not active:
            continue
        ratio = np.exp(chosen - logp[b])
        surr1 = advantages[b] * ratio
        surr2 = advantages[b] * min(max(ratio, 1.0 - clip), 1.0 + clip)
        # Where surr2 is smaller, the loss does not depend on the policy.
        slope = 0.0 if surr1 > surr2 else -surr1 * scale  # d loss / d log-probability
        error = values[b] - targets[b]
        parts[b, 0] = -min(surr1, surr2)
        parts[b, 1] = error * error
        parts[b, 2] = entropy
        parts[b, 3] = (ratio - 1.0) - (chosen - logp[b])
        parts[b, 4] = abs(ratio - 1.0) > clip
        by_values[b] = 2.0 * vf_coef * scale * error
        for c in range(count):
            if not mask[b, c]:
                continue
            for k in range(choices):
                p = by_logits[b, c, k] / seat[c, 0]
                # d H / d logit = -p (log p + H)
                decrease = p * (logits[b, c, k] - seat[c, 1] + seat[c, 2])
                by_logits[b, c, k] = entropy_coef * scale * decrease - slope * p
            by_logits[b, c, actions[b, c]] += slope
    _add_up(parts, scale, sums)


@float_shared
def _gaussian_rows(
    outputs: Array,
    values: Array,
    actions: Array,
    logp: Array,
    advantages: Array,
    targets: Array,
    mask: Array,
    weighting: Array,
    by_outputs: Array,
    by_values: Array,
    parts: Array,
    sums: Array,
) -> None:
    rows, width = actions.shape
    clip, vf_coef, entropy_coef = weighting[0], weighting[1], weighting[2]
    scale = _per_row(mask)
    parts[:] = 0.0
    by_values[:] = 0.0
    by_outputs[:] = 0.0
    for b in prange(rows):
        if not mask[b, 0]:
            continue
        chosen = entropy = 0.0
        for a in range(width):
            log_std = outputs[b, width + a]
            normal = (actions[b, a] - outputs[b, a]) * np.exp(-log_std)
            chosen -= 0.5 * normal * normal + log_std + HALF_LOG_2PI
            entropy += log_std + 0.5 + HALF_LOG_2PI
        ratio = np.exp(chosen - logp[b])
        surr1 = advantages[b] * ratio
        surr2 = advantages[b] * min(max(ratio, 1.0 - clip), 1.0 + clip)
        slope = 0.0 if surr1 > surr2 else -surr1 * scale
        error = values[b] - targets[b]
        parts[b, 0] = -min(surr1, surr2)
        parts[b, 1] = error * error
        parts[b, 2] = entropy
        parts[b, 3] = (ratio - 1.0) - (chosen - logp[b])
        parts[b, 4] = abs(ratio - 1.0) > clip
        by_values[b] = 2.0 * vf_coef * scale * error
        for a in range(width):
            inverse = np.exp(-outputs[b, width + a])
            normal = (actions[b, a] - outputs[b, a]) * inverse
            by_outputs[b, a] = slope * normal * inverse
            by_outputs[b, width + a] = slope * (normal * normal - 1.0) - entropy_coef * scale
    _add_up(parts, scale, sums)


def ppo_gradient(
    outputs: Array, values: Array, rows: Sequence[Any], distribution: Distribution, weighting: Weighting
) -> tuple[Array, Array, Array]:
    """Return gradients of PPO's loss with respect to outputs (B, K) and values (B,), and its :class:`Statistics` (5,).

    ``rows`` are the columns of :class:`Rows` as arrays.
    """
    by_outputs, by_values, sums = np.empty_like(outputs), np.empty_like(values), np.empty(5, np.float32)
    parts = np.empty((len(outputs), len(sums)))
    actions, mask, logp, advantages, targets = rows
    columns = (values, actions, logp, advantages, targets, mask, np.array(weighting))
    if isinstance(distribution, Categorical):
        shape = (len(outputs), distribution.components, -1)
        seats = np.empty((*shape[:2], 3))  # total weight, its logarithm before shifting, entropy
        _rows(outputs.reshape(shape), *columns, by_outputs.reshape(shape), by_values, parts, sums, seats)
    else:
        _gaussian_rows(outputs, *columns, by_outputs, by_values, parts, sums)
    return by_outputs, by_values, sums


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, values: Tensor, rows: Rows, distribution: Distribution, weighting: Weighting
    ) -> tuple[Tensor, Tensor]:
        columns = [column.numpy() for column in rows]
        arrays = (outputs.detach().contiguous().numpy(), values.detach().contiguous().numpy())
        parts = ppo_gradient(*arrays, columns, distribution, weighting)
        by_outputs, by_values, sums = map(torch.from_numpy, parts)
        ctx.save_for_backward(by_outputs, by_values)
        ctx.mark_non_differentiable(sums)
        total = sums[0] + weighting.vf_coef * sums[1] - weighting.entropy_coef * sums[2]
        return total.to(outputs.dtype), sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        by_outputs, by_values = ctx.saved_tensors
        return by_outputs * by_loss, by_values * by_loss, None, None, None


def compiled(distribution: Distribution, objective: Objective) -> bool:
    """Whether :func:`ppo_gradient` applies: PPO, for Gaussians or equally many choices in each component."""
    supported = isinstance(distribution, Gaussian) or (isinstance(distribution, Categorical) and distribution.equal)
    return objective is ppo and supported


def loss_of(
    outputs: Tensor, values: Tensor, rows: Rows, distribution: Distribution, objective: Objective, weighting: Weighting
) -> tuple[Tensor, Statistics]:
    """Compute the loss of an objective.

    Components of an action are independent given the observation, so log-probabilities and entropies are summed over
    components in the game. The value loss is not clipped.

    Args:
        outputs: (B, K) of the policy.
        values: (B,).
        rows: actions, advantages and targets.
        distribution: of the actions.
        objective: of the policy.
        weighting: weights of the parts.

    Returns:
        The scalar loss, and its parts. A batch without an active row has loss 0 and no gradient.
    """
    if outputs.device.type == "cpu" and compiled(distribution, objective):
        loss, sums = _Loss.apply(outputs, values, rows, distribution, weighting)  # type: ignore[no-untyped-call]
        return loss, Statistics(*sums)
    return reference(outputs, values, rows, distribution, objective, weighting)


def reference(
    outputs: Tensor, values: Tensor, rows: Rows, distribution: Distribution, objective: Objective, weighting: Weighting
) -> tuple[Tensor, Statistics]:
    """Compute the same in torch's own operations: for everything that is not compiled, and for tests."""
    active = rows.mask.any(-1)
    if not active.any():
        zero = torch.zeros((), device=outputs.device)
        return 0.0 * (outputs.sum() + values.sum()), Statistics(zero, zero, zero, zero, zero)
    outputs, values = outputs[active], values[active]
    rows = Rows(*(column[active] for column in rows))
    logp = (distribution.log_prob(outputs, rows.actions) * rows.mask).sum(1)
    entropy = (distribution.entropy(outputs) * rows.mask).sum(1).mean()
    policy_loss = -objective(logp, rows, weighting.clip).mean()
    vf_loss = (values - rows.targets).pow(2).mean()
    loss: Tensor = policy_loss + weighting.vf_coef * vf_loss - weighting.entropy_coef * entropy
    with torch.no_grad():  # Schulman 2020, http://joschu.net/blog/kl-approx.html: the third estimate there
        log_ratio = logp - rows.logp
        off = torch.expm1(log_ratio)
        parts = Statistics(
            policy_loss, vf_loss, entropy, (off - log_ratio).mean(), (off.abs() > weighting.clip).float().mean()
        )
    return loss, Statistics(*(part.detach() for part in parts))
