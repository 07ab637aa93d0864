"""Pages about games and submissions: the ladder, entries and their matches, a person's submissions, uploads."""

import hashlib
import json
import re
import shutil
import zipfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import select
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response

from multigrid_rl.competition.folders import Scratch, inner_path
from multigrid_rl.serve.database import DONE, STATES, HandIn, Person, StoredPairing
from multigrid_rl.serve.queue import BY_RETURNS
from multigrid_rl.serve.serve_commands import as_zip
from multigrid_rl.serve.site import CachedPage, Page, Visit, cached_page, page_if_changed
from multigrid_rl.serve.store import Row, deadline_result, visible_rows
from multigrid_rl.show.page import TEXT_SCRIPTS, Scale
from multigrid_rl.show.words import plural
from multigrid_rl.text import ConfigError, expected, shown

#: Letters of a pairing's results, by their meaning for the first side; forfeited are games of either side.
_LETTERS = {"win": "Rb", "draw": "D", "loss": "rB", "games": "RbDrB", "forfeited": "rb"}
_SIDES_SWAPPED = str.maketrans("RrBb", "BbRr")


# --- the ladder


class Ladder(NamedTuple):
    """The ladder as one visitor sees it."""

    rows: list[Row]
    hidden: dict[int, int]  # submission -> how many rows before it are not shown; 0 -> after the last
    names: dict[int, str]  # submission -> displayed name
    mark: str  # hash of the content


def visible_ladder(visit: Visit) -> Ladder:
    """Return the ladder as the visitor may see it, cached until the next event."""
    person_id, course = visit.person.id if visit.person else 0, visit.site.store.course

    def make() -> Ladder:
        rows = visit.site.cached("rows", visit.site.store.ladder)
        visible = rows if visit.teaches else visible_rows(rows, visit.site.store.team(person_id).ids, course)
        ids, hidden, skipped = {row.hand_in.id for row in visible}, dict[int, int](), 0
        for row in rows:
            if row.hand_in.id in ids:
                hidden[row.hand_in.id], skipped = skipped, 0
            else:
                skipped += 1
        hidden[0] = skipped
        names = {row.hand_in.id: row.name if _shows_names(visit) else row.title for row in visible}
        content = [(row.hand_in.id, names[row.hand_in.id], *row[3:]) for row in visible]
        mark = hashlib.sha256(json.dumps([content, sorted(hidden.items())]).encode()).hexdigest()[:12]
        return Ladder(visible, hidden, names, mark)

    return visit.site.cached(("ladder", person_id), make)


def _shows_names(visit: Visit) -> bool:
    return visit.teaches or visit.site.store.course.public.names == "names"


def ladder(visit: Visit) -> Response:
    """Show the ladder, or its table alone; nothing where it is unchanged, so that the page does not scroll."""

    def make() -> CachedPage:
        view = visible_ladder(visit)
        students = sum(row.person is not None for row in view.rows) + sum(view.hidden.values())
        lead = f"Ratings follow from all games at once, in whatever order they were played. {students} on the ladder."
        content: dict[str, Any] = {"ladder": view, "scale": Scale.around(view.rows), "mark": view.mark}
        content["own_id"] = _on_ladder(visit, visit.person.id if visit.person else None)
        content["above"] = max((row.rating for row in view.rows if row.person is None), default=float("inf"))
        template = "table.html" if "part" in visit.request.query_params else "ladder.html"
        return view.mark, bytes(visit.page(template, visit.site.store.course.title, lead=lead, **content).body)

    return cached_page(visit, make)


# --- entries and matches


def _author(visit: Visit, hand_in_id: int) -> tuple[str, Person | None]:
    """Return the name of a submission and its author, of an anchor ``None``; the cache has those of all."""

    def make() -> dict[int, tuple[str, Person | None]]:
        with visit.site.store.reading() as session:
            query = select(HandIn.id, HandIn.name, Person).outerjoin(Person, Person.id == HandIn.person_id)
            return {number: (name, person) for number, name, person in session.execute(query)}

    return visit.site.cached("authors", make).get(hand_in_id, ("nobody", None))


def display_name(visit: Visit, hand_in_id: int) -> str:
    """Return the name of a submission for the visitor."""
    if (name := visible_ladder(visit).names.get(hand_in_id)) is not None:
        return name
    name, person = _author(visit, hand_in_id)
    if person is None:
        return name
    if not visit.may_read(person.id):
        return "an entry that is not shown"
    name = visit.site.store.team(person.id).name or (person.name if _shows_names(visit) else person.pseudonym)
    return f"{name} (submission {hand_in_id})"


