"""Games of a class server as tasks of a Ray cluster: checks and pairings of a worker's judge, and nothing else.

A task gets everything with its call, files included, and knows neither the database nor the server's disk. A worker
waits here for each, and holds its lease: a dead node is a fault like any other, and the job is tried again. Workers
are threads of one process, since Ray starts processes for each client, and these load everything again.
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

from multigrid_rl.cli.output import one_thread
from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.competition.entries import Entry
from multigrid_rl.competition.folders import FolderPart, Scratch, write_parts
from multigrid_rl.config.compose import compose
from multigrid_rl.rllib.session import RayError, ray_session, reason_of
from multigrid_rl.serve.course import Course
from multigrid_rl.serve.judge import CheckResult, Judge
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.worker import Worker
from multigrid_rl.types import RunError

#: Arguments of a judge.
_JudgeArguments = tuple[Course, Path, Path, dict[str, str]]
Lanes = tuple[str, ...]


class ClusterJudge(Judge):
    """A judge whose checks and pairings are played on a cluster; this process is connected to it."""

    #: Until a process on a node has loaded everything, or a core is free.
    patience_s = 600.0

    def __init__(self, course: Course, course_folder: Path, home: Path, secrets: dict[str, str]) -> None:
        super().__init__(course, course_folder, home, secrets)
        anchor_files = {name: entry.files for name, entry in self.anchors.items() if entry.files and not entry.known}
        self._pickled = pickle.dumps((course.model_dump_json(), secrets, anchor_files))

    def check(self, entry: Entry) -> CheckResult:
        """Let an entry play against itself and the rookie. Raises ``RunError``: the cluster failed."""
        found: CheckResult = self._run_remotely("check", entry)
        return found

    def play(self, one: Entry, two: Entry | None, spent_s: dict[str, float] | None = None) -> list[Pairing]:
        """Play all games of two entries; see :meth:`Judge.play`. Raises ``RunError``: the cluster failed."""
        return list(self._run_remotely("play", one, two, spent_s))

    def _run_remotely(self, method: str, *arguments: Any) -> Any:
        anchors = self.anchors.values()
        payload = [(e.name, () if e in anchors else e.files) if isinstance(e, Entry) else e for e in arguments]
        try:
            return ray.get(ray.remote(num_cpus=1, max_retries=0)(_run_on_node).remote(self._pickled, method, payload))
        except (RayError, ConnectionError) as error:  # also faults of this machine alone
            raise RunError(f"Ray: {reason_of(error)}") from error


def run_on_cluster(
    address: str, settings: _JudgeArguments, open_queue: Callable[[], Queue], name: str, lanes: Sequence[Lanes]
) -> None:
    """Do the jobs of some lanes, a thread for each, until one ends. Raises ``ConfigError``: the cluster is away."""
    ended = threading.Event()

    def work(judge: ClusterJudge, number: int, worker_lanes: Lanes) -> None:
        try:
            Worker(open_queue(), judge, f"{name}.{number}", worker_lanes).run(ended.is_set)
        finally:
            ended.set()  # an unexpected error ends the process, and another one starts

    with ray_session(compose(["scenario=1v1", f"cluster.address={address}"])):
        judge = ClusterJudge(*settings)
        for number, worker_lanes in enumerate(lanes):
            threading.Thread(target=work, args=(judge, number, worker_lanes), daemon=True).start()
        ended.wait()


@lru_cache(maxsize=2)
def _judge(pickled: bytes) -> tuple[Judge, TemporaryDirectory[str]]:
    """Return a course's judge on a node, and the folder of its anchors, which is removed with this process."""
    one_thread()
    course, secrets, anchor_files = pickle.loads(pickled)  # of the server
    course_folder = TemporaryDirectory()
    for name, parts in anchor_files.items():
        write_parts(parts, Path(course_folder.name) / name)
    return Judge(Course.model_validate_json(course), Path(course_folder.name), None, secrets), course_folder


def _run_on_node(pickled: bytes, method: str, payload: list[Any]) -> Any:
    judge, _ = _judge(pickled)
    with closing(Scratch()) as scratch:
        arguments = [_entry(judge, item, scratch.path) if isinstance(item, tuple) else item for item in payload]
        return getattr(judge, method)(*arguments)


def _entry(judge: Judge, sent: tuple[str, tuple[FolderPart, ...]], folder: Path) -> Entry:
    name, parts = sent  # without files for an anchor: they are on the node
    if name in judge.anchors:
        return judge.anchors[name]
    if not (folder / name).exists():
        write_parts(parts, folder / name)
    return judge.read(folder / name)
