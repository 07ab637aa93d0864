"""The instructor's desk: queue and health, copies, freezing, appeals, grading again, tables for other systems."""

import io
import json
import re
import zipfile
from typing import Any

from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from multigrid_rl.files import csv_text, safe_cell
from multigrid_rl.serve.course import Deadline
from multigrid_rl.serve.database import Event, HandIn, Person, StoredPairing
from multigrid_rl.serve.pages import called
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.site import Ask, Page
from multigrid_rl.serve.store import counted
from multigrid_rl.text import ConfigError, expected, unknown

#: Rows of each table.
_MOST = 50
#: What is told on the desk when it has happened.
_TOLD = ("fault", "appeal", "setting", "grade again", "check again", "copies again", "kept")
_OF_GRADE = ("points", "of", "feedback")
_FIRST = ("id", "name", "pseudonym", "hand_in", "state", "late_days", "rank")
_ROUNDED = ("rating", "low", "high")
#: Of what came after the deadline.
_LATE = ("late_hand_in", "late_by", "late_rating", "late_points")
#: Tables for other systems: what stands in each of their columns.
EXPORTS = {
    "ladder.csv": {key: key for key in (*_FIRST, *_ROUNDED, "points", "of", "sha256", *_LATE, "team", "by_anchors")},
    "moodle.csv": {
        "ID number": "id", "Full name": "name", "Email address": "email", "Grade": "points", "Late days": "late_days",
        "Feedback comments": "feedback", "Late grade": "late_points", "Late by days": "late_by",
    },
    "canvas.csv": {
        "Student": "name", "ID": "", "SIS User ID": "id", "SIS Login ID": "email", "Section": "", "Ladder": "points",
        "Ladder, late": "late_points",
    },
}  # fmt: skip
GRADESCOPE = "gradescope.zip"


def desk(ask: Ask) -> Response:
    """Show how the server does, and what asks for attention."""
    store = ask.site.store
    with store.reading() as session:
        handed = select(HandIn, Person).join(Person, Person.id == HandIn.person_id).order_by(HandIn.id.desc())
        copies = session.execute(handed.where(HandIn.same_as != "").limit(_MOST)).all()
        refused = session.execute(handed.where(HandIn.state == "refused").limit(_MOST)).all()
        late = handed.where(HandIn.deadline > 0, HandIn.deadline < store.now())
        overdue = session.execute(late.limit(_MOST)).all()
    due, people = store.to_forget(), store.people()
    events = store.all(select(Event).where(Event.kind.in_(_TOLD)).order_by(Event.id.desc()).limit(_MOST))
    queue = store.queue()
    over = store.course.over(store.now()) and any(who.role == "student" and not who.forgotten for who in people)
    return ask.page(
        "desk.html", "Desk", health=store.health(), queue=queue[:_MOST], waiting=len(queue), copies=copies,
        surprises=store.surprises(), refused=refused, overdue=overdue, events=events, people=people,
        to_forget=[(who, due[who.id]) for who in people if who.id in due],
        named=lambda text: re.sub(r"(?<![\w/])h(\d+)\b", lambda one: called(ask, int(one[1])), text),
        over=over, frozen=bool(store.setting("frozen")), exports=[*EXPORTS, GRADESCOPE],
        deadlines=[each.name for each in store.course.deadlines] or [""],
    )  # fmt: skip


def freeze(ask: Ask) -> Response:
    """Take no more hand-ins, or take them again."""
    ask.site.store.freeze(bool(ask.form.get("on")), ask.me.id)
    return RedirectResponse("/desk", 303)


def appeal(ask: Ask) -> Response:
    """Let a pairing be played again."""
    ask.site.store.appeal(ask.found(StoredPairing, ask.form).id, ask.me.id)
    return RedirectResponse("/desk#events", 303)


def again(ask: Ask) -> Response:
    """Let a hand-in, or all, be graded, compared or checked again."""
    kind = str(ask.form.get("kind"))
    if kind not in ("grade", "copies", "check"):
        raise ConfigError(expected("kind", "grade, copies or check", kind))
    ids = [ask.number("id", ask.form)] if "id" in ask.form else []
    ask.site.store.again(kind, ids, ask.me.id)
    return RedirectResponse("/desk#events", 303)


def revoke(ask: Ask) -> Response:
    """Let somebody's links, tokens and browsers hold no longer."""
    ask.site.store.revoke(ask.found(Person, ask.form).id)
    return RedirectResponse("/desk#people", 303)


def keep(ask: Ask) -> Response:
    """Let somebody not be forgotten who has asked for it."""
    ask.site.store.keep(ask.found(Person, ask.form).id, ask.me.id)
    return RedirectResponse("/desk#events", 303)


def link(ask: Ask) -> Response:
    """Show somebody's personal link."""
    person = ask.found(Person, ask.form)
    return ask.page("link.html", f"Link of {person.name}", link=ask.site.link(person))


