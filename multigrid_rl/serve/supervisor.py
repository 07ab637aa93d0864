"""The parent process of a class server and its children: the pages, and workers. A dead child is started again."""

import ctypes
import gc
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

import typer
from sqlalchemy.exc import SQLAlchemyError

from multigrid_rl.cli.output import one_thread
from multigrid_rl.competition.folders import exclusive_lock
from multigrid_rl.competition.launch import die_with_parent
from multigrid_rl.rllib.address import ADDRESS, connection_problem
from multigrid_rl.serve.course import MOST_WORKERS, Course, read_course, read_roster
from multigrid_rl.serve.database import Person, make_tables
from multigrid_rl.serve.queue import Queue, log
from multigrid_rl.serve.store import BUNDLE, PROGRAM, SLOW
from multigrid_rl.text import ConfigError, expected, printable
from multigrid_rl.trust import agents_trusted

#: Of ``mallopt``, only in glibc: number of memory arenas of threads.
_M_ARENA_MAX = -8
_POLL_S, _GRACE_S = 0.1, 5.0
#: A child that lived shorter is started again after a doubling wait; the first and the longest wait.
_YOUNG_S, _WAIT_S, _LONGEST_WAIT_S = 2.0, 0.1, 5.0
#: Megabytes of private memory above which a worker is replaced, by its last lane (the slow one keeps fingerprints).
_PRIVATE_MB = {BUNDLE: 24.0, PROGRAM: 24.0, SLOW: 40.0}
#: Niceness of workers, below the pages, by their last lane.
_NICE = {BUNDLE: 1, PROGRAM: 3, SLOW: 10}


class ServedFolder(NamedTuple):
    """A course, with the folders and the database of its server."""

    course: Course
    course_folder: Path  # folder of ``course.yaml``
    home: Path  # of files
    url: str  # of the database

    def open_queue(self) -> Queue:
        """Return a new queue, for one process."""
        return Queue(self.url, self.home, self.course)


def place_of(path: Path, home: Path | None = None, database: str | None = None) -> ServedFolder:
    """Return the course in a file, by default with a folder of its name and SQLite there. Raises ``ConfigError``."""
    course = read_course(path)
    home = (home or path.with_suffix(".files")).resolve()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(expected(home, "a folder that can be made", error.strerror)) from error
    url = re.sub("^postgresql://", "postgresql+psycopg://", database or f"sqlite:///{home}/serve.db")
    return ServedFolder(course, path.resolve().parent, home, url)


def open_prepared(place: ServedFolder) -> Queue:
    """Return the queue of a course, with its tables and people. Raises ``ConfigError``."""
    roster, course = read_roster(place.course_folder / place.course.roster), place.course
    codes = {enrolled.code for enrolled in roster}
    named = [extension.of for extension in course.extensions if extension.of not in course.teams]
    if unknown := [code for code in chain(named, *course.teams.values()) if code not in codes]:  # without effect
        raise ConfigError(expected("extensions, teams", "ids of the roster, or a team", unknown[0]))
    make_tables(place.url)
    queue = place.open_queue()
    queue.sync(roster)
    return queue


def link_holders(place: ServedFolder, queue: Queue) -> list[Person]:
    """Return the people of the roster; those who left it have no access."""
    listed = {enrolled.code for enrolled in read_roster(place.course_folder / place.course.roster)}
    return [person for person in queue.people() if person.code in listed and not person.forgotten]


