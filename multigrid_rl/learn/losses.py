"""Settings of an update, its loss, in torch or compiled by ``fast.loss``, and its limits on moving a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl import jit
from multigrid_rl.fast import compile_network
from multigrid_rl.fast import loss as fast_loss
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import Batch
from multigrid_rl.models.distributions import Distribution
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import import_object
from multigrid_rl.types import Schedule

#: Rows that pass through a network together.
_TOGETHER = 1 << 14


class Rows(NamedTuple):
    """Inputs of the loss, besides the network's output; ``B`` steps of an agent with ``C`` action components."""

    actions: Tensor  # (B, C) int64 or (B, A) float32
    mask: Tensor  # (B, C) bool: the component's seat was in the game; rows without any are not part of the loss
    logp: Tensor  # (B,) of the behaviour policy, summed over seats in the game
    advantages: Tensor  # (B,)
    targets: Tensor  # (B,) of the values
    values: Any = None  # (B,) when the rows were played; ``None`` where no loss reads them

    def map(self, change: Callable[[Tensor], Tensor]) -> Rows:
        """Return the rows with every column changed."""
        return Rows._make(column if column is None else change(column) for column in self)

    def flattened(self, memory: int) -> Rows:
        """Return steps as rows, of a network with a ``memory`` whose rows are sequences: the loss knows no time."""
        return self.map(lambda column: column.reshape(-1, *column.shape[2:])) if memory else self


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
    approx_kl_k1: Tensor  # the same divergence, by -log r: may be negative


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


def squared(values: Tensor, rows: Rows, clip: float) -> Tensor:  # noqa: ARG001 - nothing is clipped
    """Return the squared error of the values."""
    return (values - rows.targets).pow(2)


def clipped(values: Tensor, rows: Rows, clip: float) -> Tensor:
    """Return PPO2's value loss: the larger of two errors, one of values moved by at most ``clip`` (``clip-vloss``).

    It does not help (Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990; detail 9 of
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/).
    """
    clipped_values: Tensor = rows.values + torch.clamp(values - rows.values, -clip, clip)
    return torch.max((values - rows.targets).pow(2), (clipped_values - rows.targets).pow(2))


# Tables, not chains of ifs: one place says what a name means, and a user's function is called like ours.
#: Built-in values of ``train.objective``; others are ``module:function``.
OBJECTIVES: dict[str, Objective] = {"ppo": ppo, "policy_gradient": policy_gradient}
#: Built-in values of ``train.value_loss``: (values (B,) with gradient, rows, clip) -> (B,), which is minimised.
VALUE_LOSSES: dict[str, Objective] = {"squared": squared, "clipped": clipped}


def objective_of(name: str) -> Objective:
    """Return an objective of policies by name or ``module:function``. Raises ``ConfigError``: neither."""
    return _named("train.objective", name, OBJECTIVES)


def value_loss_of(name: str) -> Objective:
    """Return a loss of values by name or ``module:function``. Raises ``ConfigError``: neither."""
    return _named("train.value_loss", name, VALUE_LOSSES)


def _named(key: str, name: str, table: dict[str, Objective]) -> Objective:
    if name in table:
        return table[name]
    if ":" not in name:
        raise ConfigError(expected(key, f"{', '.join(table)} or module:function", name))
    function: Objective = import_object(key, name)
    return function


class Losses(NamedTuple):
    """Objective of the policy, which is maximised, and loss of the values, which is minimised."""

    objective: Objective = ppo
    value_loss: Objective = squared

    @classmethod
    def of(cls, config: UpdateConfig) -> Losses:
        """Return the losses of an update; a value's loss has no gradient where it is above ``config.vf_clip``."""
        loss, largest = value_loss_of(config.value_loss), config.vf_clip
        value_loss: Objective = loss if largest is None else lambda *inputs: loss(*inputs).clamp(max=largest)
        return cls(objective_of(config.objective), value_loss)

    @property
    def reads_old_values(self) -> bool:
        """Whether rows need the values as they were when they were played."""
        return self.value_loss is not squared

    def compiled(self, distribution: Distribution) -> bool:
        """Return whether ``fast.loss`` computes them: PPO's objective with built-in value losses."""
        built_in = self.objective is ppo and self.value_loss in VALUE_LOSSES.values()
        return jit.state.networks and built_in and fast_loss.supports(distribution)


def loss_of(
    outputs: Tensor, values: Tensor, rows: Rows, distribution: Distribution, losses: Losses, weighting: Weighting
) -> tuple[Tensor, Statistics]:
    """Compute the loss of an objective.

    Components of an action are independent given the observation, so log-probabilities and entropies are summed over
    components in the game.

    Args:
        outputs: (B, K) of the policy.
        values: (B,).

    Returns:
        The scalar loss, and its parts. A batch without an active row has loss 0 and no gradient.
    """
    if outputs.device.type == "cpu" and losses.compiled(distribution):
        inputs = rows if losses.reads_old_values else rows._replace(values=None)
        loss, sums = fast_loss.ppo_loss(outputs, values, inputs, distribution, weighting)
        return loss, Statistics(*sums)
    return reference(outputs, values, rows, distribution, losses, weighting)


