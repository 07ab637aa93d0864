"""A run on RLlib's own path: its environment, env runner, connectors, advantages, learner and step, nothing replaced.

    python -m benchmarks.stock --iterations 8 scenario=1v1 train.num_envs=64    # prints {"env_steps_per_s": ...}

It is the peer that the batched path is measured against, and the way in for RLlib's other
algorithms (docs/extending.md).
"""

import argparse
import importlib
import json
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.rllib.learner import ActorCriticModule, module_specs
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.text import expected
from multigrid_rl.types import AgentSpec, BatchedEnv, EnvFactory

#: Game numbers set aside for each env runner, so that no two runners play the same games.
GAMES_PER_RUNNER = 2**20
_ALL = "__all__"
_SEEDS = 2**31


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


def stock_config(config: RunConfig) -> PPOConfig:
    """Return RLlib's own PPO on a run's games, networks and settings: one environment for each game, whole batches."""
    factory, train = env_factory(config), config.train
    specs = factory.specs
    spec = module_specs(specs, config.model.model_dump(), config.seed)
    for name, module_spec in spec.rl_module_specs.items():
        module_spec.module_class = StockModule
        module_spec.observation_space, module_spec.action_space = rllib_spaces(specs.agent_of(name))
    modules = {agent.name: agent.module for agent in specs.agents}
    lr, entropy = ([[0, s.start], [s.steps, s.end]] for s in map(train.schedules.get, ("lr", "entropy_coef")) if s)
    return (
        PPOConfig()
        .environment(GameEnv, env_config={"factory": factory})
        .env_runners(
            num_env_runners=config.cluster.runners,
            num_envs_per_env_runner=config.games_per_sampler,
            rollout_fragment_length=train.num_steps,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(rl_module_spec=spec)
        .multi_agent(policies=set(specs.modules), policy_mapping_fn=partial(_module_of, modules))
        .training(
            lr=lr,
            gamma=train.gamma,
            lambda_=train.lam,
            clip_param=train.clip,
            vf_loss_coeff=train.vf_coef,
            vf_clip_param=float("inf"),
            entropy_coeff=entropy,
            use_kl_loss=False,
            grad_clip=train.grad_clip,
            grad_clip_by="global_norm",
            num_epochs=train.passes,
            minibatch_size=config.rows_per_minibatch,
            train_batch_size=train.batch_size,
        )
        .debugging(seed=config.seed, log_level="ERROR", log_sys_usage=False)
    )


def _module_of(modules: dict[str, str], agent: str, *_: Any, **__: Any) -> str:
    return modules[agent]


def measured(config: RunConfig, iterations: int, warmup: int, zoo: str | None = None) -> float:
    """Return the environment steps a second of so many iterations after ``warmup`` ones.

    With ``zoo``, a module of PettingZoo's kind, its environment is played in RLlib's own wrapper instead of our games.
    """
    algorithm_config = stock_config(config)
    if zoo is not None:
        register_env(zoo, lambda _: ParallelPettingZooEnv(importlib.import_module(zoo).parallel_env()))
        algorithm_config.environment(zoo)
    torch.set_num_threads(config.learner_threads)
    with ray_session():
        algorithm = algorithm_config.build_algo()
        try:
            steps, begin = 0, time.perf_counter()
            for k in range(warmup + iterations):
                if k == warmup:
                    begin = time.perf_counter()
                sampled = algorithm.train()["env_runners"]["num_env_steps_sampled"]
                steps += int(sampled) if k >= warmup else 0
            return steps / (time.perf_counter() - begin)
        finally:
            algorithm.stop()


def main() -> None:
    """Print the speed of a run as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--zoo", help="module of a game of PettingZoo's kind, played in RLlib's own wrapper")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    speed = measured(compose(options.overrides), options.iterations, options.warmup, options.zoo)
    print(json.dumps({"env_steps_per_s": speed}))


if __name__ == "__main__":
    main()
