"""One trial: the training loop in a separate process, with its own run folder."""

import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from multigrid_rl.config.compose import compose
from multigrid_rl.gates import GateKeeper
from multigrid_rl.rllib.algorithm import built
from multigrid_rl.runs.checkpoints import Checkpoint, newest_good
from multigrid_rl.runs.folder import LOCK, RunFolder, locked
from multigrid_rl.runs.provenance import facts_of
from multigrid_rl.runs.reader import opponent_hashes, read_verdict
from multigrid_rl.search.plans import Outcome, Status, TrialSpec, score_of
from multigrid_rl.search.search_folder import STOP, SearchFolder
from multigrid_rl.text import ConfigError, one_line
from multigrid_rl.training.loop import train
from multigrid_rl.training.stages import seated_in, stages_of

#: Seconds that what is left of a killed search has to let go of a run.
PATIENCE_S = 30.0
#: How a run ends by itself.
ENDS = ("held", "until")


def run_trial(folder: SearchFolder, spec: TrialSpec) -> None:
    """Train until the trial ends or lags behind, and record what came of it; nothing if the search ends before.

    Raises what training raises, once it is recorded.
    """
    began = time.monotonic()
    try:
        verdict, lags = _played(folder, spec)
    except Exception as error:  # rewards and environments of the user's own raise anything; Tune hears of it, too
        reason = f"{type(error).__name__}: {one_line(error)}"
        folder.end(Outcome(spec, "failed", None, seconds=time.monotonic() - began, reason=reason))
        raise
    if lags or verdict["ended"] in ENDS:
        status: Status = "stopped" if lags else "finished"
        folder.end(Outcome(spec, status, score_of(verdict), verdict["env_steps"], time.monotonic() - began))


def command_of(folder: SearchFolder, spec: TrialSpec) -> list[str]:
    """Return the overrides that make ``train`` play the same run, if it starts from nothing."""
    own = (f"seed={spec.seed}", f"train.until={spec.until}", "train.torch_threads=1", "train.threads=1")
    return [*folder.request.space.overrides(spec.params or {}), *own, "cluster.num_env_runners=0"]


def _played(folder: SearchFolder, spec: TrialSpec) -> tuple[dict[str, Any], bool]:
    """Play a trial, or what an earlier session left of it; returns its verdict, and whether it lags behind."""
    command, path = command_of(folder, spec), folder.run_path(spec.id)
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
    own = start = _checkpoint_of(path)
    if spec.warm_start and own is None:
        start = newest_good(folder.run_path(str(spec.origin)))
    stages = stages_of(config, opponent_hashes(path) if own else None)
    if own is not None:
        run = RunFolder.reopened(path, config, own)
    else:
        run = RunFolder(path, config, seated_in(stages), facts_of(config))
    stop = folder.path / STOP
    try:
        at = start.path if start else None
        with built(config, stages, at) as algorithm:
            verdict = train(algorithm, config, run, observe, lambda: lags or stop.exists(), at)
    finally:
        run.close()
    return verdict, lags


def _checkpoint_of(run: Path) -> Checkpoint | None:
    """Return where a run of an earlier session goes on from. Raises ``ConfigError``: another process holds it."""
    if not run.exists():
        return None
    last = time.monotonic() + PATIENCE_S
    while True:
        try:
            locked(run / LOCK).close()
            break
        except ConfigError:  # a trial of a killed search that has not noticed yet
            if time.monotonic() > last:
                raise
            time.sleep(0.5)
    with suppress(ConfigError):
        return newest_good(run)
    shutil.rmtree(run)  # begun, and killed before there was anything to go on from
    return None
