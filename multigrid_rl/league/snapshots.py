"""The league of a run: combines the arithmetic (``league.league``) with the files of its snapshots.

A snapshot is a folder of frozen players below ``league/``; only current opponents' files are in memory.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.files import atomic_path, free_path, json_text, write_atomic
from multigrid_rl.league.league import League, Snapshot
from multigrid_rl.metrics import ahead
from multigrid_rl.players.cards import PlayerError, PlayerFiles, read_card, read_files, read_network
from multigrid_rl.players.pool import Roster
from multigrid_rl.runs.checkpoints import LEAGUE, STANDINGS
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, MultiAgentSpec

LOG = logging.getLogger(__name__)
#: Folder in the snapshots' folder for unexpected files in their places.
_ASIDE = "aside"


class RunLeague(League):
    """The league of a run: adds snapshots and draws the opponents.

    Only the files of current opponents are in memory, so memory does not grow with the number of snapshots.
    """

    def __init__(self, scenario: ScenarioConfig, specs: MultiAgentSpec, seed: int, run: Path) -> None:
        assert scenario.league is not None
        super().__init__(scenario.league, seed)
        self._run = run
        self._column = [seat for seat, _ in specs.pools].index(scenario.kind.pool_seats[0])
        team = specs.teams[specs.seats.index(specs.learning[0])]
        self._team, self._winner = specs.team_names.index(team), specs.has_winner
        self._own = np.equal(specs.teams, team)  # (A,)
        self._files: dict[int, dict[str, PlayerFiles]] = {}

    def take(self, table: EpisodeTable) -> dict[str, float]:
        """Take the games of an iteration; returns metrics of the league."""
        scores = np.where(table.winner < 0, 0.5, (table.winner == self._team).astype(float))
        if not self._winner:  # without winners the higher return is ahead
            returns = table.returns
            scores = (ahead(returns[:, self._own].sum(axis=1), returns[:, ~self._own].sum(axis=1)) + 1) / 2
        self.record(table.players[:, self._column], scores)
        return self.metrics()

    def advance(self, env_steps: int, export: Callable[[Path], dict[str, str]]) -> Roster | None:
        """Add a snapshot of the learner if due, and redraw the active players if due.

        A snapshot is written atomically; other files in its place move aside. ``export``: writes the learner's networks
        into a folder, one folder each; returns their sha256 by module.

        Returns:
            The new share of games of each opponent, with the files of new opponents; ``None``: no change.

        Raises ``OSError``: a snapshot or the standings cannot be written.
        """
        if self.due(env_steps):
            path = self._run / LEAGUE / f"step_{env_steps:09d}"
            if path.exists():
                _set_aside(path)
            with atomic_path(path) as temporary:
                temporary.mkdir()
                hashes = export(temporary)
            self.add(Snapshot(path.name, env_steps, hashes))
        if not self.stale(env_steps):
            return None
        before, count = self._files, -1
        while count != len(self.lost):  # until all can be read: a snapshot with a missing file leaves the league
            count = len(self.lost)
            self.redraw(env_steps)
            self._files = {n: files for n, files in self._files.items() if n in self.weights}
            for number in set(self.weights) - set(self._files):
                if (snapshot := self.snapshot(number)) is None:
                    continue
                try:
                    self._files[number] = read_snapshot(self._run, snapshot)
                except PlayerError as error:
                    LOG.warning("%s; the league goes on without it", error)
                    self.lost.append(number)
        write_atomic(self._run / STANDINGS, json_text({"players": self.standings()}).encode())
        return Roster(self.weights, {n: files for n, files in self._files.items() if n not in before})

    def roster(self, playing: Iterable[int] = ()) -> Roster:
        """Return the current opponents with all files, and those ``playing`` in unfinished games.

        Raises ``PlayerError``: a file is missing, damaged, or another player's.
        """
        files = {}
        for number in sorted({*self.weights, *playing}):
            if (snapshot := self.snapshot(number)) is not None:
                files[number] = self._files.get(number) or read_snapshot(self._run, snapshot)
        self._files = {n: content for n, content in files.items() if n in self.weights}
        return Roster(self.weights, files)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of :meth:`get_state`; :meth:`roster` reads the files."""
        super().set_state(state)
        self._files = {}

    @staticmethod
    def resume(run: Path, state: dict[str, Any] | None) -> None:
        """Check the snapshots in ``state``, and move later ones aside: they join again.

        Raises ``PlayerError``: one is missing or has changed.
        """
        rows, lost, games = (state[key] for key in ("snapshots", "lost", "games")) if state else ([], [], [])
        for number, row in enumerate(rows, len(games) - len(rows)):  # after the anchors
            if number not in lost:
                read_snapshot(run, Snapshot(**row))
        expected_names, folder = {_ASIDE, *(row["name"] for row in rows)}, run / LEAGUE
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name not in expected_names:
                _set_aside(path)


def read_snapshot(run: Path, snapshot: Snapshot) -> dict[str, PlayerFiles]:
    """Return a snapshot's files by module, checked against the hashes of the snapshot.

    Raises ``PlayerError``: missing, damaged, or another player's.
    """
    files = {}
    for module, sha256 in snapshot.sha256.items():
        folder = run / LEAGUE / snapshot.name / module
        files[module] = read_files(folder)
        card = read_card(files[module])
        if card.sha256 != sha256:
            wanted = f"sha256 {sha256[:16]}... of the snapshot that joined the league"
            raise PlayerError(expected(folder, wanted, f"{card.sha256[:16]}..."))
        read_network(files[module], card)
    return files


def _set_aside(path: Path) -> None:
    aside = path.parent / _ASIDE
    aside.mkdir(exist_ok=True)
    target = free_path(aside, path.name)
    path.rename(target)
    LOG.warning("%s is not part of the league any more; it moved to %s", path, target)
