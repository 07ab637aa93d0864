"""The class server's application: who asks, where that leads, and what every page has in common."""

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, lru_cache, partial
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import uvicorn
from jinja2 import ChoiceLoader, Environment, PackageLoader, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from multigrid_rl import __version__
from multigrid_rl.competition.folders import MAX_FOLDER_FILES
from multigrid_rl.players.untrusted_files import PlayerError
from multigrid_rl.serve.database import Person
from multigrid_rl.serve.guard import CONNECTIONS, Guard, Pace, patient_protocol, same_site
from multigrid_rl.serve.people import Signer
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.store import Kept, RefusedError
from multigrid_rl.show.page import SCRIPTS, STYLES, TEXT_SCRIPTS, asset_text, templates
from multigrid_rl.text import ConfigError, one_line

#: Bytes of a form around its files, and of a piece of an upload, which is held in memory: a client sends a million.
_AROUND, _PIECE = 4_000_000, 1_500_000
#: Requests to one path at once that read files: each may hold a whole upload in memory.
_AT_ONCE = 4
#: Uploads of one person at once.
_EACH = 2
#: Pages, and pieces of them, that are kept until something happens; seconds for which nobody looks whether it has, and
#: for which, while one is made, others are answered with what was there before.
_KEPT, _FRESH_S, _STALE_S = 1_000, 0.1, 1.0
#: Names of this machine, by which it is always reached.
_OWN = ("127.0.0.1", "localhost")
#: A page, or a part of it that is asked for again and again: the mark of what it shows, and its text.
KeptPage = tuple[str, bytes]
_ORDER = {"": 0, "student": 1, "instructor": 2}


@dataclass
class Site:
    """A course as it is served."""

    store: Queue
    url: str = "http://127.0.0.1"  # by which browsers reach it
    uploading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    #: How often somebody may sign in from one address, change something, hand in, or open what takes a while.
    paces: Mapping[str, Pace] = field(
        default_factory=lambda: {
            "enter": Pace(60, 1), "change": Pace(30, 1), "upload": Pace(10, 5), "pieces": Pace(200, 0.1),
            "replay": Pace(30, 0.5),
        }
    )  # fmt: skip
    lock: threading.Lock = field(default_factory=threading.Lock)
    making: asyncio.Lock = field(default_factory=asyncio.Lock)  # of a page that is kept: else many would make the same
    sending: Counter[int] = field(default_factory=Counter)  # uploads of each person
    cache: dict[Any, Any] = field(default_factory=dict)
    before: dict[Any, Any] = field(default_factory=dict)  # what was kept until something happened
    looked: float = -_FRESH_S
    changed: float = 0.0

    @cached_property
    def signer(self) -> Signer:
        """What makes and reads the course's tokens."""
        return Signer(bytes.fromhex(self.store.setting("secret")), self.store.now)

    @property
    def secure(self) -> bool:
        """Whether it is reached by https."""
        return self.url.startswith("https:")

    @property
    def cookie(self) -> Any:
        """A session's cookie; with this beginning of its name browsers take it by https alone, for this host alone."""
        name = "__Host-session" if self.secure else "session"
        return {"key": name, "httponly": True, "samesite": "lax", "secure": self.secure}

    def look(self) -> None:
        """Forget what is kept if something has happened since."""
        version, self.looked = self.store.version(), time.monotonic()
        if self.cache.get("version") != version or len(self.cache) > _KEPT:
            self.before, self.cache, self.changed = self.cache, {"version": version}, self.looked

    def page(self, key: Any, *, stale: bool = False) -> KeptPage | None:
        """Return a page that is kept and was true a moment ago; ``stale``: or is just being made anew."""
        now = time.monotonic()
        found: KeptPage | None = self.cache.get(key) if stale or now - self.looked < _FRESH_S else None
        return found or (self.before.get(key) if stale and now - self.changed < _STALE_S else None)

    @contextmanager
    def upload_of(self, person: Person) -> Iterator[None]:
        """Count an upload, which is held in memory, for the block. Raises ``HTTPException``: there are enough."""
        if self.sending[person.id] >= _EACH:
            raise HTTPException(429, headers={"retry-after": "5"})
        self.sending[person.id] += 1
        try:
            yield
        finally:
            self.sending[person.id] -= 1

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, which is made once until something happens."""
        cache = self.cache  # what happens meanwhile puts another one in its place
        if (found := cache.get(key)) is None:
            found = cache[key] = make()
        return found

    def link(self, person: Person) -> str:
        """Return the personal link of somebody."""
        return f"{self.url}/enter/{self.signer.issue('link', person.id, person.token_version)}"

    def whose(self, kind: str, token: str) -> Person | None:
        """Return whose token this is; ``None``: nobody's, or one that was revoked."""
        if (said := self.signer.read(kind, token)) is None:
            return None
        number, version = said
        person: Person | None = self.kept(("person", number), lambda: self.store.get(Person, number))
        return person if person and not person.forgotten and person.token_version == version else None


