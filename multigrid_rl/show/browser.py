"""A person plays in a browser: the page, its view of the game, its actions. Games are in :class:`play.Session`.

Only the server has a game engine: a page draws frames and sends actions. Cells that a person does not see are not sent.
"""

import asyncio
import base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from starlette.responses import HTMLResponse, JSONResponse

from multigrid_rl.evaluation.seed_statistics import wilson_interval
from multigrid_rl.show.captions import ACTION_WORDS
from multigrid_rl.show.live import HEADERS, POLL_S, address, application, event_stream, listen, same_origin, serve
from multigrid_rl.show.page import render
from multigrid_rl.show.play import OtherPlayers, Session
from multigrid_rl.show.replay import Pack, frame_rows
from multigrid_rl.text import OneLineError, one_line, percent
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c

#: Position of a hidden agent: no cell of the board, and not drawn.
_HIDDEN_CELL = 255
#: The board (128,) as everybody knows it: walls and doors.
_STATIC_BOARD = np.where(c.empty_board() == c.EMPTY, c.UNSEEN, c.empty_board())


class Table:
    """A session as its page sees it. ``game_over`` is called after each game."""

    def __init__(self, session: Session, game_over: Callable[[], None]) -> None:
        self._session, self._game_over = session, game_over
        self.changed = asyncio.Condition()
        self.version, self._problem = 0, ""  # the problem ended this game, or kept it out of the file of games

    def constant_data(self) -> dict[str, Any]:
        """Return the constant data of the page."""
        pack, others = Pack(), self._session.others
        pack.add_spec(self._session.spec)
        players = [others.names[name] for name in self._session.spec.seats]
        return {**pack.data(), "players": players, "seat": others.seat, "actions": list(ACTION_WORDS),
                "goal": others.goal}  # fmt: skip

    def newest_step(self) -> dict[str, Any]:
        """Return the newest step as the person sees it."""
        session, caption = self._session, self._session.caption
        state, tokens = session.world.state, session.world.outputs.tokens[0].copy()
        cells, position, visible = state.cells[0].copy(), state.position[0].copy(), session.seen_cells().reshape(-1)
        hidden = np.zeros(len(position), np.bool_)
        if not (session.over or session.out):
            cells = np.where(visible, cells, _STATIC_BOARD)
            hidden = ~visible[position]
            position[hidden] = _HIDDEN_CELL
        tokens[np.arange(len(tokens)) != session.agent] = 0
        row = frame_rows(cells[None], position[None], state.heading, state.hand, state.out, tokens[None])
        lines = list(zip(caption.agents, hidden, strict=True))
        return {
            "game": session.game, "step": session.steps, "most": session.spec.max_steps, "over": session.over,
            "frame": base64.b64encode(row.tobytes()).decode("ascii"),
            "words": ["out of your sight" if is_hidden else line.words for line, is_hidden in lines],
            "returns": [None if is_hidden else line.total for line, is_hidden in lines],
            "out": session.out, "result": self._problem or caption.result, "score": self._score(),
        }  # fmt: skip

    def _score(self) -> str:
        score = self._session.score
        if not (games := score.won + score.drawn + score.lost):
            return str(score)
        low, high = wilson_interval(score.won, games)
        return f"{score}; wins {percent(score.won / games)} ({percent(low)} to {percent(high)})"

    def act(self, action: int, game: int, step: int) -> bool:
        """Take the person's action for a step; returns whether it was for the newest step, and counts.

        Raises ``ValueError``: no such action.
        """
        session = self._session
        if not 0 <= action < len(ACTION_WORDS):
            raise ValueError(f"action: expected 0 to {len(ACTION_WORDS) - 1}, got {action}")
        if (game, step) != (session.game, session.steps) or session.over or session.out:
            return False
        self.advance(action)
        return True

    @property
    def step_is_due(self) -> bool:
        """Whether the next step needs no action of the person, who is out."""
        return not self._session.over and self._session.out

    def advance(self, action: int = c.DONE) -> None:
        """Play a step. A game that another player's failure ends counts as unfinished."""
        try:
            self._session.step(action)
            if self._session.over:
                self._game_over()
        except OneLineError as error:
            self._session.leave()
            self._problem = one_line(error)

    def restart(self) -> None:
        """Begin the next game."""
        self._problem = ""
        self._session.restart()

    async def notify(self) -> None:
        """Let the page ask for a newer step."""
        async with self.changed:
            self.version += 1
            self.changed.notify_all()

    async def newest_version(self, sent: Any) -> int:
        """Wait a while for a step after the version that was ``sent``; play one if it is due."""
        with suppress(TimeoutError, asyncio.TimeoutError):  # identical since Python 3.11
            async with self.changed:
                await asyncio.wait_for(self.changed.wait_for(lambda: self.version != sent), POLL_S)
        if sent == self.version and self.step_is_due:
            self.advance()
            await self.notify()
        return self.version


def app_of(table: Table) -> Any:
    """Return the application: the page, the newest step, actions, and a stream with an event for each newer step."""

    def answer(content: dict[str, Any], status: int = 200) -> Any:
        return JSONResponse(content, status, headers=HEADERS)

    async def page(_: Any) -> Any:
        about = table.constant_data()
        seats = ", ".join(map(" ".join, zip(about["specs"][0]["seats"], about["players"], strict=True)))
        title, lead = f"You play {about['seat']}", f"{about['goal']} {seats}"
        text = render("play.html", live=True, kind="Game", title=title, lead=lead, data=about)
        return HTMLResponse(text, headers=HEADERS)

    async def newest_step(_: Any) -> Any:
        return answer(table.newest_step())

    async def take_action(request: Any) -> Any:
        """Take an action or a restart; returns the newest step."""
        if not same_origin(request):
            return answer({"error": "origin: expected a page of this server"}, 403)
        has_changed = True
        try:
            message = await request.json()
            if message.get("restart"):
                table.restart()
            else:
                has_changed = table.act(*(int(message[key]) for key in ("action", "game", "step")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return answer({"error": str(error)}, 400)
        if has_changed:
            await table.notify()
        return answer(table.newest_step())

    async def events(request: Any) -> Any:
        return event_stream(request, "step", table.newest_version)

    return application({"/": page, "/shown": newest_step, "/events": events}, {"/sent": take_action})


def browser(
    spec: GameSpec, others: OtherPlayers, game_over: Callable[[Session], None], *, seed: int, port: int | None
) -> tuple[Session, Callable[[], None], str]:
    """Open a page for a person; returns the games, its server, and a hint. Raises ``ConfigError``: port in use."""
    session = Session(spec, others, seed=seed)
    app, listening = app_of(Table(session, lambda: game_over(session))), listen(port)

    def run() -> None:
        serve(app, listening)
        session.leave()

    return session, run, f"{others.seat} at {address(listening)}; Ctrl-C ends"
