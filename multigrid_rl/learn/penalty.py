"""Limits on how far an update moves a policy: a penalty on divergence, and the divergence at which it ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.fast import compile_network
from multigrid_rl.learn.batches import Batch
from multigrid_rl.learn.losses import UpdateConfig
from multigrid_rl.models.distributions import Distribution

#: Rows that pass through a network together.
_TOGETHER = 1 << 14


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
        divergences = distribution.kl(old[active], new[active]) * mask[active]
        return divergences.sum() / max(int(active.sum()), 1)

    def adapt(self) -> None:
        """Move the coefficient so that the next update ends near the target."""
        if self.last > 2 * self._target:
            self.coefficient *= 1.5
        elif self.last < self._target / 2:
            self.coefficient *= 0.5


def penalties_of(config: UpdateConfig, modules: Iterable[str]) -> dict[str, KlPenalty]:
    """Return the penalties of those networks that have one."""
    configs = {name: config.of(name) for name in modules}
    return {name: KlPenalty(each.kl_coef, each.kl_target) for name, each in configs.items() if each.kl_coef is not None}


def with_outputs(
    batches: Mapping[str, Batch], penalties: Mapping[str, KlPenalty], networks: Mapping[str, Any], device: torch.device
) -> Mapping[str, Batch]:
    """Return the batches; those under a penalty with the outputs of the networks that played them."""
    return {
        name: batch._replace(outputs=_outputs(networks[name], batch, device)) if name in penalties else batch
        for name, batch in batches.items()
    }


def _outputs(net: Any, batch: Batch, device: torch.device) -> NDArray[np.float32]:
    compiled = compile_network(net)
    if compiled is not None:
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