class Ask(NamedTuple):
    """A request, and who makes it."""

    site: Site
    request: Request
    person: Person | None
    session: str  # token of the browser's session; empty: a program, or nobody
    form: FormData | Mapping[str, Any]
    body: bytes

    def is_ours(self, person_id: int | None) -> bool:
        """Return whether it is the number of who asks, or of somebody of the same team."""
        return self.person is not None and person_id in self.site.store.team(self.person.id).ids

    @property
    def teaches(self) -> bool:
        """Whether an instructor asks."""
        return self.person is not None and self.person.role == "instructor"

    @property
    def me(self) -> Person:
        """Who asks, where somebody must have signed in."""
        assert self.person is not None
        return self.person

    @property
    def by_program(self) -> bool:
        """Whether a program asks, which reads JSON."""
        return "application/json" in self.request.headers.get("accept", "")

    def number(self, key: str, of: Mapping[str, Any] | None = None) -> int:
        """Return a number of the path, or of a form. Raises ``HTTPException`` 404: another text."""
        text = str((self.request.path_params if of is None else of).get(key, ""))
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise HTTPException(404)
        return int(text)

    def found(self, table: type[Kept], of: Mapping[str, Any] | None = None) -> Kept:
        """Return the row whose number is ``id``. Raises ``HTTPException`` 404: there is none."""
        if (row := self.site.store.get(table, self.number("id", of))) is None:
            raise HTTPException(404)
        return row

    def page(self, template: str, title: str, *, status: int = 200, **content: Any) -> Response:
        """Return a page, or a part of one."""
        role = self.person.role if self.person else ""
        pages = [("/", "Ladder"), ("/mine", "My hand-ins"), ("/desk", "Desk")][: 1 + _ORDER[role]]
        text = environment().get_template(template).render(
            {"lead": "", **content}, title=title, course=self.site.store.course, person=self.person,
            pages=pages, here=self.request.url.path, stamp=stamp(), version=__version__, contents=[],
            now=self.site.store.now(),
            form=self.site.signer.form(self.session) if self.session else "", teaches=self.teaches,
        )  # fmt: skip
        return HTMLResponse(text, status)


class Page(NamedTuple):
    """What answers a path."""

    path: str
    answer: Callable[[Ask], Response]
    role: str = ""  # who may ask: "" everybody, "student" everybody of the roster
    method: str = "GET"
    pace: str = ""  # of :attr:`Site.paces`
    kept: bool = False  # :func:`kept_page` answers again what was answered
    sends: bool = False  # files come with it


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates: our own, and the parts of reports."""
    found = templates()
    found.filters["when"] = when
    return found.overlay(loader=ChoiceLoader([PackageLoader("multigrid_rl.serve"), found.loader]))  # type: ignore[list-item]


@pass_context
def when(context: Context, at: float) -> Markup:
    """Return a moment in words, in the class's own time zone and in UTC."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    own = moment.astimezone(context["course"].zone)
    text = f"{own:%d %b %H:%M:%S %Z}" + (f" ({moment:%d %b %H:%M} UTC)" if own.utcoffset() else "")
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), text)


