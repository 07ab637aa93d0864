"""Persons play in a browser: the page, what it is shown of a game, what it sends. Games are in :class:`play.Session`.

The one engine is the server's: a page draws frames and sends actions. What a person does not see is not sent.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import numpy as np
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse

from multigrid_rl.metrics import wilson_interval
from multigrid_rl.show.captions import ACTION_WORDS
from multigrid_rl.show.page import render
from multigrid_rl.show.play import OtherPlayers, Session
from multigrid_rl.show.replay import Pack, frame_rows
from multigrid_rl.show.server import ALIVE, HEADERS, LOOK, address, application, listen, same_origin, serve
from multigrid_rl.show.words import percent
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c

#: No cell of the board: what stands there is not drawn.
_NOWHERE = 255
#: What everybody knows of the board (128,): where walls and doors are.
_BARE = np.where(c.empty_board() == c.EMPTY, c.UNSEEN, c.empty_board())


class Table:
    """A session of one or two persons, each of whom acts when it has seen the newest step.

    Args:
        session: the games.
        game_over: called after each.
        delay: seconds after which a step is played in which who has not chosen waits; ``None``: it waits for all.
    """

    def __init__(self, session: Session, game_over: Callable[[], None], *, delay: float | None = None) -> None:
        self._session, self._game_over = session, game_over
        self._whole = False  # whether the one person is shown the whole board
        #: Seconds between two looks whether a step is due.
        self.look = LOOK if delay is None else min(LOOK, delay)
        self._delay, self._played = delay, time.monotonic()
        self._chosen: dict[str, int] = {}
        self.changed = asyncio.Condition()
        self.version = 0

    @property
    def persons(self) -> tuple[str, ...]:
        """Seats of persons."""
        return self._session.persons

    def about(self, seat: str) -> dict[str, Any]:
        """Return what a page must know once."""
        pack, others = Pack(), self._session.others
        pack.add_spec(self._session.spec)
        players = [others.names[name] for name in self._session.spec.seats]
        return {**pack.data(), "players": players, "seat": seat, "actions": list(ACTION_WORDS),
                "alone": len(self.persons) == 1, "goal": others.goal}  # fmt: skip

    def shown(self, seat: str) -> dict[str, Any]:
        """Return the newest step as the person on a seat may see it."""
        session, caption = self._session, self._session.caption
        state, tokens = session.world.state, session.world.outputs.tokens[0].copy()
        cells, position, seen = state.cells[0].copy(), state.position[0].copy(), session.seen(seat).reshape(-1)
        hidden = np.zeros(len(position), np.bool_)
        if not (self._whole or session.over or session.is_out(seat)):
            cells = np.where(seen, cells, _BARE)
            hidden = ~seen[position]
            position[hidden] = _NOWHERE
        own = session.spec.seats.index(seat)
        tokens[np.arange(len(tokens)) != own] = 0
        row = frame_rows(cells[None], position[None], state.heading, state.hand, state.out, tokens[None])
        lines = caption.agents
        return {
            "game": session.game, "step": session.steps, "most": session.spec.max_steps, "over": session.over,
            "frame": base64.b64encode(row.tobytes()).decode("ascii"),
            "words": ["out of your sight" if dark else line.words for line, dark in zip(lines, hidden, strict=True)],
            "returns": [None if dark else line.total for line, dark in zip(lines, hidden, strict=True)],
            "out": session.is_out(seat), "result": caption.result, "score": self._score(),
            "waits": [name for name in self.persons if not session.is_out(name) and name not in self._chosen],
        }  # fmt: skip

    def _score(self) -> str:
        score = self._session.score
        games = score.won + score.drawn + score.lost
        if not games:
            return str(score)
        low, high = wilson_interval(score.won, games)
        return f"{score}; wins {percent(score.won / games)} ({percent(low)} to {percent(high)})"

    def act(self, seat: str, action: int, game: int, step: int) -> bool:
        """Take a person's action for a step; returns whether it counts: it was chosen for the newest step, once.

        Raises ``ValueError``: no such action.
        """
        session = self._session
        if not 0 <= action < len(ACTION_WORDS):
            raise ValueError(f"action: expected 0 to {len(ACTION_WORDS) - 1}, got {action}")
        current = (game, step) == (session.game, session.steps) and not session.over
        if not current or seat in self._chosen or session.is_out(seat):
            return False
        self._chosen[seat] = action
        self.advance()
        return True

    @property
    def due(self) -> bool:
        """Whether a step is to be played that no person has asked for: all are out, or the delay is over."""
        late = self._delay is not None and time.monotonic() - self._played >= self._delay
        return not self._session.over and (late or all(map(self._session.is_out, self.persons)))

    def turn_view(self) -> None:
        """Show the one person the whole board, or again what its agent sees."""
        self._whole = not self._whole and len(self.persons) == 1

    def advance(self) -> None:
        """Play a step if all persons who are in the game have chosen, or one is due."""
        session = self._session
        if not self.due and any(name not in self._chosen and not session.is_out(name) for name in self.persons):
            return
        self._played = time.monotonic()
        session.step(*(self._chosen.get(name, c.DONE) for name in self.persons))
        self._chosen.clear()
        if session.over:
            self._game_over()

    def restart(self) -> None:
        """Begin the next game."""
        self._played = time.monotonic()
        self._chosen.clear()
        self._session.restart()


class Answers:
    """What a browser is answered: a page for each person's seat, what it shows, and what it sends."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def _seat(self, request: Any) -> str:
        seat = request.query_params.get("seat")
        return str(seat) if seat in self._table.persons else self._table.persons[0]

    async def page(self, request: Any) -> Any:
        """Return the page of a seat."""
        seat = self._seat(request)
        about = self._table.about(seat)
        lead = f"{about['goal']} " + ", ".join(
            map(" ".join, zip(about["specs"][0]["seats"], about["players"], strict=True))
        )
        text = render("play.html", live=True, kind="Game", title=f"You play {seat}", lead=lead, data=about)
        return HTMLResponse(text, headers=HEADERS)

    async def shown(self, request: Any) -> Any:
        """Return the newest step."""
        return self._answer(self._table.shown(self._seat(request)))

    async def sent(self, request: Any) -> Any:
        """Take an action, or the wish for the next game; returns the newest step."""
        if not same_origin(request):
            return self._answer({"error": "origin: expected a page of this server"}, 403)
        table, seat, changed = self._table, self._seat(request), True
        try:
            given = await request.json()
            if given.get("restart"):
                table.restart()
            elif given.get("view"):
                table.turn_view()
            else:
                changed = table.act(seat, *(int(given[key]) for key in ("action", "game", "step")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self._answer({"error": str(error)}, 400)
        if changed:
            await self._tell()
        return self._answer(table.shown(seat))

    async def events(self, request: Any) -> Any:
        """Return a stream that says when there is a newer step."""
        return StreamingResponse(self._steps(request), media_type="text/event-stream", headers=HEADERS)

    async def _steps(self, request: Any) -> AsyncIterator[str]:
        table, known, looks = self._table, -1, 0
        while not request.app.state.ending():
            if known == table.version:
                await self._news(known)
            looks += 1
            if known != table.version:
                known = table.version
                yield "event: step\ndata:\n\n"
            elif looks % ALIVE == 0:
                yield ": \n\n"

    async def _news(self, known: int) -> None:
        """Wait a while for a step after ``known``; play one if it is due."""
        table = self._table
        with suppress(TimeoutError, asyncio.TimeoutError):  # one and the same since Python 3.11
            async with table.changed:
                await asyncio.wait_for(table.changed.wait_for(lambda: table.version != known), table.look)
        if known == table.version and table.due:
            table.advance()
            await self._tell()

    async def _tell(self) -> None:
        async with self._table.changed:
            self._table.version += 1
            self._table.changed.notify_all()

    @staticmethod
    def _answer(content: dict[str, Any], status: int = 200) -> Any:
        return JSONResponse(content, status, headers=HEADERS)


def app_of(table: Table) -> Any:
    """Return the application."""
    answers = Answers(table)
    return application({"/": answers.page, "/shown": answers.shown, "/events": answers.events}, {"/sent": answers.sent})


def browser(
    spec: GameSpec, others: OtherPlayers, game_over: Callable[[Session], None], *, seed: int, **options: Any
) -> tuple[Session, Callable[[], None], str]:
    """Open pages for persons; returns the games, what serves them, and a hint. Entry of ``tables.PERSONS``.

    Raises ``ConfigError``: a port in use.
    """
    session = Session(spec, others, seed=seed)
    table = Table(session, lambda: game_over(session), delay=options["delay"])
    app, listening = app_of(table), listen(options["port"])

    def run() -> None:
        serve(app, listening)
        session.leave()

    pages = [f"{person} at {address(listening)}?seat={person}" for person in table.persons]
    return session, run, f"{', '.join(pages)}; Ctrl-C ends"
