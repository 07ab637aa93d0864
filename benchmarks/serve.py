"""How a class server does: ``python -m benchmarks.serve [--hand-ins 300 --minutes 10]``; the last line is JSON.

Starts a server of its own in a new folder, hands in, and reads from its store when each hand-in was rated. A share of
them are the example agent, a program, all others frozen players. Ladder pages are asked for meanwhile.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import Pipe, Process
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import descendants, kib_of, processes, text_of
from multigrid_rl.files import data_root
from multigrid_rl.serve.database import HandIn
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.supervisor import ServedFolder, place_of

BUNDLES = ("blue-rookie", "blue-adept", "blue-master")
PROGRAM = "examples/agents/python"
IDLE = 20


def course_in(folder: Path, students: int, text: str = "scenario: 1v1\n") -> Path:
    """Write a course with a roster, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["id,name,role", "i1,Ines,instructor", *(f"s{k},Student {k},student" for k in range(students))]
    (folder / "roster.csv").write_text("\n".join(rows) + "\n")
    (folder / "course.yaml").write_text(text)
    return folder / "course.yaml"


class Served:
    """A server in a process of its own, for a block.

    Args:
        course: file of the course.
        port: to listen on.
        options: more words of the command.
        database: where it is, if not in a file.
    """

    def __init__(self, course: Path, port: int, *options: str, database: str | None = None) -> None:
        self.place: ServedFolder = place_of(course, database=database)
        command = [sys.executable, "-m", "multigrid_rl.cli.main", "serve", str(course), "--port", str(port), *options]
        self.port, self.command, self.log = port, command, course.parent / "log"
        self.queue: Queue
        self.process: subprocess.Popen[bytes]

    def start(self) -> float:
        """Start it; returns seconds until the first page was there. Raises ``RuntimeError``: it ended."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        while not self.asked("/"):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: {self.log.read_text()[-500:]}")
            time.sleep(0.05)
        return time.monotonic() - began

    def __enter__(self) -> "Served":
        """Start it, and wait for the anchors' ratings."""
        self.first_page_s = self.start()
        self.queue = self.place.open_queue()
        while len(self.queue.ladder()) < len(self.place.course.anchors):
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.queue.engine.dispose()

    def asked(self, path: str) -> bool:
        """Return whether a page is answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def entries_s(self) -> list[float]:
        """Return the seconds in which the page of each fixed player comes, at first and again."""
        took = []
        for row in (row for row in self.queue.ladder() if row.person is None):
            for _ in range(2):
                began = time.monotonic()
                assert self.asked(f"/entry/{row.hand_in.id}")
                took.append(time.monotonic() - began)
        return took

    def processes(self) -> dict[int, list[str]]:
        """Return all its processes: fields of each one's ``stat``, by its number."""
        running = {pid: fields for pid, (_, fields) in processes().items()}
        pids = descendants({pid: int(fields[1]) for pid, fields in running.items()}, self.process.pid)
        return {pid: running[pid] for pid in pids if pid in running}

    def cpu_s(self) -> float:
        """Return the seconds of processors that it has taken, with those of children that have ended."""
        ticks = sum(sum(map(int, fields[11:15])) for fields in self.processes().values())
        return ticks / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Return the memory of all its processes, what they share counted once."""
        return sum(kib_of(text_of(pid, "smaps_rollup"), "Pss") for pid in self.processes()) / 1024


def waits(queue: Queue, ids: list[int], patience_s: float) -> list[float]:
    """Return how many seconds each hand-in waited for its first rating; infinite where there is none."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        rows = [queue.get(HandIn, number) for number in ids]
        if all(row is not None and row.state in ("rated", "refused") for row in rows):
            break
        time.sleep(0.2)
    rows = [queue.get(HandIn, number) for number in ids]
    return [row.state_at - row.at if row is not None and row.state == "rated" else float("inf") for row in rows]