@lru_cache(maxsize=1)
def assets() -> dict[str, bytes]:
    """Return the files that pages load, by name."""
    own = files("multigrid_rl.serve") / "assets"
    joined = {"replay.js": SCRIPTS, "texts.js": TEXT_SCRIPTS, "serve.css": STYLES}
    found = {"htmx.js": (own / "htmx.min.js").read_bytes()}
    found |= {name: asset_text(parts).encode() for name, parts in joined.items()}
    return found | {"serve.css": found["serve.css"] + (own / "serve.css").read_bytes()}


@lru_cache(maxsize=1)
def stamp() -> str:
    """Return a name for this state of all assets: browsers keep them for ever."""
    return hashlib.sha256(b"".join(assets().values())).hexdigest()[:16]


def asset(ask: Ask) -> Response:
    """Answer with a style or a script."""
    name = ask.request.path_params["name"]
    if name not in assets():
        raise HTTPException(404)
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return Response(assets()[name], media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})


def _who(site: Site, page: Page, request: Request) -> Ask:
    """Find out who asks. Raises ``HTTPException``: they may not, or too often."""
    site.look()
    bearer = request.headers.get("authorization", "")
    session = "" if bearer else request.cookies.get(site.cookie["key"], "")
    kind, token = ("token", bearer.removeprefix("Bearer ")) if bearer else ("session", session)
    person = site.whose(kind, token) if token else None
    if person is None and (bearer or page.role):
        raise HTTPException(401)
    if person is not None and _ORDER[person.role] < _ORDER[page.role]:
        raise HTTPException(404)  # what it is, is nobody's business
    who = f"{page.pace} {person.id if person else request.client.host if request.client else ''}"
    if page.pace and (wait := site.paces[page.pace].wait(who)):
        raise HTTPException(429, headers={"retry-after": str(int(wait) + 1)})
    if page.method != "GET" and not bearer and not same_site(request.headers, request.headers.get("host", "")):
        raise HTTPException(403, "expected a form of this site")
    return Ask(site, request, person, session if person else "", {}, b"")


def unless_same(kept: KeptPage, part: str | None) -> Response:
    """Answer with a page; nothing to who has the ``part`` that has the same mark."""
    mark, text = kept
    return Response(status_code=204) if part == mark else HTMLResponse(text)


def kept_page(ask: Ask, make: Callable[[], KeptPage]) -> Response:
    """Answer with a page that ``make`` returns, which is made once for everybody's session until something happens."""
    part = ask.request.query_params.get("part")
    if ask.person is not None and not ask.session:  # a program's view is not that of browsers without a session
        return unless_same(make(), part)
    key = (ask.request.url.path, part is None, ask.session)  # nothing that who asks may invent
    return unless_same(ask.site.kept(key, make), part)


async def _kept(site: Site, page: Page, request: Request) -> Response:
    """Answer with what :func:`kept_page` has kept, without a thread or the store; what it has not, one by one."""
    session, part = request.cookies.get(site.cookie["key"], ""), request.query_params.get("part")
    readable = "authorization" not in request.headers and (not session or site.signer.read("session", session))
    key = (request.url.path, part is None, session)
    if readable and (found := site.page(key, stale=site.making.locked())) is not None:
        return unless_same(found, part)
    async with site.making:
        if readable and (found := site.page(key)) is not None:  # another one has made it meanwhile
            return unless_same(found, part)
        return await run_in_threadpool(lambda: page.answer(_who(site, page, request)))


