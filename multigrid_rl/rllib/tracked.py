"""What the training loop knows of an algorithm, whichever way its experience comes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE

from multigrid_rl.models.registry import fingerprint
from multigrid_rl.players.growing import GrowingPool, Roster
from multigrid_rl.rllib.session import reason_of, without_object_store
from multigrid_rl.runs.tracker import MetricsTracker
from multigrid_rl.training.stages import Stage
from multigrid_rl.types import EpisodeTable, RunError

_COUNTERS = ("env_steps", "policy_updates", "gradient_steps", "stage", "stage_from", "env_runner_restarts")
_COUNTED = ("env_steps", "policy_updates", "gradient_steps", "stage", "env_runners", "env_runner_restarts")


class TrackedPPO(PPO):
    """PPO with counters and metrics; ``train.runner`` selects the subclass of a run.

    Attributes:
        env_steps: environment steps so far.
        policy_updates: iterations so far.
        gradient_steps: minibatch steps so far, per module.
        latest: what the last iteration measured, by metric name.
        finished: episodes that finished in the last iteration.
        lost_returns: modules whose returns in the last iteration were not finite though their values were.
        stages: the games of the run, one after the other.
        stage: which of them it is in.
        stage_from: environment steps when it was entered.
        env_runners: processes that played in the last iteration.
        env_runner_restarts: env runners that were lost so far, and replaced.
        tracker: metrics, reports and gates.
        league: the growing pool of opponents; ``None``: opponents are fixed.
        plateau: learning has stalled; the run ends.
    """

    def setup(self, config: Any) -> None:
        """Build runners and learner."""
        self.env_steps = 0
        self.policy_updates = 0
        self.gradient_steps = 0
        self.latest: dict[str, float] = {}
        self.finished: EpisodeTable | None = None
        self.lost_returns: list[str] = []
        self.stages: list[Stage] = config.env_config["stages"]
        self.stage = 0
        self.stage_from = 0
        self.env_runners = 1
        self.env_runner_restarts = 0
        self.league: GrowingPool | None = None
        self.plateau = False
        with without_object_store():
            super().setup(config)
        self.tracker = MetricsTracker(self.stages[0].gates, self.stages[0].scenario.report_episodes)

    def iterate(self) -> dict[str, float | None]:
        """Play, learn and send weights once; returns the iteration's metrics by name."""
        self.training_step()
        return self.row()

    def row(self) -> dict[str, float | None]:
        """Return the metrics of the iteration that has just ended, by name."""
        counts = {name: getattr(self, name) for name in _COUNTED}
        return self.tracker.row(counts, self.latest, self.finished, self.stages[self.stage].factory.specs)

    def last_report(self) -> dict[str, float]:
        """Return lengths and returns of the newest finished episodes; empty if none has ended."""
        return self.tracker.last_report(self.stages[self.stage].factory.specs)

    def go_further(self) -> None:
        """Enter the next stage of the curriculum if the current one has ended; the last one has no end."""
        stage, steps = self.stages[self.stage], self.env_steps - self.stage_from
        if (stage.steps is not None and steps >= stage.steps) or (stage.held and self.tracker.keeper.held):
            self.enter(self.stage + 1)

    def enter(self, stage: int) -> None:
        """Enter another stage of the curriculum: its gates apply from now on."""
        self.stage, self.stage_from = stage, self.env_steps
        self.tracker.set_gates(self.stages[stage].gates, self.stages[stage].scenario.report_episodes)

    def begin_with(self, weights: dict[str, Any], rows: int) -> None:
        """Begin with a player's weights, by module; ``rows`` observations are behind their normalisers."""
        raise NotImplementedError

    def set_opponents(self, roster: Roster) -> None:
        """Set the league's players from the next games on."""
        raise NotImplementedError

    def games_state(self) -> dict[int, Any]:
        """State of the games, by the number of the env runner that plays them; none where they cannot be taken up."""
        return {}

    def go_on(self, games: dict[int, Any], env_runners: int) -> bool:  # noqa: ARG002
        """Take up games that ``env_runners`` remote runners played; false where fresh ones are played instead."""
        return False

    def run_state(self) -> dict[str, Any]:
        """Return the run's state beside RLlib's own: counters, stage, gates, episodes, games under way."""
        counters = {name: getattr(self, name) for name in _COUNTERS}
        runners = self.config.num_env_runners
        league = {} if self.league is None else {"league": self.league.get_state()}
        tracker, games = self.tracker.get_state(), self.games_state()
        return {**counters, **league, "tracker": tracker, "games": games, "env_runners": runners}

    def restore_run(self, path: Path, state: dict[str, Any]) -> bool:
        """Go on from RLlib's checkpoint in ``path`` and the :meth:`run_state` of the same moment.

        Values of this algorithm's configuration stay: step sizes and weights of losses are its own, whatever the
        checkpoint was trained with.

        Returns:
            Whether the games are taken up where they stood; else fresh ones are played.
        """
        with without_object_store():  # RLlib would start or join a cluster without any use for it
            self.restore_from_path(str(path.resolve()))
        if state["stage"]:
            self.enter(state["stage"])
        for name in _COUNTERS:
            setattr(self, name, state[name])
        self.tracker.set_state(state["tracker"])
        if self.league is not None:
            self.league.set_state(state["league"])
        return self.go_on(state["games"], state["env_runners"])

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Wrap calls of the learners: reports a lost learner as :class:`RunError`.

        Raises:
            RunError: a remote learner is lost.
        """
        try:
            yield
        except (RayError, AssertionError, IndexError) as error:  # RLlib counts the living ones before it asks
            group = self.learner_group
            if group.is_remote and not all(r.ok for r in group.foreach_learner(lambda _: None, healthy_only=False)):
                raise RunError(f"a learner process was lost: {reason_of(error)}") from error
            raise

    def learner_weights(self) -> dict[str, dict[str, Any]]:
        """Return the learner's weights, by module. Raises :class:`RunError`."""
        with self.learning():
            state = self.learner_group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
        modules: dict[str, dict[str, Any]] = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]
        return modules

    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the learner's weights, by module."""
        return {module: fingerprint(weights) for module, weights in self.learner_weights().items()}

    def _setup_logdir(self) -> None:
        # Outside Tune, Ray would leave a folder in the user's home for every run. Nothing is written into this one.
        if self._storage:
            super()._setup_logdir()
        else:
            self._logdir = tempfile.gettempdir()
