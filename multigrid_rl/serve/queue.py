"""The queue of a class server: jobs under leases, each result in one transaction."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from multigrid_rl.serve.database import DONE, Event, Grade, HandIn, Job, Rating, Setting, StoredPairing
from multigrid_rl.serve.people import People
from multigrid_rl.serve.rating import PairingResult, Ratings
from multigrid_rl.serve.store import ANCHORS, BUNDLE, FIRST, LANES, MATCH, PROGRAM, SLOW, Row
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import RunError

if TYPE_CHECKING:  # they import torch, which the pages do without
    from multigrid_rl.competition.cup_folder import Pairing

#: Seconds of a lease without a heartbeat, and between heartbeats.
LEASE_S, BEAT_S = 10.0, 2.0
#: Attempts at a job before it is given up as a fault of the server; seconds of waiting after each.
ATTEMPTS, BACKOFF_S = 25, 0.2
#: Pairings with forfeited games after which a program plays no further games.
STRIKES = 3
#: Setting with ratings from games against anchors alone, in JSON.
BY_ANCHORS = "by_anchors"
#: Setting that is not empty where games have no winner: ratings are returns.
BY_RETURNS = "by_returns"
#: Kind of the event of a program whose job took far too long.
STUCK = "stuck"
#: Seconds of its check, and of all its answers, above which a program moves to the slow lane.
SLOW_CHECK_S, SLOW_S = 5.0, 20.0


def log(what: str, **about: Any) -> None:
    """Write a line of the structured log, JSON, to standard error."""
    sys.stderr.write(json.dumps({"at": round(time.time(), 3), "what": what, **about}) + "\n")
    sys.stderr.flush()


#: Everything that ratings are computed from, at one moment: games, anchors, submissions that played all first games.
QueueSnapshot = tuple[list[PairingResult], list[int], list[int]]


def player_name(row: HandIn) -> str:
    """Return the name of a submission in pairings and as a folder in ``entries``: ``h12``, or the name of an anchor."""
    return row.name if row.person_id is None else f"h{row.id}"


def _lane(row: HandIn, most_s: float = SLOW_S) -> str:
    return BUNDLE if row.kind != "external" else SLOW if row.seconds > most_s else PROGRAM


def _waiting_games(row: HandIn) -> ColumnElement[bool]:
    """Return the condition for jobs of a submission's games that no worker has yet."""
    return and_(Job.kind == "pair", Job.hand_in_id == row.id, Job.worker == "")


#: Failed jobs go behind others, except ratings: all submissions wait for that one job.
_ORDER = (Job.priority, case((Job.kind == "rate", 0), else_=Job.attempts), Job.hand_in_id, Job.id)


