"""The league of a run: joins arithmetic (``league.league``) and files (``runs.checkpoints``)."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.league.league import League, Roster
from multigrid_rl.players.cards import PlayerError, PlayerFiles
from multigrid_rl.runs.checkpoints import read_snapshot, write_snapshot
from multigrid_rl.types import EpisodeTable, MultiAgentSpec

LOG = logging.getLogger(__name__)


class RunLeague(League):
    """The league of a run: adds snapshots and draws the opponents.

    Only the files of current opponents are in memory, so memory does not grow with the number of snapshots.

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
            The new share of games of each opponent, with the files of new opponents; ``None``: no change.

        Raises:
            OSError: a snapshot cannot be written.
        """
        if self.due(env_steps):
            self.add(write_snapshot(self._run, f"step_{env_steps:09d}", env_steps, export))
        if not self.stale(env_steps):
            return None
        before, count = self._files, -1
        while count != len(self.lost):  # until all can be read: a snapshot whose file is gone leaves the league
            count = len(self.lost)
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
        """Return the current opponents with all files, and those of ``others``, whose games are not over.

        Raises:
            PlayerError: a file is missing, damaged, or another player's.
        """
        files = {}
        for number in sorted({*self.weights, *others}):
            snapshot = self.snapshot(number)
            if snapshot is not None:
                files[number] = self._files.get(number) or read_snapshot(self._run, snapshot)
        self._files = {n: content for n, content in files.items() if n in self.weights}
        return Roster(self.weights, files)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of :meth:`get_state`; :meth:`roster` reads the files."""
        super().set_state(state)
        self._files = {}
