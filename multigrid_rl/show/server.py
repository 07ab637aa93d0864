"""A small server for pages of this machine: one application, the loopback alone, a picture of what is refused."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from multigrid_rl.text import ConfigError, expected

#: Seconds after which a stream looks whether there is news, or the server ends; a browser gets a sign of life after so
#: many looks without.
LOOK, ALIVE = 0.35, 40
#: Port where none is asked for: the first of these that is free.
PORTS = range(8765, 8785)
#: Headers of every answer: nothing of these pages is embedded, guessed or kept.
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}
_HOST = "127.0.0.1"


def application(reads: Mapping[str, Any], writes: Mapping[str, Any] | None = None) -> Any:
    """Return an ASGI application that answers this machine's browsers alone.

    A page from elsewhere may make a browser send requests here: the host's name is checked, see :func:`same_origin`
    (https://en.wikipedia.org/wiki/DNS_rebinding).

    Args:
        reads: what answers GET, by path.
        writes: what answers POST.
    """
    routes = [Route(path, answer) for path, answer in reads.items()]
    routes += [Route(path, answer, methods=["POST"]) for path, answer in (writes or {}).items()]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"])
    return Starlette(routes=routes, middleware=[guard])


def same_origin(request: Any) -> bool:
    """Return whether a request comes from a page of this server, as far as its browser says."""
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def listen(port: int | None) -> socket.socket:
    """Return a socket on the loopback, on ``port`` or else the first free one of :data:`PORTS`.

    Raises ``ConfigError``: the port is taken.
    """
    for number in PORTS if port is None else (port,):
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((_HOST, number))
        except OSError:
            found.close()
            continue
        found.listen()
        return found
    wanted = f"a free port from {PORTS[0]} to {PORTS[-1]}" if port is None else "a free port"
    raise ConfigError(expected("--port", wanted, "all in use" if port is None else port))


def address(listening: socket.socket) -> str:
    """Return the address of a page."""
    return f"http://{_HOST}:{listening.getsockname()[1]}/"


def server_of(app: Any) -> Any:
    """Return a server of an :func:`application`, whose ``state.ending()`` says when streams should end."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=5))
    app.state.ending = lambda: server.should_exit
    return server


def serve(app: Any, listening: socket.socket) -> None:
    """Answer until Ctrl-C or SIGTERM.

    Args:
        app: see :func:`application`.
        listening: see :func:`listen`.
    """
    with suppress(KeyboardInterrupt), listening:
        server_of(app).run(sockets=[listening])
