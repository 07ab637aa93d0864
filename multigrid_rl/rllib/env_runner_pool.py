"""The remote env runners of a run: a lost one is replaced while training goes on."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.rllib.core import COMPONENT_RL_MODULE

from multigrid_rl.config.schema import ClusterConfig
from multigrid_rl.learn.batches import Experience
from multigrid_rl.rllib.env_runner import GENERATION, STAGE, BatchedEnvRunner, fresh_generation
from multigrid_rl.rllib.session import reason_of
from multigrid_rl.runs.provenance import local_versions, version_differences
from multigrid_rl.text import expected
from multigrid_rl.training.trainers import Sampler
from multigrid_rl.types import EnvFactory, RunError

LOG = logging.getLogger(__name__)
#: Seconds before a runner that was lost twice in a row is replaced again; doubled with every further loss.
PAUSE_S = 2.0


@dataclass
class _Runner:
    index: int  # from 1
    actor: Any  # None: lost, and its replacement was not spawned yet
    generation: int = 0  # its games are numbered by it: each replacement has a new one
    spawned: bool = False  # made here, not by RLlib
    failures: int = 0  # in a row
    pending: Any = None  # answer when it is ready; None: it is, or it was not spawned yet
    opponents: Any = None  # answer when it has its new opponents; None: none were sent since its last rollout
    restart_at: float = 0.0  # when its replacement may be spawned, by the monotonic clock

    @property
    def ready(self) -> bool:
        """Whether it can play."""
        return self.actor is not None and self.pending is None


class EnvRunnerPool(Sampler):
    """Sends weights to remote env runners and collects their rollouts.

    A runner that dies, whose node is lost or has other sources, or that does not answer in time is replaced by a new
    one with new games; until that one is ready, batches are smaller. An error inside the game or a player ends
    the run: it would come again.

    Args:
        actors: the runners that RLlib made, in the order of their numbers.
        config: RLlib's, for new ones.
        limits: ``sample_timeout_s``, after which a runner that has not handed over its rollout counts as lost, and
            ``max_consecutive_failures``: the run ends once one was lost so often without a rollout in between.
        on_replaced: takes the number and the actor of each new one that is ready.

    Attributes:
        recreated: numbers of replaced runners; the reader empties the list.
    """

    def __init__(self, actors: list[Any], config: Any, limits: ClusterConfig, on_replaced: Callable[..., None]) -> None:
        self._on_replaced = on_replaced
        self._runners = [_Runner(index, actor) for index, actor in enumerate(actors, 1)]
        self._config = config
        self._timeout_s = limits.sample_timeout_s
        self._max_consecutive_failures = limits.max_consecutive_failures
        self._weights: Any = None
        self._factory: EnvFactory | None = None
        self._game: Any = None  # the factory in Ray's object store; None: not put there yet
        self._offset = 0
        self._installed = local_versions()
        self.remote = len(actors)
        self.recreated: list[int] = []
        self._remote = ray.remote(num_cpus=config.num_cpus_per_env_runner)(BatchedEnvRunner)

    def begin(self, factory: EnvFactory, stage: int) -> None:
        """Let every runner play the games of ``factory``, from fresh ones on; waits for those that are ready.

        Raises ``RunError``: a runner could not build them.
        """
        first = self._factory is None
        self.use(factory)
        self._offset = stage * STAGE
        required = [runner for runner in self._runners if first or runner.ready]
        for runner in self._runners:
            self._begin(runner)
        self._await(required)

    def _begin(self, runner: _Runner) -> None:
        """Let a runner play fresh games of its generation; one that is still starting begins with them."""
        if runner.actor is not None:
            self._game = self._game or ray.put(self._factory)
            runner.pending = runner.actor.begin.remote(self._game, self._offset + runner.generation * GENERATION)

    def use(self, factory: EnvFactory) -> None:
        """Let every runner that begins from now on play the games of ``factory``."""
        self._factory, self._game = factory, None

    def set_opponents(self, factory: EnvFactory, roster: Any) -> None:
        """Set a league's players: ``roster`` where games are under way, ``factory`` for new runners."""
        self.use(factory)
        reference = ray.put(roster)
        for runner in self._runners:
            if runner.actor is not None:  # also one that is starting: actors run calls in order
                runner.opponents = runner.actor.set_opponents.remote(reference)

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Hand the learner's weights to every runner that is ready."""
        self._weights = ray.put(weights)
        for runner in self._runners:
            if runner.ready:
                self._set_weights(runner)

    def _set_weights(self, runner: _Runner) -> None:
        runner.actor.set_state.remote({COMPONENT_RL_MODULE: self._weights})

    def sample(self) -> list[Experience]:
        """One rollout of every runner that is ready, in the order of their numbers; at least one.

        Raises ``RunError``: an error inside the game, a runner that is lost again and again, or no runner back in time.
        """
        while True:
            self._await([])
            calls = {runner.actor.sample.remote(): runner for runner in self._runners if runner.ready}
            done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=self._timeout_s)
            rollouts = []
            for ref, runner in calls.items():
                if ref not in done:
                    self._restart(runner, f"no answer within {self._timeout_s:g} s")
                elif (rollout := self._rollout(runner, ref)) is not None:
                    runner.failures = 0
                    rollouts.append(rollout)
            if rollouts:
                self.env_runners = len(rollouts)
                return rollouts

    def _rollout(self, runner: _Runner, ref: Any) -> Any:
        """Return a rollout, or ``None`` where the runner was lost; its opponents are those sent earlier."""
        generation, opponents, runner.opponents = runner.generation, runner.opponents, None
        if opponents is not None:
            self._answer(runner, opponents, "could not take its new opponents")
        return self._answer(runner, ref, "failed while it played") if runner.generation == generation else None

    def _answer(self, runner: _Runner, ref: Any, failure: str) -> Any:
        """Return what a runner answers; ``None`` where it was lost, and is replaced.

        Raises ``RunError``: an error inside the runner; ``failure`` describes it.
        """
        try:
            return ray.get(ref, timeout=self._timeout_s)
        except RayTaskError as error:
            raise RunError(f"env runner {runner.index} {failure}: {reason_of(error)}") from error
        except RayError as error:
            self._restart(runner, reason_of(error))
            return None

    def _restart(self, runner: _Runner, reason: str) -> None:
        self.restarts += 1
        runner.failures += 1
        ray.kill(runner.actor)
        if runner.failures >= self._max_consecutive_failures:
            times = runner.failures
            detail = f"{times} times in a row (last: {reason})" if times > 1 else f"({reason})"
            raise RunError(f"env runner {runner.index} was lost {detail}")
        LOG.warning("env runner %d was lost (%s); a new one takes its place", runner.index, reason)
        runner.generation += 1
        runner.spawned = True
        # Ray takes some seconds to notice that a node is gone, and would put the next one there, too.
        runner.restart_at = time.monotonic() + (PAUSE_S * 2 ** (runner.failures - 2) if runner.failures > 1 else 0)
        runner.actor = runner.pending = runner.opponents = None
        self._spawn()

    def _spawn(self) -> None:
        for runner in self._runners:
            if runner.actor is None and time.monotonic() >= runner.restart_at:
                size = len(self._runners)
                runner.actor = self._remote.remote(config=self._config, worker_index=runner.index, num_workers=size)
                self._begin(runner)

    def _await(self, required: Sequence[_Runner]) -> None:
        """Take in runners that have become ready; wait until ``required`` ones are, or are lost, and one is.

        Raises ``RunError``: no runner is ready in time, or a runner could not build its games.
        """
        generations = {runner.index: runner.generation for runner in required}
        while True:
            self._spawn()
            pending = {runner.pending: runner for runner in self._runners if runner.pending is not None}
            waiting = not any(runner.ready for runner in self._runners) or any(
                generations.get(runner.index) == runner.generation for runner in pending.values()
            )
            if not pending:
                if not waiting:
                    return
                time.sleep(max(0.0, min(runner.restart_at for runner in self._runners) - time.monotonic()))
                continue
            done, _ = ray.wait(list(pending), num_returns=1, timeout=self._timeout_s if waiting else 0)
            if done:
                self._admit(pending[done[0]], done[0])
            elif waiting:
                wanted = f"{len(self._runners)} to start within {self._timeout_s:g} s"
                got = f"{len(pending)} that did not: no CPU is free for them, or their nodes are gone"
                raise RunError(expected("env runners", wanted, got))
            else:
                return

    def _admit(self, runner: _Runner, ref: Any) -> None:
        if (versions := self._answer(runner, ref, "could not build its games")) is None:
            return
        if different := version_differences(versions, self._installed):  # on a node that came after the preflight
            self._restart(runner, f"its node: {', '.join(different)}")
            return
        runner.pending = None
        if runner.spawned:
            self._on_replaced(runner.index, runner.actor)
        if runner.failures:
            LOG.warning("env runner %d is back, with new games", runner.index)
            self.recreated.append(runner.index)
        if self._weights is not None:
            self._set_weights(runner)

    def get_state(self) -> dict[str, Any]:
        """Return the state of every runner's games, by its number; runners that are not ready are left out."""
        calls = {runner.index: runner.actor.get_games.remote() for runner in self._runners if runner.ready}
        games = {}
        for index, ref in calls.items():
            try:
                games[index] = ray.get(ref, timeout=self._timeout_s)
            except RayError as error:  # the next rollout finds out that it is lost
                message = "env runner %d did not send its games (%s); a resumed run has fresh ones"
                LOG.warning(message, index, reason_of(error))
        return {"games": games}

    def set_state(self, state: dict[str, Any], factory: EnvFactory) -> bool:
        """Restore the games of a run's state, by number of their runner; one without any plays fresh ones."""
        continued, fresh = bool(state["env_runners"] == self.remote), fresh_generation(state)
        games = state["games"] if continued else {}
        self.use(factory)
        for runner in self._runners:
            saved = games.get(runner.index)
            runner.generation = fresh if saved is None else (saved["offset"] % STAGE) // GENERATION
            self._begin(runner)
        generations = {runner.index: runner.generation for runner in self._runners}
        self._await(self._runners)
        calls = {
            runner.actor.set_games.remote(games[runner.index], self._offset + fresh * GENERATION): runner
            for runner in self._runners
            if runner.index in games and runner.ready and runner.generation == generations[runner.index]
        }
        for ref, runner in calls.items():
            if self._answer(runner, ref, "could not go on") is False:
                runner.generation, continued = fresh, False
        return continued

    def stop(self) -> None:
        """End every runner that this pool spawned."""
        for runner in self._runners:
            if runner.spawned and runner.actor is not None:
                ray.kill(runner.actor)
