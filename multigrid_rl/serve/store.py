"""All that pages and workers of a class server share: people, submissions, jobs, games. A change is one transaction."""

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Container
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, defer, joinedload, sessionmaker

from multigrid_rl.competition.folders import read_parts, remove_tree, write_parts
from multigrid_rl.serve.course import Course, Deadline
from multigrid_rl.serve.database import Event, Grade, HandIn, Job, Person, Setting, StoredPairing, engine_of
from multigrid_rl.serve.rating import PairingResult
from multigrid_rl.text import ConfigError, expected, printable

#: Seconds in which a state should be over; the pages show overdue submissions.
STATE_S = {"received": 60.0, "checking": 60.0, "placing": 600.0}
#: Lanes of jobs, each with its workers: networks, programs, slow jobs.
LANES = BUNDLE, PROGRAM, SLOW = "bundle", "program", "slow"
#: Priorities: games of anchors; checks, first games and ratings; further games; slow jobs.
ANCHORS, FIRST, MATCH, LATER = 0, 1, 3, 5
FROZEN = "frozen"
#: Events of submissions that are not on the ladder yet; they change no cached page.
_UNLISTED_EVENTS = ("checking", "placing", "played", "fault")
#: Pairings of one query.
_BATCH_SIZE = 100
#: A table's row.
TableRow = TypeVar("TableRow")


class Row(NamedTuple):
    """A row of the ladder."""

    rank: int  # among submissions, from 1; of an anchor that of the next below it
    hand_in: HandIn
    person: Person | None  # ``None`` for an anchor
    team: str  # its name, if the author has one
    rating: float
    low: float  # 95 % interval
    high: float
    games: int

    @property
    def title(self) -> str:
        """The public name."""
        return self.hand_in.name if self.person is None else self.team or self.person.pseudonym

    @property
    def name(self) -> str:
        """The name that instructors see."""
        return self.title if self.person is None else self.team or self.person.name

    @property
    def plays(self) -> bool:
        """Whether it is a submission with files: its author is not forgotten."""
        return self.person is not None and not self.person.forgotten


class Team(NamedTuple):
    """People who hand in together; a person without a team is one of its own, without a name."""

    name: str
    ids: list[int]


class DeadlineResult(NamedTuple):
    """The submission that counts for a deadline, and the late one."""

    counting: HandIn | None
    late: HandIn | None  # it may be the one that counts
    days_late: int  # of the late one
    points: float | None  # of the one that counts, after the penalty; ``None``: it was not graded


