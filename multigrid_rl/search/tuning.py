"""A search on Ray Tune, from its folder to its result: Tune runs the trials that the plan and Optuna propose.

A trial is the training loop in a separate process, with its own run folder.
"""

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from multigrid_rl.config.compose import compose
from multigrid_rl.cores import available_cpus
from multigrid_rl.gates import GateKeeper
from multigrid_rl.rllib.algorithm import built_algorithm
from multigrid_rl.rllib.session import RayError, ray_session, reason_of
from multigrid_rl.runs.checkpoints import Checkpoint, newest_good
from multigrid_rl.runs.folder import LOCK, RunFolder, lock_file
from multigrid_rl.runs.reader import opponent_hashes, read_verdict
from multigrid_rl.search.plans import AshaSettings, Outcome, Status, TrialSpec, plan_of, score_of
from multigrid_rl.search.search_folder import STOP, SearchFolder
from multigrid_rl.search.search_results import SearchResult, closing_lines, outcome_line, result_of, write_result
from multigrid_rl.tables import PREFLIGHTS, find
from multigrid_rl.text import ConfigError, one_line, program, reason
from multigrid_rl.training.loop import train
from multigrid_rl.training.screen import interruption, live_console
from multigrid_rl.training.stages import seated_players, stages_of
from multigrid_rl.types import RunError

#: Seconds for a stopped trial to end its iteration and to write its checkpoint and verdict.
PATIENCE_S = 60
#: Seconds for trials of a killed search to release their runs.
RELEASE_S = 30.0
#: Environment variables that switch off Tune's tables, TensorBoard events, advice and handling of Ctrl-C.
_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": str(PATIENCE_S),
    "RAY_AIR_NEW_OUTPUT": "0",
}


def search(
    folder: SearchFolder, on_outcome: Callable[[Outcome], None], interrupted: Callable[[], bool]
) -> SearchResult:
    """Run or resume a search, and write its result; after an interruption, the result so far.

    Args:
        on_outcome: called with every new outcome.
        interrupted: polled; true ends the search.

    Raises:
        ConfigError: another process searches in this folder, or its records do not fit its plan.
        OSError: the folder cannot be written.
    """
    with folder.lock():
        began = time.monotonic()
        # An interrupted search has written its seconds so far; the session of a killed one is not counted.
        before = folder.study.user_attrs.get("seconds", 0.0)
        run = SearchRun(folder, on_outcome, interrupted)
        try:
            run_on_tune(run)
        finally:
            result = result_of(folder, complete=run.round is None, seconds=before + time.monotonic() - began)
            folder.study.set_user_attr("seconds", result.seconds)
            write_result(folder, result)
    if run.write_error is not None:
        raise run.write_error
    return result


def run_search(folder: SearchFolder, address: str | None) -> tuple[SearchResult, bool]:
    """Run a search and print its progress; returns the result, and whether it was interrupted.

    Raises:
        ConfigError: the folder is in use or damaged, the cluster does not answer, or a node of it cannot take part.
        RunError: the folder cannot be written, or Ray failed; finished trials are recorded.
    """
    screen, request, space = live_console(), folder.request, folder.request.space
    try:
        with ExitStack() as stack:
            # Ray before the signal handlers, since it installs one.
            lines: list[str] = []
            if address:
                cluster = space.config.cluster.model_copy(update={"address": address})
                stack.enter_context(ray_session(space.config.model_copy(update={"cluster": cluster})))
                lines = find(PREFLIGHTS, "nodes")(folder.path, stages_of(space.config), trials=True)
            stack.enter_context(ray_session())
            cpus = "as many as the cluster has CPUs" if address else available_cpus()
            head = [
                f"multigrid-rl search {request.name} on {space.config.scenario.name}: {' '.join(space.base)}",
                f"space:    {space.name}: {', '.join(variable.name for variable in space.variables)}",
                f"trials:   {request.settings.max_concurrent or cpus} at a time, one core each; seed {request.seed}",
                f"folder:   {folder.path}",
                *([f"resumes:  {len(known)} trials have ended already"] if (known := folder.outcomes()) else []),
            ]
            for line in [*head, *lines]:
                screen.print(line, markup=False)
            interrupted = stack.enter_context(interruption(screen))
            result = search(folder, lambda o: screen.print(outcome_line(folder, o), markup=False), interrupted)
            stopped = interrupted() and not result.complete
    except (RayError, OSError, RunError) as error:
        # RayError before OSError: a timeout of Ray is both.
        message = f"Ray: {reason_of(error)}" if isinstance(error, RayError) else str(error)
        if isinstance(error, OSError) and not isinstance(error, RayError):
            message = reason(error, folder.path)
        failure = RunError(message)
        failure.hint = f"trials that have ended stay; go on: {program()} search --resume {quote(str(folder.path))}"
        raise failure from error
    for line in closing_lines(folder, result):
        screen.print(line, markup=False)
    return result, stopped


