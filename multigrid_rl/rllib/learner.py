"""RLlib's PPO learner with the same loss in fewer passes over the batch."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor


class CategoricalPPOLearner(PPOTorchLearner):
    """PPO loss (Schulman et al. 2017, equation 9) for categorical actions, without distribution objects.

    RLlib's own loss normalises three sets of logits and computes an explained variance for every minibatch; a test
    holds that both losses agree.
    """

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """The scalar loss of one module on one minibatch."""
        log_all = torch.log_softmax(fwd_out[Columns.ACTION_DIST_INPUTS], dim=-1)
        logp = log_all.gather(1, batch[Columns.ACTIONS].long().unsqueeze(1)).squeeze(1)
        entropy = -(log_all.exp() * log_all).sum(-1).mean()
        ratio = torch.exp(logp - batch[Columns.ACTION_LOGP])
        advantages = batch[Postprocessing.ADVANTAGES]
        clipped = torch.clamp(ratio, 1 - config.clip_param, 1 + config.clip_param)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        vf_loss = (fwd_out[Columns.EMBEDDINGS] - batch[Postprocessing.VALUE_TARGETS]).pow(2).mean()
        weight = self.entropy_coeff_schedulers_per_module[module_id].get_current_value()
        self.metrics.log_dict(
            {
                POLICY_LOSS_KEY: policy_loss.detach(),
                VF_LOSS_KEY: vf_loss.detach(),
                LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: vf_loss.detach(),
                ENTROPY_KEY: entropy.detach(),
            },
            key=module_id,
            window=1,
        )
        loss: Tensor = policy_loss + config.vf_loss_coeff * vf_loss - weight * entropy
        return loss
