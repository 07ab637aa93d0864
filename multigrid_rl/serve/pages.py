"""Pages of a class server: the ladder, entries and their matches, one's own hand-ins."""

import hashlib
import json
from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response

from multigrid_rl.serve.database import STATES, Grade, HandIn, Person, Rating, StoredPairing
from multigrid_rl.serve.people import KINDS
from multigrid_rl.serve.serve_commands import packed
from multigrid_rl.serve.site import Ask, KeptPage, Page, kept_page, unless_same
from multigrid_rl.serve.store import GameSummary, RefusedError, Row, counted, seen_by
from multigrid_rl.show.page import TEXT_SCRIPTS, Scale
from multigrid_rl.show.words import plural
from multigrid_rl.text import expected, shown

DONE = ("rated", "refused")
#: What a program is told of a hand-in.
_TOLD = ("state", "state_at", "reason", "log", "deadline", "sha256")
#: Letters of a pairing's results, by what they are from the view of its first side; forfeited are games of either.
_LETTERS = {"win": "Rb", "draw": "D", "loss": "rB", "games": "RbDrB", "forfeited": "rb"}
_TURNED = str.maketrans("RrBb", "BbRr")


# --- the ladder


class Ladder(NamedTuple):
    """The ladder as somebody sees it."""

    rows: list[Row]
    hidden: dict[int, int]  # hand-in -> how many rows before it are not shown
    names: dict[int, str]  # hand-in -> what it is called
    own: int  # hand-in of who looks; 0: none
    mark: str  # of all of it


def ladder_of(ask: Ask) -> Ladder:
    """Return what who asks may see of the ladder, kept until something happens."""
    who, course = ask.person.id if ask.person else 0, ask.site.store.course

    def make() -> Ladder:
        rows: list[Row] = ask.site.kept("rows", ask.site.store.ladder)
        ours = ask.site.store.team(who).ids
        seen = rows if ask.teaches else seen_by(rows, ours, course)
        ids, hidden, behind = {row.hand_in.id for row in seen}, dict[int, int](), 0
        for row in rows:
            if row.hand_in.id in ids:
                hidden[row.hand_in.id], behind = behind, 0
            else:
                behind += 1
        own = next((row.hand_in.id for row in seen if row.hand_in.person_id in ours), 0)
        names = {row.hand_in.id: row.name if _by_name(ask) else row.title for row in seen}
        told = [(row.hand_in.id, names[row.hand_in.id], *row[3:]) for row in seen]
        mark = hashlib.sha256(json.dumps([told, sorted(hidden.items())]).encode()).hexdigest()[:12]
        return Ladder(seen, hidden, names, own, mark)

    found: Ladder = ask.site.kept(("ladder", who), make)
    return found


def _by_name(ask: Ask) -> bool:
    return ask.teaches or ask.site.store.course.public.names == "names"


def ladder(ask: Ask) -> Response:
    """Show the ladder, or its table alone; nothing where it is as before: nobody loses their place on the page."""

    def make() -> KeptPage:
        found = ladder_of(ask)
        students = sum(row.person is not None for row in found.rows) + sum(found.hidden.values())
        lead = f"Ratings follow from all games at once, in whatever order they were played. {students} on the ladder."
        content: dict[str, Any] = {"ladder": found, "scale": Scale.around(found.rows), "mark": found.mark}
        content["above"] = max((row.rating for row in found.rows if row.person is None), default=float("inf"))
        template = "table.html" if "part" in ask.request.query_params else "ladder.html"
        return found.mark, bytes(ask.page(template, ask.site.store.course.title, lead=lead, **content).body)

    return kept_page(ask, make)


# --- entries and matches


def _author(ask: Ask, hand_in_id: int) -> tuple[str, Person | None]:
    """Return the name of a hand-in and its author, of an anchor ``None``; those of all are kept together."""

    def make() -> dict[int, tuple[str, Person | None]]:
        with ask.site.store.reading() as session:
            query = select(HandIn.id, HandIn.name, Person).outerjoin(Person, Person.id == HandIn.person_id)
            return {number: (name, person) for number, name, person in session.execute(query)}

    found: tuple[str, Person | None] = ask.site.kept("authors", make).get(hand_in_id, ("nobody", None))
    return found