class Queue(People):
    """A store with the methods of workers."""

    def secrets(self) -> dict[str, str]:
        """Return the seeds of the course's games."""
        return {key: self.setting(key) for key in ("seed", "agents_key", "rubric_seed")}

    # --- leases

    def claim(self, worker: str, lanes: Sequence[str]) -> Job | None:
        """Lease the next job of some lanes, or one of a dead worker; ``None``: nothing to do."""
        now = self.now()
        # A lease beyond the longest possible one is from before the clock was set back.
        free = or_(Job.worker == "", Job.lease_until < now, Job.lease_until > now + 2 * LEASE_S)
        due = or_(Job.not_before <= now, Job.not_before > now + ATTEMPTS)
        # A program has one worker at a time, so that a slow one leaves workers to the others.
        other = aliased(Job)
        busy = exists().where(other.hand_in_id == Job.hand_in_id, other.lane == PROGRAM, other.lease_until >= now)
        program_is_idle = or_(Job.lane != PROGRAM, ~busy.where(other.id != Job.id, other.worker != ""))
        query = select(Job).where(Job.lane.in_(lanes), free, due, program_is_idle)
        query = query.order_by(*_ORDER).limit(1).with_for_update(skip_locked=True)
        with self.reading() as session:  # usually there is nothing, and no lock is taken
            if session.scalar(query) is None:
                return None
        with self.writing() as session:
            while (job := session.scalar(query)) is not None:
                job.attempts += 1
                if job.attempts > ATTEMPTS:
                    self._give_up(session, job)
                    session.flush()
                    continue
                job.worker, job.lease_until = worker, now + LEASE_S
                if job.kind == "check" and (row := session.get_one(HandIn, job.hand_in_id)).state == "received":
                    self.set_state(session, row, "checking")
                return job
        return None

    @contextmanager
    def _leased(self, job: Job) -> Iterator[tuple[Session, Job | None]]:
        """Yield a session, and the job's row; ``None``: another worker has it by now."""
        with self.writing() as session:
            row = session.get(Job, job.id, with_for_update=True)
            is_held = row is not None and (row.worker, row.attempts) == (job.worker, job.attempts)
            yield session, row if is_held else None

    def beat(self, job: Job) -> bool:
        """Extend a lease; returns whether the worker still had it."""
        with self._leased(job) as (_, row):
            if row is not None:
                row.lease_until = self.now() + LEASE_S
        return row is not None

    @contextmanager
    def finishing(self, job: Job) -> Iterator[Session]:
        """Yield a session for a job's result, and delete the job, or let it wait again if the block clears ``worker``.

        Raises ``RunError``: another worker has it, and nothing is changed.
        """
        with self._leased(job) as (session, row):
            if row is None:
                raise RunError(f"job {job.id} ({job.kind}) has another worker")
            yield session
            if row.worker:
                session.delete(row)
            else:
                row.lease_until, row.attempts = 0.0, 0

    def put_back(self, job: Job, reason: str) -> None:
        """Let a job be tried again, after a fault of the server."""
        with self._leased(job) as (session, row):
            if row is not None:
                row.worker, row.lease_until, row.not_before = "", 0.0, self.now() + BACKOFF_S * row.attempts
                self.add_event(session, "fault", f"{job.kind}: {reason}", hand_in=job.hand_in_id)

    def release(self, worker: str | None = None) -> int:
        """Free the jobs of a dead worker, of a process of workers ``NAME.1``, or of all; returns how many."""
        of_worker = or_(Job.worker == worker, Job.worker.startswith(f"{worker}.", autoescape=True))
        with self.writing() as session:
            held = list(session.scalars(select(Job).where(of_worker if worker else Job.worker != "")))
            for job in held:
                job.worker, job.lease_until = "", 0.0
            return len(held)

    def note_stuck(self, job: Job) -> None:
        """Add an event for a job that took far too long; the second time its program is at fault."""
        with self._leased(job) as (session, row):
            ids = () if job.kind == "appeal" else (job.hand_in_id, job.other_id)
            found = [session.get(HandIn, number) for number in ids]
            programs = [each for each in found if each is not None and each.kind != "frozen" and each.person_id]
            if row is None or not programs:
                return
            this_job = f"job {row.id} of {row.at!r}"  # SQLite reuses the number of a deleted job
            for program in programs:
                self.add_event(session, STUCK, this_job, hand_in=program.id)
            session.flush()
            query = select(Event).where(Event.kind == STUCK, Event.hand_in_id.in_([each.id for each in programs]))
            notes = list(session.scalars(query))
            if sum(note.text == this_job for note in notes) > len(programs):
                times = Counter(note.hand_in_id for note in notes)
                worst = max(programs, key=lambda program: times[program.id])
                session.delete(row)
                self.add_event(session, "given up", job.kind, hand_in=job.hand_in_id)
                worst.faults += STRIKES
                if worst.state in ("checking", "placing"):
                    self._refuse(session, worst, "its games took far too long, twice")

    def _give_up(self, session: Session, job: Job) -> None:
        session.delete(job)
        row = session.get(HandIn, job.hand_in_id) if job.kind in ("check", "pair") else None
        if row is not None and row.state in ("checking", "placing") and row.person_id is not None:
            row.counts = False
            reason = f"the server failed {ATTEMPTS} times at it: no fault of yours, and no quota used"
            self._refuse(session, row, reason)
        self.add_event(session, "given up", job.kind, hand_in=job.hand_in_id)

    def _refuse(self, session: Session, row: HandIn, reason: str, log: str = "") -> None:
        self.set_state(session, row, "refused", reason, log)
        session.execute(delete(Job).where(_waiting_games(row)))

    # --- results

    def save_check(self, job: Job, kind: str, sha256: str, log: str, seconds: float = 0.0) -> None:
        """Store that a submission plays, and add its games against the anchors."""
        with self.finishing(job) as session:
            row = session.get_one(HandIn, job.hand_in_id)
            if row.state != "checking":  # its author asked to be forgotten meanwhile
                return
            row.kind, row.sha256, row.seconds = kind, sha256, seconds
            self.set_state(session, row, "placing", log=log)
            anchors = session.scalars(select(HandIn.id).where(HandIn.person_id.is_(None))).all()
            for other in [0] if self.meets_nobody else anchors:
                self.add_job(session, "pair", row.id, other, lane=_lane(row, SLOW_CHECK_S), priority=FIRST)

    def save_refusal(self, job: Job, reason: str, log: str = "", kind: str = "") -> None:
        """Store that a submission does not play, by its own fault."""
        with self.finishing(job) as session:
            row = session.get_one(HandIn, job.hand_in_id)
            if row.state not in DONE:
                row.kind = kind or row.kind
                self._refuse(session, row, reason, log)

    def save_pairings(self, job: Job, played: list[tuple[int, int, Pairing]]) -> None:
        """Store the pairings of a job: submissions of the first and the other side (0: no opponent), and the games."""
        with self.finishing(job) as session:
            # This row is a lock: of two jobs that end at the same moment the second sees the first.
            session.get(Setting, "fixed", with_for_update=True)
            for red, blue, pairing in played:
                key = {"red_id": red, "blue_id": blue, "side": pairing.side}
                if session.scalar(select(StoredPairing.id).filter_by(**key)) is not None:
                    continue
                session.add(StoredPairing(**key, at=self.now(), pairing=pairing.model_dump_json()))
                ids = {pairing.red: red, pairing.blue: blue}
                for name, seconds in pairing.seconds.items():
                    row = session.get_one(HandIn, ids[name])
                    row.seconds += seconds
                    if _lane(row) == SLOW:  # other programs wait for it no longer
                        session.execute(update(Job).where(_waiting_games(row)).values(lane=SLOW))
                if pairing.at_fault is not None and not pairing.out:
                    session.get_one(HandIn, ids[pairing.at_fault]).faults += 1
            self.add_event(session, "played", f"{job.hand_in_id} - {job.other_id}", hand_in=job.hand_in_id)
            remaining = and_(Job.kind == "pair", Job.priority == job.priority, Job.id != job.id)
            remaining = remaining if job.priority == ANCHORS else and_(remaining, Job.hand_in_id == job.hand_in_id)
            if not session.scalar(select(exists().where(remaining))):
                self.add_job(session, "rate", lane=BUNDLE, priority=FIRST)  # once for all games that end meanwhile

    def snapshot(self, *, by_wins: bool) -> QueueSnapshot:
        """Return everything that ratings are computed from; ``by_wins``: games are won or lost."""
        with self.reading() as session:
            anchors = list(session.scalars(select(HandIn.id).where(HandIn.person_id.is_(None)).order_by(HandIn.id)))
            anchors_play = session.scalar(select(exists().where(Job.priority == ANCHORS)))
            unfinished = select(Job.hand_in_id).where(Job.kind == "pair", Job.priority <= FIRST)
            rows = select(HandIn.id).where(HandIn.state == "placing", HandIn.id.not_in(unfinished))
            placed = [] if anchors_play else list(session.scalars(rows))
            # Read last: these contain all first games of the placed ones, even if others write meanwhile.
            return self.pairings(session, by_wins=by_wins), anchors, placed

    def save_ratings(
        self, job: Job, snapshot: QueueSnapshot, ratings: Ratings, by_anchors: Ratings | None = None
    ) -> None:
        """Store ratings, and those from games against anchors alone; placed submissions are now on the ladder."""
        played, _, placed = snapshot
        with self.finishing(job) as session:
            session.get(Setting, "fixed", with_for_update=True)  # no games are added meanwhile, see `save_pairings`
            if session.scalar(select(func.count(StoredPairing.id))) != len(played):
                session.get_one(Job, job.id).worker = ""  # new games are rated next
            session.merge(Setting(key=BY_ANCHORS, value=json.dumps(by_anchors or {})))
            session.merge(Setting(key=BY_RETURNS, value="1" if any(result.return_red for result in played) else ""))
            for number, (value, low, high, games) in ratings.items():
                session.merge(Rating(hand_in_id=number, rating=value, low=low, high=high, games=games))
            for row in session.scalars(select(HandIn).where(HandIn.id.in_(placed), HandIn.state == "placing")):
                if row.id in ratings:
                    self.set_state(session, row, "rated")
                    if row.person_id is not None:
                        self.add_job(session, "copies", row.id)
                        if self.course.rubric is not None:
                            self.add_job(session, "grade", row.id)
            self.add_event(session, "ladder", f"{len(played)} pairings")

    def save_grade(self, job: Job, result: dict[str, Any], text: str, feedback: str) -> None:
        """Store the grade of a submission: the result, its text, and the student's feedback."""
        with self.finishing(job) as session:
            values = {key: result[key] for key in ("points", "of", "passed")}
            values |= {"at": self.now(), "result": text, "feedback": feedback}
            session.merge(Grade(hand_in_id=job.hand_in_id, **values))
            self.add_event(session, "graded", hand_in=job.hand_in_id)

    def by_anchors(self) -> dict[int, list[float]]:
        """Return ratings from games against anchors alone with the ends of their intervals, by submission."""
        return {int(number): row for number, row in json.loads(self.setting(BY_ANCHORS) or "{}").items()}

    def surprises(self) -> list[tuple[Row, list[float]]]:
        """Return rows rated beyond the interval from games against anchors alone, and that rating with its ends."""
        by_anchors = self.by_anchors()
        found = [(row, by_anchors.get(row.hand_in.id)) for row in self.ladder() if row.person is not None]
        return [(row, ends) for row, ends in found if ends and not ends[1] <= row.rating <= ends[2]]

    def save_similar(self, job: Job, same_as: str) -> None:
        """Store the players that a submission is similar to."""
        with self.finishing(job) as session:
            session.get_one(HandIn, job.hand_in_id).same_as = same_as

    # --- games beyond the first ones

    def plays_on(self, row: HandIn) -> bool:
        """Return whether a submission plays matches: a program with too many seconds or forfeited pairings does not."""
        return row.seconds < self.course.limits.all_s and row.faults < STRIKES

    def suggest(self) -> bool:
        """Add a pairing of the submission with the widest interval (a new one) and its nearest: True if so."""
        if self.meets_nobody:
            return False
        playing = [row for row in self.ladder() if row.plays and self.plays_on(row.hand_in)]
        with self.reading() as session:
            ids = [row.hand_in.id for row in playing]
            pairs = select(StoredPairing.red_id, StoredPairing.blue_id).where(
                StoredPairing.red_id.in_(ids), StoredPairing.blue_id.in_(ids)
            )
            waiting = select(Job.hand_in_id, Job.other_id).where(Job.kind == "pair")
            met_pairs = {frozenset(pair) for query in (pairs, waiting) for pair in session.execute(query)}
        times = Counter(number for pair in met_pairs for number in pair)
        candidates = [row for row in playing if times[row.hand_in.id] < self.course.matches]
        for row in sorted(candidates, key=lambda row: (row.low - row.high, row.hand_in.id)):
            others = [r for r in playing if r is not row and {r.hand_in.id, row.hand_in.id} not in met_pairs]
            if others:
                other = min(others, key=lambda other: (abs(other.rating - row.rating), other.hand_in.id))
                pair = sorted((row.hand_in.id, other.hand_in.id))
                lane = max(_lane(row.hand_in), _lane(other.hand_in), key=LANES.index)
                with self.writing() as session:
                    self.add_job(session, "pair", *pair, lane=lane, priority=MATCH)
                return True
        return False

    # --- for instructors

    def jobs(self) -> list[Job]:
        """Return all jobs, in the order of the queue."""
        return self.all(select(Job).order_by(*_ORDER))

    def health(self) -> dict[str, float]:
        """Return numbers: submissions by state, jobs by lane, overdue ones, seconds that the oldest job waits."""
        now = self.now()
        with self.reading() as session:
            states = session.execute(select(HandIn.state, func.count()).group_by(HandIn.state)).all()
            lanes = session.execute(select(Job.lane, func.count()).group_by(Job.lane)).all()
            overdue = session.scalar(select(func.count(HandIn.id)).where(HandIn.deadline > 0, HandIn.deadline < now))
            oldest = session.scalar(select(func.min(Job.at)).where(Job.worker == "", Job.lane != SLOW))
            games = session.scalar(select(func.count(StoredPairing.id)))
            faults = session.scalar(select(func.count(Event.id)).where(Event.kind == "fault"))
        found = {f"hand_ins_{state}": float(count) for state, count in states}
        found |= {f"jobs_{lane}": float(count) for lane, count in lanes}
        found |= {"overdue": float(overdue or 0), "oldest_job_s": round(now - oldest, 3) if oldest else 0.0}
        return found | {"pairings": float(games or 0), "faults": float(faults or 0)}

    def redo(self, kind: str, ids: Sequence[int] = (), by: int = 0) -> int:
        """Do ``grade`` or ``copies`` again for rated submissions of ``ids`` or all, or ``check`` for refused ones.

        Returns how many; ``by`` is the instructor. Raises ``ConfigError``: there is no rubric.
        """
        if kind == "grade" and self.course.rubric is None:
            raise ConfigError(expected("rubric", "a file", "none"))
        state = "refused" if kind == "check" else "rated"
        with self.writing() as session:
            query = select(HandIn).where(HandIn.state == state, HandIn.person.has(forgotten=False))
            rows = list(session.scalars(query.where(HandIn.id.in_(ids)) if ids else query))
            for row in rows:
                if kind == "check":
                    row.counts = False
                    self.set_state(session, row, "received", "checked again")
                    self.add_job(session, "check", row.id, lane=BUNDLE, priority=FIRST)
                else:
                    self.add_job(session, kind, row.id)
            self.add_event(session, f"{kind} again", f"{len(rows)} submissions", person=by)
            return len(rows)

    def appeal(self, game_id: int, by: int = 0) -> None:
        """Add a job that plays a pairing again; its result is an event, and changes no rating."""
        with self.writing() as session:
            self.add_job(session, "appeal", session.get_one(StoredPairing, game_id).red_id, game_id)
            self.add_event(session, "appeal", f"pairing {game_id}", person=by)
