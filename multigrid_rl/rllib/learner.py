"""RLlib's modules around our torch networks, its learners around our trainers' updaters."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.exceptions import RayError
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from multigrid_rl import jit
from multigrid_rl.fast import forward
from multigrid_rl.learn.batches import Batch, Experience, Paths
from multigrid_rl.models.registry import network_of
from multigrid_rl.rllib.private import UnwrappedModules
from multigrid_rl.rllib.session import reason_of
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.trainers import Metrics, Weights
from multigrid_rl.types import AgentSpec, MultiAgentSpec, RunError

#: Where a checkpoint has its modules.
MODULES = Path(COMPONENT_LEARNER_GROUP, COMPONENT_LEARNER, COMPONENT_RL_MODULE)


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):
    """Outputs and values in one pass; ``model_config`` holds agent, architecture and seed."""

    def setup(self) -> None:
        """Build the network."""
        config = self.model_config
        self.architecture = config["architecture"]
        self.net: Any = network_of(config["agent"], self.architecture, config["seed"])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        outputs, values = forward(self.net, batch[Columns.OBS])
        # A learner needs values right after this pass: return them instead of computing them again.
        return {Columns.ACTION_DIST_INPUTS: outputs, Columns.EMBEDDINGS: values}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set weights. Raises ``ConfigError``: those of another network."""
        current = self.state_dict()
        for name in {**current, **state}:
            wanted, got = (tuple(weights[name].shape) if name in weights else None for weights in (current, state))
            if wanted != got:
                raise ConfigError(expected(f"weights of another network, {name}", f"shape {wanted}", got))
        super().set_state(state)

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
    actor, critic = agent.observation_space, agent.critic_space
    if critic is None:
        return actor
    if not (isinstance(actor, gym.spaces.MultiDiscrete) and isinstance(critic, gym.spaces.MultiDiscrete)):
        return gym.spaces.Box(-np.inf, np.inf, (agent.observation_size,))
    return gym.spaces.MultiDiscrete(np.concatenate([actor.nvec, critic.nvec]))


