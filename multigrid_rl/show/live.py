"""Pages of a server for this machine, and the page of a run while it runs: its report, updated in place."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import typer
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route

from multigrid_rl.players.cards import PlayerError
from multigrid_rl.runs.checkpoints import checkpoints_in
from multigrid_rl.runs.reader import read_run
from multigrid_rl.show.page import render
from multigrid_rl.show.reference import curves_of
from multigrid_rl.show.run_data import GAMES_SEED, FreshGames, play_fresh_games, read_report
from multigrid_rl.show.run_page import run_page
from multigrid_rl.text import ConfigError, expected, one_line
from multigrid_rl.types import RunError

#: Seconds between polls of a stream; polls without news until a sign of life is sent to the browser.
POLL_S, POLLS_PER_SIGN = 0.35, 40
#: Default ports: the first free one is used.
PORTS = range(8765, 8785)
#: Headers of every answer: no sniffing of types, no referrer, no cache.
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}
_HOST = "127.0.0.1"
#: Seconds in which an open page gets the verdict.
_VERDICT_S = 2.0
#: Fresh games of the newest checkpoint's policy, in each mode.
GAMES = 50


# --- a small server: one application, only on the loopback


def application(reads: Mapping[str, Any], writes: Mapping[str, Any] | None = None) -> Any:
    """Return an ASGI application that answers only browsers on this machine.

    Pages of other sites may make a browser send requests here: the host's name is checked, see :func:`same_origin`
    (https://en.wikipedia.org/wiki/DNS_rebinding).
    """
    routes = [Route(path, answer) for path, answer in reads.items()]
    routes += [Route(path, answer, methods=["POST"]) for path, answer in (writes or {}).items()]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"])
    return Starlette(routes=routes, middleware=[guard])


def same_origin(request: Any) -> bool:
    """Return whether a request comes from a page of this server, by its browser's headers."""
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def event_stream(request: Any, event: str, newest: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return a stream with an ``event`` for each newer state of what the page shows.

    ``newest``: waits a while for another state than the one that was sent, ``None`` at first; returns the newest one.
    """

    async def lines() -> AsyncIterator[str]:
        sent, polls = None, 0
        while not request.app.state.ending():
            state = await newest(sent)
            polls += 1
            if state != sent:
                sent = state
                yield f"event: {event}\ndata:\n\n"
            elif polls % POLLS_PER_SIGN == 0:
                yield ": \n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers=HEADERS)


def listen(port: int | None) -> socket.socket:
    """Return a socket on the loopback, on ``port`` or else the first free one of :data:`PORTS`.

    Raises ``ConfigError``: the port is in use.
    """
    for number in PORTS if port is None else (port,):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((_HOST, number))
        except OSError:
            listening.close()
            continue
        listening.listen()
        return listening
    wanted = f"a free port from {PORTS[0]} to {PORTS[-1]}" if port is None else "a free port"
    raise ConfigError(expected("--port", wanted, "all in use" if port is None else port))


def address(listening: socket.socket) -> str:
    """Return the address of a page."""
    return f"http://{_HOST}:{listening.getsockname()[1]}/"


def server_of(app: Any) -> Any:
    """Return a server of an :func:`application`, with ``state.ending()`` for its streams."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=5))
    app.state.ending = lambda: server.should_exit
    return server


def serve(app: Any, listening: socket.socket) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    with suppress(KeyboardInterrupt), listening:
        server_of(app).run(sockets=[listening])


# --- a run


class LiveRun:
    """The newest page of a run that may still be running. Its folder is read, never written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = Lock()
        self._page, self._page_state = "", ""  # the page, and the state of the folder that it shows
        self._newest_games: FreshGames | None = None
        self._games_checkpoint = ""  # its name

    def state(self) -> str:
        """Return a key of the folder's state: sizes of its reports, and the newest checkpoint."""
        files = (self.folder / name for name in ("metrics.jsonl", "verdict.json"))
        sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
        return " ".join([*map(str, sizes), self._checkpoint()])

    def _checkpoint(self) -> str:
        return next((path.name for path in reversed(checkpoints_in(self.folder / "checkpoints"))), "")

    def page(self) -> str:
        """Return the page, written again where the folder has changed."""
        with self._lock:
            if (state := self.state()) != self._page_state:
                self._page, self._page_state = self._write(), state
            return self._page

    def _write(self) -> str:
        try:
            report = read_report(self.folder, games=0, reference=curves_of(read_run(self.folder)))
        except ConfigError as error:
            return render("waiting.html", live=True, kind="Training run", title="No report yet", lead=one_line(error))
        return run_page(replace(report, played=self._play_newest() if report.rivals else None), live=True)

    def _play_newest(self) -> FreshGames | None:
        """Return games of the newest checkpoint, played once for each."""
        if (newest := self._checkpoint()) != self._games_checkpoint:
            self._games_checkpoint = newest
            try:
                self._newest_games = play_fresh_games(self.folder, GAMES, seed=GAMES_SEED)
            except (ConfigError, PlayerError, RunError):
                self._newest_games = None  # the checkpoint was removed meanwhile
        return self._newest_games


def app_of(run: LiveRun) -> Any:
    """Return the application: the page, and a stream with an event for each newer one. Raises ``ConfigError``."""

    async def page(_: Any) -> Any:
        return HTMLResponse(await asyncio.to_thread(run.page), headers=HEADERS)

    async def newest_state(sent: Any) -> str:
        if sent is not None:
            await asyncio.sleep(POLL_S)
        return await asyncio.to_thread(run.state)

    async def events(request: Any) -> Any:
        return event_stream(request, "report", newest_state)

    return application({"/": page, "/events": events})


def watch_run(folder: Path, port: int | None) -> None:
    """Serve the page of a run until Ctrl-C, stepping back for the run.

    Raises ``ConfigError``: no run, a port in use.
    """
    if (folder / "search.yaml").is_file():
        wanted = "the folder of a run (of trials: tensorboard --logdir, or optuna-dashboard on study.log)"
        raise ConfigError(expected(folder, wanted, "a search's"))
    if not (folder / "config.yaml").is_file():
        raise ConfigError(expected(folder, "the folder of a run", "no config.yaml in it"))
    app, listening = app_of(LiveRun(folder)), listen(port)
    typer.echo(f"{address(listening)} shows {folder} while it runs; Ctrl-C ends the page, not the run")
    os.nice(19)  # on busy cores it gets a seventieth of one
    serve(app, listening)


class Web:
    """A tracker that shows a run's page while it runs: an entry of ``tables.TRACKERS``."""

    @classmethod
    def check(cls) -> None:
        """Raise ``ConfigError`` where no port is free."""
        listen(None).close()

    def begin(self, folder: Path, values: dict[str, Any]) -> None:  # noqa: ARG002 - as the others
        """Start the server, as a process that ends with the run's."""
        listening = listen(None)
        self.port: int = listening.getsockname()[1]
        listening.close()
        watch = ["watch", str(folder), "--web", "--port", str(self.port)]
        command = [sys.executable, "-m", "multigrid_rl.cli.main", *watch]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def row(self, row: dict[str, Any]) -> None:
        """Do nothing: the page reads the folder."""

    def end(self, verdict: dict[str, Any] | None) -> None:
        """End the server after time to show the verdict. ``watch`` shows a run that has ended."""
        time.sleep(_VERDICT_S if verdict is not None else 0)
        self._server.terminate()
        self._server.wait()