def reference(
    outputs: Tensor, values: Tensor, rows: Rows, distribution: Distribution, losses: Losses, weighting: Weighting
) -> tuple[Tensor, Statistics]:
    """Compute the same in torch's own operations: for everything that is not compiled, and for tests."""
    active = rows.mask.any(-1)
    if not active.any():
        zero = torch.zeros((), device=outputs.device)
        return 0.0 * (outputs.sum() + values.sum()), Statistics(*[zero] * len(Statistics._fields))
    outputs, values = outputs[active], values[active]
    rows = rows.map(lambda column: column[active])
    logp = (distribution.log_prob(outputs, rows.actions) * rows.mask).sum(1)
    entropy = (distribution.entropy(outputs) * rows.mask).sum(1).mean()
    # L = -E[objective] + c_v E[(V - target)^2] - c_e E[H], each a mean over the rows in the game: equation 9 of
    # Schulman et al. 2017 (https://arxiv.org/abs/1707.06347), with signs for a loss that is minimised.
    policy_loss = -losses.objective(logp, rows, weighting.clip).mean()
    vf_loss = losses.value_loss(values, rows, weighting.clip).mean()
    loss: Tensor = policy_loss + weighting.vf_coef * vf_loss - weighting.entropy_coef * entropy
    # Schulman 2020, http://joschu.net/blog/kl-approx.html: k3 = (r - 1) - log r is unbiased and never negative.
    with torch.no_grad():
        log_ratio = logp - rows.logp
        excess = torch.expm1(log_ratio)
        clip_fraction = (excess.abs() > weighting.clip).float().mean()
        parts = Statistics(policy_loss, vf_loss, entropy, (excess - log_ratio).mean(), clip_fraction, -log_ratio.mean())
    return loss, Statistics(*(part.detach() for part in parts))


@dataclass(frozen=True)
class UpdateConfig:
    """Settings of an update, documented in ``configs/train/ppo.yaml``."""

    objective: str
    epochs: int  # passes of the policy; of the values, too, unless they have separate passes
    minibatch_size: int | None  # steps of a gradient step, in whole sequences for a network with memory; None: all
    lr: Schedule
    entropy_coef: Schedule
    clip: Schedule
    vf_coef: float
    grad_clip: float
    seed: int
    v_iters: int | None = None
    v_lr: Schedule | None = None  # of the values' separate passes; None: as lr
    target_kl: float | None = None
    standardise: bool = True
    warm_up: int = 0  # environment steps in which only the values learn
    value_loss: str = "squared"
    recompute: Estimator | None = None  # recomputes advantages before every pass but the first
    vf_clip: float | None = None  # largest value loss of a row that has a gradient
    kl_coef: float | None = None  # weight of the penalty on divergence at the start; None: no penalty
    kl_target: float = 0.01
    modules: Mapping[str, UpdateConfig] = field(default_factory=dict)  # of networks that differ

    def of(self, name: str) -> UpdateConfig:
        """Return the settings of a network."""
        return self.modules.get(name, self)


# --- how far an update moves a policy


class KlPenalty:
    """Adds ``coefficient * E[KL(old || new)]`` to a loss (Schulman et al. 2017, section 4).

    Attributes:
        coefficient: adapted after each update, as RLlib does.
        last: mean divergence of the newest minibatch.
    """

    def __init__(self, coefficient: float, target: float) -> None:
        self.coefficient, self._target, self.last = coefficient, target, 0.0

    def of(self, distribution: Distribution, old: Tensor, new: Tensor, mask: Tensor) -> Tensor:
        """Return the mean divergence over the rows in the game, with gradient by ``new``."""
        active = mask.any(-1)
        return (distribution.kl(old[active], new[active]) * mask[active]).sum() / max(int(active.sum()), 1)

    def adapt(self) -> None:
        """Move the coefficient so that the next update ends near the target."""
        if self.last > 2 * self._target:
            self.coefficient *= 1.5
        elif self.last < self._target / 2:
            self.coefficient *= 0.5


def with_outputs(
    batches: Mapping[str, Batch], penalties: Mapping[str, KlPenalty], networks: Mapping[str, Any], device: torch.device
) -> Mapping[str, Batch]:
    """Return the batches; those under a penalty with the outputs of the networks that played them."""
    return {
        name: batch._replace(outputs=_outputs(networks[name], batch, device)) if name in penalties else batch
        for name, batch in batches.items()
    }


def _outputs(net: Any, batch: Batch, device: torch.device) -> NDArray[np.float32]:
    if (compiled := compile_network(net)) is not None:
        return compiled.start(batch.obs, batch.memory, batch.starts).outputs.reshape(*batch.logp.shape, -1)
    outputs = []
    for first in range(0, len(batch.obs), _TOGETHER):
        part = batch.rows(slice(first, first + _TOGETHER))
        obs, memory, starts = (torch.as_tensor(x, device=device) for x in (part.obs, part.memory, part.starts))
        with torch.no_grad():
            policy_outputs = net.sequence(obs, memory, starts)[0] if net.state_size else net(obs)[0]
        outputs.append(policy_outputs.reshape(*part.logp.shape, -1).cpu().numpy())
    return np.concatenate(outputs)


def total_loss(metrics: Mapping[str, Any], weights: tuple[float, float], penalty: KlPenalty | None) -> dict[str, float]:
    """Return the total loss of the newest minibatch, by ``weights`` of entropy and values; adapts the penalty."""
    entropy_coef, vf_coef = weights
    total = float(metrics["policy_loss"]) - entropy_coef * float(metrics["entropy"])
    total += vf_coef * float(metrics.get("vf_loss", 0.0))
    if penalty is None:
        return {"total_loss": total}
    total += penalty.coefficient * penalty.last
    penalty.adapt()
    return {"total_loss": total, "kl_loss": penalty.last, "kl_coef": penalty.coefficient}


def stopping_divergence(largest: float | None) -> float:
    """Return the divergence at which an update ends, before the step: the policy moves no further than where it was."""
    # With the factor of Spinning Up (https://spinningup.openai.com/en/latest/algorithms/ppo.html).
    return math.inf if largest is None else 1.5 * largest