class Readers:
    """Asks for the ladder at a steady rate from a process of its own, and notes how long it took from its due time."""

    def __init__(self, port: int, rate: float) -> None:
        self.port, self.rate, self.took, self.over = port, rate, list[float](), threading.Event()
        self.mine, self.its = Pipe()
        self.process = Process(target=self._run, daemon=True)
        self.process.start()

    def stop(self) -> list[float]:
        """Stop, and return the seconds that each request took."""
        self.mine.send(None)
        took: list[float] = self.mine.recv()
        self.process.join()
        return took

    def _run(self) -> None:
        ways = 16
        threads = [threading.Thread(target=self._ask, args=(k, ways), daemon=True) for k in range(ways)]
        for thread in threads:
            thread.start()
        self.its.recv()
        self.over.set()
        for thread in threads:
            thread.join()
        self.its.send(self.took)

    def _ask(self, k: int, ways: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        due = time.monotonic() + k / self.rate
        while not self.over.is_set():
            time.sleep(max(due - time.monotonic(), 0))
            try:
                connection.request("GET", "/")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
            self.took.append(time.monotonic() - due)
            due += ways / self.rate


def handed_in(served: Served, number: int, over_s: float, programs: float, rng: random.Random) -> dict[str, list[int]]:
    """Hand in at random moments within some seconds; returns ids by kind."""
    moments = sorted(rng.uniform(0, over_s) for _ in range(number))
    people = [person.id for person in served.queue.people() if person.role == "student"]
    began, ids = time.monotonic(), {"bundle": list[int](), "program": list[int]()}
    for moment in moments:
        time.sleep(max(began + moment - time.monotonic(), 0))
        program = rng.random() < programs
        folder = data_root() / (PROGRAM if program else f"checkpoints/{rng.choice(BUNDLES)}")
        ids["program" if program else "bundle"].append(served.queue.hand_in(rng.choice(people), folder).id)
    return ids


def of(values: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and largest of some seconds."""
    if not values:
        return {}
    return {"n": len(values), **{f"p{q}": round(float(np.percentile(values, q)), 3) for q in (50, 95, 99, 100)}}


def tell(found: dict[str, Any], **more: Any) -> None:
    """Print a table, and a line of JSON."""
    told = {key: of(value) if isinstance(value, list) else value for key, value in found.items()} | more
    for key, value in told.items():
        print(f"{key:<24}{value}")
    print(json.dumps(told))


def main() -> None:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hand-ins", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--programs", type=float, default=0.1, help="share of hand-ins that are programs")
    parser.add_argument("--rate", type=float, default=0.0, help="requests for the ladder a second during the storm")
    parser.add_argument("--port", type=int, default=8097)
    asked, rng = parser.parse_args(), random.Random(7)
    folder = Path(tempfile.mkdtemp(prefix="serve-bench-"))
    found: dict[str, Any] = {}
    with Served(course_in(folder, 300), asked.port) as served:
        found["first_page_s"] = round(served.first_page_s, 1)
        found["idle_bundle_s"], found["idle_program_s"] = [], []
        for k in range(IDLE):
            ids = handed_in(served, 1, 0, float(k % 4 == 3), rng)
            for kind, own in ids.items():
                found[f"idle_{kind}_s"] += waits(served.queue, own, 120)
        found["idle_megabytes"], before = round(served.megabytes()), served.cpu_s()
        readers = Readers(asked.port, asked.rate) if asked.rate else None
        ids = handed_in(served, asked.hand_ins, 60 * asked.minutes, asked.programs, rng)
        found["ladder_s"] = readers.stop() if readers else []
        for kind, own in ids.items():
            found[f"storm_{kind}_s"] = waits(served.queue, own, 600)
        found["entry_s"] = served.entries_s()
        found["megabytes"], found["cpu_s_each"] = round(served.megabytes()), (served.cpu_s() - before) / asked.hand_ins
        found["load"] = os.getloadavg()
        health = served.queue.health()
    shutil.rmtree(folder)
    tell(found, health=health)


if __name__ == "__main__":
    main()
