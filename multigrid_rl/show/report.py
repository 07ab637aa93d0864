"""Reports as files: kinds of folders, paths of pages, and overwriting."""

import json
import logging
from contextlib import suppress
from pathlib import Path

from multigrid_rl.cli.app import refuse_to_overwrite, write_file
from multigrid_rl.evaluation.cup_results import RESULTS_FILE, read_results
from multigrid_rl.evaluation.replays import ReplayError, choose, read_games
from multigrid_rl.show.cup_page import cup_page
from multigrid_rl.show.figures import save_best_responses
from multigrid_rl.show.page import GENERATOR
from multigrid_rl.show.run_data import read_report
from multigrid_rl.show.run_page import run_page
from multigrid_rl.show.video import write_video
from multigrid_rl.text import ConfigError, expected, one_line

LOG = logging.getLogger(__name__)
#: A report's name inside its own folder.
REPORT_FILE = "report.html"


def is_cup(folder: Path) -> bool:
    """Return whether ``folder`` holds a cup's results."""
    return (folder / RESULTS_FILE).is_file()


def write_run_report(
    folder: Path,
    output: Path | None = None,
    *,
    force: bool = False,
    games: int | None = None,
    reference: Path | None = None,
    films: bool = True,
) -> Path:
    """Write the page of a training run, ``report.html`` in its folder by default; returns the file.

    Args:
        folder: of the run.
        output: another file, which must be new unless ``force``.
        force: overwrite an existing file.
        games: fresh games to play with its policy in each mode, see :func:`run_data.read_report`; 0 plays none.
        reference: file of the recipe's curves.
        films: draw episodes of Gymnasium.

    Raises:
        ConfigError: not a run, a damaged file, or an output that may not be written.
    """
    target = _target(folder, output, force=force)
    found = read_report(folder, games=games, reference=reference, films=films)
    if found.not_played:
        LOG.warning("no games to show, the policy could not be played: %s", one_line(found.not_played))
    # A folder's name may hold bytes that are no text: the page shows a question mark.
    text = run_page(found)
    write_file(target, text.encode(errors="replace"))
    return target


def write_cup_report(folder: Path, output: Path | None = None, *, force: bool = False) -> Path:
    """Write the page of a cup like that of a run.

    Raises:
        ConfigError: no cup, a damaged file, or an output that may not be written.
    """
    target = _target(folder, output, force=force)
    path = folder / RESULTS_FILE
    try:
        write_file(target, cup_page(read_results(path)).encode(errors="replace"))
    except ReplayError as error:
        raise ConfigError(f"{path}: games: {error}") from error
    return target


def draw_exploit(folder: Path) -> None:
    """Draw how best responses learned and a game that the player lost, ``curves.png`` and ``beaten.gif``.

    ``folder`` is what ``exploit`` wrote.
    """
    found, source = json.loads((folder / "exploit.json").read_text(encoding="utf-8")), folder / "games.json"
    save_best_responses(found["player"], found["curves"], folder / "curves.png")
    if json.loads(source.read_text(encoding="utf-8")):  # games of boards alone are kept
        write_video(choose(read_games(source), "median", source), folder / "beaten.gif", force=True)


def _target(folder: Path, output: Path | None, *, force: bool) -> Path:
    """Return the path of the page. Called before any games are played, so that none are lost at the end."""
    target = output if output is not None else folder / REPORT_FILE
    if target.is_dir():
        raise ConfigError(expected(target, "a file", "a folder"))
    # A newer page replaces the one in the run's own folder, but only a file that was written as a report.
    ours = False
    with suppress(OSError), target.open("rb") as file:
        ours = output is None and f'content="{GENERATOR}"'.encode() in file.read(2000)
    if not ours:
        refuse_to_overwrite(target, force=force)
    return target
