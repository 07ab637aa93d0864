"""A run on RLlib's own path: its environment, env runner, connectors, advantages, learner and step, nothing replaced.

    python -m benchmarks.stock --iterations 8 scenario=1v1 train.num_envs=64    # prints {"env_steps_per_s": ...}

It is the peer that the batched path is measured against.
"""

import argparse
import json
import time
from functools import partial
from typing import Any

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.rllib.environment import RedBlueDoors
from multigrid_rl.rllib.learner import ActorCriticModule, module_specs
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.world.spaces import action_space


class StockModule(ActorCriticModule):
    """The same network for RLlib's connectors, which draw actions from the distribution of the action space."""

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # Every other output of a module is carried through all connectors into the train batch.
        outputs = super()._forward_exploration(batch, **kwargs)
        return {Columns.ACTION_DIST_INPUTS: outputs[Columns.ACTION_DIST_INPUTS]}


def stock_config(config: RunConfig) -> PPOConfig:
    """Return RLlib's own PPO on a run's games, networks and settings: one environment for each game, whole batches."""
    scenario, train = config.scenario, config.train
    config.require(config.scheme == "dtde", "scheme", "dtde, as RLlib's actor and critic read one seat's observation")
    specs = env_factory(config).specs
    spec = module_specs(specs, config.model.model_dump(), config.seed)
    for name, module_spec in spec.rl_module_specs.items():
        module_spec.module_class = StockModule
        module_spec.observation_space, module_spec.action_space = specs.agent_of(name).observation_space, action_space()
    modules = {agent.name: agent.module for agent in specs.agents}
    game = {"scenario": scenario.name, "players": scenario.kind.opponents, "observation": "tokens"}
    lr, entropy = ([[0, s.start], [s.steps, s.end]] for s in map(train.schedules.get, ("lr", "entropy_coef")) if s)
    return (
        PPOConfig()
        .environment(RedBlueDoors, env_config=game)
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


def measured(config: RunConfig, iterations: int, warmup: int) -> float:
    """Return the environment steps a second of so many iterations after ``warmup`` ones."""
    torch.set_num_threads(config.learner_threads)
    with ray_session():
        algorithm = stock_config(config).build_algo()
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
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    speed = measured(compose(options.overrides), options.iterations, options.warmup)
    print(json.dumps({"env_steps_per_s": speed}))


if __name__ == "__main__":
    main()
