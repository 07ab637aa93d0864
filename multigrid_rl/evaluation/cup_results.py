"""Results of a cup as data: ``results.json``, which a cup writes and its page shows."""

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from multigrid_rl.config.scenario import Strict
from multigrid_rl.evaluation.replays import AnyRecord
from multigrid_rl.runs.reader import reading

RESULTS_FILE = "results.json"
#: Format of written files; older ones can be read.
FORMAT = 3
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
#: Bound of an interval; NaN, null in the file, for a single game.
Bound = Annotated[float, Field(allow_inf_nan=True), BeforeValidator(lambda given: nan if given is None else given)]


def unless(default: Any) -> Callable[[Any], bool]:
    """Return a test that leaves a newer field at its default out of a file, as in earlier versions."""
    return lambda value: bool(value == default)


class Fault(Strict):
    """Games that an entry forfeited for one reason."""

    red: str  # entries of the first such pairing
    blue: str
    pairings: Count = 1
    games: Count  # forfeited
    reason: str  # one line


class EntryResult(Strict):
    """One entry of the cup."""

    name: str
    kind: Literal["scripted", "frozen", "external", "broken"]
    sha256: str | None  # of its files; None for scripted players
    env_steps: int | None = None  # of a league's snapshot: training steps of the learner
    about: str  # one line: network and training of a frozen player, command of an external one
    problem: str | None = None  # the reason why it could not play
    same_as: list[str] = Field(default=[])  # originals of this copy or near copy, with their difference
    faults: list[Fault] = Field(default=[])
    seconds: float | None = None  # an agent: seconds of its starts and answers

    @property
    def reason(self) -> str:
        """The reason why it could not play, or first forfeited."""
        return self.problem or next((fault.reason for fault in self.faults), "")


class Standing(Strict):
    """One row of the table."""

    rank: int  # from 1; shared by entries that no rule separates
    name: str
    rating: float  # Bradley-Terry on the Elo scale, mean of the cup 1000
    low: float  # 95 % bootstrap interval
    high: float
    points: float  # 1 for a win, 1/2 for a draw
    games: Count
    win: Count
    draw: Count
    loss: Count
    forfeited: Count  # of the losses
    margin: float  # mean difference of the returns, own minus opponent's, over games that were not forfeited
    decided_by: str  # criterion against the next entry: "rating", or a tie rule


class ReturnsRow(Strict):
    """One row of the table of a game without winners: returns decide."""

    rank: int  # from 1; shared by equal entries
    name: str
    mean: float  # return over unforfeited games, with its 95 % interval over game numbers
    low: Bound
    high: Bound
    games: Count
    forfeited: Count  # additional games; entries with any rank behind all entries without
    length_mean: float
    sides: dict[str, float] = Field(default={})  # mean by side, for several sides


class PairResult(Strict):
    """All games of two entries, both sides together; from the view of ``one``."""

    one: str
    two: str
    games: Count
    win: Count
    draw: Count
    loss: Count
    forfeited: Count  # games that either of the two forfeited
    share: Share  # points of `one` per game
    low: Share  # 95 % Wilson interval of `share`
    high: Share
    margin: float  # mean difference of the returns over games that were not forfeited
    length_mean: float  # steps, the same games

    def swapped(self) -> "PairResult":
        """Return the same pair from the view of the other entry."""
        return self.model_copy(update={
            "one": self.two, "two": self.one, "win": self.loss, "loss": self.win, "share": 1 - self.share,
            "low": 1 - self.high, "high": 1 - self.low, "margin": -self.margin,
        })  # fmt: skip


class SideResult(Strict):
    """One pairing: ``red`` on the first side, ``blue`` on the other; on all but ``side`` where there are more."""

    red: str
    blue: str
    games: Count
    red_win: Count
    draw: Count
    blue_win: Count
    forfeited: Count
    length_mean: float
    return_red: float  # mean return of the team
    return_blue: float
    side: str = Field(default="", exclude_if=unless(""))


class Surprise(Strict):
    """A pair whose result contradicts the ratings; style may explain it, or an agreement."""

    one: str
    two: str
    share: Share  # points of `one` per game
    expected: Share  # by ratings from all games except this pair's


class CupResults(Strict):
    """A whole cup."""

    format: int = Field(default=FORMAT, ge=1, le=FORMAT)
    scenario: str
    games_per_side: int
    seed: int
    rules: list[str]  # one sentence each: playing, scoring, ranking, ties, faults
    entries: list[EntryResult]
    standings: list[Standing]
    unranked: list[str] = Field(default=[])  # entries without a finished game: they are in no other table
    pairs: list[PairResult]
    sides: list[SideResult]
    cycles: list[list[str]] = Field(default=[], exclude=True)  # of files of format 1
    surprises: list[Surprise] = Field(default=[])
    games: list[AnyRecord]  # for replay; `label` names the reason
    versions: dict[str, str]
    sha256: str = ""  # over this data and every pairing's file
    #: Names of the first side and the other; one name in a game with one side.
    teams: list[str] = Field(default=["red", "blue"], exclude_if=unless(["red", "blue"]))
    rated: bool = Field(default=True, exclude_if=unless(True))  # entries win against each other; else returns decide
    returns: list[ReturnsRow] = Field(default=[], exclude_if=unless([]))  # in place of standings and pairs

    @property
    def table(self) -> Sequence[Standing | ReturnsRow]:
        """The ranked entries, the best first."""
        return self.standings if self.rated else self.returns


def read_results(path: Path) -> CupResults:
    """Read and check a cup's results. Raises :class:`ConfigError` with file, key and error."""
    with reading(path, "the file that a cup wrote"):
        return CupResults.model_validate_json(path.read_bytes())
