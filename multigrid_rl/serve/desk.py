"""The instructor's desk: queue and health, copies, freezing, appeals, grading again, tables for other systems."""

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.responses import Response

from multigrid_rl.files import csv_text
from multigrid_rl.serve.app import Ask, Page, see_other
from multigrid_rl.serve.schema import Event, Game, Grade, HandIn, Person
from multigrid_rl.serve.store import Store
from multigrid_rl.text import ConfigError, expected

#: Rows of each table.
_MOST = 50
#: What a spreadsheet may read as a formula begins so.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
#: What is told on the desk when it has happened.
_TOLD = ("fault", "appeal", "appealed", "frozen", "setting", "grade again", "check again", "copies again", "final")


def desk(ask: Ask) -> Response:
    """Show how the server does, and what asks for attention."""
    store = ask.site.store
    with store.reading() as session:
        handed = select(HandIn, Person).join(Person, Person.id == HandIn.person_id).order_by(HandIn.id.desc())
        copies = session.execute(handed.where(HandIn.same_as != "").limit(_MOST)).all()
        refused = session.execute(handed.where(HandIn.state == "refused").limit(_MOST)).all()
        late = handed.where(HandIn.deadline > 0, HandIn.deadline < store.now()).limit(_MOST)
        overdue = session.execute(late).all()
        happened = session.scalars(select(Event).where(Event.kind.in_(_TOLD)).order_by(Event.id.desc()).limit(_MOST))
        events = list(happened)
    queue = store.queue()
    return ask.page(
        "desk.html", "Desk", health=store.health(), queue=queue[:_MOST], waiting=len(queue), copies=copies,
        refused=refused, overdue=overdue, events=events, people=store.people(), frozen=bool(store.setting("frozen")),
        exports=[*EXPORTS, GRADESCOPE],
    )  # fmt: skip


def _freeze(ask: Ask) -> str:
    ask.site.store.freeze(bool(ask.form.get("on")), ask.me.id)
    return "/desk"


def _appeal(ask: Ask) -> str:
    game, number = ask.site.store.get(Game, ask.number("id", ask.form)), ask.number("game", ask.form)
    if game is None:
        raise HTTPException(404)
    if number >= (games := len(json.loads(game.pairing)["outcomes"])):
        raise ConfigError(expected("game", f"0 to {games - 1}", number))
    ask.site.store.appeal(game.id, number, ask.me.id)
    return "/desk#events"


def _again(ask: Ask) -> str:
    kind = str(ask.form.get("kind"))
    if kind not in ("grade", "copies", "check"):
        raise ConfigError(expected("kind", "grade, copies or check", kind))
    ids = [ask.number("id", ask.form)] if "id" in ask.form else []
    ask.site.store.again(kind, ids, ask.me.id)
    return "/desk#events"


def _person(ask: Ask) -> Person:
    if (person := ask.site.store.get(Person, ask.number("id", ask.form))) is None:
        raise HTTPException(404)
    return person


def _revoke(ask: Ask) -> str:
    person = _person(ask)
    ask.site.store.revoke(person.id)
    return "/desk#people"


_DEEDS: dict[str, Callable[[Ask], str]] = {"freeze": _freeze, "appeal": _appeal, "again": _again, "revoke": _revoke}


def act(ask: Ask) -> Response:
    """Do something, and go back to the desk."""
    if (deed := _DEEDS.get(ask.request.path_params["deed"])) is None:
        raise HTTPException(404)
    return see_other(deed(ask))


def link(ask: Ask) -> Response:
    """Show somebody's personal link."""
    person = _person(ask)
    return ask.page("link.html", f"Link of {person.name}", link=ask.site.link(person))


# --- tables for other systems


class Result(NamedTuple):
    """What a student has at the end."""

    person: Person
    hand_in: HandIn | None
    rating: Any  # a row of the ladder
    grade: Grade | None


def results(store: Store) -> list[Result]:
    """Return everybody's result: of the hand-in on the ladder, or of the newest one."""
    rows = {row.person.id: row for row in store.ladder() if row.person is not None}
    found = []
    for person in store.people():
        if person.role != "student" or person.forgotten:
            continue
        own, row = store.history(person.id), rows.get(person.id)
        chosen = next((each for each in own if row and each[0].id == row.hand_in.id), own[0] if own else None)
        found.append(Result(person, chosen[0] if chosen else None, row, chosen[2] if chosen else None))
    return found


