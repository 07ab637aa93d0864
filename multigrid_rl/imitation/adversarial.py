"""Adversarial imitation: a discriminator separates an expert's steps from the policy's and rewards the policy.

GAIL: Ho and Ermon 2016 (https://arxiv.org/abs/1606.03476); AIRL: Fu et al. 2018 (https://arxiv.org/abs/1710.11248).
Orsini et al. 2021 compare rewards (https://arxiv.org/abs/2106.00672); docs/imitation.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.imitation.demonstrations import Demonstrations, encoded, read_demonstrations
from multigrid_rl.imitation.imitation_trainers import AdversarialOptions
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import Batch, Paths, split_by_path
from multigrid_rl.learn.update import Update
from multigrid_rl.metrics import explained_variance
from multigrid_rl.models.distributions import Distribution
from multigrid_rl.models.mlp import tower
from multigrid_rl.models.vector import Normaliser
from multigrid_rl.text import expected
from multigrid_rl.training.stages import estimator_of, update_config
from multigrid_rl.types import RunError

Array = NDArray[Any]
#: Largest number of demonstration rows for the normaliser's statistics.
_NORMALISER_ROWS = 100_000
SWITCH = "train.adversarial.allow_variable_horizon"


class AdversarialConfig(AdversarialOptions):
    """Settings of a discriminator: those of ``train.adversarial``, and of the run."""

    estimator: Estimator
    seed: int

    @classmethod
    def of(cls, config: RunConfig) -> AdversarialConfig:
        """Return the settings of a run."""
        train: Any = config.train
        return cls(**train.adversarial.model_dump(), estimator=estimator_of(config), seed=config.seed)


class Steps(NamedTuple):
    """``B`` steps of the expert or of the policy."""

    obs: Tensor  # (B, D)
    actions: Tensor  # (B, F) encoded
    next_obs: Tensor  # (B, D); any value after an end
    ended: Tensor  # (B,) 1 where the episode ended for good, else 0
    logp: Tensor  # (B,) of the actions, as the environment got them, under the policy; 0 unless AIRL reads it


class Discriminator(nn.Module):
    """Logits (B,) of the probability that a step is the expert's.

    Args:
        size: length ``D`` of an observation.
        width: length ``F`` of an encoded action.
    """

    def __init__(self, size: int, width: int, config: AdversarialConfig) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(config.seed)
        self.normaliser = Normaliser(size)
        # ReLU does not saturate: far from the data the reward still has a slope towards it.
        self.reward = tower((size + width, *config.hidden, 1), "relu", 1.0, generator, gain=1.0)
        self.shaping = None
        if config.kind == "airl":
            self.shaping = tower((size, *config.hidden, 1), "relu", 1.0, generator, gain=1.0)
        self.gamma = config.estimator.gamma
        self.payoff, self.temperature = config.payoff, config.temperature

    def forward(self, steps: Steps) -> Tensor:
        """Return logits (B,) of ``D``; for AIRL ``f - log pi`` with ``f = g(s, a) + gamma h(s') - h(s)``."""
        obs = self.normaliser(steps.obs)
        logits = self.reward_of(obs, steps.actions) / self.temperature
        if self.shaping is None:
            return logits - steps.logp
        before, after = (self.shaping(x).squeeze(1) for x in (obs, self.normaliser(steps.next_obs)))
        shaped: Tensor = logits + self.gamma * (1 - steps.ended) * after - before - steps.logp
        return shaped

    def rewards(self, steps: Steps) -> Tensor:
        """Return the policy's rewards (B,)."""
        logits: Tensor = self(steps)
        if self.payoff == "softplus":
            return functional.softplus(logits)  # -log(1 - D)
        return (logits + steps.logp if self.payoff == "f" else logits) * self.temperature

    def reward_of(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the reward network's output (B,) for normalised observations (B, D) and encoded actions (B, F)."""
        output: Tensor = self.reward(torch.cat([obs, actions], 1)).squeeze(1)
        return output

    def gradient_penalty(self, one: Steps, other: Steps, share: Tensor) -> Tensor:
        """Return the mean squared deviation of its gradient norm from 1 between (B,) steps (Gulrajani et al. 2017).

        ``share``: (B, 1) of ``one`` in each mixture of the two. https://arxiv.org/abs/1704.00028
        """
        obs = torch.lerp(self.normaliser(other.obs), self.normaliser(one.obs), share).requires_grad_()
        actions = torch.lerp(other.actions, one.actions, share).requires_grad_()
        slopes = torch.autograd.grad(self.reward_of(obs, actions).sum(), (obs, actions), create_graph=True)
        penalty: Tensor = (torch.cat(slopes, 1).norm(dim=1) - 1).pow(2).mean()
        return penalty


class Adversary:
    """A discriminator and its training data.

    ``network``: the policy, for log-probabilities of the expert's actions. Raises ``RunError``: demonstrations end
    early, and ``allow_variable_horizon`` is false.
    """

    def __init__(
        self,
        network: Any,
        distribution: Distribution,
        recorded: Demonstrations,
        config: AdversarialConfig,
        device: torch.device,
    ) -> None:
        self._network, self._distribution, self._recorded = network, distribution, recorded
        self._config, self._device = config, device
        check_horizon("demonstrations", recorded.terminated, config)
        sample = recorded.observations[:: -(-len(recorded.observations) // _NORMALISER_ROWS)]
        width = encoded(self._distribution, recorded.actions[:1]).shape[1]
        self.discriminator = Discriminator(sample.shape[1], width, config).to(device)
        std = np.maximum(sample.std(axis=0, dtype=np.float64), 1e-4)
        self.discriminator.normaliser.set_statistics(sample.mean(axis=0, dtype=np.float64), std)
        self._optimizer = torch.optim.Adam(self.discriminator.parameters(), config.lr)
        self._rng = np.random.default_rng(config.seed)

    def get_state(self) -> dict[str, Any]:
        """Return the state that the next rewards depend on."""
        return {
            "discriminator": {name: value.cpu().numpy() for name, value in self.discriminator.state_dict().items()},
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state except for the learning rate."""
        weights = {name: torch.as_tensor(value) for name, value in state["discriminator"].items()}
        self.discriminator.load_state_dict(weights)
        self._optimizer.load_state_dict(state["optimizer"])
        self._optimizer.param_groups[0]["lr"] = self._config.lr
        self._rng.bit_generator.state = state["rng"]

    def check(self, paths: list[Paths]) -> None:
        """Raise :class:`RunError` if an episode of ``paths`` ended early and ``allow_variable_horizon`` is false."""
        for path in paths:
            check_horizon("the policy's episodes", path.terminated, self._config)

    def learn(self, batch: Batch, paths: list[Paths]) -> tuple[list[Paths], dict[str, float]]:
        """Train the discriminator on a batch, then compute the rewards of the batch.

        Args:
            batch: steps of the current policy.
            paths: paths of the batch's rows, in order.

        Returns:
            Paths with the learned rewards; loss and accuracy of the last gradient step, and the mean reward.
        """
        self.check(paths)
        policy_steps = self._policy_steps(batch, paths)

        def sample(count: int) -> Steps:
            chosen = torch.from_numpy(self._rng.integers(len(batch.obs), size=count)).to(self._device)
            return Steps._make(column[chosen] for column in policy_steps)

        metrics = self._train_discriminator(sample)
        with torch.no_grad():
            rewards = self.discriminator.rewards(policy_steps).cpu().numpy()
        metrics["learnt_reward"] = float(rewards.mean())
        rewarded = []
        for path, part in zip(paths, split_by_path(rewards, paths), strict=True):
            step_rewards = np.zeros_like(path.rewards)
            step_rewards[path.active] = part
            rewarded.append(path._replace(rewards=step_rewards))
        return rewarded, metrics

    def _train_discriminator(self, sample: Callable[[int], Steps]) -> dict[str, float]:
        """Take gradient steps on recorded rows and as many of ``sample``; return statistics of the last step."""
        metrics: dict[str, float] = {}
        count = self._config.minibatch_size
        for _ in range(self._config.steps):
            expert = self._expert_steps(self._rng.integers(len(self._recorded.observations), size=count))
            metrics = self._descend(expert, sample(count))
        return metrics

    def _descend(self, expert: Steps, policy: Steps) -> dict[str, float]:
        logits = self.discriminator(Steps._make(map(torch.cat, zip(expert, policy, strict=True))))
        labels = torch.cat([torch.ones_like(expert.ended), torch.zeros_like(policy.ended)])
        loss = cross_entropy = functional.binary_cross_entropy_with_logits(logits, labels)
        if self._config.gradient_penalty:
            share = torch.from_numpy(self._rng.random((len(expert.obs), 1), np.float32)).to(self._device)
            loss = loss + self._config.gradient_penalty * self.discriminator.gradient_penalty(expert, policy, share)
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        accuracy = ((logits > 0) == (labels > 0)).float().mean()
        return {"discriminator_loss": float(cross_entropy.detach()), "discriminator_accuracy": float(accuracy)}

    def _policy_steps(self, batch: Batch, paths: list[Paths]) -> Steps:
        next_obs = []
        for path, obs in zip(paths, split_by_path(batch.obs, paths), strict=True):
            _, after = path.with_next(obs, path.final_obs, path.last_obs)
            next_obs.append(after[path.active])
        ended = np.concatenate([path.terminated[path.active] for path in paths])
        # Only bounded actions can be compared with an expert's.
        return self._steps(batch.obs, self._distribution.bounded(batch.actions), np.concatenate(next_obs), ended)

    def _expert_steps(self, rows: Array) -> Steps:
        """Return the expert's steps with the indices ``rows`` (B,)."""
        data, rows = self._recorded, np.sort(rows)  # in file order
        episodes = np.searchsorted(data.episode_ends, rows, side="right")
        last = rows + 1 == data.episode_ends[episodes]
        next_obs = data.observations[np.where(last, rows, rows + 1)].astype(np.float32)
        next_obs[last] = data.final_observations[episodes[last]]
        return self._steps(data.observations[rows], data.actions[rows], next_obs, data.terminated[rows])

    def _steps(self, obs: Array, actions: Array, next_obs: Array, ended: Array) -> Steps:
        """Return steps with actions (B, C) or (B, A) as passed to environments; for AIRL with log-probabilities."""
        logp = np.zeros(len(obs), np.float32)
        if self._config.kind == "airl":
            taken = torch.as_tensor(actions.astype(self._distribution.dtype), device=self._device)
            with torch.no_grad():
                outputs = self._network.logits(torch.as_tensor(obs, device=self._device))
                # Not the density of a sample: at a bound, this is the probability of all samples beyond it.
                logp = -self._distribution.cloning_loss(outputs, taken).cpu().numpy()
        columns = obs, encoded(self._distribution, actions), next_obs, ended, logp
        return Steps._make(torch.as_tensor(np.asarray(column, np.float32), device=self._device) for column in columns)


def check_horizon(source: str, terminated: Array, config: AdversarialConfig, error: type[Exception] = RunError) -> None:
    """Raise ``error`` if an episode ends early: its length would leak the reward."""
    if terminated.any() and not config.allow_variable_horizon:
        wanted = f"episodes of one length, or {SWITCH}=true: an early end leaks the reward to the policy"
        raise error(expected(f"train.adversarial: {source}", wanted, f"{int(terminated.sum())} that ended early"))


class AdversarialUpdate(Update):
    """An update with learned rewards: before each update, discriminators learn and reward the whole rollout.

    Attributes:
        adversaries: by module.
    """

    def __init__(
        self,
        adversarial: AdversarialConfig,
        recorded: Demonstrations,
        networks: Mapping[str, Any],
        action_spaces: Mapping[str, spaces.Space[Any]],
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(networks, action_spaces, *arguments, **options)
        self._estimator = adversarial.estimator
        self.adversaries = {
            name: Adversary(net, self._distributions[name], recorded, adversarial, self._device)
            for name, net in networks.items()
        }

    @classmethod
    def of(
        cls, config: RunConfig, networks: Mapping[str, Any], action_spaces: Mapping[str, Any], **options: Any
    ) -> AdversarialUpdate:
        """Return the update of a run; reads the recorded play."""
        settings, data = AdversarialConfig.of(config), read_demonstrations(Path(str(config.data)))
        options |= {"scale_values": config.model.scale_values}
        return cls(settings, data, networks, action_spaces, update_config(config), **options)

    def learn(
        self, batches: Mapping[str, Batch], env_steps: int, paths: Mapping[str, list[Paths]] | None = None
    ) -> dict[str, dict[str, float]]:
        """Reward the batches and learn from them; the statistics include the discriminators'."""
        assert paths is not None
        self.clock.begin()
        results = {name: self.adversaries[name].learn(batch, paths[name]) for name, batch in batches.items()}
        self.clock.lap("network")
        rewarded = {name: parts for name, (parts, _) in results.items()}
        batches = self._recomputed(batches, rewarded, self._estimator)
        metrics = super().learn(batches, env_steps, rewarded)
        for name, batch in batches.items():
            metrics[name] |= results[name][1] | {"explained_variance": explained_variance(batch.targets, batch.values)}
        return metrics

    def get_state(self) -> dict[str, Any]:
        """Return the state for the next update, discriminators included."""
        return {**super().get_state(), "adversaries": {name: one.get_state() for name, one in self.adversaries.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        super().set_state(state)
        for name, adversary in self.adversaries.items():
            adversary.set_state(state["adversaries"][name])
