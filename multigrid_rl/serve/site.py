"""The web application of a class server: requests and their people, routes, caching, errors."""

import asyncio
import hashlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar
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
from multigrid_rl.serve.database import Person
from multigrid_rl.serve.guard import MAX_CONNECTIONS, Guard, Pace, patient_protocol, same_site
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.store import TableRow
from multigrid_rl.show.page import SCRIPTS, STYLES, TEXT_SCRIPTS, asset_text, templates
from multigrid_rl.text import ConfigError, PlayerError, one_line

#: Bytes of a form without its files, and of a piece of an upload, held in memory (clients send a million).
_FORM_BYTES, _PIECE_BYTES = 4_000_000, 1_500_000
#: Requests that read files at once: each may hold an upload in memory.
_MAX_READING = 4
#: Uploads of one person at once.
_MAX_UPLOADS = 2
#: Entries of the cache, which is cleared after each event; seconds between looks for events; seconds for which a page
#: of the previous cache is sent while the new one is made.
_MAX_CACHED, _FRESH_S, _STALE_S = 1_000, 0.1, 1.0
#: Names of this machine, always allowed.
_LOCAL = ("127.0.0.1", "localhost")
#: A page, or the part of it that browsers poll: a mark of its content, and its text.
CachedPage = tuple[str, bytes]
Value = TypeVar("Value")
_ROLE_RANK = {"": 0, "left": 0, "student": 1, "instructor": 2}


