"""Objectives of policy gradients: the loss in torch; where ``fast.loss`` has it compiled, that is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from multigrid_rl.fast import loss as fast_loss
from multigrid_rl.models.distributions import Distribution
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import import_object


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


# A table, not a chain of ifs: what a name means stands in one place, and a user's function is called like ours.
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


def compiled(distribution: Distribution, objective: Objective) -> bool:
    """Whether ``fast.loss`` has the loss: PPO's, of most distributions."""
    return objective is ppo and fast_loss.supports(distribution)


def loss_of(
    outputs: Tensor, values: Tensor, rows: Rows, distribution: Distribution, objective: Objective, weighting: Weighting
) -> tuple[Tensor, Statistics]:
    """Compute the loss of an objective.

    Components of an action are independent given the observation, so log-probabilities and entropies are summed over
    components in the game. The value loss is not clipped, as PPO2's was: that does not help (Andrychowicz et al. 2021,
    https://arxiv.org/abs/2006.05990; https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/, 9).

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
        loss, sums = fast_loss.ppo_loss(outputs, values, rows, distribution, weighting)
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
    # Schulman 2020, http://joschu.net/blog/kl-approx.html: k3 = (r - 1) - log r is unbiased and never negative.
    with torch.no_grad():
        log_ratio = logp - rows.logp
        off = torch.expm1(log_ratio)
        parts = Statistics(
            policy_loss, vf_loss, entropy, (off - log_ratio).mean(), (off.abs() > weighting.clip).float().mean()
        )
    return loss, Statistics(*(part.detach() for part in parts))
