"""One command, one process, and its children: who answers browsers, and workers. Whichever dies is started again."""

import ctypes
import gc
import os
import re
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer
from sqlalchemy.exc import SQLAlchemyError

from multigrid_rl.cli.app import one_thread
from multigrid_rl.competition.folders import exclusive_lock
from multigrid_rl.rllib.address import ADDRESS, connection_problem
from multigrid_rl.serve.course import MOST_WORKERS, Course, read_course, read_roster
from multigrid_rl.serve.database import Person, make_tables
from multigrid_rl.serve.people import Signer
from multigrid_rl.serve.queue import Queue, log
from multigrid_rl.serve.store import BUNDLE, PROGRAM, SLOW
from multigrid_rl.text import ConfigError, expected, printable
from multigrid_rl.trust import agents_trusted

#: Of ``prctl``, Linux alone: a signal for this process when its parent dies.
_PR_SET_PDEATHSIG = 1
#: Of ``mallopt``, glibc alone: places in which threads get memory.
_M_ARENA_MAX = -8
_POLL_S, _GRACE_S = 0.1, 5.0
#: A child that lived shorter is started again after a wait that doubles, up to the last of these.
_YOUNG_S, _WAIT_S, _LONGEST_WAIT_S = 2.0, 0.1, 5.0
#: Megabytes of its own, which it shares with nobody, after which a worker ends and another one takes over; by the last
#: of its lanes, as who compares keeps what 300 hand-ins are compared by.
_OWN_MB = {BUNDLE: 24.0, PROGRAM: 24.0, SLOW: 40.0}
#: How far workers step back for the pages, by the last of their lanes.
_NICE = {BUNDLE: 1, PROGRAM: 3, SLOW: 10}


class ServedFolder(NamedTuple):
    """A course and where its things are."""

    course: Course
    beside: Path  # folder of ``course.yaml``
    home: Path  # of files
    url: str  # of the database

    def queue(self) -> Queue:
        """Return a new store, for one process."""
        return Queue(self.url, self.home, self.course)


def place_of(path: Path, home: Path | None = None, database: str | None = None) -> ServedFolder:
    """Return the course in a file, by default with a folder of its name beside it, and SQLite there.

    Raises ``ConfigError``: the file cannot be used, or the folder cannot be made.
    """
    course = read_course(path)
    home = (home or path.with_suffix(".files")).resolve()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(expected(home, "a folder that can be made", error.strerror)) from error
    url = re.sub("^postgresql://", "postgresql+psycopg://", database or f"sqlite:///{home}/serve.db")
    return ServedFolder(course, path.resolve().parent, home, url)


def prepared(place: ServedFolder) -> Queue:
    """Return the store of a course, with its tables and people. Raises ``ConfigError``."""
    roster, course = read_roster(place.beside / place.course.roster), place.course
    codes = [one.code for one in roster]
    extended = [one.of for one in course.extensions if one.of not in course.teams]
    for code in [*extended, *(code for members in course.teams.values() for code in members)]:
        if code not in codes:  # else nobody would be told that it extends nothing
            raise ConfigError(expected("extensions, teams", "ids of the roster, or a team", code))
    make_tables(place.url)
    queue = place.queue()
    queue.sync(roster)
    return queue


@dataclass
class _Slot:
    """A child that is to run."""

    name: str
    run: Callable[[str], None]  # called in the child with its own name
    deaths: int = 0
    begun: float = 0.0
    due: float = 0.0
    worker: str = ""


