"""RLlib's modules around our plain torch networks, its PPO learner around our own update (``learn.update``)."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from multigrid_rl.fast import forward
from multigrid_rl.imitation.adversarial import AdversarialConfig, AdversarialUpdate
from multigrid_rl.imitation.cloning import Cloning, CloningConfig
from multigrid_rl.imitation.dagger import Dagger
from multigrid_rl.imitation.demonstrations import read_demonstrations
from multigrid_rl.learn.update import Update
from multigrid_rl.models.registry import network_of
from multigrid_rl.runs.checkpoints import read_learner_state
from multigrid_rl.types import AgentSpec, MultiAgentSpec


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):
    """Outputs and values in one pass; ``model_config`` holds agent, architecture and seed."""

    def setup(self) -> None:
        """Build the network."""
        config = self.model_config
        self.net: Any = network_of(config["agent"], config["architecture"], config["seed"])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        outputs, values = forward(self.net, batch[Columns.OBS])
        # A learner asks for values right after this pass: hand them over instead of computing them again.
        return {Columns.ACTION_DIST_INPUTS: outputs, Columns.EMBEDDINGS: values}

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> Tensor:
        """Compute values, one for each step of the batch."""
        values: Tensor = self._forward(batch)[Columns.EMBEDDINGS] if embeddings is None else embeddings
        return values


def module_specs(specs: MultiAgentSpec, architecture: dict[str, Any], seed: int) -> MultiRLModuleSpec:
    """Describe one module for each network, with its own initial weights."""
    return MultiRLModuleSpec(
        rl_module_specs={
            module: RLModuleSpec(
                module_class=ActorCriticModule,
                observation_space=_full_space(agent),
                action_space=agent.action_space,
                model_config={"architecture": architecture, "agent": agent, "seed": seed * 64 + k},
            )
            for k, (module, agent) in enumerate((name, specs.agent_of(name)) for name in specs.modules)
        }
    )


def _full_space(agent: AgentSpec) -> gym.Space[Any]:
    """Return the space of what actor and critic read."""
    own, critic = agent.observation_space, agent.critic_space
    if critic is None:
        return own
    assert isinstance(own, gym.spaces.MultiDiscrete)
    assert isinstance(critic, gym.spaces.MultiDiscrete)
    return gym.spaces.MultiDiscrete(np.concatenate([own.nvec, critic.nvec]))


class BatchLearner(PPOTorchLearner):
    """A learner whose modules are trained by :class:`~multigrid_rl.learn.update.Update`, or by ``Cloning``.

    RLlib's own code does the rest: placing modules on devices, remote learner processes, checkpoints of weights
    and optimisers. ``config.learner_config_dict`` holds the update's configuration.
    """

    def build(self) -> None:
        """Build as RLlib does, with a single thread for a process that shares its cores."""
        # Custom networks and objectives may draw from torch's generator.
        torch.manual_seed(self.config.learner_config_dict["update"].seed)
        if self.config.num_learners:
            torch.set_num_threads(1)
        super().build()

    def configure_optimizers(self) -> None:
        """Register the one Adam of each network."""
        modules = {name: self._module[name] for name in self._module.keys()}  # noqa: SIM118 - no dict
        settings, device = self.config.learner_config_dict, torch.device(self._device)
        networks = {name: module.net for name, module in modules.items()}
        action_spaces = {name: module.action_space for name, module in modules.items()}
        adversarial: AdversarialConfig | None = settings["adversarial"]
        kind: Any = Update
        arguments: dict[str, Any] = {"device": device}
        if isinstance(settings["update"], CloningConfig):
            kind = Dagger if settings["update"].dagger else Cloning
        else:
            if adversarial is not None:
                kind = partial(AdversarialUpdate, adversarial, read_demonstrations(Path(adversarial.data)))
            part = (self._learner_index or 0, max(self.config.num_learners, 1))
            arguments |= {"scale_values": settings["scale_values"], "part": part}
        self.our_update: Any = kind(networks, action_spaces, settings["update"], **arguments)
        if adversarial is not None and adversarial.reward is not None:
            adversaries = read_learner_state(Path(adversarial.reward))["update"]["adversaries"]
            for name, adversary in self.our_update.adversaries.items():
                adversary.take(adversaries[name]["discriminator"])
        for name, optimizers in self.our_update.optimizers.items():
            for k, optimizer in enumerate(optimizers):
                self.register_optimizer(
                    module_id=name,
                    optimizer_name=("default_optimizer", "values")[k],
                    optimizer=optimizer,
                    params=optimizer.param_groups[0]["params"],
                    lr_or_lr_schedule=self.our_update.config.lr.start,
                )

    def _make_modules_ddp_if_necessary(self) -> None:
        """Skip torch's wrapper: gradients are one flat array, and its sum is all that learners exchange."""

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state, and what the update remembers beside it."""
        return {**super().get_state(*args, **kwargs), "update": self.our_update.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        super().set_state(state)
        if "update" in state:
            self.our_update.set_state(state["update"])


def call_update(learner: BatchLearner, what: str, **references: Any) -> Any:
    """Call a method of a learner's update, references resolved; for ``LearnerGroup.foreach_learner``."""
    arguments = {name: ray.get(ref) if isinstance(ref, ray.ObjectRef) else ref for name, ref in references.items()}
    return getattr(learner.our_update, what)(**arguments)
