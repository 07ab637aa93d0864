"""One pairing: one entry as red, another as blue, so many games. What it came to is a file of its own."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from multigrid_rl.judge.cup.entries import UNREADABLE, Entry, Table, reason_of
from multigrid_rl.judge.replays import GameRecord, record
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.descendants import none_left
from multigrid_rl.players.games import Played, PlayerFaultError, play_games
from multigrid_rl.types import GameSpec, Policy

#: One letter a game: who won it, nobody (``D``), or who forfeited it (small: ``r`` means that red did).
LETTERS = {1: "B", 0: "R", -1: "D"}
#: Folder of a cup with a file for each pairing.
PAIRINGS = "pairings"
#: Both entries are broken: the game counts for nobody.
NOT_PLAYED = "-"


class Pairing(BaseModel):
    """All games of ``red`` on the red side against ``blue`` on the blue side."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: int = Field(default=1, ge=1, le=1)
    red: str
    blue: str
    outcomes: str  # one letter a game, in the order of their numbers
    length: list[int]  # steps of each game, 0 where it was not played
    return_red: list[float]  # canonical return of the team in each game
    return_blue: list[float]
    reason: str | None = None  # why games were forfeited
    kept: list[GameRecord] = []  # to look at

    @model_validator(mode="after")
    def _rows_fit(self) -> Pairing:
        for name in ("length", "return_red", "return_blue"):
            if len(getattr(self, name)) != len(self.outcomes):
                raise ValueError(f"{name} has {len(getattr(self, name))} rows; allowed is {len(self.outcomes)}")
        return self

    def count(self, letters: str) -> int:
        """Games that ended with one of ``letters``."""
        return sum(self.outcomes.count(letter) for letter in letters)

    @property
    def at_fault(self) -> str | None:
        """The entry that forfeited games while it played, or could not begin."""
        return self.red if "r" in self.outcomes else self.blue if "b" in self.outcomes else None


def play_pairing(red: Entry, blue: Entry, table: Table) -> Pairing:
    """Play all games of a pairing. Who is broken, or gives up, forfeits what is not finished.

    Raises:
        ScratchError: this machine has no room for an agent's files, for which nobody shall forfeit.
    """
    broken = {entry.name: str(entry.problem) for entry in (red, blue) if entry.kind == "broken"}
    if broken:
        return forfeited(red, blue, table, broken)
    with ExitStack() as stack:
        if "external" in (red.kind, blue.kind):
            stack.enter_context(none_left())
        players: dict[str, Policy] = {}
        for entry, team in ((red, "red"), (blue, "blue")):
            try:
                players |= stack.enter_context(entry.seated(table, team))
            except PlayerFaultError as error:
                return forfeited(red, blue, table, {entry.name: str(error)})
            except UNREADABLE as error:
                return forfeited(red, blue, table, {entry.name: reason_of(error, entry.folder, entry.name)})
        played = play_games(table.spec, players, table.games, seed=table.seed)
    return _pairing(red, blue, table, played)


def forfeited(red: Entry, blue: Entry, table: Table, reasons: dict[str, str]) -> Pairing:
    """A pairing without a game: the entries named in ``reasons`` forfeit all of them."""
    letter = NOT_PLAYED if len(reasons) == 2 else "r" if red.name in reasons else "b"
    none = [0.0] * table.games
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) if len(reasons) == 2 else None
    return Pairing(
        red=red.name,
        blue=blue.name,
        outcomes=letter * table.games,
        length=[0] * table.games,
        return_red=none,
        return_blue=none,
        reason=told or next(iter(reasons.values())),
    )


def _pairing(red: Entry, blue: Entry, table: Table, played: Played) -> Pairing:
    outcomes = [LETTERS[int(winner)] for winner in played.table.winner]
    if played.fault is not None:
        letter = "r" if played.fault.name == red.name else "b"
        outcomes = [o if done else letter for o, done in zip(outcomes, played.finished, strict=True)]
    own = {
        team: played.table.returns[:, [a for a, s in enumerate(table.spec.seats) if table.spec.team_of(s) == team]]
        for team in ("red", "blue")
    }
    return Pairing(
        red=red.name,
        blue=blue.name,
        outcomes="".join(outcomes),
        length=played.table.length.tolist(),
        return_red=own["red"].sum(axis=1).round(6).tolist(),
        return_blue=own["blue"].sum(axis=1).round(6).tolist(),
        reason=None if played.fault is None else played.fault.reason,
        kept=_kept(red, blue, table, played),
    )


def _kept(red: Entry, blue: Entry, table: Table, played: Played) -> list[GameRecord]:
    # One game for each outcome that occurred, the one of middle length: what usually happens, not a freak.
    seats = {seat: red.name if table.spec.team_of(seat) == "red" else blue.name for seat in table.spec.seats}
    kept = []
    for code, label in ((0, "red wins"), (1, "blue wins"), (-1, "drawn")):
        games = np.flatnonzero((played.table.winner == code) & played.finished)
        if len(games):
            order = games[np.argsort(played.table.length[games], kind="stable")]
            share = f"{len(games)} of {len(played.finished)}"
            told = f"{red.name} (red) - {blue.name} (blue): {label}, as in {share} games"
            middle = int(order[len(order) // 2])
            kept.append(record(table.spec, played, middle, seed=table.seed, players=seats, label=told))
    return kept


# --- files


def pairing_file(folder: Path, red: Entry, blue: Entry) -> Path:
    """Where a pairing's result belongs."""
    # Names may hold blanks, dots and dashes: the hash keeps two pairings from sharing a file.
    both = json.dumps([red.name, blue.name])
    return folder / PAIRINGS / f"{red.name}--{blue.name}--{hashlib.sha256(both.encode()).hexdigest()[:8]}.json"


def save_pairing(path: Path, pairing: Pairing) -> None:
    """Write a pairing in one go: after a kill there is a whole file or none."""
    write_whole(path, pairing.model_dump_json())


def load_pairing(path: Path) -> Pairing:
    """Read a pairing. Raises :class:`PlayerError` for a damaged file."""
    try:
        return Pairing.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        said = " ".join(str(error).split())
        raise PlayerError(f"{path}: not the result of a pairing ({said[:200]}); allowed is to delete it") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and move it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)  # a full disk: nothing half of it stays
        raise


def team_spec(spec: GameSpec) -> None:
    """Raise :class:`PlayerError` unless two teams of the same size play."""
    if spec.blue != spec.red:
        raise PlayerError(
            f"a game of {spec.blue} blue and {spec.red} red: allowed is a scenario with two teams of the same size"
        )
