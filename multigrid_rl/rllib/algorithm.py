"""The one RLlib algorithm of all trainers: its training step is an iteration of the run (``training.run``)."""

from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPO

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.rllib.build import Settings, algorithm_config
from multigrid_rl.rllib.env_runner import LocalSampler
from multigrid_rl.rllib.learner import GroupLearner
from multigrid_rl.rllib.private import OwnFolder, without_object_store
from multigrid_rl.training.protocols import Sampler
from multigrid_rl.training.run import Run, Stall
from multigrid_rl.training.stages import Stage


class MultigridAlgorithm(OwnFolder, PPO):
    """Builds and keeps env runners and learners for a run, whose trainer says who samples and who learns.

    Attributes:
        run: what this algorithm trains.
    """

    def setup(self, config: Any) -> None:
        """Build env runners and learners, then hand games and the learners' weights to the runners."""
        self.pool: Any = None
        with without_object_store():
            super().setup(config)
        settings: Settings = self.config.env_config["settings"]
        stages, trainer = settings.stages, settings.trainer
        # Read before anything is played: a file that is deleted later does no harm, and other nodes need no copy.
        games = [stage.factory for stage in stages]
        for factory in games:
            factory.load()
        sampler: Sampler | None = None
        if self.env_runner_group.num_remote_workers():
            from multigrid_rl.rllib.env_runner_pool import EnvRunnerPool  # noqa: PLC0415 - most runs have none

            games = [factory.packed() for factory in games]
            sampler = self.pool = EnvRunnerPool(self._actors(), self.config, settings.run.cluster)
        else:
            networks = {name: self.env_runner.module[name].net for name in self.env_runner.modules}
            sampler = trainer.sampler(settings.run, stages, networks) or LocalSampler(self.env_runner)
        self._learner, patience = (
            GroupLearner(self.learner_group, stages[0].factory.specs),
            trainer.patience(settings.run),
        )
        self.run = Run(stages, games, sampler, self._learner, None if patience is None else Stall(*patience))

    def _actors(self) -> list[Any]:
        """Return the remote env runners that RLlib made, in the order of their numbers."""
        found = self.env_runner_group.foreach_env_runner(
            lambda runner: (runner.worker_index, ray.get_runtime_context().current_actor), local_env_runner=False
        )
        return [actor for _, actor in sorted(found, key=lambda pair: int(pair[0]))]

    def training_step(self) -> None:
        """Sample, learn and set weights once."""
        self.run.iterate()

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what Tune adds to every result; outside Tune nothing: each would hold the whole configuration."""
        if self.trial_name != "default":
            metrics: dict[str, Any] = super().get_auto_filled_metrics(*args, **kwargs)
            return metrics
        return {}

    def save(self, folder: Path) -> None:  # type: ignore[override, unused-ignore]
        """Write RLlib's checkpoint into a new folder. Raises ``OSError``, ``RunError``."""
        with self._learner.reporting():
            self.save_to_path(str(folder.resolve()))

    def restore(self, folder: Path) -> None:  # type: ignore[override, unused-ignore]
        """Continue from RLlib's checkpoint.

        Values of this algorithm's configuration stay: step sizes and weights of losses are its own, whatever the
        checkpoint was trained with.
        """
        with without_object_store():  # RLlib would start or join a cluster without any use for it
            self.restore_from_path(str(folder.resolve()))

    def cleanup(self) -> None:
        """Stop env runners and learners."""
        if self.pool is not None:
            self.pool.stop()
        super().cleanup()


def engine(config: RunConfig, stages: list[Stage] | None = None) -> MultigridAlgorithm:
    """Build the algorithm of a run; see :func:`~multigrid_rl.rllib.build.algorithm_config`."""
    algorithm: MultigridAlgorithm = algorithm_config(config, stages, MultigridAlgorithm).build_algo()
    return algorithm
