"""From our configuration to RLlib's, and back: what users set on RLlib's is a key of ours, or refused."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils import force_list
from ray.tune.result import TRIAL_INFO
from ray.tune.search.sample import Domain

from multigrid_rl.config.compose import changed, compose, first_words, keyword_overrides, named, whole_key
from multigrid_rl.config.network import constant
from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.cores import available_cpus
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.rllib.learner import BatchLearner, module_specs
from multigrid_rl.rllib.session import check_gpus, free_cpus, learner_cpus
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.training.stages import Stage, load_stages, stages_of
from multigrid_rl.types import Schedule

#: RLlib's weight of the KL penalty, where a user sets only another part of it.
KL_COEF = 0.2
#: Settings that RLlib's own loop and Tune follow.
RLLIBS = (
    "min_time_s_per_iteration", "min_train_timesteps_per_iteration", "min_sample_timesteps_per_iteration",
    "metrics_num_episodes_for_smoothing", "stats_cls_lookup", "log_level", "log_sys_usage",
    "custom_evaluation_function", "placement_strategy", "num_cpus_for_main_process", "num_cpus_per_env_runner",
    "num_cpus_per_learner", "custom_resources_for_main_process", "custom_resources_per_env_runner",
    "custom_resources_per_learner",
    "extra_python_environs_for_driver", "extra_python_environs_for_worker", "in_evaluation",
    "disable_env_checking",
    "settings", "drawn", "algo_class", "class", "_is_frozen", "simple_optimizer", "worker_index",
)  # fmt: skip
#: Callbacks of env runners that follow a game while it is played; ours play batches of games.
_OF_EPISODES = ("on_environment_created", "on_episode_created", "on_episode_step", "on_sample_end")


@dataclass(frozen=True)
class Settings:
    """Settings of a run for env runners, learners and the algorithm, ``config.settings``.

    Attributes:
        run: configuration of the run.
        stages: its games; empty: not loaded yet.
        words: overrides that the run was composed of.
        seeded: the seed was chosen where the run was named.
        filled: RLlib's settings as they follow from the run: a user has set those that differ.
    """

    run: RunConfig
    stages: tuple[Stage, ...] = ()
    words: tuple[str, ...] = ()
    seeded: bool = False
    filled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trainer(self) -> Any:
        """The run's :class:`~multigrid_rl.training.trainers.Trainer`."""
        return trainer_of(self.run.train.trainer)

    def __repr__(self) -> str:
        """Name what is trained: Tune writes it into every result."""
        return f"Settings(scenario={self.run.scenario.name}, train={self.run.train.name}, seed={self.run.seed})"