class SearchRun(Searcher, tune.Stopper):
    """A running search: gives Tune the next trial, reads its outcome; ends on request or on an error.

    Raises ``ConfigError``: the record does not fit the plan.
    """

    def __init__(
        self, folder: SearchFolder, on_outcome: Callable[[Outcome], None], interrupted: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.folder = folder
        self._on_outcome, self._interrupted = on_outcome, interrupted
        self._outcomes = {outcome.spec.id: outcome for outcome in folder.outcomes()}
        self.running: dict[str, TrialSpec] = {}  # by Tune's id
        self.write_error: OSError | None = None  # why the folder could not be written
        self._ends_at: float | None = None
        self._rounds = plan_of(folder.request.settings, folder.request.space, folder.request.seed)
        #: Trials of the current round; ``None``: the plan is finished.
        self.round = next(self._rounds, None)
        self._advance()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune saves its objects to resume from them; a search resumes from its study."""
        return {}

    def save_to_dir(self, checkpoint_dir: str, session_str: str) -> None:
        """Do nothing, for the same reason."""

    def _advance(self) -> None:
        """Advance to the first round with trials that have not ended."""
        while self.round is not None and all(spec.id in self._outcomes for spec in self.round):
            ended = [self._outcomes[self.folder.begin(spec).id] for spec in self.round]
            try:
                self.round = self._rounds.send(ended)
            except StopIteration:
                self.round = None

    @property
    def is_ending(self) -> bool:
        """Whether no further trial may start."""
        return self.write_error is not None or self._interrupted()

    def stop_all(self) -> bool:
        """Return whether to end now: the search is ending, and all trials ended or ``PATIENCE_S`` is over.

        A file asks trials to stop: Tune's way to stop a trial does not wait for its checkpoint.
        """
        if not self.is_ending:
            return False
        if self._ends_at is None:
            self._ends_at = time.monotonic() + PATIENCE_S
            try:
                (self.folder.path / STOP).touch()
            except OSError as error:
                self.write_error = error
        return not self.running or time.monotonic() > self._ends_at

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        """Return false: a trial ends by itself."""
        return False

    def suggest(self, trial_id: str) -> Any:
        """Record the start of the next waiting trial and return it, if there is one. Raises ``ConfigError``."""
        known = self._outcomes.keys() | {spec.id for spec in self.running.values()}
        waiting = [] if self.is_ending else [spec for spec in self.round or () if spec.id not in known]
        # All values of a round are drawn at once, so they depend on earlier rounds, and not on the order in which its
        # trials end. In asha, which has one round, values depend on the trials that ended.
        at_once = 1 if isinstance(self.folder.request.settings, AshaSettings) else len(waiting)
        try:
            started = [self.folder.begin(spec) for spec in waiting[:at_once]]
        except OSError as error:
            self.write_error, started = error, []
        if not started:
            return self.FINISHED if self.is_ending or self.round is None else None
        self.running[trial_id] = started[0]
        return {"spec": started[0]}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: ARG002
        """Read a trial's recorded outcome, report it, and advance; an interrupted trial is resumed with the search."""
        spec = self.running.pop(trial_id)
        try:
            outcome = next((row for row in self.folder.outcomes() if row.spec.id == spec.id), None)
            if outcome is None and error:
                outcome = Outcome(spec, "failed", None, reason="its process ended without a reason")
                self.folder.end(outcome)
            if outcome is not None:
                self._on_outcome(outcome)
                self._outcomes[spec.id] = outcome
                self._advance()
        except OSError as failure:
            self.write_error = self.write_error or failure


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Tune within the block; the caller's other experiments report as usual."""
    log, before = logging.getLogger("ray.tune"), {k: value for k, value in os.environ.items() if k in _QUIET}
    level = log.level
    os.environ.update(_QUIET)
    # The search prints a failed trial in one line; Tune would print pages.
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
        for name in _QUIET:
            os.environ.pop(name)
        os.environ.update(before)


def run_on_tune(run: SearchRun) -> None:
    """Run a plan's trials until it is finished or interrupted. A Ray session that starts here is ended."""
    # Overrides may name modules in this working folder; workers get a copy of the folder without an open study.
    working, folder = Path.cwd(), SearchFolder(run.folder.path.resolve(), run.folder.request, run.folder.provenance)

    def play(config: dict[str, Any]) -> None:
        os.chdir(working)
        run_trial(folder, config["spec"])
        tune.report({"ended": True})  # Tune prints a line for a trial without reports

    with _quiet(), ray_session(), tempfile.TemporaryDirectory(prefix="multigrid-rl-search-") as scratch:
        limit = run.folder.request.settings.max_concurrent or int(ray.cluster_resources().get("CPU", 1))
        tune.Tuner(
            tune.with_resources(play, {"cpu": 1}),
            tune_config=tune.TuneConfig(
                search_alg=run,
                num_samples=-1,
                max_concurrent_trials=limit,
                # A process runs several trials, without importing everything again.
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.config["spec"].id,
            ),
            run_config=tune.RunConfig(name="search", storage_path=str(Path(scratch).resolve()), stop=run, verbose=0),
        ).fit()


def run_trial(folder: SearchFolder, spec: TrialSpec) -> None:
    """Train until the trial ends or is pruned, and record its outcome; without one if the search ends before.

    Raises the errors of training, after recording them.
    """
    began = time.monotonic()
    try:
        verdict, lags = _play(folder, spec)
    except Exception as error:  # user code may raise anything; Tune gets the error, too
        message = f"{type(error).__name__}: {one_line(error)}"
        folder.end(Outcome(spec, "failed", None, seconds=time.monotonic() - began, reason=message))
        raise
    if lags or verdict["ended"] != "interrupted":
        status: Status = "stopped" if lags else "finished"
        folder.end(Outcome(spec, status, score_of(verdict), verdict["env_steps"], verdict["seconds"]))  # all sessions'


def _play(folder: SearchFolder, spec: TrialSpec) -> tuple[dict[str, Any], bool]:
    """Run a trial, or resume it from an earlier session; returns its verdict, and whether it is pruned."""
    own = f"seed={spec.seed}", f"train.until={spec.until}", "train.stop_when_held=true", "train.torch_threads=1"
    command = [*folder.request.space.overrides(spec.params or {}), *own, "train.threads=1", "cluster.num_env_runners=0"]
    path = folder.run_path(spec.id)
    # Ray replaced the arguments, and a run's provenance records the command that repeats it.
    sys.argv = ["multigrid-rl", "train", *command]
    with suppress(ConfigError):
        verdict = read_verdict(path)
        if verdict["ended"] != "interrupted":  # the run was complete when the search was killed
            return verdict, False
    every = next_report = folder.request.settings.report_every
    lags = False

    def observe(row: dict[str, Any], keeper: GateKeeper) -> None:
        nonlocal next_report, lags
        steps = row["env_steps"]
        # The verdict reports the last steps of a run.
        if next_report <= steps < spec.until and not keeper.held:
            next_report = steps - steps % every + every
            lags = folder.report_progress(spec.id, steps, score_of(keeper.verdict()).number)

    config = compose(command)
    resumed_from = start = _checkpoint_of(path)
    if spec.warm_start and resumed_from is None:
        start = newest_good(folder.run_path(str(spec.origin)))
    stages = stages_of(config, opponent_hashes(path) if resumed_from else None)
    if resumed_from is not None:
        run = RunFolder.reopen(path, config, resumed_from)
    else:
        run = RunFolder(path, config, seated_players(stages))
    stop = folder.path / STOP
    try:
        checkpoint_path = start.path if start else None
        with built_algorithm(config, stages, checkpoint_path) as algorithm:
            verdict = train(algorithm, config, run, observe, lambda: lags or stop.exists(), checkpoint_path)
    finally:
        run.close()
    return verdict, lags


def _checkpoint_of(run: Path) -> Checkpoint | None:
    """Return the checkpoint of a run of an earlier session. Raises ``ConfigError``: another process holds the run."""
    if not run.exists():
        return None
    deadline = time.monotonic() + RELEASE_S
    while True:
        try:
            lock_file(run / LOCK).close()
            break
        except ConfigError:  # a trial of a killed search still runs
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    with suppress(ConfigError):
        return newest_good(run)
    shutil.rmtree(run)  # killed before its first checkpoint
    return None
