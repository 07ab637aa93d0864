"""A store of each kind of database: SQLite in a file, and Postgres in a folder of its own where it is installed."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the extra serve is not installed")

from sqlalchemy import text

from multigrid_rl.serve.course import Course, Enrolled
from multigrid_rl.serve.database import engine_of, make_tables
from multigrid_rl.serve.queue import Queue

#: Debian's place first: what lies on the path there are links to some of them.
PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/bin"))
LACKS = (
    "Postgres is not installed"
    if not (PROGRAMS / "initdb").exists()
    else "psycopg is not installed"
    if importlib.util.find_spec("psycopg") is None
    else ""
)
_NOBODY = 65534


def _run(folder, *command) -> None:
    """Postgres refuses to run as root."""
    user = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
    words = [*user, *map(str, command)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=folder)


@contextmanager
def postgres(folder: Path):
    """Yield the address of a new server that listens on a socket in ``folder`` alone, which anybody may enter."""
    data = folder / "data"
    data.mkdir(parents=True)
    if os.geteuid() == 0:
        for path in (folder, data):
            shutil.chown(path, _NOBODY, _NOBODY)
    _run(folder, PROGRAMS / "initdb", "-D", data, "-U", "course", "-A", "trust", "-E", "UTF8")
    options = f"-c listen_addresses='' -k {folder} -c fsync=off"
    _run(folder, PROGRAMS / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
    try:
        yield f"postgresql+psycopg://course@/postgres?host={folder}"
    finally:
        _run(folder, PROGRAMS / "pg_ctl", "-D", data, "-m", "immediate", "stop")


ROSTER = [Enrolled("s1", "Ada"), Enrolled("s2", "Ben"), Enrolled("i1", "Ines", role="instructor")]
COURSE = Course(anchors=["random", "blue-rookie"], games=10, program_games=4)


@pytest.fixture(scope="session")
def _postgres():
    if LACKS:
        pytest.skip(LACKS)
    with tempfile.TemporaryDirectory() as folder:  # below /tmp: a socket's path is short, and another user enters it
        Path(folder).chmod(0o755)
        with postgres(Path(folder) / "pg") as url:
            yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/serve.db"
    url = request.getfixturevalue("_postgres")
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return url


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(database, tmp_path, clock):
    make_tables(database)
    queue = Queue(database, tmp_path / "home", COURSE, clock)
    queue.sync(ROSTER)
    queue.begin()
    yield queue
    queue.engine.dispose()
