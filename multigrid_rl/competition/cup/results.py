"""Results of a cup as plain data: a file for each pairing, and ``results.json``, which its report shows."""

from pydantic import Field, model_validator

from multigrid_rl.config.scenario import Strict
from multigrid_rl.evaluation.cup_results import (
    Count,
    CupResults,
    EntryResult,
    Fault,
    PairResult,
    Share,
    SideResult,
    Standing,
    Surprise,
)  # fmt: skip
from multigrid_rl.evaluation.replays import GameRecord
from multigrid_rl.text import expected

__all__ = [
    "Count", "CupResults", "EntryResult", "Fault", "PairResult", "Pairing", "Share", "SideResult", "Standing",
    "Surprise",
]  # fmt: skip


class Pairing(Strict):
    """All games of ``red`` on the red side against ``blue`` on the blue side.

    One letter a game: the winner (``R``, ``B``), a draw (``D``), the forfeiting entry (``r``, ``b``), or ``-`` where
    both entries are out of the cup and the game does not count.
    """

    format: int = Field(default=1, ge=1, le=1)
    red: str
    blue: str
    outcomes: str = Field(pattern=r"^[RBDrb-]+$")  # one letter a game, in the order of their numbers
    length: list[int]  # steps of each game, 0 where it was not played
    return_red: list[float]  # canonical return of the team in each game
    return_blue: list[float]
    reason: str | None = None  # why games were forfeited
    out: bool = False  # not played: an entry was out of the cup before
    seconds: dict[str, float] = Field(default={})  # agent -> what its start and its answers took
    kept: list[GameRecord] = Field(default=[])  # to look at

    @model_validator(mode="after")
    def _rows_fit(self) -> "Pairing":
        for name in ("length", "return_red", "return_blue"):
            if len(getattr(self, name)) != len(self.outcomes):
                raise ValueError(expected(name, f"{len(self.outcomes)} rows", len(getattr(self, name))))
        return self

    def count(self, letters: str) -> int:
        """Count the games that ended with one of ``letters``."""
        return sum(self.outcomes.count(letter) for letter in letters)

    @property
    def at_fault(self) -> str | None:
        """The entry that forfeited games while it played, or could not begin."""
        return self.red if "r" in self.outcomes else self.blue if "b" in self.outcomes else None
