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
from multigrid_rl.runs.provenance import facts_of
from multigrid_rl.runs.reader import opponent_hashes, read_verdict
from multigrid_rl.search.plans import AshaSettings, Outcome, Status, TrialSpec, plan_of, score_of
from multigrid_rl.search.search_folder import STOP, SearchFolder
from multigrid_rl.search.search_results import SearchResult, closing, outcome_line, result_of, write_result
from multigrid_rl.tables import PREFLIGHTS, find
from multigrid_rl.text import ConfigError, one_line, program, reason
from multigrid_rl.training.loop import train
from multigrid_rl.training.screen import interruption, live_console
from multigrid_rl.training.stages import seated_players, stages_of
from multigrid_rl.types import RunError

#: Seconds that a trial gets to end its iteration and to write its checkpoint and verdict when it is stopped.
PATIENCE_S = 60
#: Seconds that what is left of a killed search has to let go of a run.
LEFT_S = 30.0
#: How a run ends by itself.
ENDS = ("held", "until")
#: Switches Tune's tables, TensorBoard events and advice off; a search prints its own. The command handles Ctrl-C.
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
    """Carry out a search, or go on with one, and write its result; after an interruption, the result so far.

    Args:
        on_outcome: called with every new outcome.
        interrupted: asked again and again; true ends the search.

    Raises:
        ConfigError: another process searches in this folder, or its records do not fit its plan.
        OSError: the folder cannot be written.
    """
    with folder.held():
        began = time.monotonic()
        # An interrupted search has written how long it took so far; a killed one has not: that session is not counted.
        before = folder.study.user_attrs.get("seconds", 0.0)
        run = SearchRun(folder, on_outcome, interrupted)
        try:
            run_on_tune(run)
        finally:
            result = result_of(folder, complete=run.round is None, seconds=before + time.monotonic() - began)
            folder.study.set_user_attr("seconds", result.seconds)
            write_result(folder, result)
    if run.broken is not None:
        raise run.broken
    return result


def run_search(folder: SearchFolder, address: str | None) -> tuple[SearchResult, bool]:
    """Search and print; returns the result, and whether it was interrupted.

    Raises:
        ConfigError: the folder is in use, or damaged, or the cluster cannot search in it.
        RunError: the folder cannot be written, or Ray failed; finished trials are recorded.
    """
    screen, request, space = live_console(), folder.request, folder.request.space
    try:
        with ExitStack() as stack:
            # Ray before the signals: it takes one of them.
            lines = stack.enter_context(on_cluster(folder, address)) if address else []
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
        # RayError before OSError: a timeout of Ray's is one, too.
        message = f"Ray: {reason_of(error)}" if isinstance(error, RayError) else str(error)
        if isinstance(error, OSError) and not isinstance(error, RayError):
            message = reason(error, folder.path)
        failure = RunError(message)
        failure.hint = f"trials that have ended stay; go on: {program()} search --resume {quote(str(folder.path))}"
        raise failure from error
    for line in closing(folder, result):
        screen.print(line, markup=False)
    return result, stopped


@contextmanager
def on_cluster(folder: SearchFolder, address: str) -> Iterator[list[str]]:
    """Connect to a cluster all of whose nodes can run trials of a search; yields lines to print.

    Raises ``ConfigError``: it does not answer, or a node cannot take part.
    """
    config = folder.request.space.config
    cluster = config.cluster.model_copy(update={"address": address})
    with ray_session(config.model_copy(update={"cluster": cluster})):
        yield find(PREFLIGHTS, "nodes")(folder.path, stages_of(config), trials=True)


