"""A plan on Ray Tune: Tune starts trials, stops those that lag behind, and tells what became of them."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune
from ray.train._internal.session import get_session
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.trainable.function_trainable import FunctionTrainable

from multigrid_rl.config import ConfigError
from multigrid_rl.rllib.errors import reason_of
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.search.asha import METRIC, TIME
from multigrid_rl.search.objective import Score
from multigrid_rl.search.plans import Outcome, Plan, Spec
from multigrid_rl.search.trial import ENDED, INTERRUPTED, Order, run_trial

#: Seconds that a trial gets to end its iteration and to write its checkpoint and verdict when it is stopped.
PATIENCE_S = 60
_KEY = "order"


@dataclass
class Search:
    """What Tune's objects share.

    Attributes:
        plan: proposes trials.
        known: outcomes of an interrupted search, by trial; they are not run again.
        begun: all trials that were ever started, by id.
        order: from a trial to what its process is told.
        record: called with every new outcome.
        interrupted: asked again and again; true ends the search.
        stop_file: where trials look whether they are to end.
        limit: trials at a time; 0: as many as CPUs.
        scheduler: of Tune; ``None``: nothing is stopped early.
        running: trials that have not ended, and when they began.
        broken: why the folder could not be written, if it could not.
    """

    plan: Plan
    known: dict[str, Outcome]
    begun: dict[str, Spec]
    order: Callable[[Spec], Order]
    record: Callable[[Outcome], None]
    interrupted: Callable[[], bool]
    stop_file: Path
    limit: int = 0
    scheduler: TrialScheduler | None = None
    running: dict[str, tuple[Spec, float]] = field(default_factory=dict)
    broken: OSError | None = None
    _ends_at: float | None = None

    @property
    def ending(self) -> bool:
        """Whether nothing more is to be started."""
        return self.broken is not None or self.interrupted()

    def over(self) -> bool:
        """Whether the search is to end now: it was to, and its trials have written their checkpoints, or had time to.

        Trials are told by a file. Tune would give them ten seconds from a moment of its own choosing.
        """
        if not self.ending:
            return False
        if self._ends_at is None:
            self._ends_at = time.monotonic() + PATIENCE_S
            try:
                self.stop_file.touch()
            except OSError as error:
                self.broken = error
        return not self.running or time.monotonic() > self._ends_at

    def next_spec(self) -> Spec | None:
        """The next trial that is to be run, if there is one now.

        Raises:
            ConfigError: a recorded trial is none that the plan draws.
        """
        while (spec := self.plan.propose()) is not None:
            known = self.known.get(spec.id)
            recorded = known.spec if known else self.begun.get(spec.id, spec)
            if recorded != spec:
                raise ConfigError(
                    f"trial {spec.id}: recorded with other values than this version draws; allowed is to search anew"
                )
            if known is None:
                return spec
            self.plan.complete(known)
        return None

    def complete(self, trial: str, ended: Callable[[Spec, float], Outcome]) -> None:
        """Hand on what came of a trial."""
        spec, began = self.running.pop(trial)
        outcome = ended(spec, time.monotonic() - began)
        try:
            self.record(outcome)
        except OSError as error:  # raised here, it would only confuse Tune, which is in the middle of its own work
            self.broken = self.broken or error
            return
        self.plan.complete(outcome)


class _NotKept:
    """Tune writes its objects down to go on from them; a search goes on from its own records."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Source(_NotKept, Searcher):
    """What Tune asks for configurations."""

    def __init__(self, search: Search) -> None:
        super().__init__(metric=METRIC, mode="max")
        self._search = search
        self._limit = search.limit or int(ray.cluster_resources().get("CPU", 1))

    def suggest(self, trial_id: str) -> Any:  # noqa: ARG002
        if self._search.ending:
            return Searcher.FINISHED
        if len(self._search.running) >= self._limit:
            return None
        spec = self._search.next_spec()
        if spec is None:
            return Searcher.FINISHED if self._search.plan.finished else None
        try:
            order = self._search.order(spec)
        except OSError as error:
            self._search.broken = error
            return Searcher.FINISHED
        self._search.running[spec.id] = (spec, time.monotonic())
        return {_KEY: order}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Outcomes come by :class:`_Ears`, which hears reasons, too."""

    def save_to_dir(self, checkpoint_dir: str, session_str: str) -> None:
        """Nothing: a search goes on from its own records."""


class _Ears(_NotKept, tune.Callback):
    """Hears from Tune what became of trials."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        result = trial.last_result or {}
        if result.get(ENDED) == INTERRUPTED:  # it goes on with the search
            self._search.running.pop(trial.config[_KEY].id)
            return

        def ended(spec: Spec, seconds: float) -> Outcome:
            if METRIC not in result:
                return Outcome(spec, "failed", None, 0, seconds, "it ended without a word")
            score = Score(result["env_steps_to_held"], result["margin"])
            return Outcome(spec, "finished" if ENDED in result else "stopped", score, result[TIME], seconds)

        self._search.complete(trial.config[_KEY].id, ended)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        played = (trial.last_result or {}).get(TIME, 0)
        reason = why_failed(trial)
        self._search.complete(
            trial.config[_KEY].id, lambda spec, seconds: Outcome(spec, "failed", None, played, seconds, reason)
        )