# --- tables for other systems


def results(store: Queue, deadline: str | None = None) -> list[dict[str, Any]]:
    """Return everybody's result: of what counts, and apart of what was late; what there is not lacks.

    ``deadline``: its name, the last one by default. Raises ``ConfigError``: there is no such deadline.
    """
    names: dict[str, Deadline] = {each.name: each for each in store.course.deadlines}
    if deadline and deadline not in names:
        raise ConfigError(unknown("deadline", deadline, names))
    due, found, alone = names.get(deadline or next(reversed(names), "")), [], store.by_anchors()
    for person in store.people():
        if person.role != "student" or person.forgotten:
            continue
        told: dict[str, Any] = {"id": person.code, "name": person.name}
        told |= {"email": person.email, "pseudonym": person.pseudonym, "team": store.team(person.id).name}
        its = counted(store.history(person.id), store.course, due, person.code)
        if its.own is not None:
            hand_in, rating, grade = its.own
            told |= {"hand_in": hand_in.id, "state": hand_in.state, "sha256": hand_in.sha256}
            told |= {"late_days": its.days if its.own is its.late else 0}
            told |= {key: getattr(grade, key) for key in _OF_GRADE if grade}
            told |= {"points": its.points} if grade else {}
            if rating and hand_in.state == "rated":
                told |= {key: getattr(rating, key) for key in _ROUNDED}
                told |= {"by_anchors": round(alone[hand_in.id][0], 1)} if hand_in.id in alone else {}
        if its.late is not None:
            hand_in, rating, grade = its.late
            told |= {"late_hand_in": hand_in.id, "late_by": its.days}
            told |= {"late_rating": round(rating.rating, 2)} if rating else {}
            told |= {"late_points": grade.points} if grade else {}
        found.append(told)
    rated = [(-one["rating"], one["hand_in"]) for one in found if "rating" in one]
    ranks = {number: rank for rank, (_, number) in enumerate(sorted({*rated}), 1)}  # a team has one
    return [one | ({"rank": ranks[one["hand_in"]]} if "rating" in one else {}) for one in found]


def _table(name: str, found: list[dict[str, Any]]) -> str:
    rows = [{column: safe_cell(one.get(key, "")) for column, key in EXPORTS[name].items()} for one in found]
    for row in rows if name == "ladder.csv" else ():
        row.update({key: round(row[key], 2) for key in _ROUNDED if row[key] != ""})
    if name == "canvas.csv":
        head = {"Student": "Points Possible", "Ladder": max((one["of"] for one in found if "of" in one), default=0)}
        rows = [dict.fromkeys(EXPORTS[name], "") | head, *rows]
    return csv_text(rows)


def gradescope(one: dict[str, Any]) -> dict[str, Any]:
    """Return a student's ``results.json`` (https://gradescope-autograders.readthedocs.io/en/latest/specs/)."""
    told = {"score": one.get("points", 0.0), "visibility": "visible", "stdout_visibility": "hidden"}
    if "feedback" in one:
        told |= {"output": one["feedback"], "output_format": "text"}
    if "late_by" in one:
        told["extra_data"] = {key: one.get(key) for key in ("late_days", *_LATE)}
    if "rating" in one:
        told["leaderboard"] = [{"name": "Rating", "value": round(one["rating"], 2)}]
    return told


def exported(store: Queue, name: str, deadline: str | None = None) -> bytes:
    """Return a table of :data:`EXPORTS`, or for Gradescope a zip file with ``ID/results.json``, for a deadline."""
    found = results(store, deadline)
    if name != GRADESCOPE:
        return _table(name, found).encode()
    file, folders = io.BytesIO(), set[str]()
    with zipfile.ZipFile(file, "w") as archive:
        for one in found:
            folder = "".join(c if c.isalnum() or c in "._-@" else "_" for c in one["id"]).strip(".") or "_"
            while folder in folders:  # of another id
                folder += "_"
            folders.add(folder)
            archive.writestr(f"{folder}/results.json", json.dumps(gradescope(one), indent=1))
    return file.getvalue()


def export(ask: Ask) -> Response:
    """Answer with a table."""
    name = ask.request.path_params["name"]
    if name not in (*EXPORTS, GRADESCOPE):
        raise HTTPException(404)
    kind = "application/zip" if name == GRADESCOPE else "text/csv"
    disposition = {"content-disposition": f'attachment; filename="{name}"'}
    data = exported(ask.site.store, name, ask.request.query_params.get("deadline"))
    return Response(data, media_type=kind, headers=disposition)


#: What instructors see, and do.
PAGES = [
    Page("/desk", desk, "instructor"),
    Page("/desk/export/{name}", export, "instructor"),
    *(
        Page(f"/desk/{deed.__name__}", deed, "instructor", "POST", "change")
        for deed in (freeze, appeal, again, revoke, keep, link)
    ),
]
