"""One trial: the training loop in a separate process, with its own run folder."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multigrid_rl.config.compose import compose
from multigrid_rl.gates import GateKeeper
from multigrid_rl.rllib.algorithm import built
from multigrid_rl.runs.checkpoints import Checkpoint, newest_good
from multigrid_rl.runs.folder import LOCK, RunFolder, locked
from multigrid_rl.runs.provenance import facts_of
from multigrid_rl.runs.reader import opponent_hashes, read_verdict
from multigrid_rl.search.plans import TrialSpec, score_of
from multigrid_rl.search.search_folder import STOP, run_path
from multigrid_rl.text import ConfigError
from multigrid_rl.training.loop import train
from multigrid_rl.training.stages import seated_in, stages_of

#: Keys of what a trial reports: its name, its score's number, environment steps, and in its last report how it ended.
TRIAL, METRIC, TIME, ENDED = "trial", "score", "env_steps", "ended"
#: How a trial ended that the search's end ended, and one that lagged behind.
INTERRUPTED, STOPPED = "interrupted", "stopped"
#: Seconds that what is left of a killed search has to let go of a run.
PATIENCE_S = 30.0


@dataclass(frozen=True)
class TrialConfig:
    """What a trial's process needs to know."""

    spec: TrialSpec
    overrides: tuple[str, ...]  # of train, without those that the command adds
    report_every: int  # environment steps
    search: str  # folder of the search
    working: str  # directory that relative names in overrides are meant from

    @property
    def command(self) -> list[str]:
        """The overrides that make ``train`` play the same run, if it starts from nothing."""
        own = (f"seed={self.spec.seed}", f"train.until={self.spec.until}", "train.torch_threads=1", "train.threads=1")
        return [*self.overrides, *own, "cluster.num_env_runners=0"]

    @property
    def path(self) -> Path:
        """Its run folder."""
        return run_path(self.search, self.spec.id)


def run_trial(trial: TrialConfig, report: Callable[[dict[str, Any]], None]) -> None:
    """Train, with a report every now and then, and one of how it ended.

    Raises ``ConfigError`` or ``PlayerError`` or ``RunError``: the run failed; Tune records why.
    """
    # Ray has replaced them, and a run's provenance records how to repeat the run.
    sys.argv = ["multigrid-rl", "train", *trial.command]
    os.chdir(trial.working)
    verdict: dict[str, Any] = {"ended": None}
    with suppress(ConfigError):
        verdict = read_verdict(trial.path)
    if verdict["ended"] not in ("held", "until"):  # else a kill kept a run that reached its end from saying so
        verdict = _play(trial, report)
    ended = STOPPED if (trial.path / STOP).exists() else verdict["ended"]
    report({**report_of(trial, verdict, verdict["env_steps"]), ENDED: ended})


def _play(trial: TrialConfig, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    every, later = trial.report_every, trial.report_every

    def observe(row: dict[str, Any], keeper: GateKeeper) -> None:
        nonlocal later
        steps = row["env_steps"]
        # The end of a run is its verdict's to report.
        if later <= steps < trial.spec.until and not keeper.held:
            later = steps - steps % every + every
            report(report_of(trial, keeper.verdict(), steps))

    def interrupted() -> bool:
        return (trial.path / STOP).exists() or Path(trial.search, STOP).exists()

    config = compose(trial.command)
    own = start = _checkpoint_of(trial.path)
    if trial.spec.warm_start and own is None:
        start = newest_good(run_path(trial.search, str(trial.spec.origin)))
    stages = stages_of(config, opponent_hashes(trial.path) if own else None)
    if own is not None:
        folder = RunFolder.reopened(trial.path, config, own)
    else:
        folder = RunFolder(trial.path, config, seated_in(stages), facts_of(config))
    try:
        at = start.path if start else None
        with built(config, stages, at) as algorithm:
            return train(algorithm, config, folder, observe, interrupted, at)
    finally:
        folder.close()


def report_of(trial: TrialConfig, verdict: dict[str, Any], env_steps: int) -> dict[str, Any]:
    """Return what a trial reports: its score so far, as a number and in parts, and the environment steps played."""
    score = score_of(verdict)
    return {TRIAL: trial.spec.id, METRIC: score.number, TIME: env_steps, **asdict(score)}


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
