"""The same run on RLlib's own sampling path: its environment, env runner, connectors, advantages, learner and step.

It is the peer that the batched path is measured against: nothing of RLlib's is replaced, its metrics are translated.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
)
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env import MultiAgentEnv
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

from multigrid_rl.config.compose import RunConfig
from multigrid_rl.rllib.learner import ActorCriticModule
from multigrid_rl.rllib.tracked import TrackedPPO
from multigrid_rl.text import expected
from multigrid_rl.types import AgentSpec, BatchedEnv, EnvFactory, EpisodeTable, MultiAgentSpec

#: Game numbers set aside for each env runner, so that no two runners play the same games.
GAMES_PER_RUNNER = 2**20
_ALL = "__all__"
_SEEDS = 2**31
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


def rllib_spaces(agent: AgentSpec) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return what RLlib's connectors support: tokens (D,), and one of K actions or, for a team of C, a vector (C,)."""
    acts = agent.action_space
    assert isinstance(acts, gym.spaces.MultiDiscrete)
    return agent.observation_space, gym.spaces.Discrete(int(acts.nvec[0])) if len(acts.nvec) == 1 else acts


class GameEnv(MultiAgentEnv):
    """One game; its agents are those that learn, and background players act inside.

    An observation is the agent's token vector, uint8 of shape (D,). An agent that is out while the game goes on is
    reported as terminated once, with its last observation, and not again. When every agent is out and only
    background players are left, the game is played to its end within that step, so that its episode counts like any
    other. A truncated game is reported under ``__all__`` only: RLlib takes a game whose agents are all truncated for a
    terminated one, and would not bootstrap it.

    Games of different env runners and of different places in one runner's vector have different numbers; what a game
    does depends on its number and on the seed of :meth:`reset`, or on the factory's seed where none is given.

    Args:
        config: ``factory`` (a ``types.EnvFactory``); as an ``EnvContext`` it also numbers the game.

    Raises:
        KeyError: no factory.
        ValueError: agents whose critic reads more than their actor: RLlib's networks read one observation.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        factory: EnvFactory = config["factory"]
        agents = factory.specs.agents
        if any(agent.critic_space is not None for agent in agents):
            raise ValueError(
                expected("scheme", "dtde or ctce, as RLlib's actor and critic read one observation", "ctde")
            )
        number = 0
        if isinstance(config, EnvContext):
            number = config.worker_index * GAMES_PER_RUNNER + config.vector_index
            # RLlib hands one context to every game of a vector and leaves its index where it is: each takes the next.
            config.vector_index += 1
        self.env: BatchedEnv = factory.build(1, number)
        self.possible_agents = [agent.name for agent in agents]
        self.agents = list(self.possible_agents)
        spaces = {agent.name: rllib_spaces(agent) for agent in agents}
        self.observation_spaces = {name: pair[0] for name, pair in spaces.items()}
        self.action_spaces = {name: pair[1] for name, pair in spaces.items()}
        self._actions = {agent.name: np.zeros((1, len(agent.seats)), np.int64) for agent in agents}
        self._living = self.possible_agents
        #: What the next game begins with; ``None`` in the middle of a game.
        self._first: dict[str, NDArray[Any]] | None = self._copied(self.env.observations())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Start a game: the next one, or the first one under ``seed``; returns tokens (D,) by agent, and no infos."""
        super().reset(seed=seed, options=options)
        if seed is None and self._first is None:
            seed = int(self.np_random.integers(_SEEDS))
        if seed is not None:
            self._first = self._copied(self.env.reset(seed))
        first, self._first = self._first, None
        self._living = self.possible_agents
        return first or {}, {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Play one step.

        Args:
            action_dict: an action for each agent that is in the game: an integer, or (C,) integers for a team.

        Returns:
            Observations, rewards, terminated flags and (for all at once) the truncated flag, by agent, and no infos.
            Only agents that were in the game when the step began are in them.
        """
        for name, action in action_dict.items():
            self._actions[name][0] = action
        step = self.env.step(self._actions)
        done = bool(step.done[0])
        latest = step.final_observations if done else step.observations
        observations, rewards, terminated = {}, {}, {}
        for name in self._living:
            observations[name] = latest[name][0].copy()
            rewards[name] = float(step.rewards[name][0])
            terminated[name] = bool(step.terminated[name][0])
        self._living = [name for name in self._living if not terminated[name]]
        over = not self._living
        while over and not step.done[0]:
            step = self.env.step(self._actions)
        if done or over:
            self._first = self._copied(step.observations)
        terminated[_ALL] = over
        return observations, rewards, terminated, {_ALL: done and not over}, {}

    @staticmethod
    def _copied(observations: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        # The arrays of a batched environment change at its next step.
        return {name: rows[0].copy() for name, rows in observations.items()}


class StockModule(ActorCriticModule):
    """The same network for RLlib's connectors, which draw actions from the distribution of the action space."""

    def setup(self) -> None:
        """Build the network and set how a joint action (C seats, K choices each) is drawn."""
        super().setup()
        if isinstance(self.action_space, gym.spaces.MultiDiscrete):
            choices = self.action_space.nvec.tolist()
            self.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(input_lens=choices)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # Every other output of a module is carried through all connectors into the train batch.
        outputs = super()._forward_exploration(batch, **kwargs)
        return {Columns.ACTION_DIST_INPUTS: outputs[Columns.ACTION_DIST_INPUTS]}


def send_episodes(*, env_runner: Any, metrics_logger: Any, **_: Any) -> None:
    """Take the episodes that finished in a sample out of an env runner's games and send them with its metrics."""
    tables = [env.unwrapped.env.drain_episodes() for env in env_runner.env.envs]
    metrics_logger.log_value(EPISODES, EpisodeTable.concatenate(tables), reduce="item_series")


class StockPPO(TrackedPPO):
    """RLlib's PPO as it is; after each of its training steps its metrics are read for the training loop.

    RLlib fills a batch up by less than one step of each game, so ``env_steps`` need not be a multiple of the batch.
    """

    def setup(self, config: Any) -> None:
        """Build runners and learner."""
        super().setup(config)
        for timer in _TIMERS.values():
            # RLlib's timers would average over a hundred iterations; created here, they hold the last one.
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
        # Every minibatch holds the same number of rows of every module that took part.
        rows = max(self._learned(module, NUM_MODULE_STEPS_TRAINED, 0.0) for module in modules)
        self.gradient_steps += round(rows / self.config.minibatch_size)
        self.latest = {name: float(self.metrics.peek(key)) for name, key in _TIMERS.items()}
        for module in modules:
            self.latest |= {name.format(module): self._learned(module, key) for name, key in _LEARNED.items()}

    def _learned(self, module: str, key: str, default: float = math.nan) -> float:
        return float(self.metrics.peek((LEARNER_RESULTS, module, key), default=default))


def stock_module_specs(spec: MultiRLModuleSpec, specs: MultiAgentSpec) -> MultiRLModuleSpec:
    """Give the modules of ``spec`` the action spaces that RLlib's own distributions and connectors support."""
    for name, module_spec in spec.rl_module_specs.items():
        module_spec.module_class = StockModule
        module_spec.observation_space, module_spec.action_space = rllib_spaces(specs.agent_of(name))
    return spec


def stock_sampling(config: RunConfig, env_config: dict[str, Any]) -> PPOConfig:
    """Configure RLlib as far as it is about playing: one environment for each game, whole batches."""
    return (
        PPOConfig(algo_class=StockPPO)
        .environment(GameEnv, env_config=env_config)
        .env_runners(
            num_env_runners=config.cluster.runners,
            num_envs_per_env_runner=config.games_per_sampler,
            rollout_fragment_length=config.train.num_steps,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .callbacks(on_sample_end=send_episodes)
    )
