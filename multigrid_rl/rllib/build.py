"""From our configuration to RLlib's."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.rllib.algorithms.ppo import PPO, PPOConfig

from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.rllib.learner import BatchLearner, module_specs
from multigrid_rl.training.stages import Stage, stages_of
from multigrid_rl.types import Schedule


@dataclass(frozen=True)
class Settings:
    """What env runners, learners and the algorithm read of a run: ``config.env_config["settings"]``."""

    run: RunConfig
    stages: list[Stage]

    @property
    def trainer(self) -> Any:
        """The run's :class:`~multigrid_rl.training.trainers.Trainer`."""
        return trainer_of(self.run.train.trainer)


def algorithm_config(
    config: RunConfig, stages: list[Stage] | None = None, algorithm: type[PPO] | None = None
) -> PPOConfig:
    """Return the RLlib configuration of a run.

    Args:
        config: the run.
        stages: its games, with the players that are loaded already; by default as they follow from ``config``.
        algorithm: what it builds; by default the one of all trainers.

    Raises:
        ConfigError: stages of a curriculum that do not fit together.
    """
    if algorithm is None:
        from multigrid_rl.rllib.algorithm import MultigridAlgorithm  # noqa: PLC0415 - it builds itself with this

        algorithm = MultigridAlgorithm
    stages = stages or stages_of(config)
    train, cluster, specs = config.train, config.cluster, stages[0].factory.specs
    spec = module_specs(specs, config.model.model_dump(), config.seed)
    first = spec.rl_module_specs[specs.modules[0]]
    modules = {agent.name: agent.module for agent in specs.agents}
    return (
        PPOConfig(algo_class=algorithm)
        .environment(
            env=None,
            observation_space=first.observation_space,
            action_space=first.action_space,
            env_config={"settings": Settings(config, stages)},
        )
        .env_runners(
            env_runner_cls=BatchedEnvRunner,
            num_env_runners=cluster.runners,
            create_local_env_runner=cluster.runners == 0,
            num_cpus_per_env_runner=1,
            # Connectors turn episodes into batches; ours are batches from the start.
            add_default_connectors_to_env_to_module_pipeline=False,
            add_default_connectors_to_module_to_env_pipeline=False,
        )
        .learners(
            learner_class=BatchLearner, num_learners=cluster.num_learners, num_gpus_per_learner=cluster.gpus_per_learner
        )
        # The pool replaces lost env runners: RLlib must neither stop for them nor let Ray restart them.
        .fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=True)
        .rl_module(rl_module_spec=spec)
        .multi_agent(policies=set(specs.modules), policy_mapping_fn=partial(_module_of, modules))
        .training(
            lr=_rllib_schedule(train.schedules["lr"]),
            gamma=train.gamma,
            lambda_=train.lam,
            clip_param=train.clip,
            vf_loss_coeff=train.vf_coef,
            vf_clip_param=float("inf"),
            entropy_coeff=_rllib_schedule(train.schedules["entropy_coef"]),
            use_kl_loss=False,
            grad_clip=train.grad_clip,
            grad_clip_by="global_norm",
            num_epochs=train.passes,
            minibatch_size=config.rows_per_minibatch,
            train_batch_size=train.batch_size,
        )
        # RLlib seeds global generators for its own networks, which makes torch load its compiler: more than a second.
        # System usage is not logged: it delays the start.
        .debugging(seed=config.seed if cluster.gpus_per_learner else None, log_level="ERROR", log_sys_usage=False)
    )


def _module_of(modules: dict[str, str], agent: str, *_: Any, **__: Any) -> str:
    return modules[agent]


def _rllib_schedule(schedule: Schedule) -> float | list[list[float]]:
    return schedule.start if schedule.start == schedule.end else [[0, schedule.start], [schedule.steps, schedule.end]]
