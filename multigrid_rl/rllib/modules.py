"""Our plain torch networks as RLlib modules."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from multigrid_rl.models.registry import build


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):
    """Logits and values in one pass; ``model_config`` holds architecture, categories and seed."""

    def setup(self) -> None:
        """Build the network."""
        config = self.model_config
        self.net = build(config["architecture"], config["categories"], int(self.action_space.n), config["seed"])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        logits, values = self.net(batch[Columns.OBS])
        # The learner asks for values right after this pass: hand them over instead of computing them again.
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: values}

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> Tensor:
        """Values (B,)."""
        values: Tensor = self.net(batch[Columns.OBS])[1] if embeddings is None else embeddings
        return values


def module_specs(
    seats: tuple[str, ...], categories: list[int], actions: int, architecture: dict[str, Any], seed: int
) -> MultiRLModuleSpec:
    """One independent module for each learning seat (DTDE), with initial weights of their own."""
    observation = gym.spaces.MultiDiscrete(categories)
    return MultiRLModuleSpec(
        rl_module_specs={
            seat: RLModuleSpec(
                module_class=ActorCriticModule,
                observation_space=observation,
                action_space=gym.spaces.Discrete(actions),
                model_config={"architecture": architecture, "categories": categories, "seed": seed * 64 + k},
            )
            for k, seat in enumerate(seats)
        }
    )
