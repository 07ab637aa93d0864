"""RLlib's PPO learner: the same loss and the same step, without what it repeats for every minibatch."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from multigrid_rl.rllib.modules import ALIVE, MEMORY

GRAD_NORM_KEY = "grad_norm"
_STATISTICS = (POLICY_LOSS_KEY, VF_LOSS_KEY, LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY, ENTROPY_KEY)
_PER_STEP = (
    Columns.ACTIONS, Columns.ACTION_LOGP, Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS, ALIVE,
)  # fmt: skip


def _living_rows(fwd_out: dict[str, Tensor], batch: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logits (B, C, K), values (B,) and the batch's columns, without steps in which the unit was out of the game."""
    logits, values = fwd_out[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.EMBEDDINGS]
    rows = {name: batch[name] for name in _PER_STEP}
    seats = rows[ALIVE].shape[-1]
    logits = logits.view(len(logits), seats, -1)
    if MEMORY in batch:
        # Sequences are whole, so they may hold such steps; without memory they never enter a batch.
        keep = rows[ALIVE].any(-1).flatten()
        rows = {name: column.flatten(0, 1)[keep] for name, column in rows.items()}
        logits, values = logits[keep], values[keep]
    return logits, values, rows


class CategoricalPPOLearner(PPOTorchLearner):
    """PPO (Schulman et al. 2017, equation 9) for categorical actions.

    Against RLlib's own learner: no distribution objects (it normalises three sets of logits), metrics once per update
    instead of once per minibatch, one finiteness check for all gradients together, and a fused Adam step. A test holds
    that loss and gradients are RLlib's.
    """

    def build(self) -> None:
        """Build as RLlib does, with room for the newest statistics."""
        self._newest: dict[str, dict[str, Tensor]] = {}
        super().build()

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """One Adam for all weights of a module."""
        params = self.get_parameters(self._module[module_id])
        self.register_optimizer(
            module_id=module_id,
            optimizer=torch.optim.Adam(params, fused=True),
            params=params,
            lr_or_lr_schedule=config.lr,
        )

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """The scalar loss of one module on one minibatch."""
        logits, values, rows = _living_rows(fwd_out, batch)
        if not len(values):  # nobody of these sequences was in the game: nothing to learn
            nothing: Tensor = 0.0 * (fwd_out[Columns.ACTION_DIST_INPUTS].sum() + fwd_out[Columns.EMBEDDINGS].sum())
            zero = torch.zeros(())
            self._newest[module_id] = dict.fromkeys(_STATISTICS, zero)
            return nothing
        log_all = torch.log_softmax(logits, dim=-1)  # (B, C, K)
        logp = log_all.gather(2, rows[Columns.ACTIONS].unsqueeze(2)).squeeze(2)
        entropy = -(log_all.exp() * log_all).sum(-1)
        if logp.shape[1] > 1:
            # A joint action: seats act independently given what the team sees, and those out of the game do not act.
            logp, entropy = logp * rows[ALIVE], entropy * rows[ALIVE]
        entropy = entropy.sum(1).mean()
        ratio = torch.exp(logp.sum(1) - rows[Columns.ACTION_LOGP])
        advantages = rows[Postprocessing.ADVANTAGES]
        clipped = torch.clamp(ratio, 1 - config.clip_param, 1 + config.clip_param)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        vf_loss = (values - rows[Postprocessing.VALUE_TARGETS]).pow(2).mean()
        weight = self.entropy_coeff_schedulers_per_module[module_id].get_current_value()
        statistics = (policy_loss.detach(), vf_loss.detach(), vf_loss.detach(), entropy.detach())
        self._newest[module_id] = dict(zip(_STATISTICS, statistics, strict=True))
        loss: Tensor = policy_loss + config.vf_loss_coeff * vf_loss - weight * entropy
        return loss

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Any = None, module_gradients_dict: dict[Any, Tensor]
    ) -> dict[Any, Tensor]:
        """Scale all gradients together to the largest allowed global norm; one that is not finite makes all zero."""
        # A network whose seats were all out of the game is not in this batch and has none.
        gradients = [gradient for gradient in module_gradients_dict.values() if gradient is not None]
        if not gradients:
            return module_gradients_dict
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        self._newest[module_id][GRAD_NORM_KEY] = norm
        scale = min(1.0, config.grad_clip / (float(norm) + 1e-6)) if torch.isfinite(norm) else 0.0
        for gradient in gradients:
            if scale == 0.0:
                gradient.zero_()
            elif scale < 1.0:
                gradient.mul_(scale)
        return module_gradients_dict

    def apply_gradients(self, gradients_dict: dict[Any, Tensor]) -> None:
        """One optimiser step for each module."""
        for reference, gradient in gradients_dict.items():
            self._params[reference].grad = gradient
        for module_id, names in self._module_optimizers.items():
            for name in names:
                self.get_optimizer(module_id, name).step()

    def _log_steps_trained_metrics(self, batch: Any) -> None:
        """Steps are counted by the algorithm, once per update."""

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Move the schedules on and report the last minibatch's statistics."""
        super().after_gradient_based_update(timesteps=timesteps)
        for module_id, values in self._newest.items():
            self.metrics.log_dict(values, key=module_id, window=1)
