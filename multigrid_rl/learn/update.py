"""The update: epochs of minibatches over a batch, with one Adam for each network.

PPO as Huang et al. 2022 list its details (https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/);
comments say where and why it differs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.fast import CompiledNetwork, compile_network
from multigrid_rl.fast.loss import ppo_gradient
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import Batch, Paths, minibatches, split_by_path
from multigrid_rl.learn.flat import FlatAdam, FlatWeights, parameters_of
from multigrid_rl.learn.losses import (
    KlPenalty,
    Losses,
    Rows,
    Statistics,
    UpdateConfig,
    Weighting,
    loss_of,
    stopping_divergence,
    total_loss,
    with_outputs,
)
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.types import Clock

#: Key of the seconds spent on minibatch, network, loss and optimizer, besides the modules' results.
SECONDS = "seconds"
#: Rows whose numbers are drawn together, at most.
_DRAWN_ROWS = 1 << 20


class Update:
    """Learns from batches: one network for each module, one Adam, or one for the policy and one for the values.

    Weights of each Adam lie in one row of memory (:class:`~multigrid_rl.learn.flat.FlatWeights`).

    Args:
        networks: by module; their parameters become views of that row.
        action_spaces: by module.
        scale_values: learn values in units of their targets' running standard deviation.
        part: this learner's index and how many share every minibatch.

    Attributes:
        optimizers: by module: of the policy, or of everything; then of the values, if they have separate passes.
        clock: seconds spent, by part.
        rng: draws minibatches.
    """

    def __init__(
        self,
        networks: Mapping[str, Any],
        action_spaces: Mapping[str, spaces.Space[Any]],
        config: UpdateConfig,
        *,
        device: torch.device,
        scale_values: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.config = config
        self._networks = networks
        self._distributions = {
            name: distribution_of(space, network=networks[name]) for name, space in action_spaces.items()
        }
        self._losses = Losses.of(config)
        configs = {name: config.of(name) for name in networks}
        self._penalties = {
            name: KlPenalty(each.kl_coef, each.kl_target) for name, each in configs.items() if each.kl_coef is not None
        }
        self._device, self._share = device, part
        self._flat = {
            name: [FlatWeights(part) for part in parameters_of(net, separate=config.v_iters is not None)]
            for name, net in networks.items()
        }
        self.optimizers = {name: [FlatAdam(flat) for flat in parts] for name, parts in self._flat.items()}
        self.rng = np.random.default_rng(config.seed)
        self.clock = Clock()
        self._metrics: dict[str, dict[str, Any]] = {name: {} for name in networks}
        self._step_statistics: dict[str, list[tuple[Any, ...]]] = {name: [] for name in networks}
        self._stopped: set[str] = set()
        self._values_only = False
        self._steps: Counter[str] = Counter()
        self._obs: dict[str, Any] = {}
        self._targets: dict[str, Any] = {}
        normalisers = {name: net.normaliser for name, net in networks.items() if hasattr(net, "normaliser")}
        if normalisers:
            from multigrid_rl.models.vector import Moments, Normaliser  # noqa: PLC0415 - nothing is measured of tokens

            measured = {name: norm for name, norm in normalisers.items() if isinstance(norm, Normaliser)}
            self._obs = {name: Moments(len(norm.mean)) for name, norm in measured.items()}
            self._targets = {name: Moments(1) for name in networks} if scale_values else {}
        self._moments = {"obs": self._obs, "targets": self._targets}
        self.schedule(0)

    def schedule(self, env_steps: int) -> None:
        """Set learning rates, clip and entropy weight for ``env_steps`` environment steps."""
        self._clip, self._entropy_coef = {}, {}
        for name, optimizers in self.optimizers.items():
            config = self.config.of(name)
            lr, entropy_coef = config.lr.at(env_steps), config.entropy_coef.at(env_steps)
            v_lr = lr if config.v_lr is None else config.v_lr.at(env_steps)
            # Rounded as in RLlib's scheduler, with which the recipes were tuned.
            self._entropy_coef[name] = float(np.float32(entropy_coef))
            self._clip[name] = config.clip.at(env_steps)
            for optimizer, step_size in zip(optimizers, (lr, v_lr), strict=False):
                for group in optimizer.param_groups:
                    group["lr"] = step_size
            self._metrics[name] |= {"lr": lr, "entropy_coef": entropy_coef}

    def get_state(self) -> dict[str, Any]:
        """Return the state without weights and optimisers."""
        statistics = {kind: {name: vars(each) for name, each in of.items()} for kind, of in self._moments.items()}
        penalties = {name: penalty.coefficient for name, penalty in self._penalties.items()}
        return {"rng": self.rng.bit_generator.state, **statistics, **({"penalties": penalties} if penalties else {})}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self.rng.bit_generator.state = state["rng"]
        for kind, by_module in self._moments.items():
            for name, moments in by_module.items():
                vars(moments).update(state[kind].get(name, {}))
        for name, coefficient in state.get("penalties", {}).items():
            if name in self._penalties:
                self._penalties[name].coefficient = coefficient

    def begin_with(self, weights: Mapping[str, Mapping[str, Tensor]], rows: int) -> None:
        """Load ``weights``, by module; their normalisers count as statistics of ``rows`` observations."""
        for name, tensors in weights.items():
            take_over(self._networks[name], tensors)
            if name in self._obs:
                self._obs[name].take(self._networks[name].normaliser, rows)

    def learn(
        self, batches: Mapping[str, Batch], env_steps: int, paths: Mapping[str, list[Paths]] | None = None
    ) -> dict[str, dict[str, float]]:
        """Pass over the batches ``epochs`` times.

        Args:
            batches: by module, advantages as estimated; modules left out are not trained.
            env_steps: environment steps so far, for the schedules after this update.
            paths: by module, of the rows of the batch, in order; only ``recompute`` reads them.

        Returns:
            Statistics of each module: divergences and ``clip_fraction`` are means over the minibatches of the update,
            others of the last one. Under :data:`SECONDS` the seconds spent, by part.
        """
        config = self.config
        for flat in chain(*self._flat.values()):
            flat.dropped = 0
        self._stopped.clear()
        self._steps.clear()
        self._step_statistics = {name: [] for name in batches}
        self._values_only = bool(config.warm_up) and env_steps <= config.warm_up
        self.clock.begin()
        rounds = config.epochs if config.recompute else 1
        current = self._with_advantages(with_outputs(batches, self._penalties, self._networks, self._device))
        for k in range(rounds):
            if k and config.recompute:
                current = self._with_advantages(self._recomputed(current, paths or {}, config.recompute))
            self._epochs(current, config.epochs // rounds, self._step, shuffled=k > 0)
        self._epochs(current, config.v_iters or 0, self._value_step)
        self._update_moments(batches)
        for name in batches:
            weights = (self._weighting(name).entropy_coef, self._vf_coef(name))
            self._metrics[name] |= total_loss(self._metrics[name], weights, self._penalties.get(name))
        self.schedule(env_steps)
        return {
            **{name: self._metrics_of(name) for name in batches},
            SECONDS: {"loss": 0.0, "optimizer": 0.0, **self.clock.drain()},
        }

    def _metrics_of(self, name: str) -> dict[str, float]:
        metrics = {key: float(value) for key, value in self._metrics[name].items()}
        metrics["dropped_updates"] = float(sum(flat.dropped for flat in self._flat[name]))
        metrics["gradient_steps"] = float(self._steps[name])
        for key, values in zip(Statistics._fields[3:], zip(*self._step_statistics[name], strict=True), strict=True):
            metrics[key] = float(np.mean([float(value) for value in values]))
        return metrics

    def _with_advantages(self, batches: Mapping[str, Batch]) -> Mapping[str, Batch]:
        # With zero advantages the policy's gradient is zero: the critic of a policy that was learned elsewhere catches
        # up before its values can spoil it.
        if self._values_only:
            return {name: batch._replace(advantages=np.zeros_like(batch.advantages)) for name, batch in batches.items()}
        # Over the whole batch, where most PPOs do it in each minibatch: a step's weight is then the same in every
        # epoch, and for a minibatch of few rows mean and deviation are noise (Andrychowicz et al. 2021 saw no
        # difference, https://arxiv.org/abs/2006.05990).
        return {name: batch.standardised() for name, batch in batches.items()} if self.config.standardise else batches

    def _epochs(
        self, batches: Mapping[str, Batch], epochs: int, step: Callable[[str, Batch], None], *, shuffled: bool = False
    ) -> None:
        """Take a step with each minibatch of ``epochs`` passes: all in one compiled call, or each by ``step``."""
        rows = {name: len(batch.obs) for name, batch in batches.items()}
        (index, learners), size = self._share, max(rows.values())
        if self.config.minibatch_size is not None:
            steps = max(batch.obs.shape[1] if batch.memory.shape[1] else 1 for batch in batches.values())
            size = max(learners, self.config.minibatch_size // steps)
        reads_old = self._losses.reads_old_values
        batches = {name: batch.for_learning(old_values=reads_old) for name, batch in batches.items()}
        row_numbers = minibatches(rows, epochs, size, self.rng, shuffled=shuffled)
        # All learners draw the same order, and each processes an equal part of every minibatch: their mean gradient is
        # the one that a single learner would have.
        local = slice(size // learners * index, size // learners * (index + 1))
        while drawn := list(islice(row_numbers, max(1, _DRAWN_ROWS // size))):
            for name, batch in batches.items():
                compiled, minibatch_rows = self._compiled(name), np.stack([numbers[name][local] for numbers in drawn])
                if compiled is None or not self._is_one_call(compiled):
                    for numbers in minibatch_rows:
                        step(name, batch.rows(numbers))
                elif name not in self._stopped:
                    self._descend_in_one_call(name, compiled, batch, minibatch_rows)

    def _descend_in_one_call(self, name: str, compiled: Any, batch: Batch, chosen: NDArray[np.int64]) -> None:
        """Take a step with each of the ``chosen`` rows (M, S)."""
        self.clock.lap("minibatch")
        adam, names = self.optimizers[name][0], (*Statistics._fields[:3], "grad_norm")
        columns: Any = [batch.obs, *self._rows(batch), batch.memory, batch.starts]
        config = self.config.of(name)
        limits = (*self._weighting(name), config.grad_clip, stopping_divergence(config.target_kl))
        penalty, adam_steps = self._penalties.get(name), adam.next_steps(len(chosen))
        penalty_inputs = None if penalty is None else (penalty.coefficient, batch.outputs)
        sums, norms = compiled.descend(columns, chosen, self._distributions[name], limits, *adam_steps, penalty_inputs)
        if penalty is not None:
            penalty.last = float(sums[-1, 3])
        adam.count_steps(len(norms))
        self._flat[name][0].dropped += int(np.sum(~np.isfinite(norms)))
        self._steps[name] += len(norms)
        self._step_statistics[name] += sums[:, 3:].tolist()
        self._metrics[name] |= dict(zip(names, [*sums[-1, :3].tolist(), *norms[-1:].tolist()], strict=False))
        self._stopped |= {name} if len(norms) < len(chosen) else set()
        self.clock.lap("network")

    def _weighting(self, name: str) -> Weighting:
        vf_coef = self._vf_coef(name) if self.config.v_iters is None else 0.0
        return Weighting(self._clip[name], vf_coef, 0.0 if self._values_only else self._entropy_coef[name])

    def _vf_coef(self, name: str) -> float:
        # Errors count in units of the returns' deviation, so that one weight fits rewards of any size (PopArt, van
        # Hasselt et al. 2016, https://arxiv.org/abs/1602.07714).
        scale = float(self._networks[name].value_scale) if name in self._targets else 1.0
        return self.config.of(name).vf_coef / scale**2

    def _step(self, name: str, batch: Batch) -> None:
        """Take one step of the policy; of the values, too, unless they have separate passes."""
        if name in self._stopped:
            return
        flat, compiled, penalty = self._flat[name][0], self._compiled(name), self._penalties.get(name)
        flat.gradient.zero_()
        self.clock.lap("minibatch")
        parts = self._torch_gradient(name, batch) if compiled is None else self._kernel_gradient(name, batch, compiled)
        self._metrics[name] |= dict(zip(Statistics._fields[:3], parts, strict=False))
        self._step_statistics[name].append(tuple(parts[3:]))
        kl = float(parts[3])
        mean_kl = kl if self._share[1] == 1 else flat.all_reduce_mean(int(batch.active.sum()), kl)
        if penalty is not None:
            penalty.last = mean_kl
        if mean_kl > stopping_divergence(self.config.of(name).target_kl):
            self._stopped.add(name)
        else:
            self._step_optimizer(name, 0)

    def _torch_gradient(self, name: str, batch: Batch) -> Sequence[Any]:
        """Add a minibatch's gradient, as torch computes it, and return the :class:`Statistics`."""
        net, distribution, penalty = self._networks[name], self._distributions[name], self._penalties.get(name)
        columns = self._tensors(batch)
        if net.state_size:
            outputs, values = net.sequence(columns.obs, columns.memory, columns.starts)
        elif self.config.v_iters is not None:
            outputs, values = net.logits(columns.obs), columns.targets
        else:
            outputs, values = net(columns.obs)
        rows = self._rows(columns).flattened(net.state_size)
        loss, parts = loss_of(outputs, values, rows, distribution, self._losses, self._weighting(name))
        if penalty is not None:
            divergence = penalty.of(distribution, columns.outputs.reshape(outputs.shape), outputs, rows.mask)
            loss = loss + penalty.coefficient * divergence
            parts = parts._replace(approx_kl=divergence.detach())
        torch.autograd.backward(loss)
        self.clock.lap("network")
        return parts

    def _kernel_gradient(self, name: str, batch: Batch, compiled: CompiledNetwork) -> Sequence[Any]:
        passed = compiled.start(batch.obs, batch.memory, batch.starts)
        rows, values = self._rows(batch).flattened(self._networks[name].state_size), passed.values[:, 0]
        self.clock.lap("network")
        arguments = self._distributions[name], self._weighting(name)
        by_outputs, by_values, sums = ppo_gradient(passed.outputs, values, rows, *arguments)
        self.clock.lap("loss")
        passed.add_gradients((by_outputs, by_values[:, None]))
        self.clock.lap("network")
        return list(sums.tolist())

    def _value_step(self, name: str, batch: Batch) -> None:
        flat = self._flat[name][1]
        flat.gradient.zero_()
        self.clock.lap("minibatch")
        tensors = self._tensors(batch)
        # Values of a separate pass: the policy's Adam does not see this gradient, and its clipping of norms does not
        # share one norm between both (as in Spinning Up's VPG and PPO).
        active = tensors.mask.any(-1)
        rows, values = self._rows(tensors).map(lambda column: column[active]), self._networks[name].values(tensors.obs)
        loss = self._losses.value_loss(values[active], rows, self._clip[name]).mean()
        torch.autograd.backward(self._vf_coef(name) * loss)
        self.clock.lap("network")
        self._metrics[name]["vf_loss"] = loss.detach()
        if self._share[1] > 1:
            flat.all_reduce_mean(int(batch.active.sum()), 0.0)
        self._step_optimizer(name, 1)

    def _step_optimizer(self, name: str, part: int) -> None:
        norm = self._flat[name][part].clip(self.config.of(name).grad_clip)
        if not part:
            self._metrics[name]["grad_norm"] = norm
        self.optimizers[name][part].descend()
        self._steps[name] += 1
        self.clock.lap("optimizer")

    def _rows(self, columns: Any) -> Rows:
        values = columns.values if self._losses.reads_old_values else None
        return Rows(columns.actions, columns.mask, columns.logp, columns.advantages, columns.targets, values)

    def _tensors(self, batch: Batch) -> Any:
        return Batch._make(torch.as_tensor(column, device=self._device) for column in batch)

    def _compiled(self, name: str) -> CompiledNetwork | None:
        """Return the compiled network, or ``None`` where torch computes it, or its loss."""
        supported = self._losses.compiled(self._distributions[name])
        compiled = compile_network(self._networks[name]) if supported else None
        # Only the call for all steps computes a penalty.
        return compiled if name not in self._penalties or (compiled and self._is_one_call(compiled)) else None

    def _is_one_call(self, compiled: CompiledNetwork) -> bool:
        """Return whether one call takes all steps: several learners, or separate passes of values, need single ones."""
        return bool(compiled.descent) and self._share[1] == 1 and self.config.v_iters is None

    def _recomputed(
        self, batches: Mapping[str, Batch], paths: Mapping[str, list[Paths]], estimator: Estimator
    ) -> dict[str, Batch]:
        """Return the batches with advantages and targets from the current values."""
        # Old values lack all that was learned since: with several epochs it pays to estimate anew before each one
        # (Andrychowicz et al. 2021, section 3.5, https://arxiv.org/abs/2006.05990).
        result = {}
        for name, batch in batches.items():
            parts = []
            for path, obs in zip(paths[name], split_by_path(batch.obs, paths[name]), strict=True):
                values, final, last = self._current_values(name, (obs, path.final_obs, path.last_obs))
                parts.append(path.weigh(values, final, last, self.config.of(name).recompute or estimator))
            weights, targets = map(np.concatenate, zip(*parts, strict=True))
            result[name] = batch._replace(advantages=weights, targets=targets)
        self.clock.lap("gae")
        return result

    def _current_values(self, name: str, parts: Sequence[NDArray[Any]]) -> Iterator[NDArray[np.float32]]:
        """Yield values (B,) of each of ``parts``: observations (B, D)."""
        net = self._networks[name]
        if (compiled := compile_network(net)) is not None:
            yield from compiled.values(parts)
            return
        for obs in parts:
            with torch.no_grad():
                values: Tensor = net(torch.as_tensor(obs, device=self._device))[1]
            yield values.cpu().numpy()

    def _update_moments(self, batches: Mapping[str, Batch]) -> None:
        # After learning: sampling and learning then use the same ones, so that ratios begin at 1, and the first update
        # learns from raw observations. Measuring only the first batch gave no clear gain over ``FlatAdam.rescale``.
        for name, batch in batches.items():
            net, active = self._networks[name], batch.active
            if name in self._obs and active.any() and not self._values_only:
                self._obs[name].add(batch.obs[active][:, : len(self._obs[name].mean)])  # without a critic's own
                net.normaliser.set_statistics(self._obs[name].mean, self._obs[name].std)
            if name in self._targets and active.any():
                self._targets[name].add(batch.targets[active][:, None])
                factor = net.rescale_values(float(self._targets[name].std[0]))
                self.optimizers[name][-1].rescale(net.value[-1].parameters(), factor)
        self.clock.lap("normalise")


def take_over(net: Any, weights: Mapping[str, Tensor]) -> None:
    """Load a player's weights; a central critic, which players do not have, keeps its own."""
    net.load_state_dict({**net.state_dict(), **weights})
