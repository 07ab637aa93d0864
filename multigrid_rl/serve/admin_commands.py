"""The actions of ``multigrid-rl serve ACTION``: verify, back up, restore, export and end a course."""

import json
import random
import secrets
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import typer
from sqlalchemy import func, insert, select, text

from multigrid_rl.competition.cup import play_cup
from multigrid_rl.competition.cup_commands import REPLAYED
from multigrid_rl.competition.cup_folder import Pairing, read_manifest, versions
from multigrid_rl.competition.cup_on_screen import write_files
from multigrid_rl.competition.entries import entry_in, in_order
from multigrid_rl.competition.folders import exclusive_lock
from multigrid_rl.competition.standings import tabulate
from multigrid_rl.files import atomic_path, csv_text
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.serve.database import Base, HandIn, Person, Rating, StoredPairing, is_version, make_tables
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.queue import Queue, player_name
from multigrid_rl.serve.rating import compute_ratings
from multigrid_rl.serve.supervisor import ServedFolder, link_holders, open_prepared
from multigrid_rl.text import ConfigError, expected

#: Seconds of a program in all pairings of a final together: in fact only the limits of each pairing apply.
_FINAL_S = 1e6
_DATABASE, _FILES = "database.jsonl", ("uploads", "entries")


class AdminContext(NamedTuple):
    """A course, its store, and the options of an action."""

    place: ServedFolder
    queue: Queue
    output: Path | None
    arguments: list[str]
    replay_all: bool
    url: str


# --- verifying


def verify(context: AdminContext) -> dict[str, Any]:
    """Compute the ladder from all games and compare it; compare files with their hashes; replay pairings."""
    place, queue = context.place, context.queue
    judge = Judge(place.course, place.course_folder, place.home, queue.secrets())
    results, anchors, _ = queue.snapshot(by_wins=judge.config.rated)
    ratings = compute_ratings(results, anchors, by_wins=judge.config.rated)
    with queue.reading() as session:
        stored = {r.hand_in_id: (r.rating, r.low, r.high, r.games) for r in session.scalars(select(Rating))}
        rows = {row.id: row for row in session.scalars(select(HandIn))}
        games = list(session.scalars(select(StoredPairing)))
    computed = {number: tuple(ratings.get(number, ())) for number in stored}
    wrong = [n for n in stored if computed[n] != stored[n]]
    differences = [f"rating of {player_name(rows[n])}: {stored[n]} kept, {computed[n]} computed" for n in wrong]
    changed_files, forgotten = _changed_files(queue, judge, list(rows.values()))
    programs = {row.id for row in rows.values() if row.kind == "external"}
    eligible = [game for game in games if not {game.red_id, game.blue_id} & forgotten]
    pairings = {game.id: Pairing.model_validate_json(game.pairing) for game in eligible}
    eligible = [g for g in eligible if pairings[g.id].reason is None or not programs & {g.red_id, g.blue_id}]
    chosen = eligible if context.replay_all else random.SystemRandom().sample(eligible, min(REPLAYED, len(eligible)))
    for game in chosen:
        if problem := judge.replay(pairings[game.id]):
            note = "; a program may draw in its own way" if programs & {game.red_id, game.blue_id} else ""
            differences.append(f"pairing {game.id}: {problem}{note}")
    for line in [*changed_files, *differences]:
        typer.echo(line)
    counts = {"ratings": len(stored), "pairings": len(games), "replayed": len(chosen)}
    counts["not_repeatable"] = len(games) - len(eligible)
    return {**counts, "different": len(differences) + len(changed_files)}


def _changed_files(queue: Queue, judge: Judge, rows: list[HandIn]) -> tuple[list[str], set[int]]:
    """Return a line for each entry whose files differ from the submission, and the ids of forgotten ones."""
    lines, forgotten = [], set()
    for row in rows:
        if row.person_id is None or not row.sha256:
            continue
        folder = queue.entry_folder(row.id)
        if row.name == "forgotten" and not folder.exists():
            forgotten.add(row.id)
            continue
        with suppress(PlayerError):
            if judge.read(folder).sha256 == row.sha256:
                continue
        lines.append(f"{player_name(row)}: its files have changed")
    return lines, forgotten