def called(ask: Ask, hand_in_id: int) -> str:
    """Return what a hand-in is called for who asks; one that is hidden has a number and no name."""
    if (name := ladder_of(ask).names.get(hand_in_id)) is not None:
        return name
    name, person = _author(ask, hand_in_id)
    if person is None:
        return name
    if not (ask.teaches or ask.is_ours(person.id)):
        return "an entry that is not shown"
    name = ask.site.store.team(person.id).name or (person.name if _by_name(ask) else person.pseudonym)
    return f"{name} (hand-in {hand_in_id})"


class Matchup(NamedTuple):
    """All games of an entry against another."""

    name: str
    first: Counter[str]  # results of the entry from the first side, by the keys of _LETTERS
    second: Counter[str]
    games: list[int]  # numbers of its pairings, where they may be watched


def matchups(ask: Ask, hand_in: HandIn) -> list[Matchup]:
    """Return all opponents of an entry, the most played first."""
    found: dict[int, Matchup] = {}
    for game in ask.site.store.games_of(hand_in.id):
        first = game.red_id == hand_in.id
        other = game.blue_id if first else game.red_id
        if other not in found:
            found[other] = Matchup(called(ask, other), Counter(), Counter(), [])
        outcomes = game.letters if first else game.letters.translate(_TURNED)
        counts = {name: sum(map(outcomes.count, letters)) for name, letters in _LETTERS.items()}
        (found[other].first if first else found[other].second).update(counts)
        if game.kept and _may_watch(ask, game):
            found[other].games.append(game.id)
    return sorted(found.values(), key=lambda row: (-row.first["games"] - row.second["games"], row.name))


def _may_watch(ask: Ask, game: StoredPairing | GameSummary) -> bool:
    both = [each for each in (game.red_id, game.blue_id) if each]
    public = ask.site.store.course.public.replays and {*both} <= ladder_of(ask).names.keys()
    return ask.teaches or public or any(_is_mine(ask, each) for each in both)


def _is_mine(ask: Ask, hand_in_id: int) -> bool:
    _, person = _author(ask, hand_in_id)
    return person is not None and ask.is_ours(person.id)


def entry(ask: Ask) -> Response:
    """Show one entry: rating, opponents."""
    hand_in = ask.found(HandIn)
    if not (ask.teaches or ask.is_ours(hand_in.person_id) or hand_in.id in ladder_of(ask).names):
        raise HTTPException(404)
    row = next((each for each in ladder_of(ask).rows if each.hand_in.id == hand_in.id), None)
    return ask.page(
        "entry.html", called(ask, hand_in.id), hand_in=hand_in, row=row, matchups=matchups(ask, hand_in),
        mine=ask.teaches or ask.is_ours(hand_in.person_id),
        alone=ask.site.store.by_anchors().get(hand_in.id) if ask.teaches else None,
    )  # fmt: skip


def match(ask: Ask) -> Response:
    """Replay the games of a pairing that were kept."""
    from multigrid_rl.competition.cup_folder import Pairing  # noqa: PLC0415 - with these comes torch
    from multigrid_rl.show import replay, video  # noqa: PLC0415
    from multigrid_rl.show.films import GameDrawing  # noqa: PLC0415

    game = ask.found(StoredPairing)
    if not _may_watch(ask, game):
        raise HTTPException(404)
    names = {f"h{each}": called(ask, each) for each in (game.red_id, game.blue_id) if each}
    pairing = Pairing.model_validate_json(game.pairing)
    ours = {who for who in names if ask.teaches or _is_mine(ask, int(who[1:]))}
    kept = []
    for record in pairing.kept:
        players = {seat: names.get(who, who) for seat, who in record.players.items()}
        # What a program thinks is its author's alone.
        notes = {seat: said for seat, said in record.notes.items() if record.players[seat] in ours}
        kept.append(record.model_copy(update={"players": players, "notes": notes}))
    shown_games = replay.replays(kept)
    films = [video.page_film(GameDrawing(record), record.label) for record in kept if not shown_games["data"]]  # type: ignore[arg-type]
    script = "texts.js" if shown_games.get("scripts") == TEXT_SCRIPTS else "replay.js"
    return ask.page(
        "match.html", " against ".join(names.values()), data=shown_games["data"], films=films, script=script,
        game=game, pairing=pairing, why=ask.teaches or pairing.at_fault in ours,
        lead=f"{plural(len(kept), 'game')} to look at, of {len(pairing.outcomes)} that were played.",
    )  # fmt: skip