class Matchup(NamedTuple):
    """All games of an entry against another."""

    name: str
    first: Counter[str]  # results of the entry from the first side, by the keys of _LETTERS
    second: Counter[str]
    games: list[int]  # numbers of its pairings, where they may be watched


def matchups(visit: Visit, hand_in: HandIn) -> list[Matchup]:
    """Return all opponents of an entry, the most played first."""
    by_opponent: dict[int, Matchup] = {}
    for game in visit.site.store.games_of(hand_in.id):
        first = game.red == hand_in.id
        other = game.blue if first else game.red
        row = by_opponent.setdefault(other, Matchup(display_name(visit, other), Counter(), Counter(), []))
        outcomes = game.outcomes if first else game.outcomes.translate(_SIDES_SWAPPED)
        counts = {name: sum(map(outcomes.count, letters)) for name, letters in _LETTERS.items()}
        (row.first if first else row.second).update(counts)
        if game.has_replays and _may_watch(visit, game.red, game.blue):
            row.games.append(game.id)
    return sorted(by_opponent.values(), key=lambda row: (-row.first["games"] - row.second["games"], row.name))


def _may_watch(visit: Visit, red: int, blue: int) -> bool:
    ids = [number for number in (red, blue) if number]
    public = visit.site.store.course.public.replays and {*ids} <= visible_ladder(visit).names.keys()
    return visit.teaches or public or any(_may_read(visit, number) for number in ids)


def _may_read(visit: Visit, hand_in_id: int) -> bool:
    _, person = _author(visit, hand_in_id)
    return visit.may_read(person.id if person else None)


def entry(visit: Visit) -> Response:
    """Show one entry: rating, opponents."""
    hand_in, store = visit.row_or_404(HandIn), visit.site.store
    mine = visit.may_read(hand_in.person_id)
    if not (mine or hand_in.id in visible_ladder(visit).names):
        raise HTTPException(404)
    row = next((each for each in visible_ladder(visit).rows if each.hand_in.id == hand_in.id), None)
    by_anchors = store.by_anchors().get(hand_in.id) if visit.teaches else None
    return visit.page(
        "entry.html", display_name(visit, hand_in.id), hand_in=hand_in, row=row, mine=mine, by_anchors=by_anchors,
        matchups=matchups(visit, hand_in), by_returns=store.setting(BY_RETURNS),
    )  # fmt: skip


def match(visit: Visit) -> Response:
    """Replay the stored games of a pairing."""
    from multigrid_rl.competition.cup_folder import Pairing  # noqa: PLC0415 - with these comes torch
    from multigrid_rl.show import replay, video  # noqa: PLC0415
    from multigrid_rl.show.films import GameDrawing  # noqa: PLC0415

    game = visit.row_or_404(StoredPairing)
    if not _may_watch(visit, game.red_id, game.blue_id):
        raise HTTPException(404)
    names = {f"h{number}": display_name(visit, number) for number in (game.red_id, game.blue_id) if number}
    pairing = Pairing.model_validate_json(game.pairing)
    own_names = {name for name in names if _may_read(visit, int(name[1:]))}
    records = []
    for record in pairing.kept:
        players = {seat: names.get(name, name) for seat, name in record.players.items()}
        # Only its author sees the notes of a program.
        notes = {seat: texts for seat, texts in record.notes.items() if record.players[seat] in own_names}
        records.append(record.model_copy(update={"players": players, "notes": notes}))
    replay_content = replay.replays(records)
    films = [video.page_film(GameDrawing(record), record.label) for record in records if not replay_content["data"]]  # type: ignore[arg-type]
    script = "texts.js" if replay_content.get("scripts") == TEXT_SCRIPTS else "replay.js"
    return visit.page(
        "match.html", " against ".join(names.values()), data=replay_content["data"], films=films, script=script,
        game=game, pairing=pairing, why=visit.teaches or pairing.at_fault in own_names,
        lead=f"{plural(len(records), 'game')} to look at, of {len(pairing.outcomes)} that were played.",
    )  # fmt: skip


# --- submissions


