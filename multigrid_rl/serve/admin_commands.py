"""What ``multigrid-rl serve ACTION`` does: verify, look after, keep, bring back and end a course."""

import json
import random
import secrets
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import typer
from sqlalchemy import func, insert, select, text

from multigrid_rl.competition.cup import play_cup
from multigrid_rl.competition.cup_folder import Pairing, read_manifest, versions, write_results
from multigrid_rl.competition.entries import find_entries
from multigrid_rl.competition.folders import exclusive_lock, folder_sha256
from multigrid_rl.competition.standings import tabulate
from multigrid_rl.files import csv_text, unfinished
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.serve.database import Base, HandIn, Person, Rating, StoredPairing, is_version, make_tables
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.queue import Queue, called
from multigrid_rl.serve.rating import ladder_of
from multigrid_rl.serve.supervisor import ServedFolder, links_of, prepared
from multigrid_rl.tables import PAGES, find, has
from multigrid_rl.text import ConfigError, expected

#: Pairings that ``serve verify`` replays.
AGAIN = 10
#: Seconds of a program in all pairings of a final together: the limits of each pairing hold.
_FINAL_S = 1e6
_DATABASE, _FILES = "database.jsonl", ("uploads", "entries")


class AdminContext(NamedTuple):
    """A course, its store, and the options of an action."""

    place: ServedFolder
    queue: Queue
    output: Path | None
    more: list[str]
    every: bool
    url: str


# --- verifying


def verify(asked: AdminContext) -> dict[str, Any]:
    """Compute the ladder from all games and compare it; compare files with their hashes; replay pairings."""
    place, queue = asked.place, asked.queue
    judge = Judge(place.course, place.beside, place.home, queue.secrets())
    shot = queue.snapshot(rated=judge.config.rated)
    found = ladder_of(shot.games, shot.anchors, rated=judge.config.rated)
    with queue.reading() as session:
        kept = {r.hand_in_id: (r.rating, r.low, r.high, r.games) for r in session.scalars(select(Rating))}
        rows = {row.id: row for row in session.scalars(select(HandIn))}
        games = list(session.scalars(select(StoredPairing)))
    now = {number: tuple(found.get(number, ())) for number in kept}
    wrong = [f"rating of {called(rows[n])}: {kept[n]} kept, {now[n]} computed" for n in kept if now[n] != kept[n]]
    damaged, gone = _damaged(queue, list(rows.values()))
    programs = {row.id for row in rows.values() if row.kind == "external"}
    able = [game for game in games if not {game.red_id, game.blue_id} & gone]
    pairings = {game.id: Pairing.model_validate_json(game.pairing) for game in able}
    able = [g for g in able if pairings[g.id].reason is None or not programs & {g.red_id, g.blue_id}]
    chosen = able if asked.every else random.SystemRandom().sample(able, min(AGAIN, len(able)))
    for game in chosen:
        if problem := judge.again(pairings[game.id]):
            drawn = "; a program may draw in its own way" if programs & {game.red_id, game.blue_id} else ""
            wrong.append(f"pairing {game.id}: {problem}{drawn}")
    for line in [*damaged, *wrong]:
        typer.echo(line)
    counts = {"ratings": len(kept), "pairings": len(games), "replayed": len(chosen)}
    return {**counts, "not_repeatable": len(games) - len(able), "different": len(wrong) + len(damaged)}


def _damaged(queue: Queue, rows: list[HandIn]) -> tuple[list[str], set[int]]:
    """Return a line for each entry whose files are not what was handed in, and the ids of forgotten ones."""
    lines, gone = [], set()
    for row in rows:
        if row.person_id is None or not row.sha256:
            continue
        folder = queue.entry_folder(row.id)
        if row.name == "forgotten" and not folder.exists():
            gone.add(row.id)
            continue
        same = folder.is_dir()
        if same and row.kind == "external":
            try:
                same = folder_sha256(folder) == row.sha256
            except PlayerError:
                same = False
        lines += [] if same else [f"{called(row)}: its files have changed"]
    return lines, gone


