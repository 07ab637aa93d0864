"""Our plain torch networks as RLlib modules."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from multigrid_rl.models.registry import network_of
from multigrid_rl.types import AgentSpec, MultiAgentSpec


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):
    """Outputs and values in one pass; ``model_config`` holds agent, architecture and seed."""

    def setup(self) -> None:
        """Build the network."""
        config = self.model_config
        self.net: Any = network_of(config["agent"], config["architecture"], config["seed"])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        outputs, values = self.net(batch[Columns.OBS])
        # A learner asks for values right after this pass: hand them over instead of computing them again.
        return {Columns.ACTION_DIST_INPUTS: outputs, Columns.EMBEDDINGS: values}

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> Tensor:
        """Compute values, one for each step of the batch."""
        values: Tensor = self._forward(batch)[Columns.EMBEDDINGS] if embeddings is None else embeddings
        return values


def module_specs(specs: MultiAgentSpec, architecture: dict[str, Any], seed: int) -> MultiRLModuleSpec:
    """Describe one module for each network, with initial weights of its own."""
    return MultiRLModuleSpec(
        rl_module_specs={
            module: RLModuleSpec(
                module_class=ActorCriticModule,
                observation_space=_whole_space(agent),
                action_space=agent.action_space,
                model_config={"architecture": architecture, "agent": agent, "seed": seed * 64 + k},
            )
            for k, (module, agent) in enumerate((name, specs.agent_of(name)) for name in specs.modules)
        }
    )


def _whole_space(agent: AgentSpec) -> gym.Space[Any]:
    """Return the space of what actor and critic read."""
    own, critic = agent.observation_space, agent.critic_space
    if critic is None:
        return own
    assert isinstance(own, gym.spaces.MultiDiscrete)
    assert isinstance(critic, gym.spaces.MultiDiscrete)
    return gym.spaces.MultiDiscrete(np.concatenate([own.nvec, critic.nvec]))