class BatchLearner(UnwrappedModules, PPOTorchLearner):
    """A learner whose modules the updater of the run's trainer changes.

    RLlib's own code does the rest: placing modules on devices, remote learner processes, checkpoints of weights
    and optimisers. ``config.settings`` is a :class:`~multigrid_rl.rllib.build.Settings`.

    Attributes:
        updater: such as :class:`~multigrid_rl.learn.update.Update`.
    """

    def build(self) -> None:
        """Build as RLlib does, with a single thread for a process that shares its cores."""
        # Custom networks and objectives may draw from torch's generator.
        torch.manual_seed(self.config.settings.run.seed)
        if self.config.num_learners:
            torch.set_num_threads(1)
            jit.state.networks = self.config.settings.run.train.compiled
        super().build()

    def configure_optimizers(self) -> None:
        """Register the optimisers of each network."""
        modules = {name: self._module[name] for name in self._module.keys()}  # noqa: SIM118 - no dict
        settings = self.config.settings
        self.updater = settings.trainer.updater(
            settings.run,
            {name: module.net for name, module in modules.items()},
            {name: module.action_space for name, module in modules.items()},
            device=torch.device(self._device),
            part=(self._learner_index or 0, max(self.config.num_learners, 1)),
        )
        # Their tensors stay in place from here on.
        self._tensors = {name: module.state_dict() for name, module in modules.items()}
        for name, optimizers in self.updater.optimizers.items():
            for k, optimizer in enumerate(optimizers):
                self.register_optimizer(
                    module_id=name,
                    optimizer_name=("default_optimizer", "values")[k],
                    optimizer=optimizer,
                    params=optimizer.param_groups[0]["params"],
                    lr_or_lr_schedule=settings.run.train.lr,
                )

    def weights(self) -> Weights:
        """Return the weights by module, as RLlib's state has them, in a tenth of the time."""
        return {
            name: {key: tensor.cpu().numpy() for key, tensor in tensors.items()}
            for name, tensors in self._tensors.items()
        }

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state, and the update's."""
        return {**super().get_state(*args, **kwargs), "update": self.updater.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        super().set_state(state)
        if "update" in state:
            self.updater.set_state(state["update"])


class GroupLearner:
    """RLlib's group of learners: the driver's own, or one in each of several processes."""

    def __init__(self, group: Any, specs: MultiAgentSpec) -> None:
        self._group, self._specs = group, specs

    def learn(self, experience: list[Experience], env_steps: int) -> dict[str, Metrics]:
        """Learn once; the statistics of the first learner, by module. Raises ``RunError``."""
        batches, paths = self._by_module([part for part in experience if part.batches])
        # A network whose seats were all out of every game has no data in this iteration.
        active = {name: batch for name, batch in batches.items() if batch.mask.any()}
        if batches and not active:
            return {}
        learners = len(self._group)
        # Every learner gets the whole batch and computes its part of each minibatch: see `learn.update`.
        inputs = [ray.put(part) if learners else part for part in (active, paths)]
        results = self._call_all(partial(_learn, batches=inputs[0], env_steps=env_steps, paths=inputs[1]))
        if len(results) < max(learners, 1):
            raise RunError(f"a learner process was lost: {len(results)} of {learners} answered")
        metrics: dict[str, Metrics] = results[0]
        return metrics

    def _by_module(self, experience: list[Experience]) -> tuple[dict[str, Batch], dict[str, list[Paths]]]:
        """Return batches by module, and paths for recomputing advantages (empty if they are not), row for row."""
        parts: dict[str, list[Batch]] = {}
        paths: dict[str, list[Paths]] = {}
        for agent in self._specs.agents if experience else ():  # agents of one network learn together
            parts.setdefault(agent.module, []).extend(part.batches[agent.name] for part in experience)
            if experience[0].paths:
                paths.setdefault(agent.module, []).extend(part.paths[agent.name] for part in experience)
        return {name: Batch.concatenate(rows) for name, rows in parts.items()}, paths

    def get_weights(self) -> Weights:
        """Return the weights by module. Raises :class:`RunError`."""
        if self._group.is_local:
            weights: list[Weights] = self._call_all(BatchLearner.weights)
            return weights[0]
        with self.reporting():
            state = self._group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
        of_modules: Weights = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]
        return of_modules

    def begin_with(self, weights: Weights, rows: int) -> None:
        """Begin with a player's weights, as :meth:`~multigrid_rl.training.trainers.Updater.begin_with`."""
        self._call_all(lambda learner: learner.updater.begin_with(weights, rows))

    def schedule(self, env_steps: int) -> None:
        """Set values that change with the environment steps."""
        self._call_all(lambda learner: learner.updater.schedule(env_steps))

    def _call_all(self, call: Callable[[BatchLearner], Any]) -> list[Any]:
        """Return the result of ``call`` for each learner. Raises ``RunError``."""
        with self.reporting():
            answers = list(self._group.foreach_learner(call))
            for answer in answers:
                if not answer.ok:
                    raise answer.get()  # Ray returns an error here instead of raising it
            return [answer.get() for answer in answers]

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Wrap calls of the learners. Raises ``RunError``: a remote learner is lost."""
        try:
            yield
        except (RayError, AssertionError, IndexError) as error:  # RLlib counts the live ones first
            group = self._group
            if group.is_remote and not all(r.ok for r in group.foreach_learner(lambda _: None, healthy_only=False)):
                raise RunError(f"a learner process was lost: {reason_of(error)}") from error
            raise


def _learn(learner: BatchLearner, env_steps: int, **references: Any) -> Any:
    """Let a learner's update learn, references resolved."""
    data = {name: ray.get(ref) if isinstance(ref, ray.ObjectRef) else ref for name, ref in references.items()}
    return learner.updater.learn(data["batches"], env_steps, data["paths"])