def purge(context: AdminContext) -> dict[str, Any]:
    """Forget one person by id at once; or those whose request is a week old, and all students after ``keep_days``."""
    queue, course = context.queue, context.place.course
    if context.arguments:
        if (person := queue.person_by_code(context.arguments[0])) is None:
            raise ConfigError(expected("purge", "an id of the roster", context.arguments[0]))
        queue.forget(person.id)
        return {"forgotten": 1, "replays": 0}
    forgotten, replays = queue.purge(), 0
    if course.over(queue.now()):
        students = [person.id for person in queue.people() if person.role != "instructor" and not person.forgotten]
        for number in students:
            queue.forget(number)
        forgotten, replays = forgotten + len(students), queue.remove_replays()
    return {"forgotten": forgotten, "replays": replays}


# --- keeping


def backup(context: AdminContext) -> dict[str, Any]:
    """Write everything into one file: all tables at one moment, all files, the course."""
    if context.output is None or context.output.exists():
        raise ConfigError(expected("--output", "a new file, such as course.tar.gz", context.output))
    place, queue, rows = context.place, context.queue, 0
    with atomic_path(context.output) as temporary, tarfile.open(temporary, "w:gz") as archive:
        with TemporaryDirectory() as folder:
            with (Path(folder) / _DATABASE).open("w", encoding="utf-8") as lines:
                for line in _dumped(queue):
                    lines.write(line)
                    rows += 1
            archive.add(lines.name, _DATABASE)
        # Files are written before the rows that name them, and never change: all files of the tables are there.
        for path in chain(*((place.home / name).glob("[!.]*") for name in _FILES)):  # hidden ones are unfinished
            with suppress(FileNotFoundError):  # of a person who is forgotten meanwhile
                archive.add(path, f"files/{path.relative_to(place.home)}")
        archive.add(place.course_folder, "course", filter=partial(_course_file, place))
    return {"rows": rows, "bytes": context.output.stat().st_size, "file": str(context.output)}


