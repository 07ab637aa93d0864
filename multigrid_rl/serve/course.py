"""The settings in ``course.yaml``: game, anchors, roster, deadlines, limits, and what is public."""

import csv
import io
import re
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AwareDatetime, Field, field_validator, model_validator

from multigrid_rl.config.scenario import Part
from multigrid_rl.files import read_plain_yaml
from multigrid_rl.runs.reader import reading
from multigrid_rl.text import ConfigError, expected, printable, unknown

DAY_S = 86_400.0
_FIRST = datetime(1970, 1, 2, tzinfo=timezone.utc)
ROLES = ("student", "instructor")
MOST_WORKERS = 64


class Deadline(Part):
    """A date until which a submission is on time."""

    name: str = Field(min_length=1, max_length=60)
    #: With its offset from UTC: ``2026-12-01T23:59:00+01:00``.
    at: AwareDatetime = Field(ge=_FIRST, lt=_FIRST.replace(year=9000))
    #: Hours in which a submission still is on time.
    grace_h: float = Field(default=0.0, ge=0, le=87_600)


class Extension(Part):
    """More days for a student, or each member of a team."""

    of: str = Field(min_length=1)  # an id of the roster, or a name of ``teams``
    deadline: str | None = None  # its name; all deadlines by default
    days: float = Field(gt=0, le=3650)


class HandInQuota(Part):
    """How many submissions a student has. A fault of the server costs none."""

    hand_ins: int = Field(default=20, ge=1)
    per_h: float = Field(default=24.0, gt=0)
    megabytes: float = Field(default=50.0, gt=0, le=50)


class Public(Part):
    """The parts of the ladder and games that students see of each other."""

    top: int = Field(default=3, ge=0)  # rows of the ladder that every student sees
    above: int = Field(default=3, ge=0)  # rows above their own that students see
    names: Literal["pseudonyms", "names"] = "pseudonyms"
    points: Literal["at once", "after the deadline"] = "at once"  # a student's own, and the feedback
    replays: bool = True  # games of others


class CourseLimits(Part):
    """Limits of a program in one pairing; bundles are networks, and need none."""

    start_s: float = Field(default=10.0, gt=0)
    step_s: float = Field(default=2.0, gt=0)
    total_s: float = Field(default=30.0, gt=0)
    memory_mb: int = Field(default=1024, ge=16)
    #: For all starts and answers of one submission; beyond this it plays no more.
    all_s: float = Field(default=300.0, gt=0)


