"""One trial: the one training loop, in a process of its own, with a run folder of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from multigrid_rl.config import compose
from multigrid_rl.gates import GateKeeper
from multigrid_rl.players.factories import env_factory
from multigrid_rl.rllib.record import RunFolder
from multigrid_rl.rllib.train import train
from multigrid_rl.search.asha import METRIC, TIME
from multigrid_rl.search.objective import Score, score_of

#: Key of a trial's last word: it ended by itself.
ENDED = "ended"


@dataclass(frozen=True)
class Order:
    """What a trial's process is told.

    Attributes:
        id: name of the trial.
        overrides: of ``train``, without those that follow.
        seed: of the run.
        until: environment steps at which it ends at the latest.
        folder: of the run; it does not exist yet.
        start: checkpoint that it goes on from.
        report_every: environment steps between two reports.
        working: directory that relative names in overrides are meant from.
    """

    id: str
    overrides: tuple[str, ...]
    seed: int
    until: int
    folder: str
    start: str | None
    report_every: int
    working: str

    @property
    def command(self) -> list[str]:
        """The overrides that make ``train`` play the same run, if it starts from nothing."""
        own = (f"seed={self.seed}", f"train.until={self.until}", "cluster.num_env_runners=0", "train.torch_threads=1")
        return [*self.overrides, *own]


def run_trial(order: Order) -> dict[str, Any] | None:
    """Train as ordered; returns the last report, or nothing if Tune ended it. Runs in a Tune trial's thread.

    Raises:
        ConfigError, PlayerError, RuntimeError: the run failed; Tune records why.
    """
    # Ray has put its own words there, and a run's provenance tells how to play the run again.
    sys.argv = ["multigrid-rl", "train", *order.command]
    os.chdir(order.working)
    config = compose(order.command)
    folder = RunFolder(Path(order.folder), config, env_factory(config).load())
    told = _Told(order.report_every)
    try:
        verdict = train(config, folder, told.observe, told.interrupted)
    finally:
        folder.close()
    if told.interrupted():
        return None
    return {**told.words(score_of(verdict), verdict["env_steps"]), ENDED: verdict["ended"]}


class _Told:
    """Tells Tune how a trial goes, and hears when Tune wants it to end."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._next = every
        self._asked = False

    def observe(self, row: dict[str, Any], keeper: GateKeeper) -> None:
        if self._asked or row["env_steps"] < self._next:
            return
        self._next = row["env_steps"] - row["env_steps"] % self._every + self._every
        try:
            tune.report(self.words(score_of(keeper.verdict()), row["env_steps"]))
        except SystemExit:
            # So does Tune end a function. The run is to leave a checkpoint and a verdict, as it does after Ctrl-C.
            self._asked = True

    def interrupted(self) -> bool:
        return self._asked

    @staticmethod
    def words(score: Score, env_steps: int) -> dict[str, Any]:
        return {
            METRIC: score.number,
            TIME: env_steps,
            "env_steps_to_held": score.env_steps_to_held,
            "margin": score.margin,
        }