def _course_file(place: ServedFolder, info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    inner = Path(info.name).relative_to("course")  # restored by hand
    is_backup = len(inner.parts) == 1 and inner.suffix in (".gz", ".tgz")
    is_hidden = any(part.startswith(".") for part in inner.parts)
    is_regular = (info.isdir() or info.isfile() or info.islnk()) and not is_backup and not is_hidden
    return info if is_regular and not (place.course_folder / inner).resolve().is_relative_to(place.home) else None


def _dumped(queue: Queue) -> Iterator[str]:
    """Yield a line of JSON for each row of each table, referenced tables first."""
    with queue.reading() as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        for table in Base.metadata.sorted_tables:
            for row in session.execute(select(table)).mappings():
                yield json.dumps([table.name, dict(row)]) + "\n"


def restore(context: AdminContext) -> dict[str, Any]:
    """Restore a backup into an empty folder and database, of either kind."""
    if not context.arguments:
        raise ConfigError(expected("FILE", "the file of a backup behind the course", "none"))
    if not hasattr(tarfile, "data_filter"):
        raise ConfigError(expected("Python", "3.10.12 or newer, which unpacks archives safely", sys.version.split()[0]))
    place, queue, rows = context.place, context.queue, 0
    with queue.reading() as session:
        if session.scalar(select(func.count(Person.id))) or any((place.home / name).exists() for name in _FILES):
            raise ConfigError(expected(place.home, "an empty folder and database", "another course there"))
    try:
        with tarfile.open(context.arguments[0]) as archive, TemporaryDirectory(dir=place.home) as folder:
            members = [member for member in archive if member.name.partition("/")[0] in (_DATABASE, "files")]
            archive.extractall(folder, members, filter="data")
            with queue.writing() as session:
                with (Path(folder) / _DATABASE).open(encoding="utf-8") as lines:
                    for name, row in map(json.loads, lines):
                        rows += 1
                        if is_version(row):  # the new database has its own
                            continue
                        table = Base.metadata.tables[name]  # an older version may have had more columns
                        session.execute(insert(table), {key: row[key] for key in row.keys() & table.columns.keys()})
                _restart_ids(session)
                for path in sorted((Path(folder) / "files").glob("*")):  # before there are rows that name them
                    path.rename(place.home / path.name)
    except (tarfile.TarError, EOFError, KeyError, ValueError, FileNotFoundError, IsADirectoryError) as error:
        raise ConfigError(expected(context.arguments[0], "a file of `serve backup`", error)) from error
    return {"rows": rows, "home": str(place.home)}


def _restart_ids(session: Any) -> None:
    """Let Postgres number new rows after the restored ones."""
    if session.get_bind().dialect.name == "postgresql":
        for table in Base.metadata.sorted_tables:
            if "id" in table.columns:
                last = f"setval(pg_get_serial_sequence('{table.name}', 'id'), coalesce(max(id), 1))"
                session.execute(text(f"SELECT {last} FROM {table.name}"))


# --- after the deadline


def final(context: AdminContext) -> dict[str, Any]:
    """Play a cup of all submissions on the ladder, and the anchors, with fresh seeds; resumes as a cup."""
    place, queue, folder = context.place, context.queue, context.output
    if folder is None:
        raise ConfigError(expected("--output", "a folder for the cup, new or to resume", "none"))
    judge = Judge(place.course, place.course_folder, place.home, queue.secrets())
    rows = [row for row in queue.ladder() if row.plays]
    entries = [entry_in(queue.entry_folder(row.hand_in.id), judge.config, row.title) for row in rows]
    entries = in_order([*judge.anchors.values(), *entries], place.home)
    if (manifest := read_manifest(folder)) is not None:
        settings = {key: getattr(manifest, key) for key in ("seed", "agents_key", "limits", "cup_s")}
    else:  # Seeds that no ladder game had.
        settings = {"seed": secrets.randbits(63), "agents_key": secrets.token_hex(16), "cup_s": _FINAL_S}
        # The limits of a ladder pairing, times the games: programs play fewer on the ladder.
        factor, limits = max(place.course.games / place.course.program_games, 1.0), judge.config.limits
        settings["limits"] = replace(limits, step_s=factor * limits.step_s, total_s=factor * limits.total_s)
    config = replace(judge.config, **settings)
    with exclusive_lock(folder):
        played = play_cup(entries, config, folder, lambda *_: None)
        outcome = tabulate(entries, played, config, versions())
        write_files(outcome, played, folder)
    winner = ", ".join(row.name for row in outcome.table if row.rank == 1)  # several of equal rank, as a cup says
    return {"entries": len(entries), "pairings": len(played), "winner": winner, "sha256": outcome.sha256}


def export(context: AdminContext) -> dict[str, Any]:
    """Write a table for another system."""
    from multigrid_rl.serve.people_pages import EXPORTS, GRADESCOPE, export_table

    name = context.arguments[0] if context.arguments else "ladder.csv"
    if name not in (*EXPORTS, GRADESCOPE):
        raise ConfigError(expected("export", ", ".join((*EXPORTS, GRADESCOPE)), name))
    path = context.output or Path(name)
    if path.exists():
        raise ConfigError(expected("--output", "a new file", path))
    data = export_table(context.queue, name, *context.arguments[1:])
    path.write_bytes(data)
    return {"file": str(path), "bytes": len(data)}


def links(context: AdminContext) -> str:
    """Return all personal links, as a CSV."""
    people, link = link_holders(context.place, context.queue), context.queue.link
    return csv_text([{"id": p.code, "name": p.name, "email": p.email, "link": link(p, context.url)} for p in people])


@contextmanager
def open_course(place: ServedFolder, *, empty: bool) -> Iterator[Queue]:
    """Yield the store of a course that has begun, or an empty one. Raises ``ConfigError``: it has not begun."""
    if not empty and place.url.startswith("sqlite") and not Path(place.url.partition("///")[2]).exists():
        raise ConfigError(expected(place.home, "a course that was served", "none yet"))
    make_tables(place.url)
    queue = place.open_queue() if empty else open_prepared(place)
    try:
        yield queue
    finally:
        queue.engine.dispose()


ADMIN_COMMANDS: dict[str, Callable[[AdminContext], dict[str, Any] | str]] = {
    "verify": verify, "backup": backup, "restore": restore, "final": final, "export": export,
    "links": links, "purge": purge, "freeze": lambda context: {"frozen": context.queue.freeze(True)},
    "thaw": lambda context: {"frozen": context.queue.freeze(False)},
    "regrade": lambda context: {"to_grade": context.queue.redo("grade")},
}  # fmt: skip