@dataclass
class Supervisor:
    """Starts children of a course and keeps them running; it has no thread and no connection of its own."""

    place: ServedFolder
    slots: list[_Slot] = field(default_factory=list)
    children: dict[int, _Slot] = field(default_factory=dict)
    ending: bool = False

    def add(self, name: str, run: Callable[[str], None]) -> None:
        """Start a child that runs ``run``, which is told its name."""
        self.slots.append(_Slot(name, run))
        self._start(self.slots[-1])

    def _start(self, slot: _Slot) -> None:
        own, slot.begun = os.getpid(), time.monotonic()
        pid = os.fork()
        if pid:
            slot.worker, slot.due = f"{slot.name}-{pid}", 0.0
            self.children[pid] = slot
            return
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent says when to end
            die_with_parent(own)
            slot.run(f"{slot.name}-{os.getpid()}")
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)

    def watch(self) -> None:
        """Start again what has died, until SIGTERM or Ctrl-C."""

        def end(*_: object) -> None:
            self.ending = True

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, end)
        while not self.ending:
            self._reap()
            for slot in self.slots:
                if slot.due and time.monotonic() >= slot.due:
                    self._start(slot)
            time.sleep(_POLL_S)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            slot = self.children.pop(pid, None)
            if slot is None:
                continue
            lived = time.monotonic() - slot.begun
            slot.deaths = slot.deaths + 1 if status and lived < _YOUNG_S else 0
            # Who has ended by itself had grown, and held nothing.
            slot.due = time.monotonic() + (min(_WAIT_S * 2**slot.deaths, _LONGEST_WAIT_S) if status else 0.0)
            freed = self._freed(slot.worker) if status else 0
            log("died", child=slot.worker, status=os.waitstatus_to_exitcode(status), lived=round(lived, 1), freed=freed)

    def _freed(self, worker: str) -> int:
        """Free what a dead child held; if the database is away, its lease ends by itself."""
        queue = self.place.queue()
        try:
            return queue.release(worker)
        except (SQLAlchemyError, OSError) as error:
            log("database", error=str(error).splitlines()[0][:200])
            return -1
        finally:
            queue.engine.dispose()

    def stop(self) -> None:
        """End all children, by force at last."""
        for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            for pid in self.children:
                os.kill(pid, number)
            deadline = time.monotonic() + patience
            while self.children and time.monotonic() < deadline:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                self.children.pop(pid, None)
                time.sleep(0.02)


