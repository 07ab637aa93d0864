"""Limits on requests: size, time, pace, idle connections; security headers of all answers."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

#: No content of other sites, no inline script or style, no page in a frame of another site.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
#: Bytes of a request without files, and seconds in which a request must arrive.
MAX_SMALL_BYTES = 64_000
PATIENCE_S = 20.0
#: Connections that an address may have at once: a browser has six.
MAX_CONNECTIONS = 50
#: Bytes a second that an upload must have after :data:`PATIENCE_S`; slower ones are refused.
MIN_BYTES_PER_S = 8_000
#: Keys that a :class:`Pace` remembers; the oldest are forgotten first.
_MAX_BUCKETS = 10_000


class Guard:
    """An ASGI application around another: refuses too large or too slow requests, and sets :data:`HEADERS`.

    ``sizes`` maps the start of a path to the bytes of a request; other paths have :data:`MAX_SMALL_BYTES`. ``secure``:
    browsers never try http again. ``patience_s``: seconds in which a request must arrive.
    """

    def __init__(
        self, app: ASGIApp, sizes: Mapping[str, int], *, secure: bool = False, patience_s: float = PATIENCE_S
    ) -> None:
        self.app, self.sizes, self.patience_s = app, sizes, patience_s
        headers = HEADERS | ({"strict-transport-security": "max-age=31536000"} if secure else {})
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message.get("headers", []))
                message["headers"] = headers + [row for row in self.headers if row[0] not in dict(headers)]
            await send(message)

        max_bytes = next((size for path, size in self.sizes.items() if scope["path"].startswith(path)), MAX_SMALL_BYTES)
        try:
            length = dict(scope["headers"]).get(b"content-length", b"0")
            if not length.isdigit() or int(length) > max_bytes:
                # Browsers read no answer before they have sent all: up to four times the limit is read and discarded.
                discarded = self._limited(receive, 4 * max_bytes)
                while (await discarded()).get("more_body"):
                    pass
                raise HTTPException(413, f"expected at most {max_bytes} bytes, got {length.decode('latin-1')[:20]}")
            await self.app(scope, self._limited(receive, max_bytes), send_guarded)
        except HTTPException as error:
            if not started:
                refused = PlainTextResponse(f"{error.detail}\n", error.status_code, {"connection": "close"})
                await refused(scope, receive, send_guarded)

    def _limited(self, receive: Receive, max_bytes: int) -> Receive:
        started_at, received, complete = time.monotonic(), 0, False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()  # waits for the end of the connection
            remaining_s = started_at + self.patience_s + received / MIN_BYTES_PER_S - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(remaining_s, 0.01))
            except asyncio.TimeoutError:
                raise HTTPException(408, f"expected a request within {self.patience_s:.0f} s") from None
            received += len(message.get("body", b""))
            complete = message["type"] != "http.request" or not message.get("more_body", False)
            if received > max_bytes:
                raise HTTPException(413, f"expected at most {max_bytes} bytes, got more")
            return message

        return limited


@dataclass
class Pace:
    """A rate limit: ``burst`` requests at once, then one every ``every_s`` seconds."""

    burst: float
    every_s: float
    clock: Callable[[], float] = time.monotonic  # seconds that only grow
    _full_at: dict[str, float] = field(default_factory=dict, repr=False)  # by key: when a whole burst is allowed again

    def wait(self, key: str) -> float:
        """Count a request of ``key`` and return 0; where it comes too early return the seconds to wait, uncounted."""
        now = self.clock()
        full_at = max(self._full_at.get(key, now), now) + self.every_s
        if (wait_s := full_at - now - self.burst * self.every_s) > 1e-9:
            return wait_s
        self._full_at.pop(key, None)
        self._full_at[key] = full_at  # the latest last
        if len(self._full_at) > _MAX_BUCKETS:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
            while len(self._full_at) > _MAX_BUCKETS:
                self._full_at.pop(next(iter(self._full_at)))
        return 0.0


def same_site(headers: Mapping[str, str], host: str) -> bool:
    """Return whether a request comes from a page of this site, by the headers of its browser.

    Browsers send ``Origin`` with every form, and newer ones ``Sec-Fetch-Site``; a program sends neither.
    (https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html)
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    return site in (None, "same-origin", "none") and (origin is None or origin.partition("://")[2] == host)


def _bounded(connections: list[Any], limit: int | None) -> list[Any]:
    """Return connections of an address; above the limit the oldest idle one is closed, the new one if none is idle."""
    if limit is None or len(connections) <= limit:
        return connections
    idle = next(connection for connection in connections if connection._idle())
    idle.transport.close()
    return [connection for connection in connections if connection is not idle]


def patient_protocol(patience_s: float = PATIENCE_S, limit: int | None = MAX_CONNECTIONS) -> Any:
    """Return uvicorn's protocol with at most ``limit`` connections of an address; it closes idle ones in time."""
    by_address: dict[str, list[Any]] = {}  # connections of each address, the oldest first

    class Patient(H11Protocol):
        """Closes a connection without a request in time, after its start or its last request."""

        waiting = False

        def connection_made(self, transport: Any) -> None:
            """Begin to wait for the first request."""
            super().connection_made(transport)
            self.address = (transport.get_extra_info("peername") or ("",))[0]
            by_address[self.address] = _bounded([*by_address.get(self.address, []), self], limit)
            self._start_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the connection."""
            super().connection_lost(exc)
            remaining = [connection for connection in by_address.pop(self.address, []) if connection is not self]
            by_address.update({self.address: remaining} if remaining else {})

        def data_received(self, data: bytes) -> None:
            """Take data; begin to wait where it is an incomplete head of a request."""
            super().data_received(data)
            if not self.waiting and self._idle():
                self._start_waiting()

        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _start_waiting(self) -> None:
            self.waiting = True
            self.loop.call_later(patience_s, self._close_if_idle, self.cycle)

        def _close_if_idle(self, cycle: Any) -> None:
            self.waiting = False
            if self.cycle is cycle and self._idle() and not self.transport.is_closing():
                self.transport.close()

    return Patient
