"""Our plain torch networks as RLlib modules."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from multigrid_rl.models.registry import network_of
from multigrid_rl.models.towers import Pass
from multigrid_rl.types import Cast

#: Batch columns beside RLlib's own: which seats of a unit were in the game (B, C); memory before the first step of a
#: sequence (B, S); steps that begin a new episode (B, T).
ALIVE = "alive"
MEMORY = "memory"
STARTS = "starts"


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):
    """Logits and values in one pass; ``model_config`` holds unit, architecture and seed."""

    def setup(self) -> None:
        """Build the network."""
        config = self.model_config
        self.net: Any = network_of(config["unit"], config["architecture"], config["seed"])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        if self.net.state_size:
            logits, values = self.net.sequence(batch[Columns.OBS], batch[MEMORY], batch[STARTS])
        else:
            logits, values = self.net(batch[Columns.OBS])
        # The learner asks for values right after this pass: hand them over instead of computing them again.
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: values}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # RLlib would walk through all layers to switch dropout on; there is none.
        return self._forward(batch, **kwargs)

    def start(self, tokens: NDArray[Any]) -> Pass | None:
        """The network's own pass over tokens (B, D), with its own way back; ``None``: it leaves that to torch."""
        own = getattr(self.net, "start", None)
        return None if own is None else own(tokens)

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> Tensor:
        """Values, one for each step of the batch."""
        values: Tensor = self._forward(batch)[Columns.EMBEDDINGS] if embeddings is None else embeddings
        return values


def module_specs(cast: Cast, architecture: dict[str, Any], seed: int) -> MultiRLModuleSpec:
    """One module for each network of the cast, with initial weights of its own."""
    return MultiRLModuleSpec(
        rl_module_specs={
            module: RLModuleSpec(
                module_class=ActorCriticModule,
                observation_space=gym.spaces.MultiDiscrete([*unit.categories, *unit.central]),
                action_space=gym.spaces.MultiDiscrete([unit.choices] * len(unit.seats)),
                model_config={"architecture": architecture, "unit": unit, "seed": seed * 64 + k},
            )
            for k, (module, unit) in enumerate((name, cast.unit_of(name)) for name in cast.modules)
        }
    )
