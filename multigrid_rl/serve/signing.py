"""Who somebody is: personal links and tokens that are signed, end, and can be revoked; forms of our own pages alone.

A token says who, as what, and until when, under a signature (HMAC-SHA-256) with the course's secret. It holds for as
long as the person's ``token_version`` in the store is the one it was made for: revoking is counting that up.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

DAY = 86_400.0
#: What a token may be for, and how many seconds it holds: a link in a mail, a client's file, a browser's cookie.
KINDS = {"link": 200 * DAY, "token": 200 * DAY, "session": 14 * DAY}
#: What is longer is not looked at.
_MAX_TOKEN = 400
#: People whose pace is remembered; the slowest-filled are forgotten first.
_MAX_BUCKETS = 10_000


@dataclass(frozen=True)
class Signer:
    """Makes and reads tokens."""

    secret: bytes  # of the course; it is in the store alone
    clock: Callable[[], float] = time.time  # seconds since 1970

    def issue(self, kind: str, person: int, version: int) -> str:
        """Return a token of a kind of :data:`KINDS` for a person, to be read by :meth:`read`."""
        said = f"{int(self.clock() + KINDS[kind])} {version} {person}".encode()
        return f"{_written(said)}.{_written(self._signature(kind, said))}"

    def read(self, kind: str, token: str) -> tuple[int, int] | None:
        """Return whose token of this kind it is, and of which version; ``None``: forged, of another kind, or over."""
        with suppress(ValueError):
            said, signature = map(_read, token[:_MAX_TOKEN].split("."))
            if hmac.compare_digest(signature, self._signature(kind, said)):
                until, version, person = map(int, said.split(b" "))
                return (person, version) if until > self.clock() else None
        return None

    def form(self, session: str) -> str:
        """Return the secret of a session's forms: who can read our pages knows it, and nobody else."""
        return _written(self._signature("form", session.encode()))

    def form_holds(self, session: str, told: str) -> bool:
        """Return whether a form came from a page of this session."""
        return hmac.compare_digest(self.form(session).encode(), told.encode())

    def _signature(self, kind: str, said: bytes) -> bytes:
        return hmac.digest(self.secret, kind.encode() + b"\0" + said, hashlib.sha256)


def _written(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _read(text: str) -> bytes:
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _written(data) != text:  # not lenient: of all ways to write the same bytes one is right
        raise ValueError(text)
    return data


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
