"""RLlib's PPO learner: the same loss and the same step, without what it repeats for every minibatch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.schedules.scheduler import Scheduler
from torch import Tensor

from multigrid_rl.clock import Clock
from multigrid_rl.rllib.flat import FlatWeights
from multigrid_rl.rllib.loss import Rows, Weighting, ppo_gradient, ppo_loss
from multigrid_rl.rllib.modules import ALIVE, MEMORY

#: Key of the seconds spent on minibatch, network, loss and optimizer, beside the modules' results.
SECONDS = "seconds"
_STATISTICS = ("policy_loss", "vf_loss", "entropy")
_PER_STEP = (
    Columns.ACTIONS, Columns.ACTION_LOGP, Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS, ALIVE,
)  # fmt: skip
Array = NDArray[np.int64]
#: Minibatches that are cut in one go.
_TOGETHER = 4


def minibatches(
    rows: Mapping[str, int], epochs: int, size: int, rng: np.random.Generator
) -> Iterator[dict[str, Array]]:
    """Row numbers of each minibatch, by module.

    The first epoch passes over all rows of a module as they were played and every later one in an order of its own: so
    does RLlib, and so were the recipes found. (With the first one shuffled, too, one seed of ten missed the gates of
    2v2.) A minibatch that reaches the end of an epoch is filled from the next one. It goes on until the module with the
    most rows was passed over ``epochs`` times; others begin further epochs meanwhile.

    Args:
        rows: module -> rows of its batch, at least 1.
        epochs: passes over the largest batch.
        size: rows of a minibatch.
        rng: draws the orders.
    """
    ahead = {module: np.arange(count) for module, count in rows.items()}
    for _ in range(math.ceil(epochs * max(rows.values()) / size)):
        chosen = {}
        for module, count in rows.items():
            while len(ahead[module]) < size:
                ahead[module] = np.concatenate([ahead[module], rng.permutation(count)])
            chosen[module], ahead[module] = ahead[module][:size], ahead[module][size:]
        yield chosen


def _weighting(config: Any, entropy_coef: Scheduler) -> Weighting:
    return Weighting(config.clip_param, config.vf_loss_coeff, entropy_coef.get_current_value())


class CategoricalPPOLearner(PPOTorchLearner):
    """PPO (Schulman et al. 2017, equation 9) for categorical actions.

    Against RLlib's own learner: loss and gradient in one pass (:mod:`~multigrid_rl.rllib.loss`), minibatches cut by row
    number, metrics once per update instead of once per minibatch, one finiteness
    check for all gradients together, and a fused Adam step. A test holds that loss and gradients are RLlib's.
    """

    def build(self) -> None:
        """Build as RLlib does, with room for the newest statistics."""
        self._newest: dict[str, dict[str, Any]] = {}
        self._flat: dict[str, FlatWeights] = {}
        self.clock = Clock()
        self._learners = max(self.config.num_learners, 1)
        if self.config.num_learners:
            torch.set_num_threads(1)  # a process of its own beside others on the same cores
        self._rng = np.random.default_rng(self.config.seed)
        super().build()

    def update(
        self,
        batch: Any = None,
        *,
        training_data: TrainingData | None = None,
        timesteps: dict[str, Any] | None = None,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> dict[str, dict[str, float]]:
        """Pass over a batch ``num_epochs`` times.

        Args:
            batch: a ``MultiAgentBatch``, or ``training_data`` that holds one.
            training_data: as RLlib's learner group hands it over.
            timesteps: environment steps so far, for schedules.
            num_epochs: passes over the batch.
            minibatch_size: rows of one gradient step; ``None``: all of them.
            kwargs: what RLlib passes to other learners.

        Returns:
            Statistics of each module of the batch, and the seconds spent, by part.
        """
        self._check_is_built()
        self.before_gradient_based_update(timesteps=timesteps or {})
        data = training_data or TrainingData(batch=batch)
        data.validate()
        data.solve_refs()
        self._weights_seq_no += 1
        columns = {
            module: {name: np.asarray(column) for name, column in part.items()}
            for module, part in data.batch.policy_batches.items()
        }
        rows = {module: len(part[Columns.OBS]) for module, part in columns.items()}
        size = minibatch_size or max(rows.values())
        chosen = minibatches(rows, num_epochs, size, self._rng)
        for flat in self._flat.values():
            flat.dropped = 0
        self.clock.begin()
        while some := list(islice(chosen, _TOGETHER)):
            order = {module: np.concatenate([numbers[module] for numbers in some]) for module in columns}
            taken = {
                module: {name: column.take(order[module], axis=0) for name, column in part.items()}
                for module, part in columns.items()
            }
            for first in range(0, len(some) * size, size):
                mine = self._part_of(first, size)
                for module, part in taken.items():
                    self._step(module, {name: column[mine] for name, column in part.items()})
        self.after_gradient_based_update(timesteps=timesteps or {})
        told = {module: {name: float(value) for name, value in self._newest[module].items()} for module in columns}
        for module, statistics in told.items():
            statistics["dropped_updates"] = float(self._flat[module].dropped)
        return {**told, SECONDS: {"loss": 0.0, **self.clock.drain()}}

    def _part_of(self, first: int, size: int) -> slice:
        """This learner's rows of a minibatch: all of them draw the same order and each computes an equal part."""
        share = size // self._learners
        mine = first + share * (self._learner_index or 0)
        return slice(mine, mine + share)

    def _make_modules_ddp_if_necessary(self) -> None:
        """Torch's own wrapper stays away: gradients lie in one row, and one sum of it is all that learners exchange."""

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """RLlib's state, and the generator that cuts minibatches."""
        return {**super().get_state(*args, **kwargs), "minibatches": self._rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        super().set_state(state)
        if "minibatches" in state:
            self._rng.bit_generator.state = state["minibatches"]

    def _step(self, module_id: str, minibatch: dict[str, Any]) -> None:
        flat = self._flat[module_id]
        flat.gradient.zero_()
        self.clock.lap("minibatch")
        # The network's own pass computes on the CPU; a GPU takes torch's.
        own = self._device.type == "cpu"
        passed = self._module[module_id].start(minibatch[Columns.OBS]) if own else None
        if passed is None:
            tensors = {name: torch.as_tensor(column, device=self._device) for name, column in minibatch.items()}
            fwd_out = self._module[module_id]._forward_train(tensors)
            self.compute_losses(fwd_out={module_id: fwd_out}, batch={module_id: tensors})[module_id].backward()
            self.clock.lap("network")
        else:
            self.clock.lap("network")
            steps = [minibatch[name] for name in _PER_STEP]
            logits = passed.logits.reshape(*minibatch[ALIVE].shape, -1)
            weighting = _weighting(self.config, self.entropy_coeff_schedulers_per_module[module_id])
            by_logits, by_values, parts = ppo_gradient(logits, passed.values[:, 0], steps, weighting)
            self.clock.lap("loss")
            upstream = by_logits.reshape(passed.logits.shape), by_values[:, None]
            passed.add_gradients(upstream, self._module[module_id].net.weight_gradients())
            self.clock.lap("network")
            self._newest[module_id] = dict(zip(_STATISTICS, parts.tolist(), strict=True))
        if self._learners > 1:
            flat.share(int(minibatch[ALIVE].any(axis=-1).sum()))
        self._newest[module_id]["grad_norm"] = flat.clip(self.config.grad_clip)
        self.get_optimizer(module_id).step()
        self.clock.lap("optimizer")

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """One Adam for all weights of a module."""
        flat = FlatWeights(self.get_parameters(self._module[module_id]))
        self._flat[module_id] = flat
        self.register_optimizer(
            module_id=module_id,
            optimizer=torch.optim.Adam([flat.weights], fused=True),
            params=[flat.weights],
            lr_or_lr_schedule=config.lr,
        )

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """The scalar loss of one module on one minibatch."""
        steps = Rows(*(batch[name] for name in _PER_STEP))
        if MEMORY in batch:
            steps = Rows(*(column.flatten(0, 1) for column in steps))
        logits, values = fwd_out[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.EMBEDDINGS]
        weighting = _weighting(config, self.entropy_coeff_schedulers_per_module[module_id])
        loss, parts = ppo_loss(logits.view(*steps.alive.shape, -1), values, steps, weighting)
        self._newest[module_id] = dict(zip(_STATISTICS, parts, strict=True))
        return loss

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Move the schedules on and note what the last minibatch and they came to.

        RLlib's own hooks do the same through its metrics logger, which takes as long as one and a half minibatches.
        """
        played = timesteps.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0)
        for module_id in self._flat:  # those without rows in this batch, too: time passes for every network
            optimizer = self.get_optimizer(module_id)
            step_size = self._optimizer_lr_schedules[optimizer].update(timestep=played)
            self._set_optimizer_lr(optimizer, lr=step_size)
            weight = self.entropy_coeff_schedulers_per_module[module_id].update(timestep=played)
            self._newest.setdefault(module_id, {}).update(lr=step_size, entropy_coef=weight)