class SearchRun(Searcher, tune.Stopper):
    """A running search: says which trial Tune runs next, reads what came of it; ends on request or on an error.

    Raises ``ConfigError``: what is recorded does not fit the plan.
    """

    def __init__(
        self, folder: SearchFolder, on_outcome: Callable[[Outcome], None], interrupted: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.folder = folder
        self._on_outcome, self._interrupted = on_outcome, interrupted
        self._ended = {outcome.spec.id: outcome for outcome in folder.outcomes()}
        self.running: dict[str, TrialSpec] = {}  # by Tune's names
        self.broken: OSError | None = None  # why the folder could not be written
        self._ends_at: float | None = None
        self._rounds = plan_of(folder.request.settings, folder.request.space, folder.request.seed)
        #: Trials of the round that the plan is at; ``None``: it is carried out.
        self.round = next(self._rounds, None)
        self._advance()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune writes its objects down to go on from them; a search goes on from its own record."""
        return {}

    def save_to_dir(self, checkpoint_dir: str, session_str: str) -> None:
        """Do nothing, for the same reason."""

    def _advance(self) -> None:
        """Go on to the first round of which not all trials have ended."""
        while self.round is not None and all(spec.id in self._ended for spec in self.round):
            ended = [self._ended[self.folder.begin(spec).id] for spec in self.round]
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
        """Return false: a trial ends by itself."""
        return False

    def suggest(self, trial_id: str) -> Any:
        """Record the beginning of the next trial that is to be run, if there is one now. Raises ``ConfigError``."""
        known = self._ended.keys() | {spec.id for spec in self.running.values()}
        waiting = [] if self.ending else [spec for spec in self.round or () if spec.id not in known]
        # What a round tries hangs on earlier rounds, and not on which of its own trials ended first: all its values
        # are drawn at once. Those of asha, which has one round, hang on what has ended.
        at_once = 1 if isinstance(self.folder.request.settings, AshaSettings) else len(waiting)
        try:
            begun = [self.folder.begin(spec) for spec in waiting[:at_once]]
        except OSError as error:
            self.broken, begun = error, []
        if not begun:
            return self.FINISHED if self.ending or self.round is None else None
        self.running[trial_id] = begun[0]
        return {"spec": begun[0]}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: ARG002
        """Read what a trial recorded, pass it on, and go on; one that was interrupted goes on with the search."""
        spec = self.running.pop(trial_id)
        try:
            outcome = next((row for row in self.folder.outcomes() if row.spec.id == spec.id), None)
            if outcome is None and error:
                outcome = Outcome(spec, "failed", None, reason="its process ended without a reason")
                self.folder.end(outcome)
            if outcome is not None:
                self._on_outcome(outcome)
                self._ended[spec.id] = outcome
                self._advance()
        except OSError as failure:
            self.broken = self.broken or failure


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Tune within the block; an experiment of the caller's own, after it, reports as usual."""
    log, before = logging.getLogger("ray.tune"), {k: value for k, value in os.environ.items() if k in _QUIET}
    level = log.level
    os.environ.update(_QUIET)
    # A failed trial is one line of the search's own; Tune would print it as pages.
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
        for name in _QUIET:
            os.environ.pop(name)
        os.environ.update(before)


def run_on_tune(run: SearchRun) -> None:
    """Run a plan's trials until it is finished or interrupted. A Ray session that was started here is ended."""
    # Names in overrides are meant from here; a copy without an open study travels.
    working, folder = Path.cwd(), SearchFolder(run.folder.path.resolve(), run.folder.request, run.folder.provenance)

    def play(config: dict[str, Any]) -> None:
        os.chdir(working)
        run_trial(folder, config["spec"])
        tune.report({"ended": True})  # Tune prints a line of a trial that reports nothing

    with _quiet(), ray_session(), tempfile.TemporaryDirectory(prefix="multigrid-rl-search-") as scratch:
        limit = run.folder.request.settings.max_concurrent or int(ray.cluster_resources().get("CPU", 1))
        tune.Tuner(
            tune.with_resources(play, {"cpu": 1}),
            tune_config=tune.TuneConfig(
                search_alg=run,
                num_samples=-1,
                max_concurrent_trials=limit,
                # A process that has loaded everything plays the next trial, too.
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.config["spec"].id,
            ),
            run_config=tune.RunConfig(name="search", storage_path=str(Path(scratch).resolve()), stop=run, verbose=0),
        ).fit()


def run_trial(folder: SearchFolder, spec: TrialSpec) -> None:
    """Train until the trial ends or lags behind, and record what came of it; nothing if the search ends before.

    Raises what training raises, once it is recorded.
    """
    began = time.monotonic()
    try:
        verdict, lags = _played(folder, spec)
    except Exception as error:  # rewards and environments of the user's own raise anything; Tune hears of it, too
        said = f"{type(error).__name__}: {one_line(error)}"
        folder.end(Outcome(spec, "failed", None, seconds=time.monotonic() - began, reason=said))
        raise
    if lags or verdict["ended"] in ENDS:
        status: Status = "stopped" if lags else "finished"
        folder.end(Outcome(spec, status, score_of(verdict), verdict["env_steps"], time.monotonic() - began))


def _played(folder: SearchFolder, spec: TrialSpec) -> tuple[dict[str, Any], bool]:
    """Play a trial, or what an earlier session left of it; returns its verdict, and whether it lags behind."""
    own = (f"seed={spec.seed}", f"train.until={spec.until}", "train.torch_threads=1", "train.threads=1")
    command = [*folder.request.space.overrides(spec.params or {}), *own, "cluster.num_env_runners=0"]
    path = folder.run_path(spec.id)
    # Ray has replaced them, and a run's provenance records how to repeat the run.
    sys.argv = ["multigrid-rl", "train", *command]
    with suppress(ConfigError):
        verdict = read_verdict(path)
        if verdict["ended"] in ENDS:  # a kill kept a run that reached its end from saying so
            return verdict, False
    every = later = folder.request.settings.report_every
    lags = False

    def observe(row: dict[str, Any], keeper: GateKeeper) -> None:
        nonlocal later, lags
        steps = row["env_steps"]
        # The end of a run is its verdict's to report.
        if later <= steps < spec.until and not keeper.held:
            later = steps - steps % every + every
            lags = folder.lags(spec.id, steps, score_of(keeper.verdict()).number)

    config = compose(command)
    left = start = _checkpoint_of(path)
    if spec.warm_start and left is None:
        start = newest_good(folder.run_path(str(spec.origin)))
    stages = stages_of(config, opponent_hashes(path) if left else None)
    if left is not None:
        run = RunFolder.reopen(path, config, left)
    else:
        run = RunFolder(path, config, seated_players(stages), facts_of(config))
    stop = folder.path / STOP
    try:
        at = start.path if start else None
        with built_algorithm(config, stages, at) as algorithm:
            verdict = train(algorithm, config, run, observe, lambda: lags or stop.exists(), at)
    finally:
        run.close()
    return verdict, lags


def _checkpoint_of(run: Path) -> Checkpoint | None:
    """Return where a run of an earlier session goes on from. Raises ``ConfigError``: another process holds it."""
    if not run.exists():
        return None
    last = time.monotonic() + LEFT_S
    while True:
        try:
            lock_file(run / LOCK).close()
            break
        except ConfigError:  # a trial of a killed search that has not noticed yet
            if time.monotonic() > last:
                raise
            time.sleep(0.5)
    with suppress(ConfigError):
        return newest_good(run)
    shutil.rmtree(run)  # begun, and killed before there was anything to go on from
    return None
