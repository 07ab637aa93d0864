"""A worker: takes jobs, plays, and writes down what was found. It may be killed at any moment."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.competition.gradebook import feedback
from multigrid_rl.competition.hand_ins import Submission
from multigrid_rl.competition.process import WAITING
from multigrid_rl.files import json_text
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.serve.database import HandIn, Job, Person, StoredPairing
from multigrid_rl.serve.judge import CHECK_S, Judge
from multigrid_rl.serve.queue import BEAT_S, LostLeaseError, Queue, called, log
from multigrid_rl.serve.rating import ladder_of
from multigrid_rl.serve.store import BUNDLE, PROGRAM
from multigrid_rl.text import ConfigError, one_line, printable
from multigrid_rl.types import RunError

#: Seconds between two looks for a job, for a game that nobody has asked for, and for who is to be forgotten by now.
_POLL_S, _SUGGEST_S, _PURGE_S = 0.1, 1.0, 60.0
#: Seconds after which a worker that is still at a job is killed; of a pair what programs may take is added.
_MOST_S = {"check": 60.0, "pair": 120.0, "rate": 300.0, "grade": 1800.0, "copies": 600.0, "appeal": 600.0}
#: What the server is to blame for: the disk, the database, the machine, a rubric, files that it has kept.
_OURS = (SQLAlchemyError, OSError, RunError, MemoryError, PlayerError, ConfigError)


class Worker:
    """Does jobs of some lanes of a queue, which a judge plays; ``name`` is another one for each process.

    The way of a hand-in: ``upload`` stores it and wants a ``check``; what passes gets a ``pair`` for each anchor; after
    the last of them a ``rate`` puts it on the ladder, and wants ``copies`` and a ``grade``.
    """

    def __init__(self, queue: Queue, judge: Judge, name: str, lanes: tuple[str, ...]) -> None:
        self.queue, self.judge, self.name, self.lanes = queue, judge, name, lanes
        queue.meets_nobody = judge.alone
        self._do: dict[str, Callable[[Job], None]] = {
            "check": self._check, "pair": self._pair, "rate": self._rate, "grade": self._grade,
            "copies": self._copies, "appeal": self._appeal,
        }  # fmt: skip

    def run(self, until: Callable[[], bool] = lambda: False, after: Callable[[], bool] = lambda: False) -> None:
        """Do jobs until it is said to end, which ``until`` says at any time and ``after`` when a job is done."""
        looked = purged = 0.0
        while not until():
            try:
                if self.once():
                    if after():
                        return
                    continue
                if BUNDLE in self.lanes and time.monotonic() - looked > _SUGGEST_S:
                    looked = time.monotonic()
                    if self.queue.suggest():
                        continue
                    if looked - purged > _PURGE_S:
                        purged = looked
                        self.queue.purge()
            except (SQLAlchemyError, OSError) as error:  # the database is away, or the disk is full
                log("database", worker=self.name, error=one_line(error)[:300])
                time.sleep(1.0)
            time.sleep(_POLL_S)

    def once(self) -> bool:
        """Do one job; returns whether there was one. Raises ``SQLAlchemyError``: the database is away."""
        job = self.queue.claim(self.name, self.lanes)
        if job is None:
            return False
        began = time.perf_counter()
        with _beating(self.queue, job, _MOST_S[job.kind] + self._programs_s(job) + self.judge.patience_s):
            try:
                self._do[job.kind](job)
                problem = None
            except LostLeaseError as error:
                problem = str(error)
            except _OURS as error:
                problem = one_line(error)[:300]
                with suppress(SQLAlchemyError):  # then its lease ends by itself
                    self.queue.put_back(job, printable(problem))
        about = {"hand_in": job.hand_in_id, "other": job.other_id, "s": round(time.perf_counter() - began, 3)}
        log(job.kind, worker=self.name, **about, **({"problem": problem} if problem else {}))
        return True

    def _programs_s(self, job: Job) -> float:
        """Return the seconds that programs may keep a job waiting, beside the usual ones."""
        bounds, sides = self.judge.course.limits, 2 * len(self.judge.config.sides)
        if job.kind == "check":
            return WAITING * (2 * sides * bounds.start_s + CHECK_S)
        if job.kind == "grade":
            with suppress(*_OURS):  # a rubric that cannot be read is what the job will say
                its = self.judge.examiner  # watched first, at most for two teams, then each side of each exam
                sides = 2 + sum(len(its.rubric.teams_of(exam, its.sides)) for exam in its.rubric.exams)
                return WAITING * sides * (its.limits.start_s + its.limits.total_s)
        return WAITING * sides * 2 * (bounds.start_s + bounds.total_s) if job.kind == "pair" else 0.0

    def _row(self, hand_in_id: int) -> HandIn:
        with self.queue.reading() as session:
            return session.get_one(HandIn, hand_in_id)

    def _check(self, job: Job) -> None:
        row = self._row(job.hand_in_id)
        folder = self.queue.entry_folder(row.id)
        try:
            entry = self.judge.unpack(self.queue.upload_folder(row.id), folder)
        except PlayerError as error:
            self.queue.refused(job, str(error))
            return
        if entry.kind == "external" and PROGRAM not in self.lanes:
            self.queue.to_programs(job)
            return
        found = self.judge.check(entry)
        if found.problem is None:
            self.queue.checked(job, found.kind, found.sha256, found.log, found.seconds)
        else:
            self.queue.refused(job, found.problem, found.log, found.kind)

    def _pair(self, job: Job) -> None:
        rows = [self._row(number) for number in (job.hand_in_id, job.other_id) if number]
        one, *other = [self.judge.entry(called(row)) for row in rows]
        ids = {called(row): row.id for row in rows}
        spent = {
            called(row): row.seconds for row in rows if row.person_id is not None
        }  # an anchor plays against all hand-ins
        played = self.judge.play(one, other[0] if other else None, spent)
        self.queue.paired(job, [(ids[each.red], ids.get(each.blue, 0), each) for each in played])

    def _rate(self, job: Job) -> None:
        wins = self.judge.config.rated
        shot = self.queue.snapshot(rated=wins)
        alone = [met for met in shot.games if {met.red, met.blue} & {*shot.anchors}]
        by_anchors = ladder_of(alone, shot.anchors, rated=wins)
        self.queue.rated(job, shot, ladder_of(shot.games, shot.anchors, rated=wins), by_anchors)

    def _grade(self, job: Job) -> None:
        folder = self.queue.entry_folder(job.hand_in_id)
        result = self.judge.examiner.result(Submission("hand-in", folder))
        self.queue.graded(job, result, json_text(result), feedback(result))

    def _copies(self, job: Job) -> None:
        own = self._row(job.hand_in_id)
        # What was handed in again since, too: somebody else may have the old one.
        query = select(HandIn).join(Person, Person.id == HandIn.person_id).where(HandIn.state == "rated")
        ours = self.queue.team(own.person_id).ids if own.person_id else []
        query = query.where(HandIn.person_id.not_in(ours), ~Person.forgotten)
        names = [called(row) for row in self.queue.all(query)]
        self.queue.compared(job, self.judge.like(called(own), sorted(names)))

    def _appeal(self, job: Job) -> None:
        game = self.queue.get(StoredPairing, job.other_id)
        assert game is not None
        found = self.judge.again(Pairing.model_validate_json(game.pairing)) or "the same again"
        with self.queue.finishing(job) as session:
            self.queue.note(session, "appeal", f"pairing {game.id}: {found}", hand_in=game.red_id)


@contextmanager
def _beating(queue: Queue, job: Job, most_s: float) -> Iterator[None]:
    """Hold a job's lease for the block, by a thread; kill this process when the job takes far too long."""
    over, began = threading.Event(), time.monotonic()

    def beat() -> None:
        while not over.wait(BEAT_S):
            if time.monotonic() - began > most_s:
                log("stuck", job=job.id, kind=job.kind)
                with suppress(SQLAlchemyError, OSError):
                    queue.stuck(job)
                os.kill(os.getpid(), signal.SIGKILL)
            with suppress(SQLAlchemyError, OSError):
                if not queue.beat(job):
                    return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
