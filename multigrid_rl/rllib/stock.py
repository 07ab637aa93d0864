"""The same run on RLlib's own sampling path: its env runner, connectors, advantages, learner and training step.

It is the peer that the batched path is measured against: nothing of RLlib's is replaced, its metrics are translated.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
)
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)

from multigrid_rl.config import RunConfig
from multigrid_rl.rllib.modules import ActorCriticModule
from multigrid_rl.rllib.stock_env import GameEnv, rllib_spaces
from multigrid_rl.rllib.tracked import TrackedPPO
from multigrid_rl.sizes import Sizes
from multigrid_rl.types import EpisodeTable, MultiAgentSpec

#: Our key among an env runner's metrics: the episodes that finished.
EPISODES = "multigrid_rl_episodes"
_TIMERS = {
    "timing/sample_s": (TIMERS, ENV_RUNNER_SAMPLING_TIMER),
    "timing/learn_s": (TIMERS, LEARNER_UPDATE_TIMER),
    "timing/sync_s": (TIMERS, SYNCH_WORKER_WEIGHTS_TIMER),
}
#: Our name of a network's metric -> RLlib's. All are of the last minibatch or of the schedules after it.
_LEARNED = {
    "learner/{}/policy_loss": POLICY_LOSS_KEY,
    "learner/{}/vf_loss": LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
    "learner/{}/grad_norm": "gradients_default_optimizer_global_norm",
    "learner/{}/lr": "default_optimizer_learning_rate",
    "learner/{}/entropy_coef": LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY,
    "explained_variance/{}": LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    "entropy/{}": ENTROPY_KEY,
}


class StockModule(ActorCriticModule):
    """The same network for RLlib's connectors, which draw actions from the distribution of the action space."""

    def setup(self) -> None:
        """Build the network and say how a joint action (C seats, K choices each) is drawn."""
        super().setup()
        if isinstance(self.action_space, gym.spaces.MultiDiscrete):
            choices = self.action_space.nvec.tolist()
            self.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(input_lens=choices)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # Everything else that a module says while it plays is carried through all connectors into the train batch.
        outputs = super()._forward_exploration(batch, **kwargs)
        return {Columns.ACTION_DIST_INPUTS: outputs[Columns.ACTION_DIST_INPUTS]}


class EpisodeCallback(RLlibCallback):
    """Takes the finished episodes out of an env runner's games and sends them with its metrics."""

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Collect what finished in this sample."""
        tables = [env.unwrapped.drain_episodes() for env in env_runner.env.envs]
        metrics_logger.log_value(EPISODES, EpisodeTable.concatenate(tables), reduce="item_series")


class StockPPO(TrackedPPO):
    """RLlib's PPO as it is; after each of its training steps its metrics are read for the training loop.

    RLlib fills a batch up by less than one step of each game, so ``env_steps`` need not be a multiple of the batch.
    """

    def setup(self, config: Any) -> None:
        """Build runners and learner."""
        super().setup(config)
        for timer in _TIMERS.values():
            # RLlib's timers would tell an average over a hundred iterations; made here, they tell the last one.
            self.metrics.log_time(timer, reduce="mean", window=1)

    def iterate(self) -> dict[str, float | None]:
        """Train once; RLlib's own step is what reduces its metrics."""
        self.train()
        return self.row()

    def training_step(self) -> None:
        """Run one iteration of RLlib's, then its metrics by our names."""
        super().training_step()
        modules = self.stages[0].factory.specs.modules
        self.policy_updates += 1
        self.env_steps = int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME)))
        self.finished = EpisodeTable.concatenate(self.metrics.peek((ENV_RUNNER_RESULTS, EPISODES)))
        self.metrics.delete(ENV_RUNNER_RESULTS, EPISODES)  # RLlib would write the arrays into its own result files
        self.gradient_steps += self._minibatches(modules)
        self.latest = {name: float(self.metrics.peek(key)) for name, key in _TIMERS.items()}
        for module in modules:
            self.latest |= {ours.format(module): self._learned(module, theirs) for ours, theirs in _LEARNED.items()}

    def _minibatches(self, modules: tuple[str, ...]) -> int:
        # Every minibatch holds the same number of rows of every module that took part.
        steps = (self._learned(module, NUM_MODULE_STEPS_TRAINED, 0.0) for module in modules)
        minibatch: int = self.config.minibatch_size
        return round(max(steps) / minibatch)

    def _learned(self, module: str, key: str, default: float = math.nan) -> float:
        return float(self.metrics.peek((LEARNER_RESULTS, module, key), default=default))


def stock_module_specs(spec: MultiRLModuleSpec, specs: MultiAgentSpec) -> MultiRLModuleSpec:
    """The modules of ``spec`` with the action spaces that RLlib's own distributions and connectors know."""
    for name, one in spec.rl_module_specs.items():
        one.module_class = StockModule
        one.observation_space, one.action_space = rllib_spaces(specs.agent_of(name))
    return spec


def stock_sampling(config: RunConfig, sizes: Sizes, env_config: dict[str, Any], specs: MultiAgentSpec) -> PPOConfig:
    """RLlib's configuration as far as it is about playing: one environment for each game, whole batches."""
    modules = {agent.name: agent.module for agent in specs.agents}
    return (
        PPOConfig(algo_class=StockPPO)
        .environment(GameEnv, env_config=env_config)
        .env_runners(
            num_env_runners=config.cluster.runners,
            num_envs_per_env_runner=sizes.games_per_sampler,
            rollout_fragment_length=config.train.num_steps,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .multi_agent(policies=set(specs.modules), policy_mapping_fn=partial(_module_of, modules))
        .callbacks(EpisodeCallback)
    )


def _module_of(modules: dict[str, str], agent: str, *_: Any, **__: Any) -> str:
    return modules[agent]
