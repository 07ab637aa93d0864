"""A worker: takes jobs, plays, and stores results. It may be killed at any moment."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.competition.grading import feedback
from multigrid_rl.competition.hand_ins import Submission
from multigrid_rl.competition.process import WAITING
from multigrid_rl.files import json_text
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.serve.database import HandIn, Job, StoredPairing
from multigrid_rl.serve.judge import CHECK_S, Judge
from multigrid_rl.serve.queue import BEAT_S, Queue, log, player_name
from multigrid_rl.serve.rating import compute_ratings
from multigrid_rl.serve.store import BUNDLE, MATCH, PROGRAM
from multigrid_rl.text import ConfigError, one_line, printable
from multigrid_rl.types import RunError

#: Seconds between two looks for a job, for a further game, and for people to forget.
_POLL_S, _SUGGEST_S, _PURGE_S = 0.1, 1.0, 60.0
#: Seconds after which the worker of a job is killed; the time limits of programs are added.
_MOST_S = {"check": 60.0, "pair": 120.0, "rate": 300.0, "grade": 1800.0, "copies": 600.0, "appeal": 600.0}
#: Faults of the server: disk, database, machine, rubric, stored files.
_SERVER_FAULTS = (SQLAlchemyError, OSError, RunError, MemoryError, PlayerError, ConfigError)


class Worker:
    """Does jobs of some lanes of a queue, which a judge plays; ``name`` is unique to the process.

    The jobs of a submission: an upload adds a ``check``, which adds a ``pair`` for each anchor; after the last one a
    ``rate`` puts it on the ladder, and adds ``copies`` and a ``grade``.
    """

    def __init__(self, queue: Queue, judge: Judge, name: str, lanes: tuple[str, ...]) -> None:
        self.queue, self.judge, self.name, self.lanes = queue, judge, name, lanes
        queue.meets_nobody = judge.meets_nobody
        self._do: dict[str, Callable[[Job], None]] = {
            "check": self._check, "pair": self._pair, "rate": self._rate, "grade": self._grade,
            "copies": self._copies, "appeal": self._appeal,
        }  # fmt: skip

    def run(self, until: Callable[[], bool] = lambda: False, after: Callable[[], bool] = lambda: False) -> None:
        """Do jobs until ``until``, asked before each, or ``after``, asked after each, returns true."""
        looked_at = purged_at = 0.0
        while not until():
            try:
                if self.once():
                    if after():
                        return
                    continue
                if BUNDLE in self.lanes and time.monotonic() - looked_at > _SUGGEST_S:
                    looked_at = time.monotonic()
                    if self.queue.suggest():
                        continue
                    if looked_at - purged_at > _PURGE_S:
                        purged_at = looked_at
                        self.queue.purge()
            except (SQLAlchemyError, OSError) as error:  # the database is away, or the disk is full
                log("database", worker=self.name, error=one_line(error)[:300])
                time.sleep(1.0)
            time.sleep(_POLL_S)

    def once(self) -> bool:
        """Do one job; returns whether there was one. Raises ``SQLAlchemyError``: the database is away."""
        if (job := self.queue.claim(self.name, self.lanes)) is None:
            return False
        began = time.perf_counter()
        with _beating(self.queue, job, _MOST_S[job.kind] + self._programs_s(job) + self.judge.patience_s):
            try:
                self._do[job.kind](job)
                problem = None
            except _SERVER_FAULTS as error:  # of a lease that was lost nothing is put back
                problem = one_line(error)[:300]
                with suppress(SQLAlchemyError):  # then its lease ends by itself
                    self.queue.put_back(job, printable(problem))
        about = {"hand_in": job.hand_in_id, "other": job.other_id, "s": round(time.perf_counter() - began, 3)}
        log(job.kind, worker=self.name, **about, **({"problem": problem} if problem else {}))
        return True

    def _programs_s(self, job: Job) -> float:
        """Return the seconds that programs may keep a job waiting, beyond the usual ones."""
        bounds, sides = self.judge.course.limits, 2 * len(self.judge.config.sides)
        if job.kind == "check":
            return WAITING * (2 * sides * bounds.start_s + CHECK_S)
        if job.kind == "grade":
            with suppress(*_SERVER_FAULTS):  # the job itself reports a rubric that cannot be read
                examiner = self.judge.examiner  # watched first, at most for two teams, then each side of each exam
                sides = 2 + sum(len(examiner.rubric.teams_of(exam, examiner.sides)) for exam in examiner.rubric.exams)
                return WAITING * sides * (examiner.limits.start_s + examiner.limits.total_s)
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
            self.queue.save_refusal(job, str(error))
            return
        if entry.kind == "external" and PROGRAM not in self.lanes:
            with self.queue.finishing(job) as session:
                waiting = session.get_one(Job, job.id)
                waiting.lane, waiting.worker = PROGRAM, ""
            return
        found = self.judge.check(entry)
        if found.problem is None:
            self.queue.save_check(job, entry.kind, str(entry.sha256), found.log, found.seconds)
        else:
            self.queue.save_refusal(job, found.problem, found.log, entry.kind)

    def _pair(self, job: Job) -> None:
        rows = [self._row(number) for number in (job.hand_in_id, job.other_id) if number]
        if job.priority == MATCH and not all(map(self.queue.plays_on, rows)):  # any more: the match has waited since
            self.queue.save_pairings(job, [])
            return
        one, *other = [self.judge.entry(player_name(row)) for row in rows]
        ids = {player_name(row): row.id for row in rows}
        # Only of submissions: an anchor plays against all of them, so its time has no limit.
        spent = {player_name(row): row.seconds for row in rows if row.person_id is not None}
        played = self.judge.play(one, other[0] if other else None, spent)
        self.queue.save_pairings(job, [(ids[each.red], ids.get(each.blue, 0), each) for each in played])

    def _rate(self, job: Job) -> None:
        by_wins = self.judge.config.rated
        snapshot = self.queue.snapshot(by_wins=by_wins)
        games, anchors, _ = snapshot
        anchor_games = [game for game in games if {game.red, game.blue} & {*anchors}]
        by_anchors = compute_ratings(anchor_games, anchors, by_wins=by_wins)
        self.queue.save_ratings(job, snapshot, compute_ratings(games, anchors, by_wins=by_wins), by_anchors)

    def _grade(self, job: Job) -> None:
        result = self.judge.examiner.result(Submission("hand-in", self.queue.entry_folder(job.hand_in_id)))
        self.queue.save_grade(job, result, json_text(result), feedback(result))

    def _copies(self, job: Job) -> None:
        hand_in = self._row(job.hand_in_id)
        team_ids = self.queue.team(hand_in.person_id).ids if hand_in.person_id else []
        # All submissions of others, replaced ones too.
        query = select(HandIn).where(HandIn.state == "rated", HandIn.person.has(forgotten=False))
        query = query.where(HandIn.person_id.not_in(team_ids))
        names = [player_name(other) for other in self.queue.all(query)]
        self.queue.save_similar(job, self.judge.similar_players(player_name(hand_in), sorted(names)))

    def _appeal(self, job: Job) -> None:
        game = self.queue.get(StoredPairing, job.other_id)
        assert game is not None
        found = self.judge.replay(Pairing.model_validate_json(game.pairing)) or "the same again"
        with self.queue.finishing(job) as session:
            self.queue.add_event(session, "appeal", f"pairing {game.id}: {found}", hand_in=game.red_id)


@contextmanager
def _beating(queue: Queue, job: Job, most_s: float) -> Iterator[None]:
    """Hold a job's lease for the block, by a thread; kill this process when the job takes far too long."""
    finished, started = threading.Event(), time.monotonic()

    def beat() -> None:
        while not finished.wait(BEAT_S):
            if time.monotonic() - started > most_s:
                log("stuck", job=job.id, kind=job.kind)
                with suppress(SQLAlchemyError, OSError):
                    queue.note_stuck(job)
                os.kill(os.getpid(), signal.SIGKILL)
            with suppress(SQLAlchemyError, OSError):
                if not queue.beat(job):
                    return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
