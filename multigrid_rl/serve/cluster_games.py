"""Games of a class server as tasks of a Ray cluster: what a worker's judge plays is played there, and nothing else.

Tasks get all that they need with their call, files among it, and know neither the database nor the server's disk. A
worker waits here for each, and holds its lease: a node that dies is a fault like any other, and the job is tried again.
Workers are threads of one process: Ray starts processes for each that connects, and these load everything anew.
"""

import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray

from multigrid_rl.cli.app import one_thread
from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.competition.entries import Entry
from multigrid_rl.competition.folders import FolderPart, Scratch, write_parts
from multigrid_rl.config.compose import compose
from multigrid_rl.rllib.session import RayError, ray_session, reason_of
from multigrid_rl.serve.course import Course
from multigrid_rl.serve.judge import Judge, Verdict
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.worker import Worker
from multigrid_rl.types import RunError

#: What is sent of an entry: its name, and its files, of which an anchor needs none.
_Sent = tuple[str, tuple[FolderPart, ...]]
#: Of a judge.
_About = tuple[Course, Path, Path, dict[str, str]]
Lanes = tuple[str, ...]


class FarJudge(Judge):
    """A judge whose checks and pairings are played on a cluster; this process is connected to it."""

    #: Until a process of a node has loaded everything, or a core is free.
    patience_s = 600.0

    def __init__(self, course: Course, beside: Path, home: Path, secrets: dict[str, str]) -> None:
        super().__init__(course, beside, home, secrets)
        folders = {name: each.files for name, each in self.anchors.items() if each.files and not each.known}
        self._about = pickle.dumps((course.model_dump_json(), secrets, folders))

    def check(self, entry: Entry) -> Verdict:
        """Let an entry play against itself and the rookie. Raises ``RunError``: the cluster failed."""
        found: Verdict = self._there("check", entry)
        return found

    def play(self, one: Entry, two: Entry | None, spent: dict[str, float] | None = None) -> list[Pairing]:
        """Play all games of two entries; see :meth:`Judge.play`. Raises ``RunError``: the cluster failed."""
        found: list[Pairing] = self._there("play", one, two, spent)
        return found

    def _there(self, what: str, *about: Any) -> Any:
        anchors = self.anchors.values()
        sent = [(e.name, () if e in anchors else e.files) if isinstance(e, Entry) else e for e in about]
        try:
            return ray.get(ray.remote(num_cpus=1, max_retries=0)(_play).remote(self._about, what, sent))
        except (RayError, ConnectionError) as error:  # a fault of this machine's, too, which a node may not share
            raise RunError(f"Ray: {reason_of(error)}") from error


def play_there(address: str, about: _About, queue: Callable[[], Queue], name: str, lanes: Sequence[Lanes]) -> None:
    """Do the jobs of some lanes, a thread for each, until one ends.

    Raises ``ConfigError``: the cluster does not answer.
    """
    ended = threading.Event()

    def work(judge: FarJudge, number: int, of: Lanes) -> None:
        try:
            Worker(queue(), judge, f"{name}.{number}", of).run(ended.is_set)
        finally:
            ended.set()  # what it did not expect ends the process, and another one begins

    with ray_session(compose(["scenario=1v1", f"cluster.address={address}"])):
        judge = FarJudge(*about)
        for number, of in enumerate(lanes):
            threading.Thread(target=work, args=(judge, number, of), daemon=True).start()
        ended.wait()


@lru_cache(maxsize=2)
def _judge(about: bytes) -> tuple[Judge, TemporaryDirectory[str]]:
    """Return a course's judge on a node, and the folder of its anchors, which is gone with this process."""
    one_thread()
    course, secrets, folders = pickle.loads(about)  # of the server
    beside = TemporaryDirectory()
    for name, parts in folders.items():
        write_parts(parts, Path(beside.name) / name)
    return Judge(Course.model_validate_json(course), Path(beside.name), None, secrets), beside


def _play(about: bytes, what: str, sent: list[Any]) -> Any:
    """Do on a node what a judge does."""
    judge, _ = _judge(about)
    with closing(Scratch()) as scratch:
        asked = [_entry(judge, each, scratch.path) if isinstance(each, tuple) else each for each in sent]
        return getattr(judge, what)(*asked)


def _entry(judge: Judge, sent: _Sent, folder: Path) -> Entry:
    name, parts = sent
    if name in judge.anchors:
        return judge.anchors[name]
    if not (folder / name).exists():
        write_parts(parts, folder / name)
    return judge.read(folder / name)