def hand_ins(visit: Visit) -> Response:
    """Show the visitor's submissions with forms to hand in, or to instructors those of a student."""
    is_own = "id" not in visit.request.path_params
    person = visit.user if is_own else visit.row_or_404(Person)
    store, now = visit.site.store, visit.site.store.now()
    rows, course, code = store.history(person.id), store.course, person.code
    used = sum(hand_in.counts and hand_in.at > now - 3600 * course.quota.per_h for hand_in in rows)
    missed = {hand_in.id: course.missed(hand_in.at, code) for hand_in in rows}
    counts_for: dict[int, list[str]] = {}
    for deadline in course.deadlines:
        found = deadline_result(rows, course, deadline, code)
        if found.counting is not None:
            counts_for.setdefault(found.counting.id, []).append(deadline.name)
    return visit.page(
        "mine.html", "My submissions" if is_own else person.name, who=person, rows=rows, missed=missed,
        stands=counts_for, team=store.team(person.id).name,
        left=max(course.quota.hand_ins - used, 0), quota=course.quota, url=visit.site.url,
        due=[(each, course.end(each, code)) for each in course.deadlines], late=course.late, penalty=course.penalty,
        frozen=bool(store.setting("frozen")), on_ladder=_on_ladder(visit, person.id),
        graded={hand_in.id for hand_in in rows if hand_in.grade and _may_read_points(visit, hand_in, code)},
    )  # fmt: skip


def _on_ladder(visit: Visit, person_id: int | None) -> int:
    """Return the submission of a person or team on the ladder; 0: none that the visitor may see."""
    team_ids = visit.site.store.team(person_id or 0).ids
    return next((row.hand_in.id for row in visible_ladder(visit).rows if row.hand_in.person_id in team_ids), 0)


def _may_read_points(visit: Visit, row: HandIn, code: str) -> bool:
    return visit.teaches or visit.site.store.course.points_shown(row.at, visit.site.store.now(), code)


def _readable_hand_in(visit: Visit) -> HandIn:
    """Return the requested submission. Raises ``HTTPException`` 404: another team's."""
    row = visit.row_or_404(HandIn)
    if not visit.may_read(row.person_id):
        raise HTTPException(404)
    return row


def files(visit: Visit) -> Response:
    """Send the uploaded files, as a zip file."""
    row = _readable_hand_in(visit)
    upload = next(iter(visit.site.store.upload_folder(row.id).glob("*")), None)
    if upload is None:  # of an anchor or a forgotten person
        raise HTTPException(404)
    name = {"content-disposition": f'attachment; filename="hand-in-{row.id}.zip"', "content-type": "application/zip"}
    return FileResponse(upload, headers=name) if upload.is_file() else Response(as_zip(upload), headers=name)


def hand_in(visit: Visit) -> Response:
    """Show the state of a submission, as a page, JSON, or the changed part of the page."""
    row = _readable_hand_in(visit)
    code, rating, done = row.person.code if row.person else "", row.rating, row.state in DONE
    grade = row.grade if _may_read_points(visit, row, code) else None
    if visit.wants_json:
        reply = {key: getattr(row, key) for key in ("state", "state_at", "reason", "log", "deadline", "sha256")}
        missed = visit.site.store.course.missed(row.at, code) if code else None
        reply |= {"late_days": missed[1] if missed else 0}
        reply |= {"hand_in": row.id, "done": done and (rating is not None or row.state == "refused")}
        reply |= {"on_ladder": row.id in visible_ladder(visit).names}
        reply |= {key: getattr(rating, key) for key in ("rating", "low", "high", "games")} if rating else {}
        return JSONResponse(reply)
    steps = [each for each in visit.site.store.events(row.id) if each.kind in STATES]
    ahead = [] if done else [state for state in STATES[1:4] if state not in {each.kind for each in steps}]
    part, late = visit.request.query_params.get("part"), 0 < row.deadline < visit.site.store.now()
    mark = f"{len(steps)}.{rating and rating.games}.{grade and grade.at}.{late}"
    page = visit.page(
        "hand_in.html" if part is None else "state.html", f"{row.name}: {row.state}", mark=mark, late=late,
        row=row, rating=rating, grade=grade, steps=steps, ahead=ahead, done=done,
        on_ladder=_on_ladder(visit, row.person_id),
    )  # fmt: skip
    return page_if_changed((mark, bytes(page.body)), part)


# --- uploads: a zip file or a folder by form, or a zip file in pieces, which are stored and not read


