"""A run while it trains: its iteration, counters, stages, league and metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.gates import GateKeeper
from multigrid_rl.learn.batches import Experience
from multigrid_rl.learn.update import SECONDS
from multigrid_rl.metrics import episode_metrics, explained_variance
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.runs.reports import Reports
from multigrid_rl.tables import STARTS, find
from multigrid_rl.training.stages import Stage
from multigrid_rl.training.trainers import Metrics, Sampler
from multigrid_rl.types import Clock, EnvFactory, EpisodeTable, RunError

LOG = logging.getLogger(__name__)
_COUNTED = ("env_steps", "policy_updates", "gradient_steps", "stage")
_COUNTERS = (*_COUNTED, "stage_from")
#: Statistics of a whole update, not of its last minibatch.
_UPDATE_STATISTICS = ("approx_kl", "clip_fraction", "approx_kl_k1", "explained_variance")


class Stall:
    """Ends a run once a metric, mean over the modules that report it, has reached no new low ``patience`` times.

    Args:
        metric: of a module's update.
        patience: ``None``: it never ends.
    """

    def __init__(self, metric: str, patience: int | None) -> None:
        self._metric, self._patience = metric, patience
        self.lowest, self.since_lowest = math.inf, 0

    @property
    def ended(self) -> bool:
        """Whether learning has stalled."""
        return self._patience is not None and self.since_lowest >= self._patience

    def update(self, learned: dict[str, Metrics]) -> None:
        """Take an update's metrics; modules without the metric do not count."""
        if values := [metrics[self._metric] for metrics in learned.values() if self._metric in metrics]:
            mean = sum(values) / len(values)
            self.since_lowest = 0 if mean < self.lowest else self.since_lowest + 1
            self.lowest = min(mean, self.lowest)


def build_run(
    config: RunConfig, stages: Sequence[Stage], factories: Sequence[EnvFactory], sampler: Sampler, learner: Any
) -> TrainingRun:
    """Return the run of a configuration, which begins with the player that its ``init`` names, if any."""
    patience = trainer_of(config.train.trainer).patience(config)
    run = TrainingRun(stages, factories, sampler, learner, None if patience is None else Stall(*patience))
    if config.init is not None:
        learner.begin_with(*find(STARTS, "player")(config, stages[-1].factory.specs))
        run.send_weights()
    return run


