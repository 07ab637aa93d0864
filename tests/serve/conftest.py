"""A store of each kind of database."""

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the extra serve is not installed")

from sqlalchemy import text

from databases import LACKS, postgres
from multigrid_rl.serve.course import Course, Enrolled
from multigrid_rl.serve.database import engine_of, make_tables
from multigrid_rl.serve.queue import Queue

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
