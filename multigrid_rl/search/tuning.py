"""A search on Ray Tune, from its folder to its result: Tune starts its trials and stops those that lag behind."""

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune
from ray.train._internal.session import get_session
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search import Searcher
from ray.tune.trainable.function_trainable import FunctionTrainable

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.ops.cluster import preflight
from multigrid_rl.rllib.session import ray_session, reason_of
from multigrid_rl.search.folder import STOP, SearchFolder
from multigrid_rl.search.outcomes import Outcome, Score, Status, TrialSpec
from multigrid_rl.search.plans import plan_of
from multigrid_rl.search.results import RESULTS, SearchResult, result_of, write_result
from multigrid_rl.search.settings import AshaSettings
from multigrid_rl.search.trial import ENDED, INTERRUPTED, METRIC, TIME, TrialConfig, run_trial
from multigrid_rl.training.stages import stages_of

#: Seconds that a trial gets to end its iteration and to write its checkpoint and verdict when it is stopped.
PATIENCE_S = 60
_KEY = "trial"
#: Switches Tune's tables, TensorBoard events and advice off; a search prints its own. The command handles Ctrl-C.
_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": str(PATIENCE_S),
    "RAY_AIR_NEW_OUTPUT": "0",
}
OnOutcome = Callable[[Outcome], None]


def search(folder: SearchFolder, on_outcome: OnOutcome, interrupted: Callable[[], bool]) -> SearchResult:
    """Carry out a search, or go on with one, and write its result; after an interruption, the result so far.

    Args:
        folder: of the search.
        on_outcome: called with every new outcome.
        interrupted: asked again and again; true ends the search.

    Raises:
        ConfigError: another process searches in this folder, or its records do not fit its plan.
        OSError: the folder cannot be written.
    """
    with folder.held():
        began = time.monotonic()
        # An interrupted search has written how long it took so far; a killed one has not: that session is not counted.
        path = folder.path / RESULTS
        before = float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.exists() else 0.0
        run = SearchRun(folder, on_outcome, interrupted)
        try:
            run_on_tune(run)
        finally:
            result = result_of(folder, complete=run.plan.finished, seconds=before + time.monotonic() - began)
            write_result(folder, result)
    return result


@contextmanager
def on_cluster(folder: SearchFolder, address: str) -> Iterator[list[str]]:
    """Connect to a cluster all of whose nodes can run trials of a search; yields lines to print.

    Raises ``ConfigError``: it does not answer, or a node cannot take part.
    """
    config = folder.request.space.config
    cluster = config.cluster.model_copy(update={"address": address})
    with ray_session(config.model_copy(update={"cluster": cluster})):
        yield preflight(folder.path, stages_of(config), trials=True)


