"""From our configuration to an RLlib algorithm."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig

from multigrid_rl.config import RunConfig, available_cpus
from multigrid_rl.gates import Gate
from multigrid_rl.players.cards import token_categories
from multigrid_rl.players.factory import MatchFactory
from multigrid_rl.rllib.algorithm import BatchPPO
from multigrid_rl.rllib.callbacks import GateCallback
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.rllib.learner import CategoricalPPOLearner
from multigrid_rl.rllib.modules import module_specs
from multigrid_rl.world.constants import ACTIONS


def match_factory(config: RunConfig, hashes: dict[str, str] | None = None) -> MatchFactory:
    """The recipe for this run's matches."""
    return MatchFactory(
        spec=config.scenario.game.spec(),
        opponents=config.scenario.opponents,
        checkpoints=config.checkpoint_root(),
        hashes=hashes or {},
        seed=config.seed,
        shaping=config.train.shaping,
    )


def learner_threads(config: RunConfig) -> int:
    """Torch threads of the learner: as configured, or the cores that the env runners leave, at least one."""
    return config.train.torch_threads or max(1, available_cpus() - config.cluster.num_env_runners)


def algorithm_config(config: RunConfig, factory: MatchFactory) -> PPOConfig:
    """The RLlib configuration of a run."""
    train, runners = config.train, config.cluster.num_env_runners
    seats = config.scenario.learning
    spec = module_specs(seats, token_categories(factory.spec), len(ACTIONS), config.model.model_dump(), config.seed)
    one = spec.rl_module_specs[seats[0]]
    return (
        PPOConfig(algo_class=BatchPPO)
        .environment(
            env=None,
            observation_space=one.observation_space,
            action_space=one.action_space,
            env_config={
                "factory": factory,
                "num_envs": train.num_envs // max(runners, 1),
                "num_steps": train.num_steps,
                "gates": gates_of(config),
            },
        )
        .env_runners(
            env_runner_cls=BatchedEnvRunner,
            num_env_runners=runners,
            create_local_env_runner=runners == 0,
            # Connectors turn episodes into batches; ours are batches from the start.
            add_default_connectors_to_env_to_module_pipeline=False,
            add_default_connectors_to_module_to_env_pipeline=False,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .multi_agent(policies=set(seats), policy_mapping_fn=_seat_is_module)
        .rl_module(rl_module_spec=spec)
        .training(
            learner_class=CategoricalPPOLearner,
            lr=_schedule(train.lr, train.lr_final, train.until),
            gamma=train.gamma,
            lambda_=train.lam,
            clip_param=train.clip,
            vf_loss_coeff=train.vf_coef,
            vf_clip_param=float("inf"),
            entropy_coeff=_schedule(train.entropy_coef, train.entropy_final, train.entropy_decay),
            use_kl_loss=False,
            grad_clip=train.grad_clip,
            grad_clip_by="global_norm",
            num_epochs=train.epochs,
            minibatch_size=train.minibatch_size,
            train_batch_size=train.batch_size,
        )
        .callbacks(GateCallback)
        .debugging(seed=config.seed, log_level="ERROR")
    )


def gates_of(config: RunConfig) -> list[Gate]:
    """The scenario's gates for the learning seats."""
    return [
        Gate(
            metric=metric,
            comparison="<=" if gate.at_most is not None else ">=",
            bound=gate.at_most if gate.at_most is not None else float(gate.at_least or 0.0),
            hold=gate.hold,
            share=gate.share,
            window=gate.window,
        )
        for metric, gate in config.scenario.gate_list()
    ]


def _seat_is_module(seat: str, *_: Any, **__: Any) -> str:
    return seat


def _schedule(start: float, end: float, steps: int) -> float | list[list[float]]:
    return start if start == end else [[0, start], [steps, end]]