class MultigridConfig(PPOConfig):
    """RLlib's configuration of one of our runs; :func:`config` makes one.

    A user's settings become keys of our configuration when an algorithm is built, or are refused with one line.

    Attributes:
        settings: the run.
        drawn: keys of ours that Tune draws, by their names; then the drawn values.
    """

    def __init__(self, algo_class: type[PPO] | None = None, settings: Settings | None = None) -> None:
        from multigrid_rl.rllib.algorithm import MultigridAlgorithm  # noqa: PLC0415 - it builds itself with this

        super().__init__(algo_class or MultigridAlgorithm)
        # System usage is not logged: it delays the start.
        self.debugging(log_level="ERROR", log_sys_usage=False)
        self.drawn: dict[str, Any] = {}
        self.settings: Any = settings  # None until a checkpoint or Tune sets it
        if settings is not None:
            self._fill()

    def build_algo(self, env: Any = None, use_copy: bool = True) -> Any:
        """Build the algorithm. Raises ``ConfigError`` as :meth:`validate`."""
        result = self.copy(copy_frozen=False) if use_copy else self
        result.validate()  # RLlib's own copies lack every setting that is -1, its mark of what is deprecated
        return PPOConfig.build_algo(result, env, use_copy=False)

    def update_from_dict(self, config_dict: dict[str, Any]) -> "MultigridConfig":
        """Update from a dictionary of settings; a trial of Tune without a chosen seed gets its number as one."""
        super().update_from_dict(config_dict)
        if self.drawn and not any(map(is_drawn, self.drawn.values())):
            words = tuple(keyword_overrides(self.drawn))
            if self.settings.words[-len(words) :] != words:  # not applied yet
                # A user's settings on the configuration stay.
                words, values = (*self.settings.words, *words), self._user_values()
                run = compose(list(words))
                self.settings = replace(self.settings, run=changed(run, values), stages=(), words=words)
                self._fill()
        trial, settings = config_dict.get(TRIAL_INFO), self.settings
        if trial is not None and settings and not settings.seeded and self.seed == settings.filled.get("seed"):
            number = trial.trial_id.rpartition("_")[2]  # a random text for a searcher's trial
            self.debugging(seed=int(number) if number.isdecimal() else crc32(number.encode()) >> 1)
        return self

    def evaluation(self, **settings: Any) -> "MultigridConfig":
        """Set RLlib's settings of evaluation; an opponent that is an algorithm is named by its checkpoint."""
        evaluation_config = settings.get("evaluation_config")
        if isinstance(evaluation_config, dict) and "opponent" in evaluation_config:
            settings["evaluation_config"] = {**evaluation_config, "opponent": named(evaluation_config["opponent"])}
        super().evaluation(**settings)
        return self

    def validate(self) -> None:
        """Apply a user's settings, and check them with everything that the run loads.

        Raises ``ConfigError``: a setting without a key of ours, or values that do not fit; one line.
        """
        if self.settings is None:
            raise ConfigError(expected("MultigridConfig", 'one that config("1v1") returns', "an empty one"))
        if drawn := [key for key, value in self.drawn.items() if is_drawn(value)]:
            raise ConfigError(expected(drawn[0], "a value; tune.Tuner(param_space=...) draws one", "a choice"))
        if not self.in_evaluation:
            self._check_callbacks()
            self._check_evaluation()
            values = self._user_values()
            run = changed(self.settings.run, values) if values else self.settings.run
            stages = self.settings.stages
            if values or not stages:
                allowed = "null with multigrid_rl.rllib.config, as `multigrid-rl train` alone makes the folder of a run"
                needing = {"league": run.scenario.league, "run_dir": run.run_dir, "tracking": run.tracking}
                for key, value in needing.items():
                    run.require(value is None, key, allowed, value)
                stages = tuple(load_stages(run, None)[0])
            self._check_opponent(stages[-1].factory)
            self.settings = replace(self.settings, run=run, stages=stages)
            self._fill()
        try:
            super().validate()
        except ValueError as error:  # RLlib's own, whose second line says how to switch the check off
            raise ConfigError(str(error).partition("\n")[0]) from error

    def _user_values(self) -> dict[str, Any]:
        """Return a user's settings as values of ours, by dotted key. Raises ``ConfigError``."""
        filled, run = self.settings.filled, self.settings.run
        set_by_user = {
            name: value
            for name, value in vars(self).items()
            if name not in RLLIBS and not name.startswith(("callbacks_", "evaluation_", "__"))  # __: Tune's own
            if value is not (filled_value := filled.get(name, _MISSING)) and not _same(name, value, filled_value)
        }
        if not set_by_user:
            return {}
        from multigrid_rl.rllib.translation import converted  # noqa: PLC0415 - of users' settings

        return converted(set_by_user, run, filled)

    def check_machine(self) -> None:
        """Raise ``ConfigError`` for more processes or GPUs than there are: Ray would wait for them silently."""
        check_gpus(self.settings.run)
        cluster, evaluators = self.settings.run.cluster, self.evaluation_num_env_runners
        wanted = (cluster.runners + evaluators) * self.num_cpus_per_env_runner + learner_cpus(cluster)
        session_exists = ray.is_initialized()
        cpus = free_cpus(wanted) if session_exists else available_cpus()
        if wanted > cpus and (session_exists or cluster.address is None):
            parts = f"{cluster.runners} env runners, {cluster.num_learners} learners, {evaluators} for evaluation"
            raise ConfigError(expected("num_env_runners", f"processes for at most {cpus} CPUs", parts))

    def _check_callbacks(self) -> None:
        """Raise ``ConfigError`` for callbacks that would never be called."""
        wanted = "on_episode_end, or methods of the algorithm, such as on_train_result: games are played in batches"
        for callback in force_list(self.callbacks_class):
            kind = getattr(callback, "func", callback)
            kind = kind if isinstance(kind, type) else type(kind)
            for name in _OF_EPISODES:
                if getattr(kind, name, None) not in (None, getattr(RLlibCallback, name)):
                    raise ConfigError(expected("callbacks", wanted, f"{kind.__name__}.{name}"))
        for name in _OF_EPISODES:
            if getattr(self, f"callbacks_{name}") is not None:
                raise ConfigError(expected("callbacks", wanted, name))

    def _check_evaluation(self) -> None:
        """Raise ``ConfigError`` for settings of evaluation that have no effect."""
        unit, interval = self.evaluation_duration_unit, self.evaluation_interval
        if unit not in ("episodes", "timesteps"):
            raise ConfigError(expected("evaluation_duration_unit", "episodes or timesteps", unit))
        if not isinstance(interval, int | None):
            raise ConfigError(expected("evaluation_interval", "a number of iterations", interval))
        kinds = {"explore": bool, "opponent": str | None}
        for name, value in self.evaluation_config.items() if isinstance(self.evaluation_config, dict) else ():
            if name not in RLLIBS and not isinstance(value, kinds.get(name, ())):
                wanted = "explore=False to take the likeliest actions, opponent=PLAYER, and nothing else"
                raise ConfigError(expected("evaluation_config", wanted, f"{name}={shown(str(value))}"))

    def _check_opponent(self, factory: Any) -> None:
        """Raise ``ConfigError`` for an opponent of evaluation that cannot play; ``factory``: of the run's games."""
        opponent = (self.evaluation_config or {}).get("opponent")
        if opponent is not None and not getattr(factory, "opponents", None):
            wanted = f"no opponent with scenario={self.settings.run.scenario.name}"
            raise ConfigError(expected("evaluation_config", wanted, opponent))
        if opponent is not None:
            try:
                factory.against(opponent).load()
            except ValueError as error:
                raise ConfigError(f"evaluation_config: {error}") from error

    def _fill(self) -> None:
        run, stages = self.settings.run, self.settings.stages
        train, cluster = run.train, run.cluster
        if stages:
            specs = stages[0].factory.specs
            spec = module_specs(specs, run.model.model_dump(), run.seed)
            first = spec.rl_module_specs[specs.modules[0]]
            self.environment(observation_space=first.observation_space, action_space=first.action_space)
            self.rl_module(rl_module_spec=spec)
            modules = {agent.name: agent.module for agent in specs.agents}
            self.multi_agent(policies=set(specs.modules), policy_mapping_fn=partial(_module_of, modules))
        self.env_runners(
            env_runner_cls=BatchedEnvRunner,
            num_env_runners=cluster.runners,
            create_local_env_runner=cluster.runners == 0,
            rollout_fragment_length="auto",
            num_envs_per_env_runner=np.int64(1),  # not a user's int, even if equal: see `_same`
            sample_timeout_s=cluster.sample_timeout_s,
            # Connectors turn episodes into batches; ours are batches from the start.
            add_default_connectors_to_env_to_module_pipeline=False,
            add_default_connectors_to_module_to_env_pipeline=False,
        )
        self.learners(
            learner_class=BatchLearner, num_learners=cluster.num_learners, num_gpus_per_learner=cluster.gpus_per_learner
        )
        # The pool replaces lost env runners: RLlib must neither stop for them nor let Ray restart them.
        self.fault_tolerance(restart_failed_env_runners=np.False_, ignore_env_runner_failures=True)
        self.num_consecutive_env_runner_failures_tolerance = np.int64(cluster.max_consecutive_failures)
        self.training(
            lr=_rllib_schedule(train.schedules["lr"]),
            gamma=train.gamma,
            lambda_=train.lam,
            clip_param=train.clip,
            vf_loss_coeff=train.vf_coef,
            vf_clip_param=float("inf") if train.vf_clip is None else train.vf_clip,
            entropy_coeff=_rllib_schedule(train.schedules["entropy_coef"]),
            # `_same` tells a user's bool, float or int from numpy's, so that setting an equal value counts, too.
            use_kl_loss=np.bool_(train.kl_coef is not None),
            kl_coeff=np.float32(KL_COEF if train.kl_coef is None else train.kl_coef),
            kl_target=np.float32(train.kl_target),
            grad_clip=train.grad_clip,
            grad_clip_by="global_norm",
            num_epochs=train.passes,
            minibatch_size=np.int64(run.rows_per_minibatch),
            train_batch_size=np.int64(train.batch_size),
        )
        self.train_batch_size_per_learner = None
        # RLlib seeds global generators for its own networks, which makes torch load its compiler: more than a second.
        self.debugging(seed=run.seed if cluster.gpus_per_learner else None)
        # RLlib updates dictionaries in place.
        filled = {
            name: deepcopy(value) if isinstance(value, dict) and name != "policies" else value
            for name, value in vars(self).items()
            if name != "settings"
        }
        self.settings = replace(self.settings, filled=filled)