def purge(asked: AdminContext) -> dict[str, Any]:
    """Forget the person with an id at once; or who asked for it a week ago, and everybody after ``keep_days``."""
    queue, course = asked.queue, asked.place.course
    if asked.more:
        if (person := queue.person_by_code(asked.more[0])) is None:
            raise ConfigError(expected("purge", "an id of the roster", asked.more[0]))
        queue.forget(person.id)
        return {"forgotten": 1, "replays": 0}
    forgotten, replays = queue.purge(), 0
    if course.over(queue.now()):
        everybody = [one.id for one in queue.people() if one.role == "student" and not one.forgotten]
        for number in everybody:
            queue.forget(number)
        forgotten, replays = forgotten + len(everybody), queue.without_replays()
    return {"forgotten": forgotten, "replays": replays}


# --- keeping


def backup(asked: AdminContext) -> dict[str, Any]:
    """Write everything into one file: all tables as they are at one moment, all files, the course."""
    if asked.output is None or asked.output.exists():
        raise ConfigError(expected("--output", "a new file, such as course.tar.gz", asked.output))
    place, queue, rows = asked.place, asked.queue, 0
    with unfinished(asked.output) as beside, tarfile.open(beside, "w:gz") as archive:
        with TemporaryDirectory() as folder:
            with (Path(folder) / _DATABASE).open("w", encoding="utf-8") as lines:
                for line in _dumped(queue):
                    lines.write(line)
                    rows += 1
            archive.add(lines.name, _DATABASE)
        # Files are written before the rows that name them, and never change: what the tables name is there.
        for name in _FILES:
            if (place.home / name).is_dir():
                archive.add(place.home / name, f"files/{name}", filter=_finished)
        archive.add(place.beside, "course", filter=partial(_outside, place))
    return {"rows": rows, "bytes": asked.output.stat().st_size, "file": str(asked.output)}


