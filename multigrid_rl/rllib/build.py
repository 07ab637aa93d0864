"""From our configuration to an RLlib algorithm."""

from functools import partial
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from multigrid_rl.config.compose import ConfigError, RunConfig
from multigrid_rl.imitation.adversarial import AdversarialConfig
from multigrid_rl.imitation.cloning import CloningConfig
from multigrid_rl.imitation.trainers import CloningPPO, DaggerPPO
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.update import UpdateConfig
from multigrid_rl.rllib.algorithm import BatchPPO
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.rllib.learner import BatchLearner, module_specs
from multigrid_rl.rllib.stock import stock_module_specs, stock_sampling
from multigrid_rl.runs.reader import run_config
from multigrid_rl.text import expected
from multigrid_rl.training.stages import Stage, stages_of
from multigrid_rl.types import Schedule


def algorithm_config(config: RunConfig, stages: list[Stage] | None = None) -> PPOConfig:
    """Return the RLlib configuration of a run: who plays is ``train.runner``, everything else is the same for both.

    Args:
        config: the run.
        stages: its games, with the players that are loaded already; by default as they follow from ``config``.

    Raises:
        ConfigError: stages of a curriculum that do not fit together.
    """
    stages = stages or stages_of(config)
    train, specs = config.train, stages[0].factory.specs
    spec = module_specs(specs, config.model.model_dump(), config.seed)
    env_config = {
        "factory": stages[0].factory,
        "stages": stages,
        "num_envs": config.games_per_sampler,
        "num_steps": train.num_steps,
        "seed": config.seed,
        "bound": config.model.bound,
        "estimator": estimator_of(config),
        "recompute": train.recompute or train.adversarial is not None,
        "cloning": train.cloning,
        "run": config if train.dagger is not None else None,
        "sample_timeout_s": config.cluster.sample_timeout_s,
        "max_consecutive_failures": config.cluster.max_consecutive_failures,
    }
    if train.runner == "stock":
        spec = stock_module_specs(spec, specs)
        sampling = stock_sampling(config, env_config)
    else:
        update = cloning_config(config) if train.cloning is not None else update_config(config)
        sampling = _batched_sampling(config, env_config, spec.rl_module_specs[specs.modules[0]]).learners(
            learner_config_dict={
                "update": update,
                "scale_values": config.model.scale_values,
                "adversarial": None if train.adversarial is None else adversarial_config(config),
            }
        )
    # RLlib seeds global generators for its own networks, which makes torch load its compiler: more than a second.
    seed = config.seed if train.runner == "stock" or config.cluster.gpus_per_learner else None
    modules = {agent.name: agent.module for agent in specs.agents}
    return (
        sampling.rl_module(rl_module_spec=spec)
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
        .debugging(seed=seed, log_level="ERROR", log_sys_usage=False)  # it delays the start
    )


def cloning_config(config: RunConfig) -> CloningConfig:
    """Return the settings of learning from recorded play."""
    train, options = config.train, config.train.cloning
    assert options is not None
    return CloningConfig(
        data=config.data,
        held_out=options.held_out,
        batch_size=train.batch_size * (train.epochs if train.dagger else 1),
        minibatch_size=train.minibatch,
        dagger=train.dagger is not None,
        lr=train.schedules["lr"],
        weight_decay=options.weight_decay,
        grad_clip=train.grad_clip,
        seed=config.seed,
    )


def adversarial_config(config: RunConfig) -> AdversarialConfig:
    """Return the settings of learning rewards from recorded play.

    Raises ``ConfigError``: the run named in ``train.adversarial.reward`` has no reward that fits.
    """
    options = config.train.adversarial
    assert options is not None
    if options.reward is not None:
        source = run_config(Path(options.reward))
        learnt = source.train.adversarial
        if learnt is None or (learnt.kind, learnt.reward, options.kind) != ("airl", None, "airl"):
            wanted = "a run of train=airl, with train=airl"
            raise ConfigError(expected("train.adversarial.reward", wanted, Path(options.reward)))
        for key, needed, value in (
            ("scenario.env_id", source.scenario.env_id, config.scenario.env_id),
            ("train.adversarial.hidden", learnt.hidden, options.hidden),
        ):
            if needed != value:
                raise ConfigError(expected(key, f"{needed}, as the run that train.adversarial.reward names", value))
    shared: dict[str, Any] = {"data": str(config.data), "estimator": estimator_of(config), "seed": config.seed}
    return AdversarialConfig(**options.model_dump(), **shared)


def update_config(config: RunConfig) -> UpdateConfig:
    """Return the settings of a run's update."""
    train, lr = config.train, config.train.schedules["lr"]
    return UpdateConfig(
        objective=train.objective,
        epochs=train.passes,
        minibatch_size=train.minibatch_size,
        **train.schedules,
        vf_coef=train.vf_coef,
        grad_clip=train.grad_clip,
        seed=config.seed,
        v_iters=train.v_iters,
        v_lr=None if train.v_lr is None else Schedule(train.v_lr, train.v_lr * lr.end / lr.start, lr.steps),
        target_kl=train.target_kl,
        standardise=train.standardise,
        warm_up=train.warm_up,
        recompute=estimator_of(config) if train.recompute else None,
    )


def estimator_of(config: RunConfig) -> Estimator:
    """Return the estimator of advantages, the weights of log-probabilities."""
    train = config.train
    timeout_terminates = train.time_limits == "death"
    return Estimator(train.gamma, train.lam, train.psi, train.vf_coef > 0, timeout_terminates)


def _batched_sampling(config: RunConfig, env_config: dict[str, Any], spec: RLModuleSpec) -> PPOConfig:
    runners, cluster, train = config.cluster.runners, config.cluster, config.train
    algorithm = DaggerPPO if train.dagger else CloningPPO if train.cloning else BatchPPO
    return (
        PPOConfig(algo_class=algorithm)
        .environment(
            env=None, observation_space=spec.observation_space, action_space=spec.action_space, env_config=env_config
        )
        .env_runners(
            env_runner_cls=BatchedEnvRunner,
            num_env_runners=runners,
            create_local_env_runner=runners == 0,
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
    )


def _module_of(modules: dict[str, str], agent: str, *_: Any, **__: Any) -> str:
    return modules[agent]


def _rllib_schedule(schedule: Schedule) -> float | list[list[float]]:
    return schedule.start if schedule.start == schedule.end else [[0, schedule.start], [schedule.steps, schedule.end]]
