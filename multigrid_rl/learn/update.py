"""The update: epochs of minibatches over a batch, with one Adam for each network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.clock import Clock
from multigrid_rl.learn.flat import FlatWeights
from multigrid_rl.learn.losses import Rows, Weighting, compiled, loss_of, objective_of, ppo_gradient
from multigrid_rl.learn.rollout import Batch
from multigrid_rl.models.distributions import distribution_of

#: Key of the seconds spent on minibatch, network, loss and optimizer, beside the modules' results.
SECONDS = "seconds"
_STATISTICS = ("policy_loss", "vf_loss", "entropy")
#: Minibatches that are cut in one go.
_TOGETHER = 4


@dataclass(frozen=True)
class Schedule:
    """A number that moves linearly from ``start`` to ``end`` over ``steps`` environment steps, and stays there."""

    start: float
    end: float
    steps: int

    def at(self, env_steps: int) -> float:
        """Return the number after ``env_steps`` environment steps."""
        if env_steps >= self.steps:
            return self.end
        return self.start + env_steps / self.steps * (self.end - self.start)


@dataclass(frozen=True)
class UpdateConfig:
    """How a batch is learned from. What each number means stands in ``configs/train/ppo.yaml``."""

    objective: str
    epochs: int
    minibatch_size: int | None  # rows of a gradient step: steps, or whole sequences of a network with memory; None: all
    lr: Schedule
    entropy_coef: Schedule
    clip: float
    vf_coef: float
    grad_clip: float
    seed: int


def minibatches(
    rows: Mapping[str, int], epochs: int, size: int, rng: np.random.Generator
) -> Iterator[dict[str, NDArray[np.int64]]]:
    """Yield row numbers of each minibatch, by module.

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


class Update:
    """Learns from batches: one network and one Adam for each module.

    Weights of a network lie in one row of memory (:class:`~multigrid_rl.learn.flat.FlatWeights`).

    Args:
        networks: by module; their parameters become views of that row.
        action_spaces: by module.
        config: how a batch is learned from.
        device: of the networks.
        part: this learner's index and how many share every minibatch.

    Attributes:
        optimizers: by module.
        clock: seconds spent, by part.
        rng: cuts minibatches.
    """

    def __init__(
        self,
        networks: Mapping[str, Any],
        action_spaces: Mapping[str, spaces.Space[Any]],
        config: UpdateConfig,
        *,
        device: torch.device,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.config = config
        self._networks = networks
        self._distributions = {name: distribution_of(space) for name, space in action_spaces.items()}
        self._objective = objective_of(config.objective)
        self._device = device
        self._part = part
        self._flat = {name: FlatWeights(list(net.parameters())) for name, net in networks.items()}
        self.optimizers = {name: torch.optim.Adam([flat.weights], fused=True) for name, flat in self._flat.items()}
        self.rng = np.random.default_rng(config.seed)
        self.clock = Clock()
        self._newest: dict[str, dict[str, Any]] = {name: {} for name in networks}
        self.schedule(0)

    def schedule(self, env_steps: int) -> None:
        """Set step sizes and entropy weight to what they are after ``env_steps`` environment steps."""
        lr, entropy_coef = self.config.lr.at(env_steps), self.config.entropy_coef.at(env_steps)
        self._entropy_coef = float(np.float32(entropy_coef))  # as RLlib's scheduler keeps it: recipes were found so
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = lr
            self._newest[name] |= {"lr": lr, "entropy_coef": entropy_coef}

    def learn(self, batches: Mapping[str, Batch], env_steps: int) -> dict[str, dict[str, float]]:
        """Pass over the batches ``epochs`` times.

        Args:
            batches: by module; modules that are left out learn nothing.
            env_steps: environment steps so far, for the schedules after this update.

        Returns:
            Statistics of the last minibatch of each module, and under :data:`SECONDS` the seconds spent, by part.
        """
        rows = {name: len(batch.obs) for name, batch in batches.items()}
        size = self.config.minibatch_size or max(rows.values())
        chosen = minibatches(rows, self.config.epochs, size, self.rng)
        for flat in self._flat.values():
            flat.dropped = 0
        self.clock.begin()
        while some := list(islice(chosen, _TOGETHER)):
            taken = {
                name: batch.rows(np.concatenate([numbers[name] for numbers in some])) for name, batch in batches.items()
            }
            for first in range(0, len(some) * size, size):
                mine = self._mine(first, size)
                for name, batch in taken.items():
                    self._step(name, batch.rows(mine))
        self.schedule(env_steps)
        told = {name: {key: float(value) for key, value in self._newest[name].items()} for name in batches}
        for name, statistics in told.items():
            statistics["dropped_updates"] = float(self._flat[name].dropped)
        return {**told, SECONDS: {"loss": 0.0, **self.clock.drain()}}

    def _mine(self, first: int, size: int) -> slice:
        """Return this learner's rows: all of them draw the same order and each computes an equal part."""
        index, learners = self._part
        share = size // learners
        return slice(first + share * index, first + share * (index + 1))

    def _step(self, name: str, batch: Batch) -> None:
        flat, net, distribution = self._flat[name], self._networks[name], self._distributions[name]
        weighting = Weighting(self.config.clip, self.config.vf_coef, self._entropy_coef)
        flat.gradient.zero_()
        self.clock.lap("minibatch")
        passed = self._compiled_pass(name, batch.obs)
        if passed is None:
            tensors: Any = Batch._make(torch.as_tensor(column, device=self._device) for column in batch)
            if net.state_size:
                outputs, values = net.sequence(tensors.obs, tensors.memory, tensors.starts)
                tensors = tensors._make(column.flatten(0, 1) if column.dim() > 1 else column for column in tensors)
            else:
                outputs, values = net(tensors.obs)
            loss, parts = loss_of(outputs, values, _rows(tensors), distribution, self._objective, weighting)
            torch.autograd.backward(loss)
            self.clock.lap("network")
        else:
            self.clock.lap("network")
            logits = passed.logits.reshape(*batch.mask.shape, -1)
            by_logits, by_values, sums = ppo_gradient(logits, passed.values[:, 0], _rows(batch), weighting)
            self.clock.lap("loss")
            passed.add_gradients((by_logits.reshape(passed.logits.shape), by_values[:, None]), net.weight_gradients())
            self.clock.lap("network")
            parts = sums.tolist()
        self._newest[name] |= dict(zip(_STATISTICS, parts, strict=True))
        if self._part[1] > 1:
            flat.share(int(batch.active.sum()))
        self._newest[name]["grad_norm"] = flat.clip(self.config.grad_clip)
        self.optimizers[name].step()
        self.clock.lap("optimizer")

    def _compiled_pass(self, name: str, obs: NDArray[Any]) -> Any:
        """Return the network's own pass over ``obs`` with its own way back, or ``None`` where torch computes both."""
        if self._device.type != "cpu" or not compiled(self._distributions[name], self._objective):
            return None
        start = getattr(self._networks[name], "start", None)
        return None if start is None else start(obs)


def _rows(batch: Any) -> Rows:
    """Return the columns that a loss reads, arrays or tensors as they are."""
    return Rows(batch.actions, batch.mask, batch.logp, batch.advantages, batch.targets)