class _Unpicklable:
    """Tune writes its objects down to go on from them; a search goes on from its own records."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class SearchRun(_Unpicklable, tune.Callback, tune.Stopper):
    """A running search: takes the outcomes of trials from Tune; ends the experiment on request or on an error."""

    def __init__(self, folder: SearchFolder, on_outcome: OnOutcome, interrupted: Callable[[], bool]) -> None:
        self.folder = folder
        self._on_outcome, self._interrupted = on_outcome, interrupted
        self._recorded = {outcome.spec.id: outcome for outcome in folder.outcomes()}
        self._begun = {spec.id: spec for spec in folder.begun()}
        unfinished = [spec for name, spec in self._begun.items() if name not in self._recorded]
        request, known = folder.request, list(self._recorded.values())
        self.plan = plan_of(request.settings, request.space, request.seed, known, unfinished)
        self.running: dict[str, tuple[TrialSpec, float]] = {}  # trials that have not ended, and when they began
        self.broken: OSError | None = None  # why the folder could not be written
        self._ends_at: float | None = None

    @property
    def ending(self) -> bool:
        """Whether nothing more is to be started."""
        return self.broken is not None or self._interrupted()

    def stop_all(self) -> bool:
        """Return whether to end now: the search is to end, and its trials wrote their checkpoints or had time to.

        Trials look for a file. Tune would give them ten seconds counted from its own start.
        """
        if not self.ending:
            return False
        if self._ends_at is None:
            self._ends_at = time.monotonic() + PATIENCE_S
            try:
                (self.folder.path / STOP).touch()
            except OSError as error:
                self.broken = error
        return not self.running or time.monotonic() > self._ends_at

    def start_next(self) -> TrialConfig | None:
        """Record the beginning of the next trial that is to be run, if there is one now. Raises ``ConfigError``."""
        spec = self._next_spec()
        if spec is None:
            return None
        try:
            if spec.id not in self._begun:
                self.folder.begin(spec)
        except OSError as error:  # not raised here, in the middle of a callback of Tune
            self.broken = error
            return None
        self.running[spec.id] = (spec, time.monotonic())
        request = self.folder.request
        overrides, every = tuple(request.space.overrides(spec.point)), request.settings.report_every
        return TrialConfig(spec, overrides, every, str(self.folder.path.resolve()), str(Path.cwd()))

    def _next_spec(self) -> TrialSpec | None:
        while (spec := self.plan.propose()) is not None:
            known = self._recorded.get(spec.id)
            if spec != (known.spec if known else self._begun.get(spec.id, spec)):
                raise ConfigError(
                    f"trial {spec.id}: expected the values that this version draws, got a record of others"
                )
            if known is None:
                return spec
            self.plan.complete(known)
        return None

    def complete(self, trial: str, status: Status, score: Score | None = None, **rest: Any) -> None:
        """Record the outcome of a trial and pass it on; ``rest``: further values of the outcome."""
        spec, began = self.running.pop(trial)
        outcome = Outcome(spec, status, score, seconds=time.monotonic() - began, **rest)
        try:
            self.folder.record(outcome)
            self._on_outcome(outcome)
        except OSError as error:
            self.broken = self.broken or error
        else:
            self.plan.complete(outcome)

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Take from Tune what came of a trial that ended without an error."""
        name, report = trial.config[_KEY].spec.id, trial.last_result or {}
        if report.get(ENDED) == INTERRUPTED:  # it goes on with the search
            self.running.pop(name)
        elif METRIC not in report:
            self.complete(name, "failed", reason=why_failed(trial))
        else:
            score = Score(report["env_steps_to_held"], report["margin"])
            self.complete(name, "finished" if ENDED in report else "stopped", score, env_steps=report[TIME])

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Take from Tune that a trial failed."""
        env_steps = (trial.last_result or {}).get(TIME, 0)
        self.complete(trial.config[_KEY].spec.id, "failed", env_steps=env_steps, reason=why_failed(trial))

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        """Stop no single trial."""
        return False


class _PlanSearcher(_Unpicklable, Searcher):
    """Hands the plan's trials to Tune."""

    def __init__(self, run: SearchRun) -> None:
        super().__init__(metric=METRIC, mode="max")
        self._run = run
        self._limit = run.folder.request.settings.max_concurrent or int(ray.cluster_resources().get("CPU", 1))

    def suggest(self, trial_id: str) -> Any:  # noqa: ARG002
        if not self._run.ending:
            if len(self._run.running) >= self._limit:
                return None
            trial = self._run.start_next()
            if trial is not None:
                return {_KEY: trial}
        return Searcher.FINISHED if self._run.ending or self._run.plan.finished else None

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Do nothing: outcomes come by :class:`SearchRun`, which gets reasons, too."""

    def save_to_dir(self, checkpoint_dir: str, session_str: str) -> None:
        """Do nothing: a search goes on from its own records."""


def why_failed(trial: Any) -> str:
    """Return why a trial failed, in one line."""
    # Tune's own reader looks where files arrive later.
    file = Path(trial.pickled_error_file) if trial.pickled_error_file else None
    if file is None or not file.exists():
        return "it ended without a word"
    error: BaseException = cloudpickle.loads(file.read_bytes())
    return reason_of(error)


class Trainable(FunctionTrainable):
    """A trial that is given time to write its checkpoint and verdict before its process ends."""

    _name = "trial"

    def _trainable_func(self, config: dict[str, Any]) -> None:
        last = run_trial(config[_KEY])
        if last is not None:
            tune.report({**last, "done": True})

    def cleanup(self) -> None:
        """Wait for the run's last report, then clean up."""
        session = get_session()
        if session.training_started and session.training_thread.is_alive():
            session.finish(timeout=PATIENCE_S)
        super().cleanup()


def run_on_tune(run: SearchRun) -> None:
    """Run a plan's trials until it is finished or interrupted. A Ray session that was started here is ended.

    Raises ``OSError``: the search's folder cannot be written.
    """
    settings = run.folder.request.settings
    scheduler = None  # nothing is stopped early
    if isinstance(settings, AshaSettings):
        scheduler = AsyncHyperBandScheduler(
            time_attr=TIME,
            metric=METRIC,
            mode="max",
            max_t=settings.until,
            grace_period=settings.grace,
            reduction_factor=settings.reduction,
        )
    os.environ.update(_QUIET)
    # A failed trial is one line of the search's own; Tune would print it as pages.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with ray_session(), tempfile.TemporaryDirectory(prefix="multigrid-rl-search-") as scratch:
        tuner = tune.Tuner(
            tune.with_resources(Trainable, {"cpu": 1}),
            tune_config=tune.TuneConfig(
                search_alg=_PlanSearcher(run),
                scheduler=scheduler,
                num_samples=-1,
                # A process that has loaded everything plays the next trial, too.
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.config[_KEY].spec.id,
            ),
            run_config=tune.RunConfig(
                name="search",
                storage_path=str(Path(scratch).resolve()),
                stop=run,
                callbacks=[run],
                verbose=0,
            ),
        )
        tuner.fit()
    if run.broken is not None:
        raise run.broken