def die_with_parent(parent: int) -> None:
    """Let this process be killed when its parent dies; elsewhere than on Linux it ends with its next job."""
    if hasattr(ctypes.CDLL(None), "prctl"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def share_memory() -> None:
    """Keep what was loaded by now as it is, for this process and its children to share, and give free memory back."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)  # else each thread leaves pieces in a place of its own
    gc.collect()
    gc.freeze()  # the search for garbage would write into all of it
    give_back()


def give_back() -> None:
    """Return memory that is free to the system; elsewhere than with glibc it stays."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def grown(most_mb: float) -> bool:
    """Return whether this process has more memory of its own than that, after it has given free memory back."""
    give_back()
    try:
        found = re.search(r"Private_Dirty: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    except OSError:  # not Linux
        return False
    return found is not None and int(found[1]) * 1024 > most_mb * 1e6


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ``ConfigError``: the address cannot be had."""
    # Named as TCP, else asyncio does not see that it is, and answers wait 40 ms for acknowledgements.
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise ConfigError(expected("--host, --port", "a free address", f"{host}:{port}: {error.strerror}")) from error
    found.listen(1024)
    return found


def serve_pages(place: ServedFolder, listening: socket.socket, url: str, *, behind_proxy: bool) -> None:
    """Answer browsers until SIGTERM."""
    from multigrid_rl.serve import instructor_pages, pages, site, upload  # noqa: PLC0415 - the workers need none of it

    app = site.application(site.Site(place.queue(), url), [*pages.PAGES, *upload.PAGES, *instructor_pages.PAGES])
    site.server_of(app, behind_proxy=behind_proxy).run(sockets=[listening])


def lanes(workers: int) -> list[tuple[str, ...]]:
    """Return whose jobs each worker takes: what is slow, a program or a grade, keeps nobody waiting who is not."""
    return [(BUNDLE,)] * workers + [(PROGRAM,)] * max(workers - 1, 1) + [(PROGRAM, SLOW)]


def start_workers(supervisor: Supervisor, number: int, cluster: str | None = None) -> None:
    """Load all that plays once, and fork workers that share it, or one process that lets a cluster play.

    Raises ``ConfigError``, ``PlayerError``: an unknown scenario or anchor.
    """
    # Torch takes seconds and much memory: pages come first, and do without.
    from multigrid_rl.competition.sandbox import bwrap_available, check_not_bound  # noqa: PLC0415
    from multigrid_rl.serve.judge import Judge  # noqa: PLC0415
    from multigrid_rl.serve.worker import Worker  # noqa: PLC0415

    place = supervisor.place
    check_not_bound(place.home)
    if not (bwrap_available() or agents_trusted()):
        typer.echo("programs of students cannot run: bubblewrap lacks or does not work here (docs/instructors.md)")
    one_thread()
    queue = place.queue()
    about = place.course, place.beside, place.home, queue.secrets()
    judge = Judge(*about)
    queue.meets_nobody = judge.alone
    queue.begin()
    queue.release()
    queue.engine.dispose()
    # What compiling kernels takes is gone with a first process; then they lie on the disk, and are loaded to be shared.
    if (first := os.fork()) == 0:
        try:
            judge.warm()
        finally:
            os._exit(0)
    os.waitpid(first, 0)
    judge.warm()
    share_memory()
    log("ready", workers=len(lanes(number)), anchors=len(judge.anchors))
    if cluster is not None:
        from multigrid_rl.serve.cluster_games import play_there  # noqa: PLC0415 - Ray

        supervisor.add("cluster", lambda name: play_there(cluster, about, place.queue, name, lanes(number)))
        return

    def work(of: tuple[str, ...], name: str) -> None:
        os.nice(_NICE[of[-1]])
        Worker(place.queue(), judge, name, of).run(after=partial(grown, _OWN_MB[of[-1]]))

    for k, of in enumerate(lanes(number)):
        supervisor.add(f"{of[-1]}-{k}", partial(work, of))


def links_of(queue: Queue, url: str) -> list[tuple[Person, str]]:
    """Return the personal link of everybody."""
    signer = Signer(bytes.fromhex(queue.setting("secret")))
    people = [person for person in queue.people() if not person.forgotten]
    return [(p, f"{url}/enter/{signer.issue('link', p.id, p.token_version)}") for p in people]


def _players(workers: str | None, usual: int) -> tuple[int, str | None]:
    """Return how many workers there are to be, and on what cluster they play. Raises ``ConfigError``: it is neither."""
    if workers is None or (workers.isdigit() and 1 <= int(workers) <= MOST_WORKERS):
        return int(workers or usual), None
    if not ADDRESS.fullmatch(workers):
        raise ConfigError(expected("--workers", f"1 to {MOST_WORKERS}, auto, host:port or ray://host:port", workers))
    if silent := connection_problem(workers):
        raise ConfigError(expected("--workers", "a Ray cluster that runs (ray start --head)", f"{workers}: {silent}"))
    return usual, workers


def start(place: ServedFolder, at: tuple[str, int], url: str, *, behind_proxy: bool, workers: str | None) -> None:
    """Answer browsers and play, until SIGTERM or Ctrl-C.

    It listens ``at`` a host and port, and browsers reach it by ``url``; ``behind_proxy``: a proxy on this machine says
    who asks. ``workers`` is how many there are, the course's number by default, or the address of a Ray cluster on
    which that many play. Raises ``ConfigError``, ``PlayerError``: what is wrong with the course or one of these.
    """
    number, cluster = _players(workers, place.course.workers)
    with exclusive_lock(place.home):
        queue = prepared(place)
        links = links_of(queue, url)
        queue.engine.dispose()
        supervisor, listening = Supervisor(place), listen(*at)
        share_memory()
        supervisor.add("pages", lambda _: serve_pages(place, listening, url, behind_proxy=behind_proxy))
        try:
            typer.echo(f"{place.course.title}: {url}")
            for person, link in links:
                if person.role == "instructor":
                    typer.echo(f"  {printable(person.name)}: {link}")
            start_workers(supervisor, number, cluster)
            supervisor.watch()
        finally:
            supervisor.stop()
