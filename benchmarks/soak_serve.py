"""Kills a class server at random moments during a storm: ``python -m benchmarks.soak_serve [--kills 1000 --seed 0]``.

Workers, pages, the server itself and clients that hand in are killed with SIGKILL; leases jump as they do when a clock
is set; the database is locked for a while, or with ``--database`` loses its connections; where this user may mount one,
the disk is a small one that is full now and then. In the end everything that was acknowledged must be rated, all jobs
done, every pairing there once, equal files rated equally, and ``serve verify`` content. The last line is JSON.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from sqlalchemy import create_engine, select, text, update

from benchmarks.serve import BUNDLES, Served, course_in
from multigrid_rl.files import data_root
from multigrid_rl.serve.database import HandIn, Job, Rating, StoredPairing
from multigrid_rl.serve.queue import Queue

#: Without games among hand-ins equal files have equal ratings.
_COURSE = "scenario: 1v1\nmatches: 0\ngames: 50\nquota: {hand_ins: 1000}\n"
#: How often each is done.
_DEEDS = {"worker": 70, "client": 12, "pages": 8, "jump": 6, "database": 2, "server": 1, "disk": 1}


class Soak:
    """One storm.

    Args:
        served: the server.
        rng: of what is killed when.
        disk: a small file system, which can be filled; or none.
    """

    def __init__(self, served: Served, rng: random.Random, disk: Path | None) -> None:
        self.served, self.rng, self.disk = served, rng, disk
        self.acknowledged: dict[int, str] = {}
        self.deeds: Counter[str] = Counter()

    def hand_in(self, kill: bool) -> None:
        """Hand in from a process of its own, which perhaps is killed meanwhile; notes what was acknowledged."""
        name, student = self.rng.choice(BUNDLES), self.rng.randrange(20)
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            with suppress(BaseException):
                queue: Queue = self.served.place.open_queue()
                person = queue.person_by_code(f"s{student}")
                assert person is not None
                row = queue.hand_in(person.id, data_root() / "checkpoints" / name)
                os.write(writing, str(row.id).encode())
            os._exit(0)
        os.close(writing)
        if kill:
            time.sleep(self.rng.random() * 0.2)
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if told := os.read(reading, 100):
            self.acknowledged[int(told)] = name
        os.close(reading)

    def children(self) -> dict[str, list[int]]:
        """Return the server's processes by kind: pages first, then workers."""
        tasks = Path(f"/proc/{self.served.process.pid}/task/{self.served.process.pid}/children")
        with suppress(OSError):
            pids = [int(pid) for pid in tasks.read_text().split()]
            return {"pages": pids[:1], "worker": pids[1:]}
        return {"pages": [], "worker": []}

    def harm(self) -> None:
        """Do one of the deeds."""
        deed = self.rng.choices(list(_DEEDS), list(_DEEDS.values()))[0]
        if deed == "disk" and self.disk is None:
            deed = "worker"
        self.deeds[deed] += 1
        if deed in ("worker", "pages"):
            if pids := self.children()[deed]:
                with suppress(ProcessLookupError):
                    os.kill(self.rng.choice(pids), signal.SIGKILL)
        elif deed == "client":
            self.hand_in(kill=True)
        elif deed == "server":
            self.served.process.kill()
            self.served.process.wait()
            self.served.start()
        else:
            with suppress(Exception):
                {"jump": self.jump, "database": self.database, "disk": self.fill}[deed]()

    def jump(self) -> None:
        """Let all leases look as after a clock that was set by up to a day."""
        queue, by = self.served.place.open_queue(), self.rng.uniform(-86_400, 86_400)
        with queue.writing() as session:
            session.execute(update(Job).where(Job.worker != "").values(lease_until=Job.lease_until + by))
        queue.engine.dispose()

    def database(self) -> None:
        """Lock SQLite for a while, or end all of Postgres' connections."""
        url = self.served.place.url
        if url.startswith("sqlite"):
            connection = sqlite3.connect(url.partition("///")[2], isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(self.rng.random())
            connection.close()
            return
        engine = create_engine(url)
        with engine.connect() as connected:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connected.execute(text(f"{others} AND datname = current_database()"))
        engine.dispose()

    def fill(self) -> None:
        """Fill the disk for a moment."""
        assert self.disk is not None
        full = self.disk / "full"
        with suppress(OSError), full.open("wb") as file:
            while True:
                file.write(b"\0" * 1_000_000)
        time.sleep(1.0)
        full.unlink()

    def wrong(self) -> list[str]:
        """Return what is not as it must be, once nothing is left to do."""
        queue = self.served.place.open_queue()
        with queue.reading() as session:
            rows = {row.id: row for row in session.scalars(select(HandIn).where(HandIn.person_id.is_not(None)))}
            pairs = Counter(
                game.red_id for game in session.scalars(select(StoredPairing).where(StoredPairing.red_id.in_(rows)))
            )
            rated = {each.hand_in_id: (each.rating, each.low, each.high) for each in session.scalars(select(Rating))}
        found = [f"{n} was acknowledged and is lost" for n in self.acknowledged.keys() - rows.keys()]
        found += [f"{n} is {row.state}: {row.reason}" for n, row in rows.items() if row.state != "rated"]
        found += [f"job {job.id} ({job.kind}) is left" for job in queue.jobs()]
        anchors = len(queue.course.anchors)
        found += [f"{n} has {pairs[n]} of {anchors} pairings" for n in rows if pairs[n] != anchors]
        equal: dict[str, set[object]] = {}
        for n, row in rows.items():
            equal.setdefault(row.sha256, set()).add(rated.get(n))
        found += [f"equal files have {len(its)} ratings: {its}" for its in equal.values() if len(its) > 1]
        queue.engine.dispose()
        return found


def main() -> None:
    """Run a storm; leaves with status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every-s", type=float, default=0.4, help="mean time between two")
    parser.add_argument("--hand-ins", type=int, default=200)
    parser.add_argument("--patience-s", type=float, default=900.0, help="for the rest, after the last one")
    parser.add_argument("--database", default=None, help="of Postgres, an empty one")
    parser.add_argument("--port", type=int, default=8098)
    asked = parser.parse_args()
    rng, folder = random.Random(asked.seed), Path(tempfile.mkdtemp(prefix="serve-soak-"))
    disk = _small_disk(folder / "course.files")
    course = course_in(folder, 20, _COURSE)
    options = ["--database", asked.database] if asked.database else []
    began = time.monotonic()
    with Served(course, asked.port, *options, database=asked.database) as served:
        soak = Soak(served, rng, disk)
        for k in range(asked.kills):
            if k * asked.hand_ins // asked.kills != (k - 1) * asked.hand_ins // asked.kills:
                soak.hand_in(kill=False)
            soak.harm()
            time.sleep(rng.expovariate(1 / asked.every_s))
        last = time.monotonic()
        while soak.wrong() and time.monotonic() - last < asked.patience_s:
            time.sleep(1.0)
        wrong = soak.wrong()
        rest_s = time.monotonic() - last
        faults = served.queue.health()["faults"]
    verified = [sys.executable, "-m", "multigrid_rl.cli.main", "serve", "verify", str(course), *options]
    told = subprocess.run(verified, capture_output=True, text=True, check=False)
    wrong += [f"verify: {told.stdout} {told.stderr}"] if told.returncode else []
    if disk is not None:
        subprocess.run(["umount", disk], check=False)
    for line in wrong:
        print(line)
    counts = {"acknowledged": len(soak.acknowledged), "deeds": dict(soak.deeds), "faults_noted": int(faults)}
    times = {"storm_s": round(last - began, 1), "rest_s": round(rest_s, 1)}
    print(json.dumps({"wrong": len(wrong), **counts, **times, "verify": told.stdout.splitlines()[-1:]}))
    if not wrong:
        shutil.rmtree(folder)
    sys.exit(bool(wrong))


def _small_disk(place: Path) -> Path | None:
    """Mount a small file system at ``place``, where this user may; ``None``: no disk is filled."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=500m", "tmpfs", str(place)]
    try:
        return place if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None
    except OSError:
        return None


if __name__ == "__main__":
    main()
