"""The one RLlib algorithm of all trainers: its training step is an iteration of the run (``training.run``)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, FAULT_TOLERANCE_STATS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from multigrid_rl import jit
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.rllib.build import MultigridConfig, Settings, algorithm_config
from multigrid_rl.rllib.env_runner import LocalSampler
from multigrid_rl.rllib.learner import GroupLearner
from multigrid_rl.rllib.private import PrivateOverrides, replace_actor, without_object_store
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.text import ConfigError, expected, unknown
from multigrid_rl.training.loop import DivergedError, ended_by
from multigrid_rl.training.run import build_run
from multigrid_rl.training.stages import Stage, thread_tuner
from multigrid_rl.training.trainers import Sampler
from multigrid_rl.training.warm_up import warm_up

LOG = logging.getLogger(__name__)


class MultigridAlgorithm(PrivateOverrides, PPO):
    """Builds and holds env runners and learners for a run, whose trainer chooses sampler and updater.

    Attributes:
        run: the run that this algorithm trains.
        row: metrics of the last iteration by our names, as in ``metrics.jsonl``.
    """

    run: Any = None
    _pending_state: Any = None

    @classmethod
    def get_default_config(cls) -> MultigridConfig:
        """Return an empty configuration: Tune fills it."""
        return MultigridConfig()

    @classmethod
    def default_resource_request(cls, config: Any) -> Any:
        """Return the resources of a Tune trial. Raises ``ConfigError``: more than there are, it would wait for ever."""
        trial = cls.get_default_config().update_from_dict(config)
        request = super().default_resource_request(config)
        needed, available = request.required_resources.get("CPU", 0), ray.cluster_resources().get("CPU", 0)
        if needed > available:
            parts = f"one for the trial, {trial.num_env_runners} env runners, {trial.num_learners} learners"
            got = f"{needed:g} ({parts}, {trial.evaluation_num_env_runners} for evaluation)"
            raise ConfigError(expected("trial", f"processes for at most {available:g} CPUs of the cluster", got))
        return request

    def setup(self, config: Any) -> None:
        """Build env runners and learners, then hand games and the learners' weights to the runners."""
        self.pool: Any = None
        settings: Settings = self.config.settings
        self.config.check_machine()
        self._threads = thread_tuner(settings.run)
        # Before anything is computed: sums depend on the number of threads, and more of them than cores are far slower.
        torch.set_num_threads(settings.run.learner_threads)
        self._build(config)
        stages, trainer = settings.stages, settings.trainer
        # Read before play starts: a file that is deleted later does no harm, and other nodes need no copy.
        factories = [stage.factory for stage in stages]
        for factory in factories:
            factory.load()
        sampler: Sampler
        if self.env_runner_group.num_remote_workers():
            from multigrid_rl.rllib.env_runner_pool import EnvRunnerPool  # noqa: PLC0415 - most runs have none

            factories = [factory.packed() for factory in factories]
            replaced = partial(replace_actor, self.env_runner_group)
            runners = self.env_runner_group.foreach_env_runner(
                lambda runner: (runner.worker_index, ray.get_runtime_context().current_actor), local_env_runner=False
            )
            actors = [actor for _, actor in sorted(runners, key=lambda pair: int(pair[0]))]
            sampler = self.pool = EnvRunnerPool(actors, self.config, settings.run.cluster, replaced)
        else:
            networks = {name: self.env_runner.module[name].net for name in self.env_runner.modules}
            sampler = trainer.sampler(settings.run, stages, networks) or LocalSampler(self.env_runner)
        self._learner = GroupLearner(self.learner_group, stages[0].factory.specs)
        self.run = build_run(settings.run, stages, factories, sampler, self._learner)
        self.row: dict[str, float | None] = {}
        self._newest: Any = np.zeros((0, 0))
        self._columns: dict[int, dict[str, None]] = {}
        if self._pending_state is not None:
            self._restore_run(self._pending_state)
        self._threads.__enter__()

    def _build(self, config: Any) -> None:
        """Build as RLlib does; if this process does everything, without a Ray session."""
        remote = self.config.num_env_runners or self.config.num_learners or self.config.evaluation_num_env_runners
        with nullcontext() if remote else without_object_store():
            super().setup(config)
        for group in (self.env_runner_group, self.eval_env_runner_group):
            if group is not None and not remote:
                group.sync_weights = without_object_store()(group.sync_weights)

    def iterate(self) -> None:
        """Sample, learn and set weights once, with no result: RLlib's counters and timers take a millisecond."""
        self._threads.update()
        with jit.using(networks=self.config.settings.run.train.compiled):
            self.run.iterate()
        self.row = self.run.row()

    def training_step(self) -> None:
        """Iterate once for RLlib's ``train()``, and log measurements under RLlib's keys."""
        from multigrid_rl.rllib.results import call_hooks, log_iteration  # noqa: PLC0415 - a training loop logs nothing

        run, steps_before = self.run, self.run.env_steps
        # Callers may have set weights, optimisers or torch's threads since the last iteration.
        torch.set_num_threads(self.config.settings.run.learner_threads)
        run.adopt_learner()
        self.iterate()
        window, batch = self.config.metrics_num_episodes_for_smoothing, self.config.settings.run.train.minibatch
        if self.pool is not None and self.pool.recreated:
            arguments = {"algorithm": self, "env_runner_group": self.env_runner_group, "is_evaluation": False}
            arguments["env_runner_indices"], self.pool.recreated = self.pool.recreated, []
            functions = self.config.callbacks_on_env_runners_recreated
            make_callback("on_env_runners_recreated", self.callbacks, functions, kwargs=arguments)
        if run.finished is not None:
            logger = MetricsLogger(stats_cls_lookup=self.config.stats_cls_lookup, root=False)
            if call_hooks(self.config, self.callbacks, run.finished, run.specs, logger):
                self.metrics.aggregate([logger.reduce()], key=ENV_RUNNER_RESULTS)
        self._newest = log_iteration(self.metrics, run, self._newest, run.env_steps - steps_before, window, batch)

    def log_result(self, result: dict[str, Any]) -> None:
        """Add metrics under our names, the gates, and whether the run has ended, before callbacks see a result."""
        from multigrid_rl.rllib.results import gate_results, report_columns  # noqa: PLC0415 - as above

        result["multigrid_rl"] = self.row
        result["gates"] = gate_results(self.run.keeper)
        if self.pool is not None:  # the pool replaces lost env runners without RLlib
            counts = {"num_healthy_workers": self.pool.env_runners, "num_remote_worker_restarts": self.pool.restarts}
            result[FAULT_TOLERANCE_STATS].update(counts)
        result["done"] |= ended_by(self.config.settings.run, self.run) is not None
        super().log_result(result)
        if self.is_actor():  # a trial of Tune, whose files take their columns from the first result
            if self.run.stage not in self._columns:
                self._columns[self.run.stage] = report_columns(self.run)
            result["multigrid_rl"] = {**self._columns[self.run.stage], **self.row}

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the metrics of every result; outside a trial of Tune without the full configuration."""
        is_trial = self.is_actor()
        parent: Any = super() if is_trial else super(Algorithm, self)  # RLlib's copies the configuration: a millisecond
        metrics: dict[str, Any] = parent.get_auto_filled_metrics(*args, **kwargs)
        config = {**metrics["config"], "seed": self.config.settings.run.seed} if is_trial else {}
        return {**metrics, "config": config}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state and the run's: counters, gates, games under way."""
        state: dict[str, Any] = super().get_state(*args, **kwargs)
        return {**state, "run": self.run.get_state(), "newest_episodes": self._newest}

    def save_to_path(self, path: Any = None, **options: Any) -> str:
        """Write RLlib's checkpoint, and with it the files of a run's folder: its players play as those of runs."""
        folder: str = super().save_to_path(path, **options)
        if options.get("state") is None and options.get("filesystem") is None:
            from multigrid_rl.rllib.export import write_run_files  # noqa: PLC0415 - the loop writes its own

            try:
                write_run_files(Path(folder), self.config.settings, self.run)
            except DivergedError as error:
                LOG.warning("%s: a checkpoint without players: %s", folder, error)
        return folder

    def restore_from_path(self, path: Any, *, component: str | None = None, **options: Any) -> None:
        """Continue from a checkpoint. Raises ``ConfigError``: other networks, agents or components."""
        from multigrid_rl.rllib.export import check_component, check_networks  # noqa: PLC0415 - a plain run restores nothing

        if component is not None:
            check_component(component, dict(self.get_checkpointable_components()), self.config.policies)
        elif Path(path, "config.yaml").is_file():  # a training loop compares by itself
            check_networks(Path(path), self.config.settings)
        super().restore_from_path(path, component=component, **options)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state. Raises ``ConfigError``: weights of other networks, or of other agents only."""
        modules = state.get(COMPONENT_LEARNER_GROUP, {}).get(COMPONENT_LEARNER, {}).get(COMPONENT_RL_MODULE, {})
        if modules and not self.config.policies & modules.keys():  # RLlib would set nothing, without a word
            raise ConfigError(expected("state: modules", ", ".join(sorted(self.config.policies)), ", ".join(modules)))
        super().set_state(state)
        if "run" in state:
            if self.run is None:  # in ``on_algorithm_init``: the run's part waits
                self._pending_state = state
            else:
                self._restore_run(state)

    def _restore_run(self, state: dict[str, Any]) -> None:
        self.run.set_state(state["run"])
        self._newest = state["newest_episodes"]

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Train on from weights by module, without RLlib's local env runner. Raises ``ConfigError``: no such module."""
        if others := [module for module in weights if module not in self.config.policies]:
            raise ConfigError(unknown("weights", others[0], self.config.policies))
        self.set_state({COMPONENT_LEARNER_GROUP: {COMPONENT_LEARNER: {COMPONENT_RL_MODULE: weights}}})

    def write(self, folder: Path) -> None:
        """Write only RLlib's state into a new folder. Raises ``OSError``, ``RunError``."""
        with self._learner.reporting():
            self.save_to_path(str(folder.resolve()), state=super().get_state())

    def read(self, folder: Path) -> None:
        """Continue from RLlib's checkpoint; this algorithm's configuration stays."""
        self.restore_from_path(str(folder.resolve()))

    def add_module(self, module_id: str, *_: Any, **__: Any) -> Any:
        """Refuse to add or remove a module. Raises ``ConfigError``."""
        wanted = "the modules of the scenario: scenario.league grows a pool, stock algorithms take them on RedBlueDoors"
        raise ConfigError(expected("add_module or remove_module", wanted, module_id))

    remove_module = add_module

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Play fresh games with the current weights. Raises ``ConfigError``: no process can."""
        if self.env_runner is None and self.eval_env_runner_group is None:
            wanted = f"1 or more, as cluster.num_env_runners={self.config.num_env_runners} play for training alone"
            raise ConfigError(expected("evaluation_num_env_runners", wanted, 0))
        if self.eval_env_runner_group is None:  # the training runner plays, configured for training
            self.env_runner.greedy = not self.evaluation_config.explore
            self.env_runner.opponent = getattr(self.evaluation_config, "opponent", None)
        return dict(super().evaluate(*args, **kwargs))

    def cleanup(self) -> None:
        """Stop env runners and learners."""
        if self.pool is not None:
            self.pool.stop()
        self._threads.__exit__(None, None, None)
        super().cleanup()


@contextmanager
def built_algorithm(config: RunConfig, stages: list[Stage], start: Path | None = None) -> Iterator[MultigridAlgorithm]:
    """Build the algorithm of a run that a training loop drives, and stop it at the end.

    Args:
        start: a checkpoint that is read next: its weights replace those of ``init``.
    """
    torch.set_num_threads(config.learner_threads)
    if config.train.compiled:  # plays and learns once with small temporary networks
        warm_up(config, stages[-1].factory, thread_tuner(config).limit)
    with ray_session(config):
        run_config = config if start is None else config.model_copy(update={"init": None})
        algorithm: MultigridAlgorithm = algorithm_config(run_config, stages).build_algo()
        try:
            yield algorithm
        finally:
            algorithm.stop()
