"""Pages of a class server: the ladder, entries and their matches, one's own hand-ins."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from multigrid_rl.serve.app import Ask, Page, kept_page, see_other
from multigrid_rl.serve.schema import STATES, Game, HandIn, Person
from multigrid_rl.serve.store import RefusedError, Row, seen_by
from multigrid_rl.serve.trust import KINDS
from multigrid_rl.show.page import TEXT_SCRIPTS
from multigrid_rl.show.words import plural
from multigrid_rl.text import expected, shown

DONE = ("rated", "refused")
#: Results of one game from the view of the first side: won, drawn, lost.
_OF_FIRST = {"R": 0, "b": 0, "D": 1, "B": 2, "r": 2}


class Scale(NamedTuple):
    """Range of an interval plot."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return the position of a number, in per cent of the width."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


class Cell(NamedTuple):
    """Results of an entry against another."""

    win: int = 0
    draw: int = 0
    loss: int = 0
    forfeited: int = 0  # of these games, by either

    def plus(self, other: "Cell") -> "Cell":
        """Return both together."""
        return Cell(*map(sum, zip(self, other, strict=True)))

    @property
    def games(self) -> int:
        """Games of the cell."""
        return self.win + self.draw + self.loss

    @property
    def share(self) -> float:
        """Points per game: a win is one, a draw one half."""
        return (self.win + self.draw / 2) / self.games


# --- the ladder


class Ladder(NamedTuple):
    """The ladder as somebody sees it."""

    rows: list[Row]
    hidden: dict[int, int]  # hand-in -> how many rows before it are not shown
    names: dict[int, str]  # hand-in -> what it is called
    own: int  # hand-in of who looks; 0: none


def ladder_of(ask: Ask) -> Ladder:
    """Return what who asks may see of the ladder, kept until something happens."""
    who = ask.person.id if ask.person else 0
    found: Ladder = ask.site.kept(("ladder", who), lambda: _ladder_of(ask, who))
    return found


def _ladder_of(ask: Ask, who: int) -> Ladder:
    rows = ask.site.kept("rows", ask.site.store.ladder)
    seen = rows if ask.teaches else seen_by(rows, who, ask.site.store.course)
    ids, hidden, behind = {row.hand_in.id for row in seen}, dict[int, int](), 0
    for row in rows:
        if row.hand_in.id in ids:
            hidden[row.hand_in.id], behind = behind, 0
        else:
            behind += 1
    own = next((row.hand_in.id for row in seen if row.person and row.person.id == who), 0)
    return Ladder(seen, hidden, {row.hand_in.id: name_of(ask, row) for row in seen}, own)


def name_of(ask: Ask, row: Row) -> str:
    """Return what an entry is called for who asks."""
    if row.person is None:
        return row.hand_in.name
    by_name = ask.teaches or ask.site.store.course.public.names == "names"
    return row.person.name if by_name else row.person.pseudonym


def scale_of(rows: Sequence[Any]) -> Scale:
    """Return a scale on which all intervals fit."""
    low, high = min((row.low for row in rows), default=0.0), max((row.high for row in rows), default=0.0)
    margin = 0.04 * (high - low) or 1.0
    return Scale(low - margin, high + margin)


def ladder(ask: Ask) -> Response:
    """Show the ladder, or its table alone."""
    part = "part" in ask.request.query_params
    return kept_page(ask, lambda: _ladder(ask, part))


def _ladder(ask: Ask, part: bool) -> bytes:
    found = ladder_of(ask)
    students = sum(row.person is not None for row in found.rows) + sum(found.hidden.values())
    lead = f"Ratings follow from all games at once, in whatever order they were played. {students} on the ladder."
    shown_rows: dict[str, Any] = {"ladder": found, "scale": scale_of(found.rows)}
    title = ask.site.store.course.title
    return bytes(ask.page("table.html" if part else "ladder.html", title, lead=lead, **shown_rows).body)


# --- entries and matches


def _sees(ask: Ask, hand_in: HandIn | None) -> HandIn:
    """Return a hand-in that who asks may see. Raises ``HTTPException``: there is none."""
    if hand_in is not None:
        mine = ask.person is not None and hand_in.person_id == ask.person.id
        if mine or ask.teaches or hand_in.id in ladder_of(ask).names:
            return hand_in
    raise HTTPException(404)


def _called(ask: Ask, hand_in_id: int) -> str:
    """Return what a hand-in is called for who asks; one that is hidden has a number and no name."""
    if (name := ladder_of(ask).names.get(hand_in_id)) is not None:
        return name
    row = ask.site.store.get(HandIn, hand_in_id)
    if row is None or row.person_id is None:
        return row.name if row else "nobody"
    mine = ask.person is not None and row.person_id == ask.person.id
    person = ask.site.store.get(Person, row.person_id) if mine or ask.teaches else None
    if person is None:
        return "an entry that is not shown"
    return f"{person.name if ask.teaches else person.pseudonym} (hand-in {hand_in_id})"


