"""Folders of the players that a run has written into its checkpoints."""

from __future__ import annotations

from pathlib import Path

from multigrid_rl.players.bundle import seat_folders
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import expected, shown
from multigrid_rl.types import TEAM_ORDER


def _run_players(run: Path, checkpoint: str | None = None) -> Path:
    """Return the folder of all players of a run, from its latest checkpoint or a named one. Raises ``PlayerError``."""
    checkpoints = run / "checkpoints"
    try:
        name = checkpoint or (checkpoints / "latest").read_text(encoding="utf-8").strip()
        players = checkpoints / name / "players"
        whole, there = (checkpoints / name).is_dir(), players.is_dir()
    except OSError as error:  # also of a name that is too long for one
        raise PlayerError(expected(run, "a run with a checkpoint", error.strerror)) from error
    except ValueError as error:
        raise PlayerError(expected(checkpoints / "latest", "the name of a checkpoint", error)) from error
    if whole and not there:
        raise PlayerError(f"{checkpoints / name}: expected a run of the red/blue-door game, got one without players")
    if not there:
        known = ", ".join(sorted(path.name for path in checkpoints.glob("step_*"))) or "none"
        raise PlayerError(expected("checkpoint", f"{known} of {run}", shown(name)))
    return players


def run_player(run: Path, seat: str, checkpoint: str | None = None) -> Path:
    """Return the folder of a run's player, from its latest checkpoint or a named one. Raises ``PlayerError``."""
    players = _run_players(run, checkpoint)
    if not (players / seat).is_dir():
        known = ", ".join(sorted(path.name for path in players.iterdir()))
        raise PlayerError(expected("seat", f"{known}, trained in {run}", seat))
    return players / seat


def players_for(run: Path, seat: str, checkpoint: str | None = None) -> dict[str, Path]:
    """Return the folder of a seat's or a team's player under the key ``""``; of a team with several, each by its seat.

    Raises ``PlayerError``: no such player.
    """
    players = _run_players(run, checkpoint)
    if seat in TEAM_ORDER and not (players / seat).is_dir():
        seats = {name: path for name, path in seat_folders(players).items() if name.startswith(seat)}
        if len(seats) == 1:
            return {"": next(iter(seats.values()))}
        if seats:
            return seats
    return {"": run_player(run, seat, checkpoint)}
