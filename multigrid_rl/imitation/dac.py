"""Off-policy adversarial imitation: soft actor-critic with rewards from a discriminator.

Discriminator-actor-critic (Kostrikov et al. 2019, https://arxiv.org/abs/1809.02925) is GAIL with a replay buffer for
policy and discriminator. Each gradient step gets rewards of the current one; ``kind=airl``: :class:`ReplayAirl`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multigrid_rl.imitation.adversarial import AdversarialConfig, Adversary, Steps
from multigrid_rl.imitation.demonstrations import Demonstrations
from multigrid_rl.learn.batches import Paths
from multigrid_rl.models.distributions import HALF_LOG_2PI
from multigrid_rl.offpolicy.sac import ReplayBuffer, Sac

#: Standard deviation of the noise on actions, scaled to -1 to 1, that AIRL's discriminator reads.
NOISE = 0.5


class ReplayAdversary(Adversary):
    """A discriminator between recorded steps and those of a replay buffer; see :class:`Adversary`."""

    def learn_from_replay(self, replay: ReplayBuffer) -> dict[str, float]:
        """Train on recorded and on random replayed steps; return loss and accuracy of the last gradient step."""

        def sample(count: int) -> Steps:
            rows = replay.rows[torch.from_numpy(self._rng.integers(replay.count, size=count))].to(self._device)
            obs, actions, _, continues, after = replay.columns(rows)
            return self._preprocess(Steps(obs, actions, after, 1 - continues, torch.zeros_like(continues)))

        return self._train_discriminator(sample)

    def _expert_steps(self, rows: Any) -> Steps:
        return self._preprocess(super()._expert_steps(rows))

    def _preprocess(self, steps: Steps) -> Steps:
        return steps

    def reward_of(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return rewards (B,) for observations (B, D) and scaled actions (B, A)."""
        zeros = torch.zeros_like(obs[:, 0])
        return self.discriminator.rewards(self._preprocess(Steps(obs, actions, obs, zeros, zeros)))


class ReplayAirl(ReplayAdversary):
    """A discriminator of the form ``logit D = g(s, a) / temperature - log pi(a|s)``; see :class:`Adversary`.

    If the policy is nearly deterministic, ``log pi`` alone separates the steps and ``g`` learns nothing. So the
    discriminator reads noisy actions (instance noise: Sonderby et al. 2017, https://arxiv.org/abs/1610.04490), and
    ``pi`` is the density of noisy actions, mixed half and half with a wide Gaussian, as replayed steps come from wider
    policies (Finn et al. 2016 mix for the same reason: https://arxiv.org/abs/1603.00448).
    """

    def __init__(
        self, network: Any, head: Any, recorded: Demonstrations, config: AdversarialConfig, *arguments: Any
    ) -> None:
        # Without shaping, which could separate states instead of g, and whose slope has no bound.
        super().__init__(network, head, recorded, config.model_copy(update={"kind": "gail"}), *arguments)
        self._head = head

    def _preprocess(self, steps: Steps) -> Steps:
        noise = torch.from_numpy(self._rng.standard_normal(tuple(steps.actions.shape), np.float32))
        actions = steps.actions + NOISE * noise.to(self._device)
        with torch.no_grad():
            narrow = self._head.noisy_log_prob(self._network.logits(steps.obs), actions, NOISE)
        wide = (-0.5 * actions.square() - HALF_LOG_2PI).sum(1)
        return steps._replace(actions=actions, logp=torch.logaddexp(narrow, wide) - math.log(2))


class Dac(Sac):
    """The learner of ``train=dac``.

    Attributes:
        adversaries: by module.
    """

    def __init__(
        self, adversarial: AdversarialConfig, recorded: Demonstrations, networks: Mapping[str, Any], *arguments: Any
    ) -> None:
        super().__init__(networks, *arguments)
        self.adversaries = {}
        for name, agent in self.agents.items():
            network = networks[name]
            kind = ReplayAirl if adversarial.kind == "airl" else ReplayAdversary
            adversary = kind(network, network.head, recorded, adversarial, agent.device)
            self.adversaries[name], agent.reward_of = adversary, adversary.reward_of

    def _prepare(self, name: str, paths: list[Paths]) -> dict[str, float]:
        self.adversaries[name].check(paths)
        return self.adversaries[name].learn_from_replay(self.agents[name].replay)

    def get_state(self) -> dict[str, Any]:
        """Return the state without the policies and their optimisers, discriminators included."""
        return {**super().get_state(), "adversaries": {name: one.get_state() for name, one in self.adversaries.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        super().set_state(state)
        for name, adversary in self.adversaries.items():
            adversary.set_state(state["adversaries"][name])