async def _asked(site: Site, page: Page, request: Request) -> Response:
    """Find out who asks, and let the page answer, both in a thread."""
    if page.kept:
        return await _kept(site, page, request)
    if page.method == "GET":
        return await run_in_threadpool(lambda: page.answer(_who(site, page, request)))
    ask = await run_in_threadpool(_who, site, page, request)
    if not page.sends:
        return await _answered(site, page, ask)
    with site.upload_of(ask.me):
        return await _answered(site, page, ask)


async def _answered(site: Site, page: Page, ask: Ask) -> Response:
    """Read what is sent with a request, and let the page answer."""
    request = ask.request
    if page.method == "PUT":
        return await run_in_threadpool(page.answer, ask._replace(body=await request.body()))
    async with request.form(max_files=MAX_FOLDER_FILES + 1, max_fields=50) as form:  # who sends slowly holds no place
        if ask.session and not site.signer.form_holds(ask.session, str(form.get("form", ""))):
            raise HTTPException(403, "expected a form of this site that is not out of date: go back and load it again")
        async with site.uploading:
            return await run_in_threadpool(page.answer, ask._replace(form=form))


_WORDS = {
    401: ("Please sign in", "Open your personal link; whoever runs this course can send it to you again."),
    403: ("That did not come from a page of this site", ""),
    404: ("There is nothing here", "Or it is not yours to see."),
    405: ("There is nothing here", ""),
    413: ("That is too large", ""),
    429: ("That was a little too often", "Wait a moment and try again."),
    500: ("The server made a mistake", "It is noted, and costs no hand-in. Try again."),
}
#: What is the fault of who asks, in a line.
_REFUSED = (RefusedError, PlayerError, ConfigError)
_NO_TOKEN = "token: expected one of this course that was not revoked, got another: make a new one on My hand-ins"


def _failed(site: Site, request: Request, error: Exception) -> Response:
    """Answer where something went wrong: with a page, or JSON to a program."""
    status, headers, (title, detail) = 500, {}, _WORDS[500]
    if isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        title, detail = _WORDS.get(status, _WORDS[500])
        detail = error.detail if error.detail and status in (400, 403, 413, 408) else detail
    elif isinstance(error, _REFUSED):
        status, title, detail = 409, "That was refused", one_line(error)
    ask = Ask(site, request, None, "", {}, b"")
    if ask.by_program:
        return JSONResponse({"reason": _NO_TOKEN if status == 401 else detail or title}, status, headers)
    answer = ask.page("message.html", title, status=status, lead=detail, back="/mine" if status == 409 else "/")
    answer.headers.update(headers)
    return answer


def application(site: Site, pages: list[Page]) -> Any:
    """Return the ASGI application of a course, guarded."""
    pages = [*pages, Page("/assets/{stamp}/{name}", asset)]
    app = Starlette(
        routes=[Route(page.path, partial(_asked, site, page), methods=[page.method]) for page in pages],
        exception_handlers=dict.fromkeys((HTTPException, *_REFUSED, Exception), partial(_failed, site)),
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[urlsplit(site.url).hostname or "", *_OWN])],
    )
    most = int(site.store.course.quota.megabytes * 1e6) + _AROUND
    return Guard(app, {"/hand-in": most, "/parts/": _PIECE}, secure=site.secure)


def server_of(app: Any, *, behind_proxy: bool = False) -> Any:
    """Return a server of an :func:`application`; its ``run(sockets=[...])`` serves until SIGTERM.

    ``behind_proxy``: a proxy on this machine says whose requests these are.
    """
    http = patient_protocol(most=None if behind_proxy else CONNECTIONS)  # a proxy's address is everybody's
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", http=http, limit_concurrency=1000,
        timeout_graceful_shutdown=5, timeout_keep_alive=30, server_header=False, proxy_headers=behind_proxy,
        forwarded_allow_ips="*" if behind_proxy else "",
    )  # fmt: skip
    return uvicorn.Server(config)