class Matchup(NamedTuple):
    """All games of an entry against another."""

    other: int
    name: str
    first: Cell  # results of the entry from the first side
    second: Cell
    games: list[int]  # numbers of its pairings, where they may be watched

    @property
    def whole(self) -> Cell:
        """Both sides together."""
        return self.first.plus(self.second)


def matchups(ask: Ask, hand_in: HandIn) -> list[Matchup]:
    """Return all opponents of an entry, the most played first."""
    found: dict[int, Matchup] = {}
    for game in ask.site.store.games_of(hand_in.id):
        pairing = json.loads(game.pairing)
        counts = Counter(_OF_FIRST.get(letter) for letter in pairing["outcomes"])
        first = game.red_id == hand_in.id
        forfeited = sum(letter in "rb" for letter in pairing["outcomes"])
        won, drawn, lost = (counts[k] for k in ((0, 1, 2) if first else (2, 1, 0)))
        cell = Cell(won, drawn, lost, forfeited)
        other, side = (game.blue_id, "first") if first else (game.red_id, "second")
        before = found.get(other) or Matchup(other, _called(ask, other), Cell(), Cell(), [])
        games = [game.id] if pairing["kept"] and _may_watch(ask, game) else []
        found[other] = before._replace(**{side: getattr(before, side).plus(cell), "games": before.games + games})
    return sorted(found.values(), key=lambda row: (-row.whole.games, row.name))


def _is_mine(ask: Ask, hand_in_id: int) -> bool:
    row = ask.site.store.get(HandIn, hand_in_id)
    return ask.person is not None and row is not None and row.person_id == ask.person.id


def _may_watch(ask: Ask, game: Game) -> bool:
    seen = ladder_of(ask).names
    both = [each for each in (game.red_id, game.blue_id) if each]
    public = ask.site.store.course.public.replays and {*both} <= seen.keys()
    return ask.teaches or public or any(_is_mine(ask, each) for each in both)


def entry(ask: Ask) -> Response:
    """Show one entry: rating, history, opponents."""
    hand_in = _sees(ask, ask.site.store.get(HandIn, ask.number("id")))
    rated = [row for row in ask.site.store.history(hand_in.person_id) if row[1]] if hand_in.person_id else []
    row = next((each for each in ladder_of(ask).rows if each.hand_in.id == hand_in.id), None)
    mine = ask.person is not None and hand_in.person_id == ask.person.id
    return ask.page(
        "entry.html", _called(ask, hand_in.id), hand_in=hand_in, row=row, matchups=matchups(ask, hand_in),
        history=drawn_history([(own.at, rating) for own, rating, _ in reversed(rated)]), mine=mine or ask.teaches,
    )  # fmt: skip


def drawn_history(rated: list[tuple[float, Any]]) -> dict[str, Any] | None:
    """Return points of ratings of one's hand-ins over time in a box of 720 by 200, ``None`` for less than two."""
    if len(rated) < 2:
        return None
    scale = scale_of([rating for _, rating in rated])
    begin, end = rated[0][0], rated[-1][0]

    def place(at: float, value: float) -> tuple[float, float]:
        return round(60 + 640 * (at - begin) / ((end - begin) or 1), 1), round(180 - 1.6 * scale.place(value), 1)

    points = [(*place(at, its.rating), place(at, its.low)[1], place(at, its.high)[1], its) for at, its in rated]
    return {"points": points, "low": scale.low, "high": scale.high, "begin": begin, "end": end}


def match(ask: Ask) -> Response:
    """Replay the games of a pairing that were kept."""
    from multigrid_rl.competition.cup.folder import Pairing  # noqa: PLC0415 - with these comes torch
    from multigrid_rl.show.boards import GameDrawing  # noqa: PLC0415
    from multigrid_rl.show.replay import replays  # noqa: PLC0415
    from multigrid_rl.show.video import page_film  # noqa: PLC0415

    game = ask.site.store.get(Game, ask.number("id"))
    if game is None or not _may_watch(ask, game):
        raise HTTPException(404)
    names = {f"h{each}": _called(ask, each) for each in (game.red_id, game.blue_id) if each}
    pairing = Pairing.model_validate_json(game.pairing)
    ours = {who for who in names if ask.teaches or _is_mine(ask, int(who[1:]))}
    kept = [
        record.model_copy(
            update={
                "players": {seat: names.get(who, who) for seat, who in record.players.items()},
                # What a program thinks is its author's alone.
                "notes": {seat: said for seat, said in record.notes.items() if record.players[seat] in ours},
            }
        )
        for record in pairing.kept
    ]
    shown_games = replays(kept)
    films = [page_film(GameDrawing(record), record.label) for record in kept if not shown_games["data"]]  # type: ignore[arg-type]
    script = "texts.js" if shown_games.get("scripts") == TEXT_SCRIPTS else "replay.js"
    title = " against ".join(names.values())
    lead = f"{plural(len(kept), 'game')} to look at, of {len(pairing.outcomes)} that were played."
    return ask.page(
        "match.html", title, lead=lead, data=shown_games["data"], films=films, script=script, game=game, pairing=pairing
    )


