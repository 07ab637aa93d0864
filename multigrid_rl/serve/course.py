"""What ``course.yaml`` says: the game, who is met, who may hand in, until when, and what is public."""

import csv
import io
import re
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, Field, ValidationError, field_validator, model_validator

from multigrid_rl.config.scenario import Strict
from multigrid_rl.files import read_plain_yaml
from multigrid_rl.text import ConfigError, expected, first_error, printable

DAY_S = 86_400.0
MAX_ROSTER_BYTES = 2_000_000
ROLES = ("student", "instructor")
MOST_WORKERS = 64


class Deadline(Strict):
    """A date until which something is to be handed in."""

    name: str = Field(min_length=1, max_length=60)
    #: With its offset from UTC: ``2026-12-01T23:59:00+01:00``.
    at: AwareDatetime
    #: Hours in which a hand-in still is on time.
    grace_h: float = Field(default=0.0, ge=0)

    @property
    def end(self) -> float:
        """Seconds since 1970 until which a hand-in is on time."""
        return self.at.timestamp() + 3600 * self.grace_h


class HandInQuota(Strict):
    """How many hand-ins a student has. What the server itself fails at costs none."""

    hand_ins: int = Field(default=20, ge=1)
    per_h: float = Field(default=24.0, gt=0)
    megabytes: float = Field(default=50.0, gt=0, le=50)


class Public(Strict):
    """What students see of each other."""

    top: int = Field(default=3, ge=0)  # rows of the ladder that everybody sees
    above: int = Field(default=3, ge=0)  # rows above their own that students see
    names: Literal["pseudonyms", "names"] = "pseudonyms"
    replays: bool = True  # games of others


class CourseLimits(Strict):
    """What a program may use in one pairing; bundles are networks, and need none."""

    start_s: float = Field(default=5.0, gt=0)
    step_s: float = Field(default=2.0, gt=0)
    total_s: float = Field(default=30.0, gt=0)
    memory_mb: int = Field(default=1024, ge=16)
    #: For all starts and answers of one hand-in: then it plays no more.
    all_s: float = Field(default=300.0, gt=0)


class Course(Strict):
    """All of ``course.yaml``."""

    title: str = Field(default="Class ladder", max_length=120)
    scenario: str = "1v1"
    overrides: list[str] = Field(default=[])
    #: Players of ``multigrid-rl players``, or folders beside this file: their ratings are fixed.
    anchors: list[str] = Field(default=["random", "blue-rookie", "hunter", "blue-adept", "blue-master"], min_length=1)
    #: Whom each hand-in meets first; one of the anchors, the first by default.
    rookie: str | None = None
    #: Games of each pairing from each side: of networks, and of programs, which play the first ones of the same games.
    games: int = Field(default=100, ge=2, le=10_000)
    program_games: int = Field(default=20, ge=2, le=10_000)
    #: Opponents among other hand-ins that each one meets when nobody waits.
    matches: int = Field(default=5, ge=0)
    counts: Literal["latest", "best"] = "latest"  # which of a student's hand-ins stands on the ladder
    rubric: str | None = None  # file beside this one, as of `multigrid-rl grade`
    roster: str = "roster.csv"
    deadlines: list[Deadline] = Field(default=[])
    quota: HandInQuota = HandInQuota()
    limits: CourseLimits = CourseLimits()
    public: Public = Public()
    #: Processes that play games of networks; as many again are there for programs.
    workers: int = Field(default=2, ge=1, le=MOST_WORKERS)
    #: Days that hand-ins and replays are kept after the last deadline; the privacy page says it.
    keep_days: int = Field(default=365, ge=1)

    @field_validator("deadlines")
    @classmethod
    def _in_order(cls, value: list[Deadline]) -> list[Deadline]:
        return sorted(value, key=lambda deadline: deadline.at)

    @model_validator(mode="after")
    def _rookie_is_an_anchor(self) -> "Course":
        if self.rookie is not None and self.rookie not in self.anchors:
            raise ValueError(expected("rookie", " or ".join(self.anchors), self.rookie))
        wrong = [name for name in self.anchors if re.fullmatch(r"h\d+|.*/.*", name)]  # as hand-ins are called
        if wrong or len(set(self.anchors)) < len(self.anchors):
            raise ValueError(
                expected(
                    "anchors",
                    "each once, a player's name or a folder beside the course, and none like h1",
                    ", ".join(wrong or self.anchors),
                )
            )
        return self

    @cached_property
    def first(self) -> str:
        """The anchor that each hand-in meets first."""
        return self.rookie or self.anchors[0]

    def due(self, at: float) -> Deadline | None:
        """Return the deadline that a hand-in at ``at`` (seconds since 1970) is for: the next, or the last one."""
        return next((each for each in self.deadlines if at <= each.end), self.deadlines[-1] if self.deadlines else None)

    def late_days(self, at: float) -> int:
        """Return how many days a hand-in at ``at`` is late, begun ones counted; 0: on time, or no deadline."""
        due = self.due(at)
        return 0 if due is None or at <= due.end else int(-(-(at - due.at.timestamp()) // DAY_S))


class Enrolled(NamedTuple):
    """A line of the roster."""

    code: str  # the platform's own id
    name: str
    email: str = ""
    role: str = "student"


def read_course(path: Path) -> Course:
    """Read a course. Raises ``ConfigError``: names key and value of what cannot be used."""
    try:
        return Course.model_validate(read_plain_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_error(error, quoting=True)}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(expected(path, "a course in yaml", getattr(error, "strerror", error))) from error


def read_roster(path: Path) -> list[Enrolled]:
    """Read a roster: a CSV with the columns ``id`` and ``name``, perhaps ``email`` and ``role``, in any order.

    Raises ``ConfigError``: no such file, a column that lacks, an id that stands there twice, an unknown role.
    """
    try:
        text = path.read_bytes()[:MAX_ROSTER_BYTES].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(expected(path, "a roster, a CSV in UTF-8", getattr(error, "strerror", error))) from error
    rows = list(csv.DictReader(io.StringIO(text), skipinitialspace=True))
    people: dict[str, Enrolled] = {}
    for number, row in enumerate(rows, 2):
        cells = {str(key).strip().lower(): printable((value or "").strip()) for key, value in row.items() if key}
        code, name, email = (cells.get(key, "") for key in ("id", "name", "email"))
        one = Enrolled(code, name, email, cells.get("role") or "student")
        if not one.code or not one.name:
            raise ConfigError(expected(f"{path}: line {number}", "an id and a name", ", ".join(cells.values())))
        if one.role not in ROLES or one.code in people:
            wanted, got = ("each id once", one.code) if one.code in people else (" or ".join(ROLES), one.role)
            raise ConfigError(expected(f"{path}: line {number}", wanted, got))
        people[one.code] = one
    return list(people.values())