class _Stopper(_NotKept, tune.Stopper):
    """Ends the experiment when it is interrupted, or cannot write."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        return False

    def stop_all(self) -> bool:
        return self._search.over()


class Trainable(FunctionTrainable):
    """A trial that is given time to write its checkpoint and verdict before its process ends."""

    _name = "trial"

    def _trainable_func(self, config: dict[str, Any]) -> None:
        last = run_trial(config[_KEY])
        if last is not None:
            tune.report({**last, "done": True})

    def cleanup(self) -> None:
        """Wait for the run's last words, then clean up."""
        session = get_session()
        if session.training_started and session.training_thread.is_alive():
            session.finish(timeout=PATIENCE_S)
        super().cleanup()


def why_failed(trial: Any) -> str:
    """Why a trial failed, in one line."""
    # Tune's own reader looks where files arrive later.
    file = Path(trial.pickled_error_file) if trial.pickled_error_file else None
    if file is None or not file.exists():
        return "it ended without a word"
    error: BaseException = cloudpickle.loads(file.read_bytes())
    return reason_of(error)


def run_on_tune(search: Search) -> None:
    """Run a plan's trials until it is finished or interrupted. A Ray session that was started here is ended.

    Raises:
        OSError: the search's folder cannot be written.
    """
    with _quiet_tune(), ray_session(), tempfile.TemporaryDirectory(prefix="multigrid-rl-search-") as scratch:
        tuner = tune.Tuner(
            tune.with_resources(Trainable, {"cpu": 1}),
            tune_config=tune.TuneConfig(
                search_alg=_Source(search),
                scheduler=search.scheduler or FIFOScheduler(),
                num_samples=-1,
                # A process that has loaded everything plays the next trial, too.
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.config[_KEY].id,
            ),
            run_config=tune.RunConfig(
                name="search",
                storage_path=str(Path(scratch).resolve()),
                stop=_Stopper(search),
                callbacks=[_Ears(search)],
                verbose=0,
            ),
        )
        tuner.fit()
    if search.broken is not None:
        raise search.broken


#: Tune writes tables, TensorBoard events and advice of its own; a search tells everything itself. Ctrl-C is the verb's.
_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": str(PATIENCE_S),
    "RAY_AIR_NEW_OUTPUT": "0",
}


@contextmanager
def _quiet_tune() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _TUNE}
    os.environ.update(_TUNE)
    # A failed trial is one line of the search's own; Tune would print it as pages.
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