class Store:
    """People, submissions, games and ratings of one course, in a database with tables (:func:`make_tables`).

    ``home`` has the folders ``uploads/ID`` (as handed in) and ``entries/hID`` (checked); ``now`` is seconds since 1970.
    """

    #: Whether each entry plays alone; workers set it from ``Judge.meets_nobody``.
    meets_nobody = False

    def __init__(self, url: str, home: Path, course: Course, now: Callable[[], float] = time.time) -> None:
        self.home, self.course, self.now = home, course, now
        self._results_read: dict[tuple[int, bool], PairingResult] = {}  # games never change and are read once
        self.engine = engine_of(url)
        #: Makes sessions, each with one snapshot of the database; their rows can be read after their end.
        self.reading = sessionmaker(self.engine, expire_on_commit=False)
        self._writes, self._durable_writes = (
            sessionmaker(self.engine.execution_options(writes=mode), expire_on_commit=False)
            for mode in ("yes", "durable")
        )

    def writing(self, *, durable: bool = False) -> AbstractContextManager[Session]:
        """Return a session whose block is one transaction; ``durable``: it survives a power cut."""
        return (self._durable_writes if durable else self._writes).begin()

    def get(self, table: type[TableRow], key: int | str) -> TableRow | None:
        """Return a row of a table by its number, a setting by its key."""
        with self.reading() as session:
            return session.get(table, key)

    def all(self, query: Select[TableRow]) -> list[TableRow]:
        """Return all rows that a query finds."""
        with self.reading() as session:
            return list(session.scalars(query))

    def add_job(
        self, session: Session, kind: str, hand_in: int = 0, other: int = 0, *, lane: str = SLOW, priority: int = LATER
    ) -> None:
        """Add a job, unless the queue has it already."""
        key = {"kind": kind, "hand_in_id": hand_in, "other_id": other}
        if session.scalar(select(Job).filter_by(**key)) is None:
            session.add(Job(**key, lane=lane, priority=priority, at=self.now()))

    def add_event(self, session: Session, kind: str, text: str = "", *, hand_in: int = 0, person: int = 0) -> None:
        """Add an event."""
        session.add(Event(at=self.now(), kind=kind, text=text, hand_in_id=hand_in, person_id=person))

    # --- the course

    def setting(self, key: str) -> str:
        """Return a setting."""
        found = self.get(Setting, key)
        return "" if found is None else found.value

    def freeze(self, frozen: bool, by: int = 0) -> bool:
        """Refuse submissions, or take them again, and return which; ``by``: the id of a person."""
        with self.writing() as session:
            session.merge(Setting(key=FROZEN, value="1" if frozen else ""))
            self.add_event(session, "setting", FROZEN, person=by)
        return frozen

    def begin(self) -> None:
        """Make rows and jobs for the anchors and their games, unless there are some."""
        now = self.now()
        values = {"at": now, "state": "placing", "state_at": now, "deadline": now + STATE_S["placing"], "counts": False}
        with self.writing() as session:
            if session.scalar(select(HandIn).where(HandIn.person_id.is_(None)).limit(1)) is not None:
                return
            rows = [HandIn(name=name, **values) for name in self.course.anchors]
            session.add_all(rows)
            session.flush()
            ids = [row.id for row in rows]
            pairs = [(number, 0) for number in ids] if self.meets_nobody else combinations(ids, 2)
            for first, other in pairs:
                self.add_job(session, "pair", first, other, lane=BUNDLE, priority=ANCHORS)
            if len(ids) == 1:
                self.add_job(session, "rate", lane=BUNDLE, priority=FIRST)

    @cached_property
    def _teams(self) -> dict[int, Team]:
        with self.reading() as session:
            ids = {person.code: person.id for person in session.scalars(select(Person))}
        teams = self.course.teams.items()
        found = [Team(name, [ids[code] for code in codes if code in ids]) for name, codes in teams]
        return {number: team for team in found for number in team.ids}

    def team(self, person_id: int) -> Team:
        """Return the team of a person, as it was when the server started."""
        return self._teams.get(person_id) or Team("", [person_id])

    # --- handing in

    def hand_in(self, person_id: int, upload: Path, name: str = "") -> HandIn:
        """Copy a person's folder or zip file, without reading it, and add a job that checks it.

        ``name`` is its name at home, by default that of the path. Raises ``ConfigError``: no such person, no quota
        left, the course is frozen, it is too large; ``PlayerError``: it cannot be read; ``OSError``: no room.
        """
        name = printable(Path(name or upload.name).name)[:200] or "hand-in"
        temporary = self.home / "uploads" / f".{secrets.token_hex(8)}"
        try:
            if upload.is_dir():
                write_parts(read_parts(upload), temporary / "folder")
            else:
                max_mb, size = self.course.quota.megabytes, upload.stat().st_size
                if size > max_mb * 1e6:
                    raise ConfigError(expected(name, f"at most {max_mb:g} MB", f"{size / 1e6:.1f} MB"))
                temporary.mkdir(parents=True)
                shutil.copyfile(upload, temporary / "upload.zip")
            for path in temporary.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
            with self.writing(durable=True) as session:
                row = self._accept(session, person_id, name)
                folder = self.upload_folder(row.id)
                remove_tree(folder)  # of a server that was killed before the row was written
                temporary.rename(folder)
        finally:
            remove_tree(temporary)
        return row

    def _accept(self, session: Session, person_id: int, name: str) -> HandIn:
        now, quota = self.now(), self.course.quota
        ids = self.team(person_id).ids  # all are locked: two members at the same moment have one quota
        session.scalars(select(Person).where(Person.id.in_(ids)).order_by(Person.id).with_for_update()).all()
        person = session.get(Person, person_id)
        if person is None or person.forgotten:
            raise ConfigError(expected("person", "one of the roster who was not forgotten", f"number {person_id}"))
        if (frozen := session.get(Setting, FROZEN)) is not None and frozen.value:
            raise ConfigError("the course is frozen: nothing is taken any more")
        deadlines = self.course.deadlines
        if self.course.late == "refuse" and deadlines and self.course.late_days(now, deadlines[-1], person.code):
            raise ConfigError(f"{deadlines[-1].name} is over: nothing is taken any more")
        recent = (HandIn.person_id.in_(ids), HandIn.counts, HandIn.at > now - 3600 * quota.per_h)
        if (used := session.scalar(select(func.count(HandIn.id)).where(*recent)) or 0) >= quota.hand_ins:
            raise ConfigError(expected("hand-ins", f"at most {quota.hand_ins} in {quota.per_h:g} hours", used + 1))
        row = HandIn(person_id=person_id, name=name, at=now, state_at=now)
        session.add(row)
        session.flush()
        self.set_state(session, row, "received")
        self.add_job(session, "check", row.id, lane=BUNDLE, priority=FIRST)
        return row

    def set_state(self, session: Session, row: HandIn, state: str, reason: str = "", log: str = "") -> None:
        """Change the state of a submission."""
        row.state, row.state_at, row.reason = state, self.now(), reason
        row.log = log or row.log
        row.deadline = self.now() + STATE_S[state] if state in STATE_S else 0.0
        self.add_event(session, state, reason, hand_in=row.id, person=row.person_id or 0)

    def upload_folder(self, hand_in_id: int) -> Path:
        """Return the folder of a submission as uploaded: ``upload.zip`` or ``folder`` in it."""
        return self.home / "uploads" / str(hand_in_id)

    def entry_folder(self, hand_in_id: int) -> Path:
        """Return the folder of a checked submission, as it plays."""
        return self.home / "entries" / f"h{hand_in_id}"

    # --- for pages

    def history(self, person_id: int) -> list[HandIn]:
        """Return all submissions of a person or the team, the newest first."""
        query = select(HandIn).where(HandIn.person_id.in_(self.team(person_id).ids))
        return self.all(query.order_by(HandIn.id.desc()))

    def ladder(self) -> list[Row]:
        """Return the ladder, the best first: anchors, and each author's submission that counts, else the late one."""
        by_author: dict[int, list[HandIn]] = {}
        # Submissions that still play their first games are left out.
        query = select(HandIn).where(HandIn.state == "rated", HandIn.rating.has()).order_by(HandIn.id.desc())
        for hand_in in self.all(query.options(defer(HandIn.log), joinedload(HandIn.grade).defer(Grade.feedback))):
            author_id = -hand_in.id if hand_in.person is None else self.team(hand_in.person.id).ids[0]
            by_author.setdefault(author_id, []).append(hand_in)
        last, rows = self.course.deadlines[-1] if self.course.deadlines else None, list[Row]()
        for hand_ins in by_author.values():
            author = hand_ins[0].person
            found = deadline_result(hand_ins, self.course, last, author.code if author else "")
            hand_in = found.counting or found.late or hand_ins[0]
            if (rating := hand_in.rating) is not None:
                team = self.team(author.id).name if author else ""
                about = rating.rating, rating.low, rating.high, rating.games
                rows.append(Row(1, hand_in, hand_in.person, team, *about))
        rows.sort(key=lambda row: (-row.rating, row.hand_in.id))
        ratings = [row.rating for row in rows if row.person is not None]
        return [row._replace(rank=rank_among(ratings, row.rating)) for row in rows]

    def events(self, hand_in_id: int) -> list[Event]:
        """Return the events of a submission, in order."""
        return self.all(select(Event).where(Event.hand_in_id == hand_in_id).order_by(Event.id))

    def games_of(self, hand_in_id: int) -> list[PairingResult]:
        """Return the pairings of a submission on the ladder, in the order in which they were played."""
        with self.reading() as session:
            in_pairing = (StoredPairing.red_id == hand_in_id) | (StoredPairing.blue_id == hand_in_id)
            return self.pairings(session, in_pairing, by_wins=True)

    def pairings(self, session: Session, *conditions: Any, by_wins: bool) -> list[PairingResult]:
        """Return the results of pairings; ``by_wins``: games are won or lost, and their returns are left out."""
        ids = session.scalars(select(StoredPairing.id).where(*conditions).order_by(StoredPairing.id)).all()
        unread = [number for number in ids if (number, by_wins) not in self._results_read]
        for k in range(0, len(unread), _BATCH_SIZE):  # stored games are large
            batch = StoredPairing.id.in_(unread[k : k + _BATCH_SIZE])
            columns = StoredPairing.id, StoredPairing.red_id, StoredPairing.blue_id, StoredPairing.pairing
            for number, red, blue, text in session.execute(select(*columns).where(batch)):
                games = json.loads(text)
                returns = ((), ()) if by_wins else (games["return_red"], games["return_blue"])
                about = games.get("side", ""), games["outcomes"], *returns, number, bool(games["kept"])
                self._results_read[number, by_wins] = PairingResult(red, blue, *about)
        return [self._results_read[number, by_wins] for number in ids]

    def version(self) -> int:
        """Return a number that grows with every change of a cached page."""
        with self.reading() as session:
            return session.scalar(select(func.max(Event.id)).where(Event.kind.not_in(_UNLISTED_EVENTS))) or 0


