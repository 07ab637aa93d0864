"""Adversarial imitation from kept steps: soft actor-critic whose rewards a discriminator pays.

Discriminator-actor-critic (Kostrikov et al. 2019, https://arxiv.org/abs/1809.02925) is GAIL whose policy and
discriminator learn from all that was played, where GAIL by PPO forgets each batch. Rewards are not kept: each
gradient step is paid what the discriminator says by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from multigrid_rl.imitation.adversarial import AdversarialConfig, Adversary, Steps
from multigrid_rl.imitation.demonstrations import Demonstrations
from multigrid_rl.learn.batches import Batch, Paths
from multigrid_rl.offpolicy.sac import Replay, Sac


class KeptAdversary(Adversary):
    """A discriminator that tells recorded steps from kept ones; see :class:`Adversary`."""

    def learn_kept(self, replay: Replay) -> dict[str, float]:
        """Learn to tell recorded steps from random kept ones; loss and accuracy of the last gradient step."""

        def sample(count: int) -> Steps:
            rows = replay.rows[torch.from_numpy(self._rng.integers(replay.count, size=count))].to(self._device)
            obs, actions, _, live, after = replay.columns(rows)
            return Steps(obs, actions, after, 1 - live, torch.zeros_like(live))

        return self._tell_apart(sample)

    def pays(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return rewards (B,) for observations (B, D) and scaled actions (B, A)."""
        none = obs[:, 0]  # what airl alone reads
        return self.discriminator.rewards(Steps(obs, actions, obs, none, none))


class Dac(Sac):
    """The learner of ``train=dac``.

    Args:
        adversarial: settings of the discriminators.
        recorded: the expert's steps.
        networks, arguments: see :class:`~multigrid_rl.offpolicy.sac.Sac`.

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
            one = KeptAdversary(network, network.head, recorded, adversarial, agent.device)
            self.adversaries[name], agent.pays = one, one.pays

    def _kept(self, name: str) -> dict[str, float]:
        return self.adversaries[name].learn_kept(self.agents[name].replay)

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
        for name, one in self.adversaries.items():
            one.set_state(state["adversaries"][name])
