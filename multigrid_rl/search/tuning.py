"""A search on Ray Tune, from its folder to its result: Tune runs the trials that the plan and Optuna propose."""

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
from ray.tune.search import Searcher

from multigrid_rl.rllib.session import ray_session, reason_of
from multigrid_rl.search.plans import Outcome, Score, Status, TrialSpec, plan_of
from multigrid_rl.search.search_folder import STOP, SearchFolder, run_path
from multigrid_rl.search.search_results import SearchResult, result_of, write_result
from multigrid_rl.search.search_settings import AshaSettings
from multigrid_rl.search.trial import ENDED, INTERRUPTED, METRIC, STOPPED, TIME, TRIAL, TrialConfig, run_trial
from multigrid_rl.tables import PREFLIGHTS, find
from multigrid_rl.training.stages import stages_of

#: Seconds that a trial gets to end its iteration and to write its checkpoint and verdict when it is stopped.
PATIENCE_S = 60
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
        study = folder.study
        before = study.user_attrs.get("seconds", 0.0)
        run = SearchRun(folder, on_outcome, interrupted)
        try:
            run_on_tune(run)
        finally:
            result = result_of(folder, complete=run.round is None, seconds=before + time.monotonic() - began)
            study.set_user_attr("seconds", result.seconds)
            write_result(folder, result)
    if run.broken is not None:
        raise run.broken
    return result


@contextmanager
def on_cluster(folder: SearchFolder, address: str) -> Iterator[list[str]]:
    """Connect to a cluster all of whose nodes can run trials of a search; yields lines to print.

    Raises ``ConfigError``: it does not answer, or a node cannot take part.
    """
    config = folder.request.space.config
    cluster = config.cluster.model_copy(update={"address": address})
    with ray_session(config.model_copy(update={"cluster": cluster})):
        yield find(PREFLIGHTS, "nodes")(folder.path, stages_of(config), trials=True)


class SearchRun(tune.Callback, tune.Stopper):
    """A running search: says which trial is next, takes outcomes from Tune; ends on request or on an error.

    Raises ``ConfigError``: what is recorded does not fit the plan.
    """

    def __init__(self, folder: SearchFolder, on_outcome: OnOutcome, interrupted: Callable[[], bool]) -> None:
        self.folder = folder
        self._on_outcome, self._interrupted = on_outcome, interrupted
        request = folder.request
        self._in_order = not isinstance(request.settings, AshaSettings)
        self._outcomes = {outcome.spec.id: outcome for outcome in folder.outcomes()}
        self.running: dict[str, tuple[TrialSpec, float]] = {}  # trials that have not ended, and when they began
        self.broken: OSError | None = None  # why the folder could not be written
        self._ends_at: float | None = None
        self._rounds = plan_of(request.settings, request.space, request.seed)
        #: Trials of the round that the plan is at; ``None``: it is carried out.
        self.round = next(self._rounds, None)
        self._advance()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune writes its objects down to go on from them; a search goes on from its own record."""
        return {}

    def _advance(self) -> None:
        """Go on to the first round of which not all trials have ended."""
        while self.round is not None and all(spec.id in self._outcomes for spec in self.round):
            ended = [self._outcomes[self.folder.begin(spec).id] for spec in self.round]
            try:
                self.round = self._rounds.send(ended)
            except StopIteration:
                self.round = None

    @property
    def ending(self) -> bool:
        """Whether nothing more is to be started."""
        return self.broken is not None or self._interrupted()

    def stop_all(self) -> bool:
        """Return whether to end now: the search is to end, and its trials wrote their checkpoints or had time to.

        Trials look for a file: Tune's own way to stop one does not wait for what it still writes.
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

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        """Ask a trial that lags behind to end by itself; it plays on only once it has been asked."""
        name = result[TRIAL]
        try:
            if ENDED not in result and self.folder.lags(name, result[TIME], result[METRIC]):
                (run_path(self.folder.path, name) / STOP).touch()
        except OSError as error:
            self.broken = self.broken or error
        return False

    def start_next(self) -> TrialConfig | None:
        """Record the beginning of the next trial that is to be run, if there is one now. Raises ``ConfigError``."""
        known = self._outcomes.keys() | self.running.keys()
        waiting = [] if self.ending else [spec for spec in self.round or () if spec.id not in known]
        if not waiting:
            return None
        try:
            # What a round tries hangs on earlier rounds, and not on which of its own trials ended first: all its values
            # are drawn at once. Those of asha, which has one round, hang on what has ended.
            spec, *_ = [self.folder.begin(each) for each in (waiting if self._in_order else waiting[:1])]
        except OSError as error:
            self.broken = error
            return None
        self.running[spec.id] = (spec, time.monotonic())
        request, place = self.folder.request, str(self.folder.path.resolve())
        overrides = tuple(request.space.overrides(spec.params or {}))
        return TrialConfig(spec, overrides, request.settings.report_every, place, str(Path.cwd()))

    def complete(self, trial: str, status: Status, score: Score | None = None, **rest: Any) -> None:
        """Record the outcome of a trial and pass it on; ``rest``: further values of the outcome."""
        spec, began = self.running.pop(trial)
        outcome = Outcome(spec, status, score, seconds=time.monotonic() - began, **rest)
        try:
            self.folder.end(outcome)
            self._on_outcome(outcome)
        except OSError as error:
            self.broken = self.broken or error
        else:
            self._outcomes[trial] = outcome
            self._advance()

    def take(self, trial: str, report: dict[str, Any]) -> None:
        """Take a trial's last report."""
        ended = report.get(ENDED, INTERRUPTED)  # Tune ended it, as it did not end in time
        if ended == INTERRUPTED:  # it goes on with the search
            self.running.pop(trial)
        else:
            score = Score(report["env_steps_to_held"], report["margin"])
            self.complete(trial, "stopped" if ended == STOPPED else "finished", score, env_steps=report[TIME])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Take from Tune what came of a trial that ended without an error."""
        self.take(trial.config[TRIAL].spec.id, trial.last_result or {})

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Take from Tune that a trial failed."""
        env_steps = (trial.last_result or {}).get(TIME, 0)
        self.complete(trial.config[TRIAL].spec.id, "failed", env_steps=env_steps, reason=why_failed(trial))


