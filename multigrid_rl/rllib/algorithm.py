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

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.rllib.build import MultigridConfig, Settings, algorithm_config
from multigrid_rl.rllib.env_runner import LocalSampler
from multigrid_rl.rllib.learner import GroupLearner
from multigrid_rl.rllib.private import OwnWays, put_in_place, without_object_store
from multigrid_rl.rllib.results import gate_results, log_iteration, report_columns, tell_of_episodes
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.loop import DivergedError, ended_by
from multigrid_rl.training.run import build_run
from multigrid_rl.training.stages import Stage, thread_tuner
from multigrid_rl.training.trainers import Sampler
from multigrid_rl.training.warm_up import warm_up

LOG = logging.getLogger(__name__)


class MultigridAlgorithm(OwnWays, PPO):
    """Builds and keeps env runners and learners for a run, whose trainer says who samples and who learns.

    Attributes:
        run: what this algorithm trains.
        row: metrics of the last iteration by our names, as in ``metrics.jsonl``.
    """

    run: Any = None
    _waiting: Any = None

    @classmethod
    def get_default_config(cls) -> MultigridConfig:
        """Return an empty configuration: Tune fills it."""
        return MultigridConfig()

    @classmethod
    def default_resource_request(cls, config: Any) -> Any:
        """Return what a trial of Tune's needs. Raises ``ConfigError``: more than there is, it would wait for ever."""
        made = cls.get_default_config().update_from_dict(config)
        request = super().default_resource_request(config)
        needed, there = request.required_resources.get("CPU", 0), ray.cluster_resources().get("CPU", 0)
        if needed > there:
            parts = f"one for the trial, {made.num_env_runners} env runners, {made.num_learners} learners"
            got = f"{needed:g} ({parts}, {made.evaluation_num_env_runners} for evaluation)"
            raise ConfigError(expected("trial", f"processes for at most {there:g} CPUs of the cluster", got))
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
        # Read before anything is played: a file that is deleted later does no harm, and other nodes need no copy.
        games = [stage.factory for stage in stages]
        for factory in games:
            factory.load()
        sampler: Sampler
        if self.env_runner_group.num_remote_workers():
            from multigrid_rl.rllib.env_runner_pool import EnvRunnerPool  # noqa: PLC0415 - most runs have none

            games = [factory.packed() for factory in games]
            replaced = partial(put_in_place, self.env_runner_group)
            sampler = self.pool = EnvRunnerPool(self._actors(), self.config, settings.run.cluster, replaced)
        else:
            networks = {name: self.env_runner.module[name].net for name in self.env_runner.modules}
            sampler = trainer.sampler(settings.run, stages, networks) or LocalSampler(self.env_runner)
        self._learner = GroupLearner(self.learner_group, stages[0].factory.specs)
        self.run = build_run(settings.run, stages, games, sampler, self._learner)
        self.row: dict[str, float | None] = {}
        self._newest: Any = np.zeros((0, 0))
        self._columns: dict[int, dict[str, None]] = {}
        if self._waiting is not None:
            self._go_on(self._waiting)
        self._threads.__enter__()

    def _build(self, config: Any) -> None:
        """Build as RLlib does; if all is done by this process, without any Ray session, for which there is no use."""
        remote = self.config.num_env_runners or self.config.num_learners or self.config.evaluation_num_env_runners
        with nullcontext() if remote else without_object_store():
            super().setup(config)
        for group in (self.env_runner_group, self.eval_env_runner_group):
            if group is not None and not remote:
                group.sync_weights = without_object_store()(group.sync_weights)

    def _actors(self) -> list[Any]:
        """Return the remote env runners that RLlib made, in the order of their numbers."""
        found = self.env_runner_group.foreach_env_runner(
            lambda runner: (runner.worker_index, ray.get_runtime_context().current_actor), local_env_runner=False
        )
        return [actor for _, actor in sorted(found, key=lambda pair: int(pair[0]))]

    def iterate(self) -> None:
        """Sample, learn and set weights once, with no result: RLlib's counters and timers take a millisecond."""
        self._threads.update()
        self.run.iterate()
        self.row = self.run.row()

    def training_step(self) -> None:
        """Iterate once, as RLlib's ``train()`` asks, and log what was measured under RLlib's keys."""
        run, before = self.run, self.run.env_steps
        # Others may have set weights, optimisers or torch's threads since the last iteration.
        torch.set_num_threads(self.config.settings.run.learner_threads)
        run.adopt_learner()
        self.iterate()
        window, batch = self.config.metrics_num_episodes_for_smoothing, self.config.settings.run.train.minibatch
        if self.pool is not None and self.pool.recreated:
            how = {"algorithm": self, "env_runner_group": self.env_runner_group, "is_evaluation": False}
            how["env_runner_indices"], self.pool.recreated = self.pool.recreated, []
            functions = self.config.callbacks_on_env_runners_recreated
            make_callback("on_env_runners_recreated", self.callbacks, functions, kwargs=how)
        if run.finished is not None:
            logger = MetricsLogger(stats_cls_lookup=self.config.stats_cls_lookup, root=False)
            if tell_of_episodes(self.config, self.callbacks, run.finished, run.specs, logger):
                self.metrics.aggregate([logger.reduce()], key=ENV_RUNNER_RESULTS)
        self._newest = log_iteration(self.metrics, run, self._newest, run.env_steps - before, window, batch)

    def log_result(self, result: dict[str, Any]) -> None:
        """Add metrics under our names, the gates, and whether the run has ended, before callbacks see a result."""
        result["multigrid_rl"] = self.row
        result["gates"] = gate_results(self.run.keeper)
        if self.pool is not None:  # which replaces lost env runners without RLlib
            counts = {"num_healthy_workers": self.pool.env_runners, "num_remote_worker_restarts": self.pool.restarts}
            result[FAULT_TOLERANCE_STATS].update(counts)
        result["done"] |= ended_by(self.config.settings.run, self.run) is not None
        super().log_result(result)
        if self.is_actor():  # a trial of Tune, whose files take their columns from the first result
            if self.run.stage not in self._columns:
                self._columns[self.run.stage] = report_columns(self.run)
            result["multigrid_rl"] = {**self._columns[self.run.stage], **self.row}

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what is in every result; outside a trial of Tune without the whole configuration."""
        whole = self.is_actor()
        kind: Any = super() if whole else super(Algorithm, self)  # RLlib's copies the configuration: a millisecond
        metrics: dict[str, Any] = kind.get_auto_filled_metrics(*args, **kwargs)
        config = {**metrics["config"], "seed": self.config.settings.run.seed} if whole else {}
        return {**metrics, "config": config}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state and the run's: counters, gates, games under way."""
        state: dict[str, Any] = super().get_state(*args, **kwargs)
        return {**state, "run": self.run.get_state(), "newest_episodes": self._newest}

    def save_to_path(self, path: Any = None, **options: Any) -> str:
        """Write RLlib's checkpoint, and beside it what the folder of a run has: its players play as those of runs."""
        folder: str = super().save_to_path(path, **options)
        if options.get("state") is None and options.get("filesystem") is None:
            from multigrid_rl.rllib.export import write_beside  # noqa: PLC0415 - the loop writes its own

            try:
                write_beside(Path(folder), self.config.settings, self.run)
            except DivergedError as error:
                LOG.warning("%s: a checkpoint without players: %s", folder, error)
        return folder

    def restore_from_path(self, path: Any, *, component: str | None = None, **options: Any) -> None:
        """Continue from a checkpoint. Raises ``ConfigError``: its networks are others, or of another game's agents."""
        if component is None and Path(path, "config.yaml").is_file():  # a training loop compares by itself
            from multigrid_rl.rllib.export import check_networks  # noqa: PLC0415 - a plain run restores nothing

            check_networks(Path(path), self.config.settings)
        super().restore_from_path(path, component=component, **options)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state; before the run is there, in ``on_algorithm_init``, its part waits for it."""
        super().set_state(state)
        if "run" in state:
            if self.run is None:
                self._waiting = state
            else:
                self._go_on(state)

    def _go_on(self, state: dict[str, Any]) -> None:
        self.run.set_state(state["run"])
        self._newest = state["newest_episodes"]

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Train on from weights by module; RLlib's own also asks a local env runner, where there may be none."""
        self.set_state({COMPONENT_LEARNER_GROUP: {COMPONENT_LEARNER: {COMPONENT_RL_MODULE: weights}}})

    def write(self, folder: Path) -> None:
        """Write RLlib's own state alone into a new folder. Raises ``OSError``, ``RunError``."""
        with self._learner.reporting():
            self.save_to_path(str(folder.resolve()), state=super().get_state())

    def read(self, folder: Path) -> None:
        """Continue from RLlib's checkpoint; values of this algorithm's configuration stay its own."""
        self.restore_from_path(str(folder.resolve()))

    def add_module(self, module_id: str, *_: Any, **__: Any) -> Any:
        """Refuse one module more or fewer. Raises ``ConfigError``."""
        wanted = "the modules of the scenario: scenario.league grows a pool, stock algorithms take them on RedBlueDoors"
        raise ConfigError(expected("add_module or remove_module", wanted, module_id))

    remove_module = add_module

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Play fresh games with the current weights. Raises ``ConfigError``: there is no process that could."""
        if self.env_runner is None and self.eval_env_runner_group is None:
            runners = self.config.num_env_runners
            wanted = f"1 or more, as cluster.num_env_runners={runners} play for training alone"
            raise ConfigError(expected("evaluation_num_env_runners", wanted, 0))
        if self.eval_env_runner_group is None:  # who trains plays, whose own configuration says how training is played
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
def built(config: RunConfig, stages: list[Stage], start: Path | None = None) -> Iterator[MultigridAlgorithm]:
    """Build the algorithm of a run that a training loop drives, and stop it at the end.

    Args:
        start: a checkpoint that is read next: its weights count, not those of ``init``.
    """
    torch.set_num_threads(config.learner_threads)
    # Compiles: plays and learns once with small networks that are thrown away.
    warm_up(config, stages[-1].factory, thread_tuner(config).limit)
    with ray_session(config):
        begun = config if start is None else config.model_copy(update={"init": None})
        algorithm: MultigridAlgorithm = algorithm_config(begun, stages).build_algo()
        try:
            yield algorithm
        finally:
            algorithm.stop()
