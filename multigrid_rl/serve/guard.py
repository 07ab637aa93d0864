"""What stands before every page: size, time and pace of requests, headers of answers, connections that say nothing."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Nothing from elsewhere, no script or style in a page, no page of ours in a frame of others.
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
#: Bytes of a request that brings no files, and seconds in which one must have arrived.
SMALL = 64_000
PATIENCE_S = 20.0
#: Connections that an address may have at once: a browser has six.
CONNECTIONS = 50
#: Bytes a second below which an upload is not waited for, beyond :data:`PATIENCE_S`.
SLOWEST = 8_000
#: People whose pace is remembered; the slowest-filled are forgotten first.
_MAX_BUCKETS = 10_000


class Guard:
    """An ASGI application around another: refuses what is too large or too slow, and sets :data:`HEADERS`.

    ``sizes`` are bytes that a request to a path that begins so may have, others :data:`SMALL`; ``secure``: browsers
    should never try http again; ``patience_s``: seconds in which a request must have arrived.
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
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = list(message.get("headers", []))
                message["headers"] = own + [row for row in self.headers if row[0] not in dict(own)]
            await send(message)

        most = next((size for path, size in self.sizes.items() if scope["path"].startswith(path)), SMALL)
        try:
            told = dict(scope["headers"]).get(b"content-length", b"0")
            if not told.isdigit() or int(told) > most:
                # Browsers read no answer before they have sent all; what is not enormous is read, and thrown away.
                thrown = self._counted(receive, 4 * most)
                while (await thrown()).get("more_body"):
                    pass
                raise HTTPException(413, f"expected at most {most} bytes, got {told.decode('latin-1')[:20]}")
            await self.app(scope, self._counted(receive, most), answer)
        except HTTPException as error:
            if not begun:
                refused = PlainTextResponse(f"{error.detail}\n", error.status_code, {"connection": "close"})
                await refused(scope, receive, answer)

    def _counted(self, receive: Receive, most: int) -> Receive:
        begin, got, whole = time.monotonic(), 0, False

        async def counted() -> Message:
            nonlocal got, whole
            if whole:
                return await receive()  # waits for the end of the connection
            left = begin + self.patience_s + got / SLOWEST - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(left, 0.01))
            except asyncio.TimeoutError:
                raise HTTPException(408, f"expected a request within {self.patience_s:.0f} s") from None
            got += len(message.get("body", b""))
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            if got > most:
                raise HTTPException(413, f"expected at most {most} bytes, got more")
            return message

        return counted


@dataclass
class Pace:
    """How often somebody may do something: ``burst`` at once, and again one every ``every_s`` seconds."""

    burst: float
    every_s: float
    clock: Callable[[], float] = time.monotonic  # seconds that only grow
    _full_at: dict[str, float] = field(default_factory=dict, repr=False)  # by who: when all may be done at once again

    def wait(self, who: str) -> float:
        """Count one more of ``who``; returns 0, or the seconds to wait first, in which case it does not count."""
        now = self.clock()
        full = max(self._full_at.get(who, now), now) + self.every_s
        if (over := full - now - self.burst * self.every_s) > 1e-9:
            return over
        self._full_at.pop(who, None)
        self._full_at[who] = full  # the latest last
        if len(self._full_at) > _MAX_BUCKETS:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
            while len(self._full_at) > _MAX_BUCKETS:
                self._full_at.pop(next(iter(self._full_at)))
        return 0.0


def same_site(headers: object, host: str) -> bool:
    """Return whether a request comes from a page of ours, as its browser says.

    Browsers send ``Origin`` with every form, and newer ones ``Sec-Fetch-Site``; a program sends neither.
    (https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html)
    """
    get: Callable[[str], str | None] = headers.get  # type: ignore[attr-defined]
    site, origin = get("sec-fetch-site"), get("origin")
    return site in (None, "same-origin", "none") and (origin is None or origin.partition("://")[2] == host)


def _bounded(own: list[Any], most: int | None) -> list[Any]:
    """Return connections of an address; of too many the oldest that asks nothing is closed, the new one if all ask."""
    if most is None or len(own) <= most:
        return own
    idle = next(each for each in own if each._idle())
    idle.transport.close()
    return [each for each in own if each is not idle]


def patient_protocol(patience_s: float = PATIENCE_S, most: int | None = CONNECTIONS) -> Any:
    """Return uvicorn's protocol, but for connections that send no whole head of a request in time: they are closed.

    An address may have so many at once as ``most`` says.
    """
    of: dict[str, list[Any]] = {}  # connections of each address, the oldest first

    class Patient(H11Protocol):
        """Closes a connection that has not asked for anything in time, at first or after its last request."""

        waiting = False

        def connection_made(self, transport: Any) -> None:
            """Begin to wait for the first request."""
            super().connection_made(transport)
            self.whose = (transport.get_extra_info("peername") or ("",))[0]
            of[self.whose] = _bounded([*of.get(self.whose, []), self], most)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            """Count it no longer."""
            super().connection_lost(exc)
            left = [each for each in of.pop(self.whose, []) if each is not self]
            of.update({self.whose: left} if left else {})

        def data_received(self, data: bytes) -> None:
            """Take what has come; begin to wait where it is the beginning of a request and no more."""
            super().data_received(data)
            if not self.waiting and self._idle():
                self._wait()

        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _wait(self) -> None:
            self.waiting = True
            self.loop.call_later(patience_s, self._look, self.cycle)

        def _look(self, before: Any) -> None:
            self.waiting = False
            if self.cycle is before and self._idle() and not self.transport.is_closing():
                self.transport.close()

    return Patient