_MISSING = object()


def _same(name: str, value: Any, filled: Any) -> bool:
    """Return whether a setting is as it was filled in; Tune passes copies, and policies as dictionaries."""
    if name == "policies" and filled is not _MISSING:
        return set(value) == set(filled)
    same_class = isinstance(value, type(filled)) or isinstance(filled, type(value))  # restored enums are texts
    return same_class and bool(value == filled) and isinstance(value, bool) == isinstance(filled, bool)


def _rllib_schedule(schedule: Schedule) -> float | list[list[float]]:
    if constant(schedule):
        return schedule.start
    return [[0, schedule.start], *map(list, schedule.between), [schedule.steps, schedule.end]]


def config(scenario: str | None = None, *overrides: str, **values: Any) -> MultigridConfig:
    """Return RLlib's configuration of a run: ``config("1v1", "train.lr=3e-4", seed=3).build_algo().train()``.

    Args:
        scenario: name, or file (``./mine.yaml``); 1v1 by default.
        overrides: as on the command line: ``"scenario.seats.blue_0=hunter"``.
        values: keys of the configuration by their last name (``lr``, ``hidden``, ``seed``, ...), and ``opponent``, the
            player of all seats that do not learn; a class or function stands for its ``module:name``. Values that Tune
            draws, ``hidden=tune.choice([[64], [128]])``, are part of ``param_space=config(...)``.

    Raises ``ConfigError``: a mistake, in one line.
    """
    opponents = [values.pop("opponent")] if "opponent" in values else []
    fixed_values = {name: value for name, value in values.items() if not is_drawn(value)}
    drawn_values = {whole_key(name): value for name, value in values.items() if is_drawn(value)}
    words = [*first_words(scenario), *overrides, *keyword_overrides(fixed_values)]
    run = compose(words)
    for opponent in opponents:
        if not (seats := run.scenario.kind.opponents):
            raise ConfigError(expected("opponent", f"none with scenario={run.scenario.name}", opponent))
        mixture = isinstance(opponent, Mapping)
        player = {named(each): weight for each, weight in opponent.items()} if mixture else named(opponent)
        seated = {f"scenario.seats.{seat}": player for seat in seats}
        if is_drawn(opponent):
            drawn_values |= seated
        else:
            words += keyword_overrides(seated)
            run = compose(words)
    seeded = any(word.lstrip("+").startswith("seed=") for word in words) or "seed" in drawn_values
    result = MultigridConfig(settings=Settings(run, words=tuple(words), seeded=seeded))
    result.drawn = drawn_values
    return result


def is_drawn(value: Any) -> bool:
    """Return whether Tune draws a value."""
    return isinstance(value, Domain) or (isinstance(value, dict) and list(value) == ["grid_search"])


def algorithm_config(run: RunConfig, stages: list[Stage] | None = None) -> MultigridConfig:
    """Return the configuration of a run that a training loop drives. Raises ``ConfigError``: stages that do not fit."""
    return MultigridConfig(settings=Settings(run, tuple(stages or stages_of(run))))


def _module_of(modules: dict[str, str], agent: str, *_: Any, **__: Any) -> str:
    return modules[agent]