def _safe(row: dict[str, Any]) -> dict[str, Any]:
    """Return cells that no spreadsheet reads as a formula (https://owasp.org/www-community/attacks/CSV_Injection)."""
    return {
        key: f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULAS) else cell for key, cell in row.items()
    }


def _ladder(all_results: list[Result]) -> list[dict[str, Any]]:
    return [
        {
            "id": one.person.code, "name": one.person.name, "pseudonym": one.person.pseudonym,
            "hand_in": one.hand_in.id if one.hand_in else "", "state": one.hand_in.state if one.hand_in else "",
            "late_days": one.hand_in.late_days if one.hand_in else "", "rank": one.rating.rank if one.rating else "",
            **{key: round(getattr(one.rating, key), 1) if one.rating else "" for key in ("rating", "low", "high")},
            "points": one.grade.points if one.grade else "", "of": one.grade.of if one.grade else "",
            "sha256": one.hand_in.sha256 if one.hand_in else "",
        }
        for one in all_results
    ]  # fmt: skip


def _moodle(all_results: list[Result]) -> list[dict[str, Any]]:
    return [
        {
            "ID number": one.person.code, "Full name": one.person.name, "Email address": one.person.email,
            "Grade": one.grade.points if one.grade else "", "Late days": one.hand_in.late_days if one.hand_in else "",
            "Feedback comments": one.grade.feedback if one.grade else "",
        }
        for one in all_results
    ]  # fmt: skip


def _canvas(all_results: list[Result]) -> list[dict[str, Any]]:
    of = max((one.grade.of for one in all_results if one.grade), default=0)
    head = {"Student": "Points Possible", "ID": "", "SIS User ID": "", "SIS Login ID": "", "Section": "", "Ladder": of}
    return [head] + [
        {
            "Student": one.person.name, "ID": "", "SIS User ID": one.person.code, "SIS Login ID": one.person.email,
            "Section": "", "Ladder": one.grade.points if one.grade else "",
        }
        for one in all_results
    ]  # fmt: skip


def gradescope(one: Result) -> dict[str, Any]:
    """Return a student's ``results.json`` (https://gradescope-autograders.readthedocs.io/en/latest/specs/)."""
    told = {"score": one.grade.points if one.grade else 0.0, "visibility": "visible", "stdout_visibility": "hidden"}
    if one.grade:
        told |= {"output": one.grade.feedback, "output_format": "text"}
    if one.rating:
        told["leaderboard"] = [{"name": "Rating", "value": round(one.rating.rating)}]
    return told


EXPORTS: dict[str, Callable[[list[Result]], list[dict[str, Any]]]] = {
    "ladder.csv": _ladder, "moodle.csv": _moodle, "canvas.csv": _canvas,
}  # fmt: skip
GRADESCOPE = "gradescope.zip"


def exported(store: Store, name: str) -> bytes:
    """Return a table for another system, or for Gradescope a zip file with ``ID/results.json``.

    Raises:
        KeyError: no such table.
    """
    found = results(store)
    if name == GRADESCOPE:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for one in found:
                folder = "".join(c if c.isalnum() or c in "._-@" else "_" for c in one.person.code).strip(".") or "_"
                archive.writestr(f"{folder}/results.json", json.dumps(gradescope(one), indent=1))
        return file.getvalue()
    return csv_text([_safe(row) for row in EXPORTS[name](found)]).encode()


def export(ask: Ask) -> Response:
    """Answer with a table."""
    name = ask.request.path_params["name"]
    if name not in (*EXPORTS, GRADESCOPE):
        raise HTTPException(404)
    kind = "application/zip" if name == GRADESCOPE else "text/csv"
    disposition = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(exported(ask.site.store, name), media_type=kind, headers=disposition)


def pages() -> list[Page]:
    """Return what instructors see."""
    return [
        Page("/desk", desk, "instructor"),
        Page("/desk/export/{name}", export, "instructor"),
        Page("/desk/link", link, "instructor", "POST", "change"),
        Page("/desk/{deed}", act, "instructor", "POST", "change"),
    ]
