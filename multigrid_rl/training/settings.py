"""From a run's configuration to the settings of its parts."""

import math

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.cores import available_cpus, cpu_quota
from multigrid_rl.fast.threads import Team
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.update import UpdateConfig
from multigrid_rl.types import Schedule


def update_config(config: RunConfig) -> UpdateConfig:
    """Return the settings of a run's update."""
    train, lr = config.train, config.train.schedules["lr"]
    return UpdateConfig(
        objective=train.objective,
        value_loss=train.value_loss,
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


def team_of(config: RunConfig) -> Team:
    """Return the threads that a run's passes are shared out to; a container's quota may allow fewer than visible."""
    cores = min(available_cpus(), cpu_quota() or math.inf)
    cluster = config.cluster
    return Team(config.train.threads, cores, others=cluster.runners, alone=bool(cluster.num_learners))