class _Proposals(Searcher):
    """Hands the trials of a search to Tune."""

    def __init__(self, run: SearchRun) -> None:
        super().__init__(metric=METRIC, mode="max")
        self._run = run

    def suggest(self, trial_id: str) -> Any:  # noqa: ARG002
        trial = self._run.start_next()
        if trial is not None:
            return {TRIAL: trial}
        return Searcher.FINISHED if self._run.ending or self._run.round is None else None

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Do nothing: outcomes come by :class:`SearchRun`, which gets reasons, too."""

    def save_to_dir(self, checkpoint_dir: str, session_str: str) -> None:
        """Do nothing: a search goes on from its own record."""


def why_failed(trial: Any) -> str:
    """Return why a trial failed, in one line."""
    # Tune's own reader looks where files arrive later.
    file = Path(trial.pickled_error_file) if trial.pickled_error_file else None
    if file is None or not file.exists():
        return "its process ended without a reason"
    error: BaseException = cloudpickle.loads(file.read_bytes())
    return reason_of(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Tune within the block; an experiment of the caller's own, after it, reports as usual."""
    before, log = {name: os.environ.get(name) for name in _QUIET}, logging.getLogger("ray.tune")
    level = log.level
    os.environ.update(_QUIET)
    # A failed trial is one line of the search's own; Tune would print it as pages.
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def run_on_tune(run: SearchRun) -> None:
    """Run a plan's trials until it is finished or interrupted. A Ray session that was started here is ended."""
    with _quiet(), ray_session(), tempfile.TemporaryDirectory(prefix="multigrid-rl-search-") as scratch:
        limit = run.folder.request.settings.max_concurrent or int(ray.cluster_resources().get("CPU", 1))
        tune.Tuner(
            tune.with_resources(lambda config: run_trial(config[TRIAL], tune.report), {"cpu": 1}),
            tune_config=tune.TuneConfig(
                search_alg=_Proposals(run),
                num_samples=-1,
                max_concurrent_trials=limit,
                # A process that has loaded everything plays the next trial, too.
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.config[TRIAL].spec.id,
            ),
            run_config=tune.RunConfig(
                name="search", storage_path=str(Path(scratch).resolve()), stop=run, callbacks=[run], verbose=0
            ),
        ).fit()
