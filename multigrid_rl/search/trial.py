"""One trial: the one training loop, in a process of its own, with a run folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from multigrid_rl.config import ConfigError, RunConfig, compose
from multigrid_rl.gates import GateKeeper
from multigrid_rl.rllib.checkpoints import Checkpoint, newest_good
from multigrid_rl.rllib.record import LOCK, RunFolder, locked
from multigrid_rl.rllib.stages import seated_in, stages_of
from multigrid_rl.rllib.train import train
from multigrid_rl.search.asha import METRIC, TIME
from multigrid_rl.search.objective import Score, score_of

#: Key of a trial's last word: how it ended; and the word for one that the search's end ended.
ENDED, INTERRUPTED = "ended", "interrupted"
#: Seconds that what is left of a killed search has to let go of a run.
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Order:
    """What a trial's process is told.

    Attributes:
        id: name of the trial.
        overrides: of ``train``, without those that follow.
        seed: of the run.
        until: environment steps at which it ends at the latest.
        folder: of the run. What is in it is what an interruption left, and the run goes on from there.
        origin: run folder whose last checkpoint it starts from; ``None``: from nothing.
        report_every: environment steps between two reports.
        working: directory that relative names in overrides are meant from.
        stop_file: the trial ends, with a checkpoint, when it is there.
    """

    id: str
    overrides: tuple[str, ...]
    seed: int
    until: int
    folder: str
    origin: str | None
    report_every: int
    working: str
    stop_file: str

    @property
    def command(self) -> list[str]:
        """The overrides that make ``train`` play the same run, if it starts from nothing."""
        own = (f"seed={self.seed}", f"train.until={self.until}", "cluster.num_env_runners=0", "train.torch_threads=1")
        return [*self.overrides, *own]


def run_trial(order: Order) -> dict[str, Any] | None:
    """Train as ordered; returns the last report, or nothing if Tune ended it. Runs in a Tune trial's thread.

    Raises:
        ConfigError, PlayerError, RunError: the run failed; Tune records why.
    """
    # Ray has put its own words there, and a run's provenance tells how to play the run again.
    sys.argv = ["multigrid-rl", "train", *order.command]
    os.chdir(order.working)
    verdict = ended_by_itself(Path(order.folder))
    if verdict is not None:
        return _last_words(verdict)
    told = _Told(order.report_every, order.until, Path(order.stop_file))
    config = compose(order.command)
    folder, start = _opened(order, config)
    try:
        verdict = train(config, folder, told.observe, told.interrupted, start)
    finally:
        folder.close()
    return None if told.asked else _last_words(verdict)


def ended_by_itself(run: Path) -> dict[str, Any] | None:
    """The verdict of a run that reached its end, though nobody heard of it; ``None`` for every other."""
    try:
        verdict: dict[str, Any] = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return verdict if verdict.get("ended") in ("held", "until") else None


def whole_checkpoint(run: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run, if it has one."""
    try:
        return newest_good(run)
    except ConfigError:
        return None


def _opened(order: Order, config: RunConfig) -> tuple[RunFolder, Path | None]:
    path = Path(order.folder)
    if path.exists():
        _wait_until_free(path)
    left = whole_checkpoint(path)
    if left is not None:
        return RunFolder.reopened(path, config, left), left.path
    if path.exists():
        shutil.rmtree(path)  # begun, and killed before there was anything to go on from
    folder = RunFolder(path, config, seated_in(stages_of(config)))
    return folder, newest_good(Path(order.origin)).path if order.origin else None


def _wait_until_free(run: Path) -> None:
    """Wait for a trial of a killed search that has not noticed yet. Raises ``ConfigError`` if it never does."""
    last = time.monotonic() + PATIENCE_S
    while True:
        try:
            locked(run / LOCK).close()
        except ConfigError:
            if time.monotonic() > last:
                raise
            time.sleep(0.5)
        else:
            return


def _last_words(verdict: dict[str, Any]) -> dict[str, Any]:
    return {**words(score_of(verdict), verdict["env_steps"]), ENDED: verdict["ended"]}


def words(score: Score, env_steps: int) -> dict[str, Any]:
    """What a trial reports: its score so far, as a number and in parts, and the environment steps played."""
    return {
        METRIC: score.number,
        TIME: env_steps,
        "env_steps_to_held": score.env_steps_to_held,
        "margin": score.margin,
    }


class _Told:
    """Tells Tune how a trial goes, and hears when Tune wants it to end."""

    def __init__(self, every: int, until: int, stop_file: Path) -> None:
        self._every = every
        self._until = until
        self._next = every
        self._stop_file = stop_file
        self.asked = False  # by Tune

    def observe(self, row: dict[str, Any], keeper: GateKeeper) -> None:
        # The end of a run is its verdict's to tell: a scheduler would take the last step for one too many.
        if self.asked or not self._next <= row["env_steps"] < self._until or keeper.held:
            return
        self._next = row["env_steps"] - row["env_steps"] % self._every + self._every
        try:
            tune.report(words(score_of(keeper.verdict()), row["env_steps"]))
        except SystemExit:
            # So does Tune end a function. The run is to leave a checkpoint and a verdict, as it does after Ctrl-C.
            self.asked = True

    def interrupted(self) -> bool:
        return self.asked or self._stop_file.exists()
