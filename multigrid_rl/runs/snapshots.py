"""The folder ``league/`` of a run: the snapshots of its league as frozen players, one folder each; none in memory."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from multigrid_rl.files import free_path, unfinished
from multigrid_rl.players.cards import PlayerError, PlayerFiles, read_card, read_files, read_network
from multigrid_rl.players.league import Snapshot
from multigrid_rl.text import expected

LOG = logging.getLogger(__name__)
FOLDER = "league"
_ASIDE = "aside"


def write_snapshot(run: Path, name: str, env_steps: int, export: Callable[[Path], dict[str, str]]) -> Snapshot:
    """Write a snapshot of a run's league as a whole; what others put in its place moves aside.

    Args:
        run: folder of the run.
        name: of the snapshot's folder.
        env_steps: of the run.
        export: writes the networks into a folder, one folder each; returns their sha256 by module.

    Raises:
        OSError: it cannot be written.
    """
    path = run / FOLDER / name
    if path.exists():
        _set_aside(path)
    with unfinished(path) as beside:
        beside.mkdir()
        hashes = export(beside)
    return Snapshot(name, env_steps, hashes)


def read_snapshot(run: Path, snapshot: Snapshot) -> dict[str, PlayerFiles]:
    """Return a snapshot's files, by module, checked against what joined the league.

    Raises:
        PlayerError: missing, damaged, or another player's.
    """
    files = {}
    for module, sha256 in snapshot.sha256.items():
        folder = run / FOLDER / snapshot.name / module
        files[module] = read_files(folder)
        card = read_card(files[module])
        if card.sha256 != sha256:
            wanted = f"sha256 {sha256[:16]}... of the snapshot that joined the league"
            raise PlayerError(expected(folder, wanted, f"{card.sha256[:16]}..."))
        read_network(files[module], card)
    return files


def set_aside_others(run: Path, snapshots: Iterable[Snapshot]) -> None:
    """Move what is none of ``snapshots`` aside: a run that goes on writes those that joined later once more."""
    known, league = {_ASIDE, *(snapshot.name for snapshot in snapshots)}, run / FOLDER
    for path in sorted(league.iterdir()) if league.is_dir() else ():
        if path.name not in known:
            _set_aside(path)


def _set_aside(path: Path) -> None:
    aside = path.parent / _ASIDE
    aside.mkdir(exist_ok=True)
    target = free_path(aside, path.name)
    path.rename(target)
    LOG.warning("%s is not of the league as it stands; it moved to %s", path, target)
