"""The folder ``league/`` of a run: the snapshots of its league as frozen players, one folder each."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from multigrid_rl.config import ConfigError
from multigrid_rl.files import unfinished
from multigrid_rl.players.cards import PlayerError, PlayerFiles, read_card, read_files, read_network
from multigrid_rl.players.league import Snapshot
from multigrid_rl.text import expected

LOG = logging.getLogger(__name__)
FOLDER = "league"
_ASIDE = "aside"


class SnapshotFolder:
    """Writes and reads snapshots below ``RUN/league/``; never has one in memory.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / FOLDER

    def write(self, name: str, env_steps: int, export: Callable[[Path], dict[str, str]]) -> Snapshot:
        """Write a snapshot as a whole; what others put in its place moves aside.

        Args:
            name: of its folder.
            env_steps: of the run.
            export: writes the networks into a folder, one folder each; returns their sha256 by module.

        Raises:
            OSError: it cannot be written.
        """
        if (self.path / name).exists():
            self._set_aside(self.path / name)
        with unfinished(self.path / name) as beside:
            beside.mkdir()
            hashes = export(beside)
        return Snapshot(name, env_steps, hashes)

    def read(self, snapshot: Snapshot) -> dict[str, PlayerFiles]:
        """Return a snapshot's files, checked against what joined the league.

        Raises:
            PlayerError: missing, damaged, or another player's.
        """
        files = {}
        for module, sha256 in snapshot.sha256.items():
            folder = self.path / snapshot.name / module
            files[module] = read_files(folder)
            card = read_card(files[module])
            if card.sha256 != sha256:
                wanted = f"sha256 {sha256[:16]}... of the snapshot that joined the league"
                raise PlayerError(expected(folder, wanted, f"{card.sha256[:16]}..."))
            read_network(files[module], card)
        return files

    def check(self, snapshots: Iterable[Snapshot]) -> None:
        """Read every snapshot once. Raises ``ConfigError``: one is missing, damaged, or another player's."""
        for snapshot in snapshots:
            try:
                self.read(snapshot)
            except PlayerError as error:
                raise ConfigError(str(error)) from error

    def set_aside_others(self, snapshots: Iterable[Snapshot]) -> None:
        """Move what is none of ``snapshots`` aside: a run that goes on writes those that joined later once more."""
        known = {_ASIDE, *(snapshot.name for snapshot in snapshots)}
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            if path.name not in known:
                self._set_aside(path)

    def _set_aside(self, path: Path) -> None:
        aside = self.path / _ASIDE
        aside.mkdir(exist_ok=True)
        k, target = 2, aside / path.name
        while target.exists():
            k, target = k + 1, aside / f"{path.name}-{k}"
        path.rename(target)
        LOG.warning("%s is not of the league as it stands; it moved to %s", path, target)
