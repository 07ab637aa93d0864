"""The league of a run: its arithmetic (``players.league``), its files (``runs.checkpoints``), and who plays what."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from multigrid_rl.players.cards import PlayerError, PlayerFiles
from multigrid_rl.players.league import League, Roster
from multigrid_rl.runs.checkpoints import read_snapshot, write_snapshot
from multigrid_rl.scenario import ScenarioConfig
from multigrid_rl.types import EpisodeTable, MultiAgentSpec

LOG = logging.getLogger(__name__)


class RunLeague(League):
    """The league of a run: lets snapshots join, and says who plays from now on.

    In memory are the files of those alone who play at present: any number of snapshots needs no more than a few.

    Args:
        scenario: with a league.
        specs: of its matches.
        seed: of the run.
        run: its folder.
    """

    def __init__(self, scenario: ScenarioConfig, specs: MultiAgentSpec, seed: int, run: Path) -> None:
        assert scenario.league is not None
        super().__init__(scenario.league, seed)
        self._run = run
        self._column = [seat for seat, _ in specs.pools].index(scenario.league_seats[0])
        self._team = specs.team_names.index(specs.teams[specs.seats.index(specs.learning[0])])
        self._files: dict[int, dict[str, PlayerFiles]] = {}

    def take(self, table: EpisodeTable) -> dict[str, float]:
        """Take the games of an iteration; returns metrics of the league."""
        scores = np.where(table.winner < 0, 0.5, (table.winner == self._team).astype(float))
        self.record(table.players[:, self._column], scores)
        return self.metrics()

    def advance(self, env_steps: int, export: Callable[[Path], dict[str, str]]) -> Roster | None:
        """Let the learner join if it is time, and draw who plays if it is time for that.

        Args:
            env_steps: of the run.
            export: writes the learner's networks into a folder.

        Returns:
            Whose share of the games is how large from now on, with the files of those who did not play until now;
            ``None``: everything stays.

        Raises:
            OSError: a snapshot cannot be written.
        """
        if self.due(env_steps):
            self.add(write_snapshot(self._run, f"step_{env_steps:09d}", env_steps, export))
        if not self.stale(env_steps):
            return None
        before, lost = self._files, -1
        while lost != len(self.lost):  # until all of them can be read; a file that is gone costs its snapshot the place
            lost = len(self.lost)
            self.redraw(env_steps)
            self._files = {n: files for n, files in self._files.items() if n in self.weights}
            for number in set(self.weights) - set(self._files):
                self._read(number)
        return Roster(self.weights, {n: files for n, files in self._files.items() if n not in before})

    def _read(self, number: int) -> None:
        snapshot = self.snapshot(number)
        if snapshot is None:
            return
        try:
            self._files[number] = read_snapshot(self._run, snapshot)
        except PlayerError as error:
            LOG.warning("%s; the league goes on without it", error)
            self.lose(number)

    def roster(self, others: Iterable[int] = ()) -> Roster:
        """Return who plays at present with all files, and with those of ``others`` whose games are not over.

        Raises:
            PlayerError: a file of theirs is missing, damaged, or another player's.
        """
        files = {}
        for number in sorted({*self.weights, *others}):
            snapshot = self.snapshot(number)
            if snapshot is not None:
                files[number] = self._files.get(number) or read_snapshot(self._run, snapshot)
        self._files = {n: its for n, its in files.items() if n in self.weights}
        return Roster(self.weights, files)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked; :meth:`roster` reads the files."""
        super().set_state(state)
        self._files = {}