# --- one's own


def mine(ask: Ask) -> Response:
    """Show one's own hand-ins, and where to hand in."""
    return _hand_ins(ask, ask.me, "My hand-ins")


def student(ask: Ask) -> Response:
    """Show the hand-ins of somebody."""
    person = ask.found(Person)
    return _hand_ins(ask, person, person.name)


def _hand_ins(ask: Ask, who: Person, title: str) -> Response:
    store, now = ask.site.store, ask.site.store.now()
    rows, course, code = store.history(who.id), store.course, who.code
    used = sum(own.counts and own.at > now - 3600 * course.quota.per_h for own, _, _ in rows)
    missed = {own.id: course.missed(own.at, code) for own, _, _ in rows}
    stands: dict[int, list[str]] = {}
    for each in course.deadlines:
        found = counted(rows, course, each, code)
        if found.own is not None:
            stands.setdefault(found.own[0].id, []).append(each.name)
    return ask.page(
        "mine.html", title, who=who, team=store.team(who.id).name, rows=rows, missed=missed, stands=stands,
        left=max(course.quota.hand_ins - used, 0), quota=course.quota, url=ask.site.url,
        due=[(each, course.end(each, code)) for each in course.deadlines], late=course.late, penalty=course.penalty,
        frozen=bool(store.setting("frozen")), on_ladder=_on_ladder(ask, who.id),
        graded={own.id for own, _, grade in rows if grade and _graded(ask, own, code)},
    )  # fmt: skip


def _on_ladder(ask: Ask, person_id: int) -> int:
    """Return which hand-in of somebody, or of the team, stands on the ladder; 0: none that who asks may see."""
    ours = ask.site.store.team(person_id).ids
    return next((row.hand_in.id for row in ladder_of(ask).rows if row.hand_in.person_id in ours), 0)


def _graded(ask: Ask, row: HandIn, code: str) -> bool:
    """Return whether who asks may read the points of a hand-in by now."""
    return ask.teaches or ask.site.store.course.points_shown(row.at, ask.site.store.now(), code)


def _to_read(ask: Ask) -> tuple[HandIn, str]:
    """Return the hand-in that is asked for, and its author's id. Raises ``HTTPException`` 404: another's."""
    row = ask.found(HandIn)
    if not (ask.teaches or ask.is_ours(row.person_id)):
        raise HTTPException(404)
    author = ask.site.store.get(Person, row.person_id) if row.person_id else None
    return row, author.code if author else ""


def files(ask: Ask) -> Response:
    """Send what was handed in, as a zip file."""
    row, _ = _to_read(ask)
    place = next(iter(ask.site.store.upload_folder(row.id).glob("*")), None)
    if place is None:  # an anchor's, or a forgotten one's
        raise HTTPException(404)
    name = {"content-disposition": f'attachment; filename="hand-in-{row.id}.zip"', "content-type": "application/zip"}
    return FileResponse(place, headers=name) if place.is_file() else Response(packed(place), headers=name)


