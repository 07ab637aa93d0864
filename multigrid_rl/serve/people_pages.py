"""Pages about people: signing in, being forgotten, the desk of instructors with tables for other systems."""

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
from multigrid_rl.serve.pages import display_name
from multigrid_rl.serve.people import KINDS
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.site import Page, Visit
from multigrid_rl.serve.store import deadline_result, rank_among
from multigrid_rl.text import ConfigError, expected, shown, unknown

#: Rows of each table.
_MAX_ROWS = 50
#: Kinds of events that the desk lists.
_SHOWN_EVENTS = ("fault", "given up", "appeal", "setting", "grade again", "check again", "copies again", "kept")
_FIRST_COLUMNS = ("id", "name", "pseudonym", "hand_in", "state", "late_days", "rank", "rating", "low", "high")
#: Columns of the late submission.
_LATE_COLUMNS = ("late_hand_in", "late_by", "late_rating", "late_points")
_MORE_COLUMNS = ("points", "of", "sha256", *_LATE_COLUMNS, "team", "by_anchors")
#: Tables for other systems: the key of :func:`results` in each column.
EXPORTS = {
    "ladder.csv": {key: key for key in (*_FIRST_COLUMNS, *_MORE_COLUMNS)},
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


# --- signing in, signing out, being forgotten


def enter_page(visit: Visit) -> Response:
    """Show a button to sign in: only opening the link, as programs do, changes nothing."""
    token = visit.request.path_params["token"]
    if (person := visit.site.person_of("link", token)) is None:
        raise HTTPException(401)
    return visit.page("enter.html", f"Sign in to {visit.site.store.course.title}", token=token, name=person.name)


def enter(visit: Visit) -> Response:
    """Sign a browser in."""
    if (person := visit.site.person_of("link", str(visit.form.get("token", "")))) is None:
        raise HTTPException(401)
    session = visit.site.store.signer.issue("session", person.id, person.token_version)
    answer = RedirectResponse("/mine", 303)
    answer.set_cookie(value=session, max_age=int(KINDS["session"]), **visit.site.cookie)
    return answer


def leave(visit: Visit) -> Response:
    """Sign out here, or everywhere: revoke all links, tokens and sessions."""
    if visit.form.get("everywhere"):
        visit.site.store.revoke(visit.user.id)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(**visit.site.cookie)
    return answer


def token(visit: Visit) -> Response:
    """Show a new token for ``multigrid-rl submit``."""
    new_token = visit.site.store.signer.issue("token", visit.user.id, visit.user.token_version)
    return visit.page("token.html", "A token for the command line", token=new_token, url=visit.site.url)


def privacy(visit: Visit) -> Response:
    """Show which data is stored, and a form to be forgotten."""
    due = visit.site.store.to_forget().get(visit.person.id) if visit.person else None
    return visit.page("privacy.html", "What is kept, and for how long", due=due)


def forget(visit: Visit) -> Response:
    """Schedule the forgetting of the visitor in a week."""
    sure = str(visit.form.get("sure", ""))
    if sure.strip().lower() != "forget me":
        raise ConfigError(expected("the field", "the words forget me", shown(sure) or "nothing"))
    visit.site.store.request_forgetting(visit.user.id)
    return RedirectResponse("/privacy#forget", 303)


def stay(visit: Visit) -> Response:
    """Cancel the forgetting of the visitor."""
    visit.site.store.cancel_forgetting(visit.user.id, visit.user.id)
    return RedirectResponse("/privacy#forget", 303)


# --- the desk


def desk(visit: Visit) -> Response:
    """Show the state of the server, and submissions that need attention."""
    store = visit.site.store
    with store.reading() as session:
        newest = select(HandIn).where(HandIn.person_id.is_not(None)).order_by(HandIn.id.desc()).limit(_MAX_ROWS)
        copies = session.scalars(newest.where(HandIn.same_as != "")).all()
        refused = session.scalars(newest.where(HandIn.state == "refused")).all()
        overdue = session.scalars(newest.where(HandIn.deadline > 0, HandIn.deadline < store.now())).all()
    forget_at, people = store.to_forget(), store.people()
    events = store.all(select(Event).where(Event.kind.in_(_SHOWN_EVENTS)).order_by(Event.id.desc()).limit(_MAX_ROWS))
    jobs = store.jobs()
    over = store.course.over(store.now()) and any(each.role != "instructor" and not each.forgotten for each in people)
    return visit.page(
        "desk.html", "Desk", health=store.health(), queue=jobs[:_MAX_ROWS], waiting=len(jobs), copies=copies,
        surprises=store.surprises(), refused=refused, overdue=overdue, events=events, people=people,
        to_forget=[(person, forget_at[person.id]) for person in people if person.id in forget_at],
        named=lambda text: re.sub(r"(?<![\w/])h(\d+)\b", lambda match: display_name(visit, int(match[1])), text),
        over=over, frozen=bool(store.setting("frozen")), exports=[*EXPORTS, GRADESCOPE],
        deadlines=[each.name for each in store.course.deadlines] or [""],
    )  # fmt: skip


def freeze(visit: Visit) -> Response:
    """Refuse submissions, or take them again."""
    visit.site.store.freeze(bool(visit.form.get("on")), visit.user.id)
    return RedirectResponse("/desk", 303)


def appeal(visit: Visit) -> Response:
    """Let a pairing be played again."""
    visit.site.store.appeal(visit.row_or_404(StoredPairing, visit.form).id, visit.user.id)
    return RedirectResponse("/desk#events", 303)


def again(visit: Visit) -> Response:
    """Let a submission, or all, be graded, compared or checked again."""
    if (kind := str(visit.form.get("kind"))) not in ("grade", "copies", "check"):
        raise ConfigError(expected("kind", "grade, copies or check", kind))
    visit.site.store.redo(kind, [visit.number(visit.form)] if "id" in visit.form else [], visit.user.id)
    return RedirectResponse("/desk#events", 303)


def revoke(visit: Visit) -> Response:
    """Revoke a person's links, tokens and sessions."""
    visit.site.store.revoke(visit.row_or_404(Person, visit.form).id)
    return RedirectResponse("/desk#people", 303)


def keep(visit: Visit) -> Response:
    """Cancel the forgetting of a person."""
    visit.site.store.cancel_forgetting(visit.row_or_404(Person, visit.form).id, visit.user.id)
    return RedirectResponse("/desk#events", 303)


def link(visit: Visit) -> Response:
    """Show a person's link."""
    person = visit.row_or_404(Person, visit.form)
    return visit.page("link.html", f"Link of {person.name}", link=visit.site.store.link(person, visit.site.url))


# --- tables for other systems


def results(store: Queue, deadline: str | None = None) -> list[dict[str, Any]]:
    """Return a row for each student: the submission that counts, and the late one; missing values have no key.

    ``deadline``: its name, the last one by default. Raises ``ConfigError``: there is no such deadline.
    """
    names: dict[str, Deadline] = {each.name: each for each in store.course.deadlines}
    if deadline and deadline not in names:
        raise ConfigError(unknown("deadline", deadline, names))
    due_deadline, rows, by_anchors = names.get(deadline or next(reversed(names), "")), [], store.by_anchors()
    for person in store.people():
        if person.role != "student" or person.forgotten:
            continue
        row: dict[str, Any] = {"id": person.code, "name": person.name}
        row |= {"email": person.email, "pseudonym": person.pseudonym, "team": store.team(person.id).name}
        result = deadline_result(store.history(person.id), store.course, due_deadline, person.code)
        if (hand_in := result.counting) is not None:
            rating, grade = hand_in.rating, hand_in.grade
            row |= {"hand_in": hand_in.id, "state": hand_in.state, "sha256": hand_in.sha256}
            row |= {"late_days": result.days_late if result.counting is result.late else 0}
            row |= {"points": result.points, "of": grade.of, "feedback": grade.feedback} if grade else {}
            row |= {"ungraded": not grade and hand_in.state != "refused" and store.course.rubric is not None}
            if rating and hand_in.state == "rated":
                row |= {key: getattr(rating, key) for key in ("rating", "low", "high")}
                row |= {"by_anchors": by_anchors[hand_in.id][0]} if hand_in.id in by_anchors else {}
        if (late := result.late) is not None:
            row |= {"late_hand_in": late.id, "late_by": result.days_late}
            row |= {"late_rating": late.rating.rating} if late.rating else {}
            row |= {"late_points": late.grade.points} if late.grade else {}
        rows.append(row)
    rated = {row["hand_in"]: row["rating"] for row in rows if "rating" in row}  # a team has one
    for row in (row for row in rows if "rating" in row):
        row["rank"] = rank_among(rated.values(), row["rating"])
    return rows


def _table(name: str, students: list[dict[str, Any]]) -> str:
    rows = [{column: safe_cell(each.get(key, "")) for column, key in EXPORTS[name].items()} for each in students]
    if name == "canvas.csv":
        possible = max((each["of"] for each in students if "of" in each), default=0)
        rows = [dict.fromkeys(EXPORTS[name], "") | {"Student": "Points Possible", "Ladder": possible}, *rows]
    return csv_text(rows)


def gradescope(result: dict[str, Any]) -> dict[str, Any]:
    """Return a student's ``results.json`` (https://gradescope-autograders.readthedocs.io/en/latest/specs/)."""
    document = {"score": result.get("points", 0.0), "visibility": "visible", "stdout_visibility": "hidden"}
    if "feedback" in result:
        document |= {"output": result["feedback"], "output_format": "text"}
    if "late_by" in result:
        document["extra_data"] = {key: result.get(key) for key in ("late_days", *_LATE_COLUMNS)}
    if "rating" in result:
        document["leaderboard"] = [{"name": "Rating", "value": result["rating"]}]
    return document


def export_table(store: Queue, name: str, deadline: str | None = None) -> bytes:
    """Return a table of :data:`EXPORTS`, or for Gradescope a zip file with ``ID/results.json``, for a deadline."""
    students = results(store, deadline)
    if name != GRADESCOPE:
        return _table(name, students).encode()
    file, folders = io.BytesIO(), set[str]()
    with zipfile.ZipFile(file, "w") as archive:
        for student in (each for each in students if not each.get("ungraded")):  # a score cannot be empty
            folder = "".join(c if c.isalnum() or c in "._-@" else "_" for c in student["id"]).strip(".") or "_"
            while folder in folders:  # of another id
                folder += "_"
            folders.add(folder)
            archive.writestr(f"{folder}/results.json", json.dumps(gradescope(student), indent=1))
    return file.getvalue()


def export(visit: Visit) -> Response:
    """Answer with a table."""
    if (name := visit.request.path_params["name"]) not in (*EXPORTS, GRADESCOPE):
        raise HTTPException(404)
    disposition = {"content-disposition": f'attachment; filename="{name}"'}
    data = export_table(visit.site.store, name, visit.request.query_params.get("deadline"))
    return Response(data, media_type="application/zip" if name == GRADESCOPE else "text/csv", headers=disposition)


#: Pages about people.
PAGES = [
    Page("/enter/{token}", enter_page, pace="enter"),
    Page("/enter", enter, "", "POST", "enter"),
    Page("/leave", leave, "student", "POST", "change"),
    Page("/token", token, "student", "POST", "change"),
    Page("/privacy", privacy),
    Page("/forget", forget, "student", "POST", "change"),
    Page("/keep", stay, "student", "POST", "change"),
    Page("/desk", desk, "instructor"),
    Page("/desk/export/{name}", export, "instructor"),
    *(
        Page(f"/desk/{view.__name__}", view, "instructor", "POST", "change")
        for view in (freeze, appeal, again, revoke, keep, link)
    ),
]
