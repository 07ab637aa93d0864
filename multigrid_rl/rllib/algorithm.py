"""PPO whose experience comes in whole batches."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from multigrid_rl.metrics import explained_variance
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.rllib.advantages import standardise
from multigrid_rl.rllib.crew import LIFE, STAGE, Crew
from multigrid_rl.rllib.env_runner import Rollout, UnitBatch
from multigrid_rl.rllib.errors import WeightsError
from multigrid_rl.rllib.learner import SECONDS
from multigrid_rl.rllib.modules import ALIVE, MEMORY, STARTS
from multigrid_rl.rllib.trained import Trained
from multigrid_rl.types import EpisodeTable


class BatchPPO(Trained):
    """PPO on batches from :class:`~multigrid_rl.rllib.env_runner.BatchedEnvRunner`.

    Attributes:
        sent_weights: fingerprints of the weights that every env runner was sent, by module.
        crew: the remote env runners; ``None`` where the driver plays itself.
    """

    def setup(self, config: Any) -> None:
        """Build runners and learner, then hand games and the learner's weights to the runners."""
        self.sent_weights: dict[str, str] = {}
        self.crew: Crew | None = None
        super().setup(config)
        # Read once: a file that goes away later harms nobody, and nodes without it need none.
        self._games = [stage.factory.packed() for stage in self.stages]
        if self.env_runner_group.num_remote_workers():
            settings = self.config.env_config
            actors = list(self.env_runner_group._worker_manager.actors().values())
            self.crew = Crew(actors, self.config, settings["sample_timeout_s"], settings["losses_in_a_row"])
            self.crew.begin(self._games[0], 0)
        self.send_weights()

    def cleanup(self) -> None:
        """Stop runners and learner."""
        if self.crew is not None:
            self.crew.stop()
        super().cleanup()

    def enter(self, stage: int) -> None:
        """Play the games of another stage of the curriculum from now on, judged by its gates."""
        super().enter(stage)
        if self.crew is None:
            self.env_runner.begin(self._games[stage], stage * STAGE)
        else:
            self.crew.begin(self._games[stage], stage)

    def games_state(self) -> dict[int, Any]:
        """State of the games, by the number of the env runner that plays them."""
        return {0: self.env_runner.get_games()} if self.crew is None else self.crew.get_games()

    def go_on(self, games: dict[int, Any], env_runners: int) -> bool:
        """Take up games that ``env_runners`` remote runners played, or start fresh ones where others play now."""
        self.learner_group.foreach_learner(_catch_up, env_steps=self.env_steps)
        self.send_weights()
        same = bool(env_runners == self.config.num_env_runners)
        fresh = self.policy_updates % (STAGE // LIFE)  # games that nobody played before
        if self.crew is not None:
            self.crew.losses = self.env_runner_losses
            self.crew.go_on(games if same else {}, fresh)
        elif same:
            self.env_runner.begin(self._games[self.stage], games[0]["offset"])
            self.env_runner.set_games(games[0])
        else:
            self.env_runner.begin(self._games[self.stage], self.stage * STAGE + fresh * LIFE)
        return same

    def training_step(self) -> None:
        """One iteration: play, learn, send weights."""
        marks = [time.perf_counter()]
        rollouts = self._collect()
        marks.append(time.perf_counter())
        batches = self._by_module(rollouts)
        self.env_steps += sum(r.env_steps for r in rollouts)
        self.finished = EpisodeTable.concatenate([r.episodes for r in rollouts])
        learned = self._learn(batches)
        marks.append(time.perf_counter())
        self.send_weights()
        marks.append(time.perf_counter())
        self.policy_updates += 1
        sample_s, learn_s, sync_s = np.diff(marks).tolist()
        played = {part: sum(r.seconds[part] for r in rollouts) / len(rollouts) for part in rollouts[0].seconds}
        spent = {"sample": sample_s, "learn": learn_s, "sync": sync_s, **played}
        self.latest = {**{f"timing/{part}_s": seconds for part, seconds in spent.items()}, **learned}
        self.lost_returns = []
        for module, batch in batches.items():
            acted = batch.alive.any(axis=-1)
            known = bool(acted.any())
            targets, values = batch.targets[acted], batch.values[acted]
            if not np.isfinite(targets).all() and np.isfinite(values).all():
                self.lost_returns.append(module)
            self.latest[f"explained_variance/{module}"] = explained_variance(targets, values) if known else float("nan")
            self.latest[f"entropy/{module}"] = float(batch.entropy[acted].mean()) if known else float("nan")

    def _by_module(self, rollouts: list[Rollout]) -> dict[str, UnitBatch]:
        # All units that one network plays learn together.
        cast = self.stages[self.stage].factory.cast
        parts: dict[str, list[UnitBatch]] = {module: [] for module in cast.modules}
        for unit in cast.units:
            parts[unit.module] += [rollout.units[unit.name] for rollout in rollouts]
        return {
            name: rows[0] if len(rows) == 1 else UnitBatch(*map(np.concatenate, zip(*rows, strict=True)))
            for name, rows in parts.items()
        }

    def _collect(self) -> list[Rollout]:
        rollouts = [self.env_runner.sample()] if self.crew is None else self.crew.sample()
        for rollout in rollouts:
            if rollout.weights != self.sent_weights:
                raise WeightsError(
                    f"an env runner played with weights {rollout.weights}; sent were {self.sent_weights}"
                )
        self.env_runners = len(rollouts)
        if self.crew is not None:
            self.env_runner_losses = self.crew.losses
        return rollouts

    def _learn(self, batches: dict[str, UnitBatch]) -> dict[str, float]:
        # A network all of whose seats were out of every game has nothing to learn from this time.
        lived = {name: batch for name, batch in batches.items() if batch.alive.any()}
        if not lived:
            return {}
        policies = {name: SampleBatch(_columns(batch)) for name, batch in lived.items()}
        rows = max(len(batch.obs) for batch in lived.values())
        batch = MultiAgentBatch(policies, env_steps=rows)
        # Every learner gets the whole batch and computes its part of each minibatch: see `learner`.
        learners = len(self.learner_group)
        data = {"batch_refs": [ray.put(batch)] * learners} if learners else {"batch": batch}
        with self.learning():
            results = self.learner_group.update(
                **data,
                timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: self.env_steps},
                num_epochs=self.config.num_epochs,
                minibatch_size=self.config.minibatch_size,
            )
        # Minibatches are cut out of all epochs in a row, so they need not end where an epoch does.
        self.gradient_steps += -(-self.config.num_epochs * rows // self.config.minibatch_size)
        return _learner_metrics(results[0])

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What Tune adds to every result; outside Tune nobody reads the whole configuration in each of them."""
        if self._storage is not None:
            filled: dict[str, Any] = super().get_auto_filled_metrics(*args, **kwargs)
            return filled
        return {}

    def send_weights(self) -> None:
        """Copy the learner's weights to every env runner and remember their fingerprints."""
        modules = self.learner_weights()
        self.sent_weights = {name: fingerprint(weights) for name, weights in modules.items()}
        if self.crew is None:
            self.env_runner.set_state({COMPONENT_RL_MODULE: modules})
        else:
            self.crew.send(modules)


def _catch_up(learner: Any, env_steps: int) -> None:
    # Step size and entropy weight are those of this run's schedules, whatever the restored optimiser says.
    learner.after_gradient_based_update(timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: env_steps})


def _columns(batch: UnitBatch) -> dict[str, Any]:
    acted = batch.alive.any(axis=-1)
    gained = np.zeros_like(batch.advantages)
    gained[acted] = standardise(batch.advantages[acted])
    columns = {
        Columns.OBS: batch.obs,
        Columns.ACTIONS: batch.actions,
        Columns.ACTION_LOGP: batch.logp,
        Postprocessing.ADVANTAGES: gained,
        Postprocessing.VALUE_TARGETS: batch.targets,
        ALIVE: batch.alive,
    }
    if batch.memory.shape[1]:
        columns |= {MEMORY: batch.memory, STARTS: batch.starts}
    return columns


def _learner_metrics(results: dict[str, dict[str, float]]) -> dict[str, float]:
    row = {f"timing/{part}_s": seconds for part, seconds in results.pop(SECONDS).items()}
    for module, statistics in results.items():
        # The gate's entropy is that of the policy that played; this one is that of the last minibatch.
        row |= {f"learner/{module}/{name}": value for name, value in statistics.items() if name != "entropy"}
    return row
