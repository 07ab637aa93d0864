"""Tables of a class server, for SQLite and Postgres. Times are seconds since 1970; 0 stands for "none"."""

from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    ForeignKey,
    Index,
    String,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from multigrid_rl.text import ConfigError, expected

#: States of a submission, in their order; ``refused`` may follow each except ``rated``.
STATES = ("received", "checking", "placing", "rated", "refused")
DONE = ("rated", "refused")
#: Version of these tables, to be raised with each change of one; key of the setting that stores it.
VERSION, VERSION_KEY = "0002", "version"


class Base(DeclarativeBase):
    """Base class of all tables."""


class Setting(Base):
    """A setting of the server: secret seeds, whether the course is frozen."""

    __tablename__ = "settings"
    key: Mapped[str] = mapped_column(String(60), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class Person(Base):
    """A student or an instructor."""

    __tablename__ = "people"
    id: Mapped[int] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(String(120), unique=True)  # the platform's own id
    name: Mapped[str] = mapped_column(String(200))
    email: Mapped[str] = mapped_column(String(200), default="")
    role: Mapped[str] = mapped_column(String(20), default="student")  # or instructor; left: not on the roster now
    pseudonym: Mapped[str] = mapped_column(String(60), unique=True)
    token_version: Mapped[int] = mapped_column(default=0)  # links, tokens and sessions of older versions are over
    forgotten: Mapped[bool] = mapped_column(default=False)  # asked to be forgotten: no name, no files


class HandIn(Base):
    """Something handed in, or an anchor, which has no person."""

    __tablename__ = "hand_ins"
    id: Mapped[int] = mapped_column(primary_key=True)
    person_id: Mapped[int | None] = mapped_column(ForeignKey("people.id"), index=True)
    name: Mapped[str] = mapped_column(String(200))  # of the uploaded file or folder, or of the anchor
    at: Mapped[float]
    state: Mapped[str] = mapped_column(String(20), default="received", index=True)
    state_at: Mapped[float]
    deadline: Mapped[float] = mapped_column(default=0.0)  # until when this state should be over
    reason: Mapped[str] = mapped_column(Text, default="")  # of the state, in a line
    log: Mapped[str] = mapped_column(Text, default="")  # the end of the output of the check, or of a program
    kind: Mapped[str] = mapped_column(String(20), default="")  # frozen, external, scripted; empty before the check
    sha256: Mapped[str] = mapped_column(String(64), default="")  # of its files
    late_days: Mapped[int] = mapped_column(default=0)  # on arrival; the days that count are computed on reading
    counts: Mapped[bool] = mapped_column(default=True)  # against the quota
    seconds: Mapped[float] = mapped_column(default=0.0)  # that a program's starts and answers took
    faults: Mapped[int] = mapped_column(default=0)  # pairings in which it forfeited games
    same_as: Mapped[str] = mapped_column(Text, default="")  # players that it is similar to; only instructors see it
    #: Read with each submission.
    person: Mapped["Person | None"] = relationship(lazy="joined", viewonly=True)
    rating: Mapped["Rating | None"] = relationship(lazy="joined", viewonly=True)
    grade: Mapped["Grade | None"] = relationship(lazy="joined", viewonly=True)


class StoredPairing(Base):
    """A pairing: all games of two submissions from one side, as a cup's ``Pairing`` in JSON."""

    __tablename__ = "games"
    __table_args__ = (UniqueConstraint("series", "red_id", "blue_id", "side"),)  # nothing is counted twice
    id: Mapped[int] = mapped_column(primary_key=True)
    series: Mapped[int] = mapped_column(default=0)  # 0: the ladder; there is no other
    red_id: Mapped[int] = mapped_column(ForeignKey("hand_ins.id"), index=True)
    blue_id: Mapped[int] = mapped_column(default=0, index=True)  # 0: it plays alone
    side: Mapped[str] = mapped_column(String(60), default="")
    at: Mapped[float]
    pairing: Mapped[str] = mapped_column(Text)


class Job(Base):
    """A unit of work; its row is deleted when it is done."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("kind", "hand_in_id", "other_id"),
        Index("ix_jobs_turn", "lane", "priority", "hand_in_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))  # check, pair, rate, grade, copies
    lane: Mapped[str] = mapped_column(String(20))  # bundle, program, slow
    priority: Mapped[int]  # 0 comes first
    hand_in_id: Mapped[int] = mapped_column(default=0)
    other_id: Mapped[int] = mapped_column(default=0)  # of a pair; of an appeal the game
    at: Mapped[float]
    worker: Mapped[str] = mapped_column(String(120), default="")  # empty: it waits
    lease_until: Mapped[float] = mapped_column(default=0.0)
    attempts: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[float] = mapped_column(default=0.0)


class Rating(Base):
    """The place of a submission on the ladder, computed from all games."""

    __tablename__ = "ratings"
    hand_in_id: Mapped[int] = mapped_column(ForeignKey("hand_ins.id"), primary_key=True)
    rating: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    games: Mapped[int]


class Grade(Base):
    """The grade of a submission by the rubric."""

    __tablename__ = "grades"
    hand_in_id: Mapped[int] = mapped_column(ForeignKey("hand_ins.id"), primary_key=True)
    at: Mapped[float]
    points: Mapped[float]
    of: Mapped[float]
    passed: Mapped[bool]
    #: JSON, as `grade` prints it: the instructor's; no page shows it.
    result: Mapped[str] = mapped_column(Text, deferred=True)
    feedback: Mapped[str] = mapped_column(Text)  # Markdown, the student's


class Event(Base):
    """An event, for histories and the log."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(40), index=True)
    hand_in_id: Mapped[int] = mapped_column(default=0, index=True)
    person_id: Mapped[int] = mapped_column(default=0)
    text: Mapped[str] = mapped_column(Text, default="")


def engine_of(url: str) -> Engine:
    """Return an engine for SQLite, with a write-ahead log, or Postgres. Make it after a fork, not before."""
    engine = create_engine(url, pool_pre_ping=True)
    pragmas = ("journal_mode=WAL", "busy_timeout=30000", "foreign_keys=ON")

    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say, see _begin
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", prepare)
        event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    # A read followed by a write fails where another connection wrote in between (https://sqlite.org/isolation.html).
    writes = connection.get_execution_options().get("writes", "")
    # A power cut may lose results, which are computed again, but no submission (https://sqlite.org/pragma.html).
    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if writes == 'durable' else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def make_tables(url: str) -> None:
    """Make the tables of a new database. Raises ``ConfigError``: it has those of another version."""
    engine = engine_of(url)
    try:
        with engine.execution_options(writes=True).begin() as connection:
            found = inspect(connection)
            if not found.has_table(Setting.__tablename__):
                Base.metadata.create_all(connection)
                connection.execute(insert(Setting).values(key=VERSION_KEY, value=VERSION))
            elif found.has_table("alembic_version"):  # earlier versions stored it there
                _check_version(connection.scalar(text("SELECT version_num FROM alembic_version")))
            else:
                _check_version(connection.scalar(select(Setting.value).where(Setting.key == VERSION_KEY)))
    finally:
        engine.dispose()


def is_version(row: dict[str, Any]) -> bool:
    """Return whether a row of a backup is the version of its tables. Raises ``ConfigError``: it is another one."""
    if row.get("key") == VERSION_KEY:
        _check_version(row["value"])
    return row.get("key") == VERSION_KEY


def _check_version(found: str | None) -> None:
    if found != VERSION:
        wanted = f"version {VERSION} (use the version of multigrid-rl that made it)"
        raise ConfigError(expected("database", wanted, found or "none"))