def deadline_result(rows: list[HandIn], course: Course, deadline: Deadline | None, code: str) -> DeadlineResult:
    """Return the submission of the student with this id that counts: the last, or the best, rated one on time.

    The late one is chosen in the same way; it counts where the course's ``late`` says so.
    """

    def sort_key(row: HandIn) -> tuple[bool, float, int]:
        rating = row.rating if row.state == "rated" else None
        return rating is not None, rating.rating if rating and course.counts == "best" else 0.0, row.id

    days = {row.id: course.late_days(row.at, deadline, code) if deadline else 0 for row in rows}
    on_time = max((row for row in rows if not days[row.id]), key=sort_key, default=None)
    late = max((row for row in rows if days[row.id]), key=sort_key, default=None)
    days_late = days[late.id] if late else 0
    points = on_time.grade.points if on_time and on_time.grade else None
    if late and late.grade and course.late == "penalty":
        reduced = round(late.grade.points * max(1 - course.penalty / 100 * days_late, 0.0), 2)
        if points is None or reduced > points:
            return DeadlineResult(late, late, days_late, reduced)
    return DeadlineResult(on_time, late, days_late, points)


def rank_among(ratings: Collection[float], rating: float) -> int:
    """Return the rank of a rating: equal ones share it, up to rounding errors, as in a cup. Returns often are equal."""
    return 1 + sum(round(other, 6) > round(rating, 6) for other in ratings)


def visible_rows(rows: list[Row], person_ids: Container[int], course: Course) -> list[Row]:
    """Return the rows of the ladder that a student or team sees: the top, the anchors, its own, and some above."""
    ranked = [row for row in rows if row.person is not None]
    position = next((k for k, row in enumerate(ranked) if row.hand_in.person_id in person_ids), None)
    near = [] if position is None else ranked[max(position - course.public.above, 0) : position + 1]
    visible = {row.hand_in.id for row in [*ranked[: course.public.top], *near]}
    return [row for row in rows if row.person is None or row.hand_in.id in visible]