# --- one's own


def mine(ask: Ask) -> Response:
    """Show somebody's hand-ins, and where to hand in."""
    store, now = ask.site.store, ask.site.store.now()
    rows, quota = store.history(ask.me.id), store.course.quota
    used = sum(own.counts and own.at > now - 3600 * quota.per_h for own, _, _ in rows)
    return ask.page(
        "mine.html", "My hand-ins", rows=rows, left=max(quota.hand_ins - used, 0), quota=quota,
        due=store.course.due(now), late=store.course.late_days(now), url=ask.site.url,
        frozen=bool(store.setting("frozen")),
    )  # fmt: skip


def _own(ask: Ask) -> HandIn:
    row = ask.site.store.get(HandIn, ask.number("id"))
    if row is None or not (ask.teaches or row.person_id == ask.me.id):
        raise HTTPException(404)
    return row


def hand_in(ask: Ask) -> Response:
    """Show where a hand-in stands, as a page, a part of it, or JSON."""
    row = _own(ask)
    rows = {own.id: (rating, grade) for own, rating, grade in ask.site.store.history(row.person_id or 0)}
    rating, grade = rows.get(row.id, (None, None))
    done = row.state in DONE
    if ask.by_program:
        told = {
            key: getattr(row, key) for key in ("state", "state_at", "reason", "log", "deadline", "late_days", "sha256")
        }
        told |= {"hand_in": row.id, "done": done and (rating is not None or row.state == "refused")}
        told |= {key: getattr(rating, key) for key in ("rating", "low", "high", "games")} if rating else {}
        return JSONResponse(told)
    steps = [each for each in ask.site.store.events(row.id) if each.kind in STATES]
    ahead = [] if done else [state for state in STATES[1:4] if state not in {each.kind for each in steps}]
    content: dict[str, Any] = {
        "row": row,
        "rating": rating,
        "grade": grade,
        "steps": steps,
        "ahead": ahead,
        "done": done,
    }
    if "part" in ask.request.query_params:
        return ask.page("state.html", "", **content)
    return ask.page("hand_in.html", f"{row.name}: {row.state}", **content)


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
    answer = see_other("/mine")
    answer.set_cookie(
        ask.site.cookie, session, int(KINDS["session"]), httponly=True, samesite="lax", secure=ask.site.secure
    )
    return answer


def leave(ask: Ask) -> Response:
    """Sign out here, or everywhere: of all links, tokens and browsers."""
    if ask.form.get("everywhere"):
        ask.site.store.revoke(ask.me.id)
    answer = see_other("/")
    answer.delete_cookie(ask.site.cookie, httponly=True, samesite="lax", secure=ask.site.secure)
    return answer


def token(ask: Ask) -> Response:
    """Show a new token for ``multigrid-rl submit``."""
    made = ask.site.signer.issue("token", ask.me.id, ask.me.token_version)
    return ask.page("token.html", "A token for the command line", token=made, url=ask.site.url)


def privacy(ask: Ask) -> Response:
    """Say what is kept, and for how long."""
    return ask.page("privacy.html", "What is kept, and for how long")


def forget(ask: Ask) -> Response:
    """Forget who asks."""
    if str(ask.form.get("sure", "")).strip().lower() != "forget me":
        raise RefusedError(
            expected("the field", "the words forget me", shown(str(ask.form.get("sure", ""))) or "nothing")
        )
    ask.site.store.forget(ask.me.id)
    answer = ask._replace(person=None, session="").page("message.html", "You are forgotten", lead="", back="/")
    answer.delete_cookie(ask.site.cookie, httponly=True, samesite="lax", secure=ask.site.secure)
    return answer


# --- for machines


def health(ask: Ask) -> Response:
    """Say whether the server works: 503 where its store does not answer or hand-ins are overdue."""
    found = ask.site.store.health()
    late = found.get("oldest_job_s", 0) > 120
    return JSONResponse({"status": "behind" if late else "ok", **found}, 503 if late else 200)


def metrics(ask: Ask) -> Response:
    """Return the same numbers as Prometheus reads them (https://prometheus.io/docs/instrumenting/exposition_formats/)."""
    lines: list[str] = []
    for name, value in ask.site.store.health().items():
        lines += [f"# TYPE multigrid_rl_{name} gauge", f"multigrid_rl_{name} {json.dumps(value)}"]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def pages() -> list[Page]:
    """Return everything that students see."""
    return [
        Page("/", ladder, kept=True),
        Page("/entry/{id}", entry),
        Page("/match/{id}", match, pace="replay"),
        Page("/mine", mine, "student"),
        Page("/hand-in/{id}", hand_in, "student"),
        Page("/enter/{token}", enter_page, pace="enter"),
        Page("/enter", enter, "", "POST", "enter"),
        Page("/leave", leave, "student", "POST", "change"),
        Page("/token", token, "student", "POST", "change"),
        Page("/privacy", privacy),
        Page("/forget", forget, "student", "POST", "change"),
        Page("/health", health),
        Page("/metrics", metrics),
    ]
