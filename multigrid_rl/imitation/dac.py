"""Adversarial imitation from kept steps: soft actor-critic whose rewards a discriminator pays.

Discriminator-actor-critic (Kostrikov et al. 2019, https://arxiv.org/abs/1809.02925) is GAIL whose policy and
discriminator learn from all that was played, where GAIL by PPO forgets each batch. Rewards are not kept: each gradient
step is paid what the discriminator says by then. With ``kind=airl`` the discriminator is that of adversarial inverse
reinforcement learning (Fu et al. 2018, https://arxiv.org/abs/1710.11248), without shaping: see :class:`KeptAirl`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.imitation.adversarial import AdversarialConfig, Adversary, Steps
from multigrid_rl.imitation.demonstrations import Demonstrations, read_demonstrations
from multigrid_rl.learn.batches import Batch, Paths
from multigrid_rl.models.distributions import HALF_LOG_2PI
from multigrid_rl.offpolicy.sac import ReplayBuffer, Sac

#: Standard deviation of the noise on what AIRL's discriminator sees of actions, whose bounds are -1 and 1.
NOISE = 0.5


class ReplayAdversary(Adversary):
    """A discriminator that tells recorded steps from kept ones; see :class:`Adversary`."""

    def learn_from_replay(self, replay: ReplayBuffer) -> dict[str, float]:
        """Learn to tell recorded steps from random kept ones; loss and accuracy of the last gradient step."""

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

    A policy that has little noise left is known by ``log pi`` alone, and then ``g`` learns nothing. So all actions that
    the discriminator sees, and pays, are noisy (instance noise: Sonderby et al. 2017, https://arxiv.org/abs/1610.04490),
    ``pi`` is the density of noisy actions, and half of it is a wide Gaussian, as kept steps are of wider policies, too
    (a mixture for the same reason: Finn et al. 2016, https://arxiv.org/abs/1603.00448).
    """

    def __init__(
        self, network: Any, head: Any, recorded: Demonstrations, config: AdversarialConfig, *arguments: Any
    ) -> None:
        # Shaping could tell states apart in place of g, and nothing holds its slope.
        super().__init__(network, head, recorded, replace(config, kind="gail"), *arguments)
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

    @classmethod
    def of(cls, config: RunConfig, networks: Mapping[str, Any], action_spaces: Any, device: torch.device) -> Dac:
        """Return that of a run, which reads what was recorded."""
        settings, data = AdversarialConfig.of(config), read_demonstrations(Path(str(config.data)))
        return cls(settings, data, networks, action_spaces, config.train, config.seed, device)

    def _prepare(self, name: str) -> dict[str, float]:
        return self.adversaries[name].learn_from_replay(self.agents[name].replay)

    def learn(
        self, batches: Mapping[str, Batch], env_steps: int, paths: Mapping[str, list[Paths]]
    ) -> dict[str, dict[str, float]]:
        """Keep the steps of a batch and learn from what is kept. Raises ``RunError``: an episode ended early."""
        for name in batches:
            self.adversaries[name].check(paths[name])
        return super().learn(batches, env_steps, paths)

    def get_state(self) -> dict[str, Any]:
        """Return the state beside the policies and their optimisers, discriminators included."""
        return {**super().get_state(), "adversaries": {name: one.get_state() for name, one in self.adversaries.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        super().set_state(state)
        for name, adversary in self.adversaries.items():
            adversary.set_state(state["adversaries"][name])