class Course(Part):
    """All of ``course.yaml``."""

    title: str = Field(default="Class ladder", max_length=120)
    scenario: str = "1v1"
    overrides: list[str] = Field(default=[])
    #: Players of ``multigrid-rl players``, or folders beside this file: their ratings are fixed.
    anchors: list[str] = Field(default=["random", "blue-rookie", "hunter", "blue-adept", "blue-master"], min_length=1)
    #: First opponent of each submission; one of the anchors, by default the first.
    rookie: str | None = None
    #: Games of each pairing from each side: of networks, and of programs, which play the first ones of the same games.
    games: int = Field(default=100, ge=2, le=10_000)
    program_games: int = Field(default=20, ge=2, le=10_000)
    #: Other submissions that each one meets, while the queue is empty.
    matches: int = Field(default=5, ge=0)
    counts: Literal["latest", "best"] = "latest"  # which of a student's submissions stands on the ladder
    rubric: str | None = None  # file beside this one, as of `multigrid-rl grade`
    roster: str = "roster.csv"
    earlier: str | None = None  # folder beside this file, with earlier years' submissions, to find copies of
    deadlines: list[Deadline] = Field(default=[])
    #: Ids of the roster, by the team's name: a submission of one member counts for all.
    teams: dict[Annotated[str, Field(pattern=r"^\w[\w -]{0,59}$")], list[str]] = Field(default={})
    extensions: list[Extension] = Field(default=[])
    #: A submission after the last deadline is refused; or counts where it has more points than the one on time, after
    #: ``penalty`` percent for each begun day; or is shown beside the one on time, and does not count.
    late: Literal["refuse", "penalty", "beside"] = "beside"
    penalty: float = Field(default=10.0, ge=0, le=100)
    time_zone: str = "UTC"  # in which pages show times, in addition to UTC: Europe/Berlin
    quota: HandInQuota = HandInQuota()
    limits: CourseLimits = CourseLimits()
    public: Public = Public()
    #: Processes that play games of networks; there are as many for programs.
    workers: int = Field(default=2, ge=1, le=MOST_WORKERS)
    #: Days that submissions and replays are kept after the last deadline; the privacy page says it.
    keep_days: int = Field(default=365, ge=1)

    @field_validator("deadlines")
    @classmethod
    def _in_order(cls, value: list[Deadline]) -> list[Deadline]:
        return sorted(value, key=lambda deadline: deadline.at)

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError("expected a name such as Europe/Berlin") from error
        return value

    @model_validator(mode="after")
    def _settings_fit(self) -> "Course":
        names = [deadline.name for deadline in self.deadlines]
        if len({*names}) < len(names):
            raise ValueError(expected("deadlines", "each name once", ", ".join(names)))
        members = [*chain(*self.teams.values())]
        if len({*members}) < len(members):
            raise ValueError(expected("teams", "each id once", ", ".join(members)))
        if anchored := sorted({*self.teams} & {*self.anchors}):  # both are entries of the final cup
            raise ValueError(expected("teams", "names that no anchor has", ", ".join(anchored)))
        for extension in self.extensions:
            if extension.deadline is not None and extension.deadline not in names:
                raise ValueError(unknown("extensions: deadline", extension.deadline, names))
        if self.late == "penalty" and self.rubric is None:
            raise ValueError(expected("late", "refuse or beside where there is no rubric, and so no points", "penalty"))
        if self.rookie is not None and self.rookie not in self.anchors:
            raise ValueError(expected("rookie", " or ".join(self.anchors), self.rookie))
        wrong = [name for name in self.anchors if re.fullmatch(r"h\d+|.*/.*", name)]  # as submissions are called
        if wrong or len(set(self.anchors)) < len(self.anchors):
            wanted = "each once, a player's name or a folder beside the course, and none like h1"
            raise ValueError(expected("anchors", wanted, ", ".join(wrong or self.anchors)))
        return self

    def over(self, now: float) -> bool:
        """Return whether the storage time of the privacy page is over."""
        return now > max((each.at.timestamp() for each in self.deadlines), default=now) + DAY_S * self.keep_days

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone of the class."""
        return ZoneInfo(self.time_zone)

    def _extended(self, deadline: Deadline, code: str) -> datetime:
        """Return a deadline with the longest extension of this student or the team, by the class's clock."""
        ids = {code}.union(*({team, *members} for team, members in self.teams.items() if code in members))
        days = [each.days for each in self.extensions if each.of in ids and each.deadline in (None, deadline.name)]
        at = deadline.at.astimezone(self.zone)
        return (at + timedelta(days=max(days, default=0.0))).replace(fold=at.fold)  # a sum forgets the second 02:30

    def end(self, deadline: Deadline, code: str) -> float:
        """Return the time, in seconds since 1970, until which a submission of a student is on time."""
        return self._extended(deadline, code).timestamp() + 3600 * deadline.grace_h

    def late_days(self, at: float, deadline: Deadline, code: str) -> int:
        """Return how many days a submission at ``at`` is late, begun ones counted; 0: on time."""
        late = datetime.fromtimestamp(at, self.zone) - self._extended(deadline, code)  # days of 23 to 25 hours
        return 0 if at <= self.end(deadline, code) else max(-(-late // timedelta(days=1)), 1)

    def points_shown(self, at: float, now: float, code: str) -> bool:
        """Return whether a student sees the points of a submission: at once, or after its deadline."""
        ends = [self.end(each, code) for each in self.deadlines]
        return self.public.points == "at once" or now >= min((end for end in ends if end >= at), default=at)

    def missed(self, at: float, code: str) -> tuple[Deadline, int] | None:
        """Return the last deadline that was over at ``at``, and by how many days; ``None``: none was."""
        days_late = [(deadline, self.late_days(at, deadline, code)) for deadline in self.deadlines]
        return next((pair for pair in reversed(days_late) if pair[1]), None)


class Enrolled(NamedTuple):
    """A line of the roster."""

    code: str  # the platform's own id
    name: str
    email: str = ""
    role: str = "student"


def read_course(path: Path) -> Course:
    """Read a course. Raises ``ConfigError``, with key and value of an invalid setting."""
    with reading(path, "a course in yaml"):
        return Course.model_validate(read_plain_yaml(path))


def read_roster(path: Path) -> list[Enrolled]:
    """Read a roster: a CSV with the columns ``id`` and ``name``, perhaps ``email`` and ``role``, in any order.

    Commas, semicolons or tabs separate cells. Raises ``ConfigError``: no such file, a missing column, a cell too many,
    a repeated id, an unknown role.
    """
    try:
        text = io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=None)
        # Spreadsheets write semicolons where a comma is decimal.
        delimiter = max(",;\t", key=text.getvalue().lstrip().partition("\n")[0].count)
        lines = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
        rows = [(lines.line_num, [printable(cell.strip()) for cell in line]) for line in lines if "".join(line).strip()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(expected(path, "a roster, a CSV in UTF-8", getattr(error, "strerror", error))) from error
    columns = [cell.lower() for cell in rows[0][1]] if rows else []
    if not {"id", "name"} <= {*columns}:
        raise ConfigError(expected(f"{path}: line 1", "the columns id and name", ", ".join(columns) or "nothing"))
    people: dict[str, Enrolled] = {}
    for number, row in rows[1:]:
        cells = dict(zip(columns, row, strict=False))
        code, name, email = (cells.get(key, "") for key in ("id", "name", "email"))
        person = Enrolled(code, name, email, cells.get("role", "").lower() or "student")
        too_long = any(len(cell) > 120 for cell in (code, name, email))  # for the columns of a database
        if any(row[len(columns) :]) or not code or not name or too_long:
            wanted = f"an id and a name, and {len(columns)} cells (a comma in a name needs quotes), at most 120 long"
            raise ConfigError(expected(f"{path}: line {number}", wanted, ", ".join(row)))
        if person.role not in ROLES or person.code in people:
            wanted, got = ("each id once", code) if person.code in people else (" or ".join(ROLES), person.role)
            raise ConfigError(expected(f"{path}: line {number}", wanted, got))
        people[person.code] = person
    return list(people.values())