@dataclass
class Site:
    """A served course: its store, limits and cache."""

    store: Queue
    url: str = "http://127.0.0.1"  # for browsers
    uploading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_READING))
    #: Rate limits of signing in (by address), of changes, uploads and expensive pages (by person).
    paces: Mapping[str, Pace] = field(
        default_factory=lambda: {
            "enter": Pace(60, 1), "change": Pace(30, 1), "upload": Pace(10, 5), "pieces": Pace(200, 0.1),
            "replay": Pace(30, 0.5),
        }
    )  # fmt: skip
    upload_locks: defaultdict[int, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    page_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a cached page is made, once for all
    uploads_by_person: Counter[int] = field(default_factory=Counter)  # uploads of each person
    arrived: dict[tuple[int, str], int] = field(default_factory=dict)  # in pieces: submissions by person and SHA-256
    cache: dict[Any, Any] = field(default_factory=dict)
    previous_cache: dict[Any, Any] = field(default_factory=dict)  # before the last event
    refreshed_at: float = -_FRESH_S
    changed_at: float = 0.0

    @property
    def secure(self) -> bool:
        """Whether its address is https."""
        return self.url.startswith("https:")

    @property
    def cookie(self) -> Any:
        """A session's cookie; browsers accept the prefix ``__Host-`` only by https, for this host."""
        name = "__Host-session" if self.secure else "session"
        return {"key": name, "httponly": True, "samesite": "lax", "secure": self.secure}

    def refresh(self) -> None:
        """Clear the cache if there is a new event."""
        version, self.refreshed_at = self.store.version(), time.monotonic()
        if self.cache.get("version") != version or len(self.cache) > _MAX_CACHED:
            self.previous_cache, self.cache, self.changed_at = self.cache, {"version": version}, self.refreshed_at

    def page(self, key: Any, *, stale: bool = False) -> CachedPage | None:
        """Return a cached page that was checked a moment ago; ``stale``: or an outdated one, while it is made again."""
        now = time.monotonic()
        found: CachedPage | None = self.cache.get(key) if stale or now - self.refreshed_at < _FRESH_S else None
        return found or (self.previous_cache.get(key) if stale and now - self.changed_at < _STALE_S else None)

    @contextmanager
    def upload_of(self, person: Person) -> Iterator[None]:
        """Count an upload, which is held in memory, for the block. Raises ``HTTPException``: there are too many."""
        if self.uploads_by_person[person.id] >= _MAX_UPLOADS:
            raise HTTPException(429, headers={"retry-after": "5"})
        self.uploads_by_person[person.id] += 1
        try:
            yield
        finally:
            self.uploads_by_person[person.id] -= 1

    def cached(self, key: Any, make: Callable[[], Value]) -> Value:
        """Return the value of ``make``, called once until the next event."""
        cache: dict[Any, Value] = self.cache  # an event meanwhile replaces it
        if (value := cache.get(key)) is None:
            value = cache[key] = make()
        return value

    def person_of(self, kind: str, token: str) -> Person | None:
        """Return the person of a token; ``None``: an invalid or revoked one."""
        if (signed := self.store.signer.read(kind, token)) is None:
            return None
        number, version = signed
        person = self.cached(("person", number), lambda: self.store.get(Person, number))
        return person if person and not person.forgotten and person.token_version == version else None


class Visit(NamedTuple):
    """A request and its person."""

    site: Site
    request: Request
    person: Person | None
    session: str  # token of the browser's session; empty: a program, or no person
    form: FormData | Mapping[str, Any]
    body: bytes

    def may_read(self, person_id: int | None) -> bool:
        """Return whether all of this person is the visitor's to see: an instructor's, or the own team's."""
        return self.teaches or (self.person is not None and person_id in self.site.store.team(self.person.id).ids)

    @property
    def teaches(self) -> bool:
        """Whether the visitor is an instructor."""
        return self.person is not None and self.person.role == "instructor"

    @property
    def user(self) -> Person:
        """The person, on pages that need one."""
        assert self.person is not None
        return self.person

    @property
    def wants_json(self) -> bool:
        """Whether the visitor is a program, which reads JSON."""
        return "application/json" in self.request.headers.get("accept", "")

    def number(self, values: Mapping[str, Any] | None = None) -> int:
        """Return the number ``id`` of the path, or of a form. Raises ``HTTPException`` 404: another text."""
        text = str((self.request.path_params if values is None else values).get("id", ""))
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise HTTPException(404)
        return int(text)

    def row_or_404(self, table: type[TableRow], values: Mapping[str, Any] | None = None) -> TableRow:
        """Return the row with the number ``id``. Raises ``HTTPException`` 404: there is none."""
        if (row := self.site.store.get(table, self.number(values))) is None:
            raise HTTPException(404)
        return row

    def page(self, template: str, title: str, *, status: int = 200, **content: Any) -> Response:
        """Return a page, or a part of one."""
        role = self.person.role if self.person else ""
        pages = [("/", "Ladder"), ("/mine", "My submissions"), ("/desk", "Desk")][: 1 + _ROLE_RANK[role]]
        text = environment().get_template(template).render(
            {"lead": "", **content}, title=title, course=self.site.store.course, person=self.person,
            pages=pages, here=self.request.url.path, stamp=stamp(), version=__version__, contents=[],
            now=self.site.store.now(),
            form=self.site.store.signer.form_secret(self.session) if self.session else "", teaches=self.teaches,
        )  # fmt: skip
        return HTMLResponse(text, status)


class Page(NamedTuple):
    """A path and the function that answers it."""

    path: str
    answer: Callable[[Visit], Response]
    role: str = ""  # necessary role: "" none, "student" any person of the roster, "instructor"
    method: str = "GET"
    pace: str = ""  # of :attr:`Site.paces`
    cached: bool = False  # its answers are from :func:`cached_page`
    sends: bool = False  # its requests bring files


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates: the class server's, and the parts of reports."""
    found = templates()
    found.filters["when"] = when
    return found.overlay(loader=ChoiceLoader([PackageLoader("multigrid_rl.serve"), found.loader]))  # type: ignore[list-item]


@pass_context
def when(context: Context, at: float) -> Markup:
    """Return a moment in words, in the class's time zone and in UTC."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    local = moment.astimezone(context["course"].zone)
    text = f"{local:%d %b %H:%M:%S %Z}" + (f" ({moment:%d %b %H:%M} UTC)" if local.utcoffset() else "")
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), text)


@lru_cache(maxsize=1)
def assets() -> dict[str, bytes]:
    """Return the files that pages load, by name."""
    folder = files("multigrid_rl.serve") / "assets"
    joined = {"replay.js": SCRIPTS, "texts.js": TEXT_SCRIPTS, "serve.css": STYLES}
    found = {"htmx.js": (folder / "htmx.min.js").read_bytes()}
    found |= {name: asset_text(parts).encode() for name, parts in joined.items()}
    return found | {"serve.css": found["serve.css"] + (folder / "serve.css").read_bytes()}


@lru_cache(maxsize=1)
def stamp() -> str:
    """Return a hash of all assets, as a part of their path: browsers cache them for ever."""
    return hashlib.sha256(b"".join(assets().values())).hexdigest()[:16]


def asset(visit: Visit) -> Response:
    """Answer with a style or a script."""
    if (name := visit.request.path_params["name"]) not in assets():
        raise HTTPException(404)
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return Response(assets()[name], media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})


def _identify(site: Site, page: Page, request: Request) -> Visit:
    """Return the request with its person. Raises ``HTTPException``: not allowed, or too often."""
    site.refresh()
    bearer = request.headers.get("authorization", "")
    session = "" if bearer else request.cookies.get(site.cookie["key"], "")
    kind, token = ("token", bearer.removeprefix("Bearer ")) if bearer else ("session", session)
    person = site.person_of(kind, token) if token else None
    if person is None and (bearer or page.role):
        raise HTTPException(401)
    if person is not None and _ROLE_RANK[person.role] < _ROLE_RANK[page.role]:
        raise HTTPException(404)  # a 403 would reveal that the page exists
    pace_key = f"{page.pace} {person.id if person else request.client.host if request.client else ''}"
    if page.pace and (wait := site.paces[page.pace].wait(pace_key)):
        raise HTTPException(429, headers={"retry-after": str(int(wait) + 1)})
    if page.method != "GET" and not bearer and not same_site(request.headers, request.headers.get("host", "")):
        raise HTTPException(403, "expected a form of this site")
    return Visit(site, request, person, session if person else "", {}, b"")


def page_if_changed(cached: CachedPage, part: str | None) -> Response:
    """Answer with a page, or with 204 where the visitor's ``part`` has the same mark."""
    mark, text = cached
    return Response(status_code=204) if part == mark else HTMLResponse(text)


def cached_page(visit: Visit, make: Callable[[], CachedPage]) -> Response:
    """Answer with the page of ``make``, called once for each session until the next event."""
    part = visit.request.query_params.get("part")
    if visit.person is not None and not visit.session:  # a program with a token has no session as a key
        return page_if_changed(make(), part)
    key = (visit.request.url.path, part is None, visit.session)  # nothing that a visitor can choose freely
    return page_if_changed(visit.site.cached(key, make), part)


async def _cached_response(site: Site, page: Page, request: Request) -> Response:
    """Answer with a page of :func:`cached_page`, without a thread or the store; make missing ones one by one."""
    session, part = request.cookies.get(site.cookie["key"], ""), request.query_params.get("part")
    readable = "authorization" not in request.headers and (not session or site.store.signer.read("session", session))
    key = (request.url.path, part is None, session)
    if readable and (found := site.page(key, stale=site.page_lock.locked())) is not None:
        return page_if_changed(found, part)
    async with site.page_lock:
        if readable and (found := site.page(key)) is not None:  # another request has made it meanwhile
            return page_if_changed(found, part)
        return await run_in_threadpool(lambda: page.answer(_identify(site, page, request)))


async def _respond(site: Site, page: Page, request: Request) -> Response:
    """Find the person of a request, read its body, and let the page answer, the first and the last in a thread."""
    if page.cached:
        return await _cached_response(site, page, request)
    if page.method == "GET":
        return await run_in_threadpool(lambda: page.answer(_identify(site, page, request)))
    visit = await run_in_threadpool(_identify, site, page, request)
    with site.upload_of(visit.user) if page.sends else nullcontext():
        if page.method == "PUT":
            return await run_in_threadpool(page.answer, visit._replace(body=await request.body()))
        async with request.form(max_files=MAX_FOLDER_FILES + 1, max_fields=50) as form:  # slow senders block no others
            if visit.session and not site.store.signer.form_is_valid(visit.session, str(form.get("form", ""))):
                raise HTTPException(403, _OLD_FORM)
            async with site.uploading:
                return await run_in_threadpool(page.answer, visit._replace(form=form))


_OLD_FORM = "expected a form of this site that is not out of date: go back and load it again"
_ERROR_TEXTS = {
    401: ("Please sign in", "Open your personal link; your instructor can send it to you again."),
    403: ("That did not come from a page of this site", ""),
    404: ("There is nothing here", "Or it is not yours to see."),
    405: ("There is nothing here", ""),
    413: ("That is too large", ""),
    429: ("That was a little too often", "Wait a moment and try again."),
    500: ("The server made a mistake", "It is noted, and costs no submission. Try again."),
}
#: Faults of the visitor, with a message of one line.
_REFUSED = (PlayerError, ConfigError)
_NO_TOKEN = "token: expected one of this course that was not revoked, got another: make a new one on My submissions"


def _error_response(site: Site, request: Request, error: Exception) -> Response:
    """Answer after an error: with a page, or JSON to a program."""
    status, headers, (title, detail) = 500, {}, _ERROR_TEXTS[500]
    if isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        title, detail = _ERROR_TEXTS.get(status, _ERROR_TEXTS[500])
        detail = error.detail if error.detail and status in (400, 403, 413, 408) else detail
    elif isinstance(error, _REFUSED):
        status, title, detail = 409, "That was refused", one_line(error)
    visit = Visit(site, request, None, "", {}, b"")
    if visit.wants_json:
        return JSONResponse({"reason": _NO_TOKEN if status == 401 else detail or title}, status, headers)
    response = visit.page("message.html", title, status=status, lead=detail, back="/mine" if status == 409 else "/")
    response.headers.update(headers)
    return response


def application(site: Site, pages: list[Page]) -> Any:
    """Return the ASGI application of a course, guarded."""
    pages = [*pages, Page("/assets/{stamp}/{name}", asset)]
    app = Starlette(
        routes=[Route(page.path, partial(_respond, site, page), methods=[page.method]) for page in pages],
        exception_handlers=dict.fromkeys((HTTPException, *_REFUSED, Exception), partial(_error_response, site)),
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[urlsplit(site.url).hostname or "", *_LOCAL])],
    )
    max_bytes = int(site.store.course.quota.megabytes * 1e6) + _FORM_BYTES
    return Guard(app, {"/hand-in": max_bytes, "/parts/": _PIECE_BYTES}, secure=site.secure)


def server_of(app: Any, *, behind_proxy: bool = False) -> Any:
    """Return a server of an :func:`application`; ``behind_proxy``: a proxy here gives the client's address."""
    http = patient_protocol(limit=None if behind_proxy else MAX_CONNECTIONS)  # all connections are a proxy's
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", http=http, limit_concurrency=1000,
        timeout_graceful_shutdown=5, timeout_keep_alive=30, server_header=False, proxy_headers=behind_proxy,
        forwarded_allow_ips="*" if behind_proxy else "",
    )  # fmt: skip
    return uvicorn.Server(config)