def take(visit: Visit) -> Response:
    """Take a zip file or the files of a folder."""
    files = [file for _, file in visit.form.multi_items() if isinstance(file, UploadFile) and file.filename]  # type: ignore[union-attr]
    if not files:
        raise ConfigError(expected("upload", "a zip file or the files of a folder", "nothing"))
    with closing(Scratch()) as scratch:
        name, upload = str(files[0].filename), scratch.path / "upload.zip"
        if len(files) == 1 and name.lower().endswith(".zip"):
            with upload.open("wb") as file:
                shutil.copyfileobj(files[0].file, file)
        else:
            with zipfile.ZipFile(upload, "w") as archive:
                for each in files:
                    member = zipfile.ZipInfo(str(inner_path(Path("folder"), str(each.filename))))
                    member.external_attr = 0o100700 << 16  # a browser does not say which files are programs
                    with archive.open(member, "w") as inner:
                        shutil.copyfileobj(each.file, inner)
        row = visit.site.store.hand_in(visit.user.id, upload, name.replace("\\", "/").split("/")[0])
    return JSONResponse({"hand_in": row.id}, 201) if visit.wants_json else RedirectResponse(f"/hand-in/{row.id}", 303)


def _incoming(visit: Visit) -> Path:
    """Return the file that joins the pieces of a person's upload: one upload at a time, to bound the disk space."""
    name = visit.request.path_params["sha256"]
    if not re.fullmatch("[0-9a-f]{64}", name):
        raise HTTPException(404)
    folder = visit.site.store.home / "incoming" / str(visit.user.id)
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.iterdir():
        if other.name != name:
            other.unlink(missing_ok=True)
    return Path(folder, name)


def received(visit: Visit) -> Response:
    """Answer with the bytes of an upload so far; pieces from now on are of another submission."""
    with visit.site.upload_locks[visit.user.id]:
        part = _incoming(visit)
        visit.site.arrived.pop((visit.user.id, part.name), None)
        return JSONResponse({"received": part.stat().st_size if part.exists() else 0})


def piece(visit: Visit) -> Response:
    """Take a piece of an upload after the last one; hand in when it is complete."""
    max_bytes = int(visit.site.store.course.quota.megabytes * 1e6)
    start, end, total = _range(visit.request.headers.get("content-range", ""))
    if total > max_bytes:
        raise ConfigError(expected("upload", f"at most {max_bytes} bytes", total))
    with visit.site.upload_locks[visit.user.id]:
        part = _incoming(visit)
        key = visit.user.id, part.name
        if key not in visit.site.arrived:  # else the answer to its last piece was lost
            size = part.stat().st_size if part.exists() else 0
            if start == size and end - start + 1 == len(visit.body):
                with part.open("ab") as file:
                    file.write(visit.body)
                size = end + 1
            if size < total:
                return JSONResponse({"received": size})
            try:
                if hashlib.sha256(part.read_bytes()).hexdigest() != part.name:
                    raise ConfigError("expected the file with this SHA-256, got another: send it again")
                name = shown(visit.request.headers.get("x-name", "upload.zip"))
                visit.site.arrived[key] = visit.site.store.hand_in(visit.user.id, part, name).id
            finally:
                part.unlink(missing_ok=True)
        return JSONResponse({"hand_in": visit.site.arrived[key]}, 201)


def _range(text: str) -> tuple[int, int, int]:
    """Return start, end and total of ``bytes 0-99/1000``. Raises ``ConfigError``."""
    if found := re.fullmatch("bytes ([0-9]{1,12})-([0-9]{1,12})/([0-9]{1,12})", text):
        start, end, total = map(int, found.groups())
        if start <= end < total:
            return start, end, total
    raise ConfigError(expected("content-range", "bytes BEGIN-END/SIZE", shown(text)))


# --- for machines


def health(visit: Visit) -> Response:
    """Answer whether the server works: 503 where jobs wait for more than two minutes."""
    found = visit.site.store.health()
    is_late = found["oldest_job_s"] > 120
    return JSONResponse({"status": "behind" if is_late else "ok", **found}, 503 if is_late else 200)


#: Pages about games and submissions.
PAGES = [
    Page("/", ladder, cached=True),
    Page("/entry/{id}", entry),
    Page("/match/{id}", match, pace="replay"),
    Page("/mine", hand_ins, "student"),
    Page("/hand-in/{id}", hand_in, "student"),
    Page("/hand-in/{id}/files", files, "student", pace="replay"),
    Page("/student/{id}", hand_ins, "instructor"),
    Page("/hand-in", take, "student", "POST", "upload", sends=True),
    Page("/parts/{sha256}", received, "student"),
    Page("/parts/{sha256}", piece, "student", "PUT", "pieces", sends=True),
    Page("/health", health),
]
