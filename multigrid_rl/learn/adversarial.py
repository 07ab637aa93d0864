"""Adversarial imitation: a discriminator tells an expert's steps from the policy's, and that is the policy's reward.

Generative adversarial imitation (GAIL: Ho and Ermon 2016, https://arxiv.org/abs/1606.03476) rewards what looks like the
expert, ``-log(1 - D)`` or ``log D - log(1 - D)``, and may hold the slope of that near 1 (Gulrajani et al. 2017,
https://arxiv.org/abs/1704.00028); Orsini et al. 2021 compare these (https://arxiv.org/abs/2106.00672). Adversarial
inverse reinforcement learning (AIRL: Fu et al. 2018, https://arxiv.org/abs/1710.11248) gives the discriminator the form
``logit D = f - log pi(a|s)`` with ``f = g(s, a) + gamma h(s') - h(s)``, and rewards ``f - log pi``: what the policy's
own entropy bonus would leave of ``f``. Gates and scores stay the environment's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.demonstrations import Demonstrations
from multigrid_rl.learn.rollout import Batch, Paths
from multigrid_rl.learn.update import Update
from multigrid_rl.metrics import explained_variance
from multigrid_rl.models.distributions import Distribution
from multigrid_rl.models.vector import Normaliser, tower
from multigrid_rl.text import expected
from multigrid_rl.types import RunError

Array = NDArray[Any]
#: Rows of demonstrations that observations are normalised by, at most.
_MEASURED = 100_000
SWITCH = "train.adversarial.allow_variable_horizon"


@dataclass(frozen=True)
class AdversarialConfig:
    """How a discriminator learns. What each number means stands in ``configs/train/gail.yaml``."""

    kind: Literal["gail", "airl"]
    hidden: tuple[int, ...]
    lr: float
    steps: int
    minibatch_size: int
    allow_variable_horizon: bool
    data: str
    estimator: Estimator
    seed: int
    payoff: Literal["softplus", "logit", "f"]
    gradient_penalty: float
    replay: int = 0
    reward: str | None = None  # run whose learnt reward pays; nothing more is learnt of it


class Steps(NamedTuple):
    """``B`` steps of somebody."""

    obs: Tensor  # (B, D)
    actions: Tensor  # (B, F) encoded
    following: Tensor  # (B, D) what was seen next; anything after an end
    ended: Tensor  # (B,) 1 where the episode ended for good, else 0
    logp: Tensor  # (B,) of the actions under the policy


class Discriminator(nn.Module):
    """Logits (B,) of the probability that a step is the expert's.

    Args:
        size: length ``D`` of an observation.
        width: length ``F`` of an encoded action.
        config: which kind, and how large.
    """

    def __init__(self, size: int, width: int, config: AdversarialConfig) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(config.seed)
        self.normaliser = Normaliser(size)
        # Rectified: far from everything that was seen it still rises or falls, so that nothing runs away there.
        self.reward = tower((size + width, *config.hidden, 1), "relu", 1.0, generator, gain=1.0)
        self.shaping = None
        if config.kind == "airl":
            self.shaping = tower((size, *config.hidden, 1), "relu", 1.0, generator, gain=1.0)
        self.gamma = config.estimator.gamma
        self.payoff = config.payoff
        self.given = config.reward is not None

    def forward(self, steps: Steps) -> Tensor:
        """Return logits (B,) of ``D``."""
        seen = self.normaliser(steps.obs)
        logits = self.paid(seen, steps.actions)
        if self.shaping is None:
            return logits
        before, after = (self.shaping(obs).squeeze(1) for obs in (seen, self.normaliser(steps.following)))
        shaped: Tensor = logits + self.gamma * (1 - steps.ended) * after - before - steps.logp
        return shaped

    def rewards(self, steps: Steps) -> Tensor:
        """Return what the policy is rewarded with (B,)."""
        if self.given:  # g alone, as Fu et al. 2018 train again with what was learnt
            return self.paid(self.normaliser(steps.obs), steps.actions)
        logits: Tensor = self(steps)
        if self.payoff == "softplus":
            return functional.softplus(logits)  # -log(1 - D)
        return logits + steps.logp if self.payoff == "f" else logits

    def paid(self, seen: Tensor, actions: Tensor) -> Tensor:
        """Return the reward network's numbers (B,) for normalised observations (B, D) and encoded actions (B, F)."""
        numbers: Tensor = self.reward(torch.cat([seen, actions], 1)).squeeze(1)
        return numbers

    def steepness(self, one: Steps, other: Steps, share: Tensor) -> Tensor:
        """Return how far its slope is from 1 between steps, squared and averaged (Gulrajani et al. 2017).

        Args:
            one: (B,) steps.
            other: as many.
            share: (B, 1) of ``one`` in each mixture of the two.
        """
        seen = torch.lerp(self.normaliser(other.obs), self.normaliser(one.obs), share).requires_grad_()
        actions = torch.lerp(other.actions, one.actions, share).requires_grad_()
        slopes = torch.autograd.grad(self.paid(seen, actions).sum(), (seen, actions), create_graph=True)
        off: Tensor = (torch.cat(slopes, 1).norm(dim=1) - 1).pow(2).mean()
        return off