class TrainingRun:
    """Samples, learns and counts, with any kind of sampler and learner.

    Args:
        stages: its games, one after the other.
        factories: of the stages' environments, as the sampler needs them.
        learner: ``rllib.learner.GroupLearner``.
        stall: ends it when learning stalls, unless ``None``.

    Attributes:
        env_steps: environment steps so far.
        finished: episodes that finished in the last iteration; ``None``: gates judge others.
        policy_updates: iterations so far.
        gradient_steps: minibatch steps so far, per module.
        measured: measurements of the last iteration, by metric name.
        learned: metrics of its update, by module.
        agent_steps: its steps in which each agent was in the game.
        lost_returns: modules whose returns in the last iteration were not finite though their values were.
        stage: index of the current stage.
        stage_from: environment steps when it was entered.
        reports: metrics by report, and gates.
        league: the growing pool of opponents; ``None``: opponents are fixed.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        factories: Sequence[EnvFactory],
        sampler: Sampler,
        learner: Any,
        stall: Stall | None = None,
    ) -> None:
        self.stages, self.sampler, self.learner, self.stall = stages, sampler, learner, stall
        self.env_steps = self.policy_updates = self.gradient_steps = self.stage = self.stage_from = 0
        self.measured: Metrics = {}
        self.learned: dict[str, Metrics] = {}
        self.agent_steps: dict[str, int] = {}
        self.lost_returns: list[str] = []
        self.league: Any = None
        self._factories: list[Any] = list(factories)
        self.finished: EpisodeTable | None = None
        self._sent_hash: dict[str, str] = {}
        self.reports = Reports(stages[0].gates, stages[0].scenario.report_episodes)
        sampler.begin(self._factories[0], 0)
        self.send_weights()

    def iterate(self) -> None:
        """Sample, learn and set weights once, in the stage that is due."""
        stage, steps = self.stages[self.stage], self.env_steps - self.stage_from
        if (stage.steps is not None and steps >= stage.steps) or (stage.held and self.reports.keeper.held):
            self.enter(self.stage + 1)  # the last stage has no end
        # The three lines of an iteration are `sample`, `learn` and `send_weights`; all else here counts and measures.
        clock = Clock()
        experience = self.sampler.sample()
        for part in experience:
            if part.weights_hash and part.weights_hash != self._sent_hash:
                raise RunError("an env runner played with other weights than it was sent")
        clock.lap("sample")
        self.env_steps += sum(part.env_steps for part in experience)
        learned = self.learner.learn(experience, self.env_steps)
        clock.lap("learn")
        self.send_weights()
        clock.lap("sync")
        self.policy_updates += 1
        self.finished, extra = self.sampler.finished(experience)
        clock.lap("sample")
        seconds = clock.drain()
        for part in experience:  # a mean over the processes
            for name, spent_s in part.seconds.items():
                seconds[name] = seconds.get(name, 0.0) + spent_s / len(experience)
        seconds |= learned.pop(SECONDS, {})
        self.learned = learned
        self.gradient_steps += int(max((metrics.get("gradient_steps", 0) for metrics in learned.values()), default=0))
        if self.stall is not None:
            self.stall.update(learned)
        league = {} if self.league is None else self.league.take(self.finished)
        timing = {f"timing/{name}_s": value for name, value in seconds.items()}
        self.measured = {**league, **timing, **self._batch_metrics(experience), **extra, **_update_metrics(learned)}

    def _batch_metrics(self, experience: list[Experience]) -> Metrics:
        """Return entropy and explained variance of the samples, and record modules whose returns are not finite."""
        row, self.lost_returns = {}, []
        self.agent_steps = {
            agent.name: sum(int(part.batches[agent.name].active.sum()) for part in experience if part.batches)
            for agent in self.specs.agents
        }
        for module in self.specs.modules:
            names = [agent.name for agent in self.specs.agents if agent.module == module]
            batches = [part.batches[name] for name in names for part in experience if part.batches]
            if not batches or (len(batches[0].obs) and not batches[0].entropy.size):  # nothing was sampled, or labels
                continue
            active = np.concatenate([batch.active for batch in batches])
            targets, values, entropy = (
                np.concatenate([getattr(batch, column) for batch in batches])[active]
                for column in ("targets", "values", "entropy")
            )
            if not np.isfinite(targets).all() and np.isfinite(values).all():
                self.lost_returns.append(module)
            # With learnt rewards, the learner reports it for those.
            row[f"explained_variance/{module}"] = explained_variance(targets, values) if len(targets) else math.nan
            row[f"entropy/{module}"] = float(entropy.mean()) if len(entropy) else math.nan
        return row

    @property
    def specs(self) -> Any:
        """The agents in the games of the current stage."""
        return self.stages[self.stage].factory.specs

    def row(self) -> dict[str, float | None]:
        """Return the metrics of the iteration that has just ended, by name."""
        counts = {name: getattr(self, name) for name in _COUNTED}
        counts |= {"env_runners": self.sampler.env_runners, "env_runner_restarts": self.sampler.restarts}
        return self.reports.row(counts, self.measured, self.finished, self.specs)

    def last_report(self) -> dict[str, float]:
        """Return lengths and returns of the newest finished episodes; empty if none has ended."""
        episodes = self.sampler.last_episodes() if self.finished is None else None
        if episodes is not None and episodes.episodes:
            return episode_metrics(episodes, self.specs)
        return self.reports.last_report(self.specs)

    @property
    def keeper(self) -> GateKeeper:
        """The gates of the run's main scenario, without values in an earlier stage of its curriculum."""
        main_stage = self.stages[-1]
        last = self.stage + 1 == len(self.stages)
        return self.reports.keeper if last else GateKeeper(main_stage.gates, main_stage.scenario.report_episodes)

    def enter(self, stage: int) -> None:
        """Play the games of another stage of the curriculum from now on, judged by its gates."""
        self.stage, self.stage_from = stage, self.env_steps
        self.reports.set_gates(self.stages[stage].gates, self.stages[stage].scenario.report_episodes)
        self.sampler.begin(self._factories[stage], stage)

    def adopt_learner(self) -> None:
        """Continue with the learner's current weights, and with the step sizes of this run's configuration."""
        self.learner.schedule(self.env_steps)
        self.send_weights()

    def send_weights(self) -> None:
        """Hand the learner's weights to the sampler, and remember their checksums."""
        weights = self.learner.get_weights()
        self._sent_hash = {name: fingerprint(tensors, quick=True) for name, tensors in weights.items()}
        self.sampler.set_weights(weights)

    def advance_league(self, export: Any) -> None:
        """Add a snapshot to the league and redraw its opponents, if there is a league and it is time.

        ``export`` writes every network below a folder and returns their sha256. Raises ``OSError``.
        """
        roster = None if self.league is None else self.league.advance(self.env_steps, export)
        if roster is not None:
            self._factories[0] = self._factories[0].with_roster(self.league.roster())  # a league has no curriculum
            self.sampler.set_opponents(self._factories[0], roster)

    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the learner's weights, by module."""
        return {module: fingerprint(weights) for module, weights in self.learner.get_weights().items()}

    def get_state(self) -> dict[str, Any]:
        """Return the run's state without RLlib's: counters, stage, gates, episodes, games under way."""
        state = {name: getattr(self, name) for name in _COUNTERS} | self.sampler.get_state()
        if self.league is not None:
            state["league"] = self.league.get_state()
        if self.stall is not None:
            state["lowest"] = (self.stall.lowest, self.stall.since_lowest)
        sampler_state = {"env_runners": self.sampler.remote, "env_runner_restarts": self.sampler.restarts}
        return {**state, **sampler_state, "tracker": self.reports.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state, after RLlib has restored its own; logs a warning where the games start afresh."""
        if state["stage"] != self.stage:
            self.enter(state["stage"])
        for name in _COUNTERS:
            setattr(self, name, state[name])
        self.sampler.restarts = state["env_runner_restarts"]
        self.reports.set_state(state["tracker"])
        if self.stall is not None:
            self.stall.lowest, self.stall.since_lowest = state["lowest"]
        self.adopt_learner()
        if self.league is not None:
            self.league.set_state(state["league"])
            same = state["env_runners"] == self.sampler.remote
            playing = {number for games in state["games"].values() for number in games["opponents"]} if same else ()
            self._factories[0] = self._factories[0].with_roster(self.league.roster(playing))
        if not self.sampler.set_state(state, self._factories[self.stage]):
            LOG.warning("other games or env runners than before: weights and gates go on, games start afresh")


def _update_metrics(learned: dict[str, Metrics]) -> Metrics:
    row = {}
    for module, statistics in learned.items():
        # Gates use the entropy of the sampling policy; this one is of the last minibatch.
        for name, value in statistics.items():
            if "/" in name:
                row[name] = value
            elif name in _UPDATE_STATISTICS:
                row[f"{name}/{module}"] = value
            elif name not in ("entropy", "gradient_steps", "total_loss"):
                row[f"learner/{module}/{name}"] = value
    return row