@dataclass
class _Slot:
    """A child process that should run."""

    name: str
    run: Callable[[str], None]  # called in the child with its name
    deaths: int = 0
    started: float = 0.0
    due: float = 0.0
    worker: str = ""

    def begin(self, parent: int) -> None:
        """Call ``run`` in the child, which ends with its parent."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent says when to end
        die_with_parent(parent)
        self.run(f"{self.name}-{os.getpid()}")


@dataclass
class Supervisor:
    """Starts children of a course and keeps them running; it has no thread and no connection of its own."""

    place: ServedFolder
    slots: list[_Slot] = field(default_factory=list)
    children: dict[ForkProcess, _Slot] = field(default_factory=dict)
    ending: bool = False

    def add(self, name: str, run: Callable[[str], None]) -> None:
        """Start a child that calls ``run`` with its name."""
        self.slots.append(_Slot(name, run))
        self._start(self.slots[-1])

    def _start(self, slot: _Slot) -> None:
        slot.started, slot.due = time.monotonic(), 0.0
        child = ForkProcess(target=slot.begin, args=(os.getpid(),), name=slot.name)
        child.start()
        slot.worker = f"{slot.name}-{child.pid}"
        self.children[child] = slot

    def watch(self) -> None:
        """Start dead children again, until SIGTERM or Ctrl-C."""

        def stop(*_: object) -> None:
            self.ending = True

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        while not self.ending:
            self._reap()
            for slot in self.slots:
                if slot.due and time.monotonic() >= slot.due:
                    self._start(slot)
            time.sleep(_POLL_S)

    def _reap(self) -> None:
        for child in [child for child in self.children if not child.is_alive()]:
            slot, status = self.children.pop(child), child.exitcode
            lived_s = time.monotonic() - slot.started
            slot.deaths = slot.deaths + 1 if status and lived_s < _YOUNG_S else 0
            # A child with status 0 has ended because its memory had grown, without a job.
            slot.due = time.monotonic() + (min(_WAIT_S * 2**slot.deaths, _LONGEST_WAIT_S) if status else 0.0)
            freed = self._free_jobs(slot.worker) if status else 0
            log("died", child=slot.worker, status=status, lived=round(lived_s, 1), freed=freed)

    def _free_jobs(self, worker: str) -> int:
        """Free the jobs of a dead child; if the database is away, their leases end by themselves."""
        queue = self.place.open_queue()
        try:
            return queue.release(worker)
        except (SQLAlchemyError, OSError) as error:
            log("database", error=str(error).splitlines()[0][:200])
            return -1
        finally:
            queue.engine.dispose()

    def stop(self) -> None:
        """End all children, in the end by SIGKILL."""
        for end in (ForkProcess.terminate, ForkProcess.kill):
            deadline = time.monotonic() + _GRACE_S
            for child in self.children:
                end(child)
            for child in self.children:
                child.join(max(deadline - time.monotonic(), 0.0))


def share_memory() -> None:
    """Freeze all loaded objects, so that this process and its children share them, and return free memory."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)  # else each thread fragments an arena of its own
    gc.collect()
    gc.freeze()  # garbage collection would write into all shared pages
    return_memory()


def return_memory() -> None:
    """Return free memory to the system; only with glibc."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def has_grown(most_mb: float) -> bool:
    """Return whether this process has more private memory than that, after returning free memory."""
    return_memory()
    with suppress(OSError):  # not Linux
        found = re.search(r"Private_Dirty: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
        return found is not None and int(found[1]) * 1024 > most_mb * 1e6
    return False


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ``ConfigError``: the address cannot be used."""
    # With TCP as its protocol: else asyncio does not set TCP_NODELAY, and answers wait 40 ms for acknowledgements.
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(expected("--host, --port", "a free address", f"{host}:{port}: {error.strerror}")) from error
    listening.listen(1024)
    return listening


def serve_pages(place: ServedFolder, listening: socket.socket, url: str, *, behind_proxy: bool) -> None:
    """Answer browsers until SIGTERM."""
    from multigrid_rl.serve import pages, people_pages, site  # noqa: PLC0415 - the workers need none of it

    app = site.application(site.Site(place.open_queue(), url), [*pages.PAGES, *people_pages.PAGES])
    site.server_of(app, behind_proxy=behind_proxy).run(sockets=[listening])