class Replay:
    """At most ``rows`` of all steps that a policy ever took, each as likely as any other (Vitter 1985, algorithm R).

    Args:
        rows: how many are kept.
        rng: says which.

    Attributes:
        kept: the steps; ``None``: none yet.
        seen: how many there have been.
    """

    def __init__(self, rows: int, rng: np.random.Generator) -> None:
        self._rows, self._rng = rows, rng
        self.kept: Steps | None = None
        self.seen = 0

    def add(self, steps: Steps) -> None:
        """Take in the steps of a batch."""
        numbers = np.arange(self.seen, self.seen + len(steps.obs))
        places = np.where(numbers < self._rows, numbers, self._rng.integers(numbers + 1))
        self.seen += len(numbers)
        where, last = np.unique(places[::-1], return_index=True)  # of those that fall on one place the last stays
        inside = where < self._rows
        to, rows = torch.from_numpy(where[inside]), torch.from_numpy(len(places) - 1 - last[inside])
        if self.kept is None:
            self.kept = Steps._make(column.new_zeros((self._rows, *column.shape[1:])) for column in steps)
        for column, new in zip(self.kept, steps, strict=True):
            column[to] = new[rows]

    def draw(self, count: int) -> Steps:
        """Return ``count`` of those that are kept."""
        assert self.kept is not None
        chosen = torch.from_numpy(self._rng.integers(min(self.seen, self._rows), size=count))
        return Steps._make(column[chosen] for column in self.kept)

    def get_state(self) -> dict[str, Any]:
        """Return what is kept."""
        kept = None if self.kept is None else [column.cpu().numpy() for column in self.kept]
        return {"kept": kept, "seen": self.seen}

    def set_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Go on with what was kept."""
        kept, self.seen = state["kept"], state["seen"]
        self.kept = None if kept is None else Steps._make(torch.from_numpy(column).to(device) for column in kept)


class Adversary:
    """A discriminator and what it learns from.

    Args:
        network: the policy, for log-probabilities of the expert's actions.
        distribution: what its outputs mean.
        recorded: the expert's steps.
        config: how it learns.
        device: of the network.

    Raises:
        RunError: episodes that ended early though that was not allowed.
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
        _check_horizon("demonstrations", recorded.terminated, config)
        seen = recorded.observations[:: max(1, len(recorded.observations) // _MEASURED)]
        width = encoded(self._distribution, recorded.actions[:1]).shape[1]
        self.discriminator = Discriminator(seen.shape[1], width, config).to(device)
        std = np.maximum(seen.std(axis=0, dtype=np.float64), 1e-4)
        self.discriminator.normaliser.take(seen.mean(axis=0, dtype=np.float64), std)
        self._optimizer = torch.optim.Adam(self.discriminator.parameters(), config.lr)
        self._rng = np.random.default_rng(config.seed)
        self._replay = Replay(config.replay, self._rng)

    def get_state(self) -> dict[str, Any]:
        """Return what the next rewards follow from."""
        return {
            "discriminator": {name: value.cpu().numpy() for name, value in self.discriminator.state_dict().items()},
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.bit_generator.state,
            "replay": self._replay.get_state(),
        }

    def take(self, discriminator: Mapping[str, Array]) -> None:
        """Take over the weights of a discriminator, by name."""
        self.discriminator.load_state_dict({name: torch.as_tensor(value) for name, value in discriminator.items()})

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; the step size stays this run's own."""
        self.take(state["discriminator"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._optimizer.param_groups[0]["lr"] = self._config.lr
        self._rng.bit_generator.state = state["rng"]
        self._replay.set_state(state["replay"], self._device)

    def learn(self, batch: Batch, paths: list[Paths]) -> tuple[list[Paths], dict[str, float]]:
        """Tell the steps of a batch from the expert's, then reward the batch.

        Args:
            batch: of the policy that plays now.
            paths: whose rows are those of the batch, one after the other.

        Returns:
            Paths with the learnt rewards; loss and accuracy of the last gradient step, and the mean reward.
        """
        for path in paths:
            _check_horizon("the policy's episodes", path.terminated, self._config)
        mine, count = self._played(batch, paths), self._config.minibatch_size
        told: dict[str, float] = {}
        earlier = count // 2 if self._config.replay and self._replay.seen else 0
        for _ in range(0 if self.discriminator.given else self._config.steps):
            theirs = self._shown(self._rng.integers(len(self._recorded.observations), size=count))
            chosen = torch.from_numpy(self._rng.integers(len(batch.obs), size=count - earlier)).to(self._device)
            ours = Steps._make(column[chosen] for column in mine)
            if earlier:
                ours = Steps._make(map(torch.cat, zip(ours, self._replay.draw(earlier), strict=True)))
            told = self._descend(theirs, ours)
        if self._config.replay and not self.discriminator.given:
            self._replay.add(mine)
        with torch.no_grad():
            rewards = self.discriminator.rewards(mine).cpu().numpy()
        told["learnt_reward"] = float(rewards.mean())
        result, first = [], 0
        for path in paths:
            behind = first + int(path.active.sum())
            paid = np.zeros_like(path.rewards)
            paid[path.active] = rewards[first:behind]
            result.append(path._replace(rewards=paid))
            first = behind
        return result, told

    def _descend(self, theirs: Steps, mine: Steps) -> dict[str, float]:
        logits = self.discriminator(Steps._make(map(torch.cat, zip(theirs, mine, strict=True))))
        expert = torch.cat([torch.ones_like(theirs.ended), torch.zeros_like(mine.ended)])
        loss = functional.binary_cross_entropy_with_logits(logits, expert)
        if self._config.gradient_penalty:
            share = torch.from_numpy(self._rng.random((len(theirs.obs), 1), np.float32)).to(self._device)
            loss = loss + self._config.gradient_penalty * self.discriminator.steepness(theirs, mine, share)
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        right = ((logits > 0) == (expert > 0)).float().mean()
        return {"discriminator_loss": float(loss.detach()), "discriminator_accuracy": float(right)}

    def _played(self, batch: Batch, paths: list[Paths]) -> Steps:
        """Return all steps of a batch."""
        following, ended, first = [], [], 0
        for path in paths:
            behind = first + int(path.active.sum())
            _, after = path.following(batch.obs[first:behind], path.final_obs, path.last_obs)
            following.append(after[path.active])
            ended.append(path.terminated[path.active])
            first = behind
        # A log-probability is that of the raw draw. Were f told the bounded one, it could not hold against the entropy
        # that AIRL rewards, and draws would run away beyond the bounds.
        taken = batch.actions if self._config.kind == "airl" else self._distribution.bounded(batch.actions)
        return self._tensors(
            batch.obs, encoded(self._distribution, taken), np.concatenate(following), np.concatenate(ended), batch.logp
        )

    def _shown(self, rows: Array) -> Steps:
        """Return steps of the expert by their numbers ``rows`` (B,)."""
        its, rows = self._recorded, np.sort(rows)  # in the order in which they lie in the file
        episodes = np.searchsorted(its.episode_ends, rows, side="right")
        last = rows + 1 == its.episode_ends[episodes]
        following = its.observations[np.where(last, rows, rows + 1)].astype(np.float32)
        following[last] = its.final_observations[episodes[last]]
        obs, actions = its.observations[rows], its.actions[rows]
        logp = np.zeros(len(rows), np.float32)
        if self._config.kind == "airl":
            wanted = torch.as_tensor(actions.astype(self._distribution.dtype), device=self._device)
            with torch.no_grad():
                outputs = self._network.logits(torch.as_tensor(obs, device=self._device))
                logp = self._distribution.log_prob(outputs, wanted).sum(1).cpu().numpy()
        return self._tensors(obs, encoded(self._distribution, actions), following, its.terminated[rows], logp)

    def _tensors(self, *columns: Array) -> Steps:
        return Steps._make(torch.as_tensor(np.asarray(column, np.float32), device=self._device) for column in columns)


def encoded(distribution: Any, actions: Array) -> Array:
    """Return actions (B, C) or (B, A) as (B, F): choices as ones among zeros, numbers as they lie in their bounds."""
    choices = getattr(distribution, "choices", None)
    if choices is None:
        share = (actions - distribution.low) / (distribution.high - distribution.low)
        return np.asarray(2 * share - 1, np.float32)
    return np.concatenate([np.eye(count, dtype=np.float32)[actions[:, c]] for c, count in enumerate(choices)], axis=1)


def _check_horizon(whose: str, terminated: Array, config: AdversarialConfig) -> None:
    """Raise :class:`RunError` where an episode ends early: by its length alone the policy would be told what pays."""
    if terminated.any() and not config.allow_variable_horizon:
        wanted = f"episodes of one length, or {SWITCH}=true: that they end early tells a policy what it shall learn"
        raise RunError(expected(f"train.adversarial: {whose}", wanted, f"{int(terminated.sum())} that ended early"))


class AdversarialUpdate(Update):
    """An update whose rewards are learnt: before each one, discriminators learn and pay for the whole rollout.

    Args:
        adversarial: how they learn.
        recorded: the expert's steps.
        networks, action_spaces, given: see :class:`~multigrid_rl.learn.update.Update`.

    Attributes:
        adversaries: by module.
    """

    def __init__(
        self,
        adversarial: AdversarialConfig,
        recorded: Demonstrations,
        networks: Mapping[str, Any],
        action_spaces: Mapping[str, spaces.Space[Any]],
        *given: Any,
        **options: Any,
    ) -> None:
        super().__init__(networks, action_spaces, *given, **options)
        self._estimator = adversarial.estimator
        self.adversaries = {
            name: Adversary(net, self._distributions[name], recorded, adversarial, self._device)
            for name, net in networks.items()
        }

    def learn(
        self, batches: Mapping[str, Batch], env_steps: int, paths: Mapping[str, list[Paths]] | None = None
    ) -> dict[str, dict[str, float]]:
        """Reward the batches and pass over them; tells what the discriminators did, too."""
        assert paths is not None
        self.clock.begin()
        found = {name: self.adversaries[name].learn(batch, paths[name]) for name, batch in batches.items()}
        self.clock.lap("network")
        paid = {name: its for name, (its, _) in found.items()}
        batches = self._recomputed(batches, paid, self._estimator)
        told = super().learn(batches, env_steps, paid)
        for name, (_, its) in found.items():
            told[name] |= {**its, "explained_variance": explained_variance(batches[name].targets, batches[name].values)}
        return told

    def get_state(self) -> dict[str, Any]:
        """Return what the next update follows from, discriminators included."""
        return {**super().get_state(), "adversaries": {name: one.get_state() for name, one in self.adversaries.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        super().set_state(state)
        for name, one in self.adversaries.items():
            one.set_state(state["adversaries"][name])