def _outside(place: ServedFolder, info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    inner = Path(info.name).relative_to("course")  # brought back by hand
    earlier = len(inner.parts) == 1 and inner.suffix in (".gz", ".tgz")
    hidden = any(part.startswith(".") for part in inner.parts)
    plain = (info.isdir() or info.isfile() or info.islnk()) and not earlier and not hidden
    return info if plain and not (place.beside / inner).resolve().is_relative_to(place.home) else None


def _finished(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(info.name).name.startswith(".") and len(Path(info.name).parts) == 3 else info


def _dumped(queue: Queue) -> Iterator[str]:
    """Yield a line of JSON for each row of each table, those that others name first."""
    with queue.reading() as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        for table in Base.metadata.sorted_tables:
            for row in session.execute(select(table)).mappings():
                yield json.dumps([table.name, dict(row)]) + "\n"


def restore(asked: AdminContext) -> dict[str, Any]:
    """Bring back a backup into an empty folder and database, of either kind."""
    if not asked.more:
        raise ConfigError(expected("FILE", "the file of a backup behind the course", "none"))
    if not hasattr(tarfile, "data_filter"):
        raise ConfigError(expected("Python", "3.10.12 or newer, which unpacks archives safely", sys.version.split()[0]))
    place, queue, rows = asked.place, asked.queue, 0
    with queue.reading() as session:
        if session.scalar(select(func.count(Person.id))) or any((place.home / name).exists() for name in _FILES):
            raise ConfigError(expected(place.home, "an empty folder and database", "another course there"))
    try:
        with tarfile.open(asked.more[0]) as archive, TemporaryDirectory(dir=place.home) as folder:
            ours = [member for member in archive if member.name.partition("/")[0] in (_DATABASE, "files")]
            archive.extractall(folder, ours, filter="data")
            with queue.writing() as session:
                with (Path(folder) / _DATABASE).open(encoding="utf-8") as lines:
                    for name, row in map(json.loads, lines):
                        rows += 1
                        if is_version(row):  # the new database has its own
                            continue
                        table = Base.metadata.tables[name]  # an older version may have had more columns
                        session.execute(insert(table), {key: row[key] for key in row.keys() & table.columns.keys()})
                _count_on(session)
                for path in sorted((Path(folder) / "files").glob("*")):  # before there are rows that name them
                    path.rename(place.home / path.name)
    except (tarfile.TarError, EOFError, KeyError, ValueError) as error:
        raise ConfigError(expected(asked.more[0], "a file of `serve backup`", error)) from error
    return {"rows": rows, "home": str(place.home)}


def _count_on(session: Any) -> None:
    """Let Postgres number new rows behind those that were brought back."""
    if session.get_bind().dialect.name == "postgresql":
        for table in Base.metadata.sorted_tables:
            if "id" in table.columns:
                last = f"setval(pg_get_serial_sequence('{table.name}', 'id'), coalesce(max(id), 1))"
                session.execute(text(f"SELECT {last} FROM {table.name}"))


# --- after the deadline


def final(asked: AdminContext) -> dict[str, Any]:
    """Play a cup of everybody's hand-in that counts, and the anchors, with fresh seeds; resumes as a cup."""
    place, queue, folder = asked.place, asked.queue, asked.output
    if folder is None:
        raise ConfigError(expected("--output", "a folder for the cup, new or to resume", "none"))
    judge = Judge(place.course, place.beside, place.home, queue.secrets())
    with TemporaryDirectory() as entries:
        for row in queue.ladder():
            if row.plays:
                shutil.copytree(queue.entry_folder(row.hand_in.id), Path(entries) / row.title, symlinks=True)
        names = [name for name in place.course.anchors if not (place.beside / name).is_dir()]
        for name in set(place.course.anchors) - set(names):
            shutil.copytree(place.beside / name, Path(entries) / name)
        # Seeds that no ladder game had; those that the cup began with, if it did.
        before = read_manifest(folder)
        seed, key = (before.seed, before.agents_key) if before else (secrets.randbits(63), secrets.token_hex(16))
        # Limits are those of a pairing of the ladder, where programs play fewer games, and against fewer.
        more, own = max(place.course.games / place.course.program_games, 1.0), judge.config.limits
        limits = replace(own, step_s=more * own.step_s, total_s=more * own.total_s)
        limits, cup_s = (before.limits, before.cup_s) if before else (limits, _FINAL_S)
        config = replace(judge.config, seed=seed, agents_key=key, limits=limits, cup_s=cup_s)
        found = find_entries(Path(entries), names, Catalogue(), config)
        with exclusive_lock(folder):
            played = play_cup(found, config, folder, lambda *_: None)
            outcome = tabulate(found, played, config, versions())
            write_results(outcome, played, folder)
            if has(PAGES, "cup"):
                find(PAGES, "cup")(folder)
    return {"entries": len(found), "pairings": len(played), "winner": outcome.table[0].name, "sha256": outcome.sha256}


def export(asked: AdminContext) -> dict[str, Any]:
    """Write a table for another system."""
    from multigrid_rl.serve.instructor_pages import EXPORTS, GRADESCOPE, exported

    name = asked.more[0] if asked.more else "ladder.csv"
    if name not in (*EXPORTS, GRADESCOPE):
        raise ConfigError(expected("export", ", ".join((*EXPORTS, GRADESCOPE)), name))
    path = asked.output or Path(name)
    if path.exists():
        raise ConfigError(expected("--output", "a new file", path))
    data = exported(asked.queue, name, *asked.more[1:])
    path.write_bytes(data)
    return {"file": str(path), "bytes": len(data)}


def links(asked: AdminContext) -> str:
    """Return everybody's personal link, as a CSV."""
    found = links_of(asked.queue, asked.url)
    return csv_text([{"id": p.code, "name": p.name, "email": p.email, "link": link} for p, link in found])


@contextmanager
def opened(place: ServedFolder, *, empty: bool) -> Iterator[Queue]:
    """Yield the store of a course that has begun, or an empty one. Raises ``ConfigError``: it has not begun."""
    if not empty and place.url.startswith("sqlite") and not Path(place.url.partition("///")[2]).exists():
        raise ConfigError(expected(place.home, "a course that was served", "none yet"))
    make_tables(place.url)
    queue = place.queue() if empty else prepared(place)
    try:
        yield queue
    finally:
        queue.engine.dispose()


DEEDS: dict[str, Callable[[AdminContext], dict[str, Any] | str]] = {
    "verify": verify, "backup": backup, "restore": restore, "final": final, "export": export,
    "links": links, "purge": purge, "freeze": lambda asked: {"frozen": asked.queue.freeze(True)},
    "thaw": lambda asked: {"frozen": asked.queue.freeze(False)},
    "regrade": lambda asked: {"to_grade": asked.queue.again("grade")},
}  # fmt: skip
