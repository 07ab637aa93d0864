"""PPO that learns from whole batches of experience."""

import time
from typing import Any

import numpy as np
import ray
from ray.rllib.core import COMPONENT_RL_MODULE

from multigrid_rl.league.league import Roster
from multigrid_rl.learn.batches import Batch, Experience, Paths
from multigrid_rl.learn.update import SECONDS
from multigrid_rl.metrics import explained_variance
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.players.factories import MatchFactory
from multigrid_rl.rllib.env_runner_pool import GENERATION, STAGE, EnvRunnerPool
from multigrid_rl.rllib.learner import call_update
from multigrid_rl.rllib.tracked import TrackedPPO
from multigrid_rl.types import EpisodeTable, RunError

#: Statistics of a whole update, not of its last minibatch.
_OF_UPDATE = ("approx_kl", "clip_fraction", "explained_variance")


class BatchPPO(TrackedPPO):
    """PPO on batches from :class:`~multigrid_rl.rllib.env_runner.BatchedEnvRunner`.

    Attributes:
        sent_weights: checksums of the weights that every env runner was sent, by module.
        pool: the remote env runners; ``None`` where the driver plays itself.
    """

    def setup(self, config: Any) -> None:
        """Build runners and learner, then hand games and the learner's weights to the runners."""
        self.sent_weights: dict[str, str] = {}
        self.pool: EnvRunnerPool | None = None
        super().setup(config)
        # Read before anything is played: a file that is deleted later does no harm, and other nodes need no copy.
        self._games = [stage.factory for stage in self.stages]
        for factory in self._games:
            factory.load()
        if self.env_runner_group.num_remote_workers():
            self._games = [factory.packed() for factory in self._games]
            actors = list(self.env_runner_group._worker_manager.actors().values())
            limits = [self.config.env_config[name] for name in ("sample_timeout_s", "max_consecutive_failures")]
            self.pool = EnvRunnerPool(actors, self.config, *limits)
            self.pool.begin(self._games[0], 0)
        self.send_weights()

    def cleanup(self) -> None:
        """Stop runners and learner."""
        if self.pool is not None:
            self.pool.stop()
        super().cleanup()

    def enter(self, stage: int) -> None:
        """Play the games of another stage of the curriculum from now on, judged by its gates."""
        super().enter(stage)
        if self.pool is None:
            self.env_runner.begin(self._games[stage], stage * STAGE)
        else:
            self.pool.begin(self._games[stage], stage)

    def set_opponents(self, roster: Roster) -> None:
        """Set the league's players from the next games on, also for env runners that start later."""
        assert self.league is not None
        self._set_roster(self.league.roster())
        if self.pool is None:
            self.env_runner.set_opponents(roster)
        else:
            self.pool.set_opponents(self._games[0], roster)

    def _set_roster(self, roster: Roster) -> None:
        games = self._games[0]
        assert isinstance(games, MatchFactory)
        self._games[0] = games.with_roster(roster)

    def games_state(self) -> dict[int, Any]:
        """State of the games, by the number of the env runner that plays them."""
        return {0: self.env_runner.get_games()} if self.pool is None else self.pool.get_games()

    def go_on(self, games: dict[int, Any], env_runners: int) -> bool:
        """Continue games that ``env_runners`` remote runners played, or start fresh ones if their number changed."""
        self.ask("schedule", env_steps=self.env_steps)
        self.send_weights()
        same = bool(env_runners == self.config.num_env_runners)
        if self.league is not None:
            playing = {n for state in games.values() for n in state["opponents"]} if same else ()
            self._set_roster(self.league.roster(playing))
            if self.pool is not None:
                self.pool.use(self._games[0])
        fresh = self.policy_updates % (STAGE // GENERATION)  # games that were not played before
        if self.pool is not None:
            self.pool.restarts = self.env_runner_restarts
            self.pool.go_on(games if same else {}, fresh)
        elif same:
            self.env_runner.begin(self._games[self.stage], games[0]["offset"])
            self.env_runner.set_games(games[0])
        else:
            self.env_runner.begin(self._games[self.stage], self.stage * STAGE + fresh * GENERATION)
        return same

    def begin_with(self, weights: dict[str, Any], rows: int) -> None:
        """Begin with a player's weights, by module, on learners and runners; ``rows``: behind their normalisers."""
        self.ask("begin_with", weights=weights, rows=rows)
        self.send_weights()

    def ask(self, what: str, **arguments: Any) -> list[Any]:
        """Call the method ``what`` of each learner's update; returns their results. Raises ``RunError``."""
        with self.learning():
            answers = list(self.learner_group.foreach_learner(call_update, what=what, **arguments))
            for answer in answers:
                if not answer.ok:
                    raise answer.get()  # Ray returns an error here instead of raising it
            return [answer.get() for answer in answers]

    def training_step(self) -> None:
        """Play, learn and send weights once."""
        marks = [time.perf_counter()]
        collected = self._collect()
        marks.append(time.perf_counter())
        batches, paths = self._by_module(collected)
        self.env_steps += sum(e.env_steps for e in collected)
        self.finished = EpisodeTable.concatenate([e.episodes for e in collected])
        learned = self._learn(batches, paths)
        marks.append(time.perf_counter())
        self.send_weights()
        marks.append(time.perf_counter())
        self.policy_updates += 1
        sample_s, learn_s, sync_s = np.diff(marks).tolist()
        played = {part: sum(e.seconds[part] for e in collected) / len(collected) for part in collected[0].seconds}
        spent = {"sample": sample_s, "learn": learn_s, "sync": sync_s, **played}
        league = {} if self.league is None else self.league.take(self.finished)
        self.latest = {**league, **{f"timing/{part}_s": seconds for part, seconds in spent.items()}, **learned}
        self.lost_returns = []
        for module, batch in batches.items():
            active = batch.active
            any_active = bool(active.any())
            targets, values = batch.targets[active], batch.values[active]
            if not np.isfinite(targets).all() and np.isfinite(values).all():
                self.lost_returns.append(module)
            # Where rewards are learnt, the learner has reported it for those.
            explained = explained_variance(targets, values) if any_active else float("nan")
            self.latest.setdefault(f"explained_variance/{module}", explained)
            self.latest[f"entropy/{module}"] = float(batch.entropy[active].mean()) if any_active else float("nan")

    def _by_module(self, collected: list[Experience]) -> tuple[dict[str, Batch], dict[str, list[Paths]]]:
        """Return batches by module, and what advantages are recomputed from (nothing if they are not), row for row."""
        parts: dict[str, list[Batch]] = {}
        paths: dict[str, list[Paths]] = {}
        for agent in self.stages[self.stage].factory.specs.agents:  # those that one network plays learn together
            parts.setdefault(agent.module, []).extend(experience.batches[agent.name] for experience in collected)
            if collected[0].paths:
                paths.setdefault(agent.module, []).extend(experience.paths[agent.name] for experience in collected)
        return {name: Batch.concatenate(rows) for name, rows in parts.items()}, paths

    def _collect(self) -> list[Experience]:
        collected = [self.env_runner.sample()] if self.pool is None else self.pool.sample()
        for experience in collected:
            if experience.weights != self.sent_weights:
                raise RunError(f"an env runner played with weights {experience.weights}; sent were {self.sent_weights}")
        self.env_runners = len(collected)
        if self.pool is not None:
            self.env_runner_restarts = self.pool.restarts
        return collected

    def _learn(self, batches: dict[str, Batch], paths: dict[str, list[Paths]]) -> dict[str, float]:
        # A network whose seats were all out of every game has no data in this iteration.
        active = {name: batch for name, batch in batches.items() if batch.mask.any()}
        if not active:
            return {}
        learners = len(self.learner_group)
        # Every learner gets the whole batch and computes its part of each minibatch: see `learn.update`.
        sent = [ray.put(part) if learners else part for part in (active, paths)]
        results = self.ask("learn", batches=sent[0], env_steps=self.env_steps, paths=sent[1])
        if len(results) < max(learners, 1):
            raise RunError(f"a learner process was lost: {len(results)} of {learners} answered")
        self.gradient_steps += int(max(results[0][name]["gradient_steps"] for name in active))
        return learner_metrics(results[0])

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what Tune adds to every result; outside Tune nothing: each would hold the whole configuration."""
        if self._storage is not None:
            metrics: dict[str, Any] = super().get_auto_filled_metrics(*args, **kwargs)
            return metrics
        return {}

    def send_weights(self) -> None:
        """Copy the learner's weights to every env runner and remember their checksums."""
        modules = self.learner_weights()
        self.sent_weights = {name: fingerprint(weights, quick=True) for name, weights in modules.items()}
        if self.pool is None:
            self.env_runner.set_state({COMPONENT_RL_MODULE: modules})
        else:
            self.pool.send(modules)


def learner_metrics(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the learners' results as metrics by name."""
    row = {f"timing/{part}_s": seconds for part, seconds in results.pop(SECONDS).items()}
    for module, statistics in results.items():
        # Gates use the entropy of the sampling policy; this one is of the last minibatch.
        excluded = ("entropy", "gradient_steps", *_OF_UPDATE)
        row |= {f"learner/{module}/{name}": value for name, value in statistics.items() if name not in excluded}
        row |= {f"{name}/{module}": statistics[name] for name in _OF_UPDATE if name in statistics}
    return row