def hand_in(ask: Ask) -> Response:
    """Show where a hand-in stands, as a page, JSON, or a part of the page where that has changed."""
    row, code = _to_read(ask)
    rating, grade = ask.site.store.get(Rating, row.id), ask.site.store.get(Grade, row.id)
    grade = grade if _graded(ask, row, code) else None
    done = row.state in DONE
    if ask.by_program:
        told = {key: getattr(row, key) for key in _TOLD}
        missed = ask.site.store.course.missed(row.at, code) if code else None
        told |= {"late_days": missed[1] if missed else 0}
        told |= {"hand_in": row.id, "done": done and (rating is not None or row.state == "refused")}
        told |= {"on_ladder": row.id in ladder_of(ask).names}
        told |= {key: getattr(rating, key) for key in ("rating", "low", "high", "games")} if rating else {}
        return JSONResponse(told)
    steps = [each for each in ask.site.store.events(row.id) if each.kind in STATES]
    ahead = [] if done else [state for state in STATES[1:4] if state not in {each.kind for each in steps}]
    part, late = ask.request.query_params.get("part"), 0 < row.deadline < ask.site.store.now()
    mark = f"{len(steps)}.{rating and rating.games}.{grade and grade.at}.{late}"
    page = ask.page(
        "hand_in.html" if part is None else "state.html", f"{row.name}: {row.state}", mark=mark, late=late,
        row=row, rating=rating, grade=grade, steps=steps, ahead=ahead, done=done,
        on_ladder=_on_ladder(ask, row.person_id) if row.person_id else 0,
    )  # fmt: skip
    return unless_same((mark, bytes(page.body)), part)


# --- signing in, signing out, being forgotten


def enter_page(ask: Ask) -> Response:
    """Ask whether to sign in: a page that only looks at the link changes nothing."""
    token = ask.request.path_params["token"]
    if (person := ask.site.whose("link", token)) is None:
        raise HTTPException(401)
    return ask.page("enter.html", f"Sign in to {ask.site.store.course.title}", token=token, name=person.name)


def enter(ask: Ask) -> Response:
    """Sign a browser in."""
    if (person := ask.site.whose("link", str(ask.form.get("token", "")))) is None:
        raise HTTPException(401)
    session = ask.site.signer.issue("session", person.id, person.token_version)
    answer = RedirectResponse("/mine", 303)
    answer.set_cookie(value=session, max_age=int(KINDS["session"]), **ask.site.cookie)
    return answer


def leave(ask: Ask) -> Response:
    """Sign out here, or everywhere: of all links, tokens and browsers."""
    if ask.form.get("everywhere"):
        ask.site.store.revoke(ask.me.id)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(**ask.site.cookie)
    return answer


def token(ask: Ask) -> Response:
    """Show a new token for ``multigrid-rl submit``."""
    made = ask.site.signer.issue("token", ask.me.id, ask.me.token_version)
    return ask.page("token.html", "A token for the command line", token=made, url=ask.site.url)


def privacy(ask: Ask) -> Response:
    """Show what is kept, and where to ask to be forgotten."""
    due = ask.site.store.to_forget().get(ask.person.id) if ask.person else None
    return ask.page("privacy.html", "What is kept, and for how long", due=due)


def forget(ask: Ask) -> Response:
    """Let who asks be forgotten in a week."""
    sure = str(ask.form.get("sure", ""))
    if sure.strip().lower() != "forget me":
        raise RefusedError(expected("the field", "the words forget me", shown(sure) or "nothing"))
    ask.site.store.ask_to_forget(ask.me.id)
    return RedirectResponse("/privacy#forget", 303)


def keep(ask: Ask) -> Response:
    """Let who asks not be forgotten after all."""
    ask.site.store.keep(ask.me.id, ask.me.id)
    return RedirectResponse("/privacy#forget", 303)


# --- for machines


def health(ask: Ask) -> Response:
    """Say whether the server works: 503 where its store does not answer or hand-ins are overdue."""
    found = ask.site.store.health()
    late = found.get("oldest_job_s", 0) > 120
    return JSONResponse({"status": "behind" if late else "ok", **found}, 503 if late else 200)


#: Everything that students see.
PAGES = [
    Page("/", ladder, kept=True),
    Page("/entry/{id}", entry),
    Page("/match/{id}", match, pace="replay"),
    Page("/mine", mine, "student"),
    Page("/hand-in/{id}", hand_in, "student"),
    Page("/hand-in/{id}/files", files, "student", pace="replay"),
    Page("/student/{id}", student, "instructor"),
    Page("/enter/{token}", enter_page, pace="enter"),
    Page("/enter", enter, "", "POST", "enter"),
    Page("/leave", leave, "student", "POST", "change"),
    Page("/token", token, "student", "POST", "change"),
    Page("/privacy", privacy),
    Page("/forget", forget, "student", "POST", "change"),
    Page("/keep", keep, "student", "POST", "change"),
    Page("/health", health),
]