def lanes(workers: int) -> list[tuple[str, ...]]:
    """Return the lanes of each worker: slow jobs, of programs or grades, delay no fast ones."""
    return [(BUNDLE,)] * workers + [(PROGRAM,)] * max(workers - 1, 1) + [(PROGRAM, SLOW)]


def start_workers(supervisor: Supervisor, number: int, cluster: str | None = None) -> None:
    """Load all players once, and fork workers, or one process for a cluster. Raises as :class:`.judge.Judge`."""
    # Torch takes seconds and much memory: the pages start first, without it.
    from multigrid_rl.competition.sandbox import bwrap_available, check_not_bound  # noqa: PLC0415
    from multigrid_rl.serve.judge import Judge  # noqa: PLC0415
    from multigrid_rl.serve.worker import Worker  # noqa: PLC0415

    place = supervisor.place
    check_not_bound(place.home)
    if not (bwrap_available() or agents_trusted()):
        typer.echo("programs of students cannot run: bubblewrap lacks or does not work here (docs/instructors.md)")
    one_thread()
    queue = place.open_queue()
    settings = place.course, place.course_folder, place.home, queue.secrets()
    judge = Judge(*settings)
    queue.meets_nobody = judge.meets_nobody
    queue.begin()
    queue.release()
    queue.engine.dispose()
    # A first process compiles kernels to the disk, and its memory is freed; this one loads them, to be shared.
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
        from multigrid_rl.serve.cluster_games import run_on_cluster  # noqa: PLC0415 - Ray

        supervisor.add("cluster", lambda name: run_on_cluster(cluster, settings, place.open_queue, name, lanes(number)))
        return

    def work(worker_lanes: tuple[str, ...], name: str) -> None:
        os.nice(_NICE[worker_lanes[-1]])
        worker = Worker(place.open_queue(), judge, name, worker_lanes)
        worker.run(after=partial(has_grown, _PRIVATE_MB[worker_lanes[-1]]))

    for k, worker_lanes in enumerate(lanes(number)):
        supervisor.add(f"{worker_lanes[-1]}-{k}", partial(work, worker_lanes))


def _number_and_cluster(workers: str | None, usual: int) -> tuple[int, str | None]:
    """Return the number of workers, and the cluster on which they play. Raises ``ConfigError``: it is neither."""
    if workers is None or (workers.isdigit() and 1 <= int(workers) <= MOST_WORKERS):
        return int(workers or usual), None
    if not ADDRESS.fullmatch(workers):
        raise ConfigError(expected("--workers", f"1 to {MOST_WORKERS}, auto, host:port or ray://host:port", workers))
    if problem := connection_problem(workers):
        raise ConfigError(expected("--workers", "a Ray cluster that runs (ray start --head)", f"{workers}: {problem}"))
    return usual, workers


def start(place: ServedFolder, at: tuple[str, int], url: str, *, behind_proxy: bool, workers: str | None) -> None:
    """Answer browsers ``at`` a host and port, which they reach by ``url``, and play, until SIGTERM or Ctrl-C.

    ``workers`` is their number, by default the course's, or the address of a Ray cluster on which that many play.
    Raises ``ConfigError``, ``PlayerError``: the course or one of these is invalid.
    """
    number, cluster = _number_and_cluster(workers, place.course.workers)
    with exclusive_lock(place.home):
        queue = open_prepared(place)
        teachers = [person for person in link_holders(place, queue) if person.role == "instructor"]
        links = [f"  {printable(person.name)}: {queue.link(person, url)}" for person in teachers]
        queue.engine.dispose()
        supervisor, listening = Supervisor(place), listen(*at)
        share_memory()
        try:
            supervisor.add("pages", lambda _: serve_pages(place, listening, url, behind_proxy=behind_proxy))
            typer.echo(f"{place.course.title}: {url}")
            for link in links:
                typer.echo(link)
            start_workers(supervisor, number, cluster)
            supervisor.watch()
        finally:
            supervisor.stop()
