"""The commands ``serve``, ``inspect`` and ``submit``: a class server, and a submission to one from a terminal."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from multigrid_rl.cli.app import refused
from multigrid_rl.cli.output import exit_on_signals, one_thread, refuse_unread
from multigrid_rl.competition.cup_commands import Trusted
from multigrid_rl.competition.folders import read_parts
from multigrid_rl.show.words import rounded
from multigrid_rl.text import ConfigError, PlayerError, expected, printable, shown, unknown
from multigrid_rl.trust import strangers, trusting_agents
from multigrid_rl.types import RunError

_ACTIONS = {
    "start": "answer browsers and play, until Ctrl-C; what an action is left out for",
    "verify": "compute the ladder again from all games, and replay ten pairings",
    "backup": "write everything into one new file, -o FILE",
    "restore": "bring back what a backup has, into an empty folder and database; FILE behind the course",
    "final": "after the deadline: a cup of all that stands on the ladder, with fresh seeds, -o FOLDER",
    "freeze": "take no more submissions; `thaw` takes them again",
    "thaw": "",
    "regrade": "grade all rated submissions again",
    "export": "write ladder.csv, moodle.csv, canvas.csv or gradescope.zip, named behind the course, perhaps with a "
    "deadline's name behind it, the last one by default",
    "purge": "forget students who asked for it a week ago, and all students once `keep_days` after the last "
    "deadline are over; or at once the person whose id stands behind the course",
    "links": "print all personal links, as a CSV",
}
HOST = "127.0.0.1"
_HELP = "course.yaml, perhaps behind an action: " + "; ".join(
    f"{name}: {does}" for name, does in _ACTIONS.items() if does
)

#: File with the token, and nothing else.
TOKEN = Path("~/.config/multigrid-rl/token")
#: Bytes of one piece: at most these are sent again after a broken connection.
_PIECE = 1_000_000
#: Seconds of waiting before each further try of a request without an answer.
_AGAIN_S = (1.0, 2.0, 5.0, 10.0, 20.0)
_TIMEOUT_S = 30.0
#: Statuses after which a request is tried again: too many requests, or a starting server.
_RETRY_STATUSES = (429, 502, 503, 504)
#: Hosts to which a token may be sent without encryption.
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
#: Date of all files in an archive: the same folder gives the same archive, so that its upload resumes.
_DATE = (1980, 1, 1, 0, 0, 0)


def serve(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="[ACTION] COURSE [MORE]", help=_HELP)],
    home: Annotated[Path | None, typer.Option(help="Folder of files; beside the course by default.")] = None,
    database: Annotated[
        str | None, typer.Option(help="postgresql://user@host/name; a file of SQLite in the folder by default.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: for other machines, too.")] = HOST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    url: Annotated[str | None, typer.Option(help="How browsers reach it: https://ladder.example.org.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine says who asks (docs/serve.md).")
    ] = False,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Processes that play networks, the course's number by default; or a Ray cluster that plays: "
            "auto, host:port or ray://host:port."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New file or folder of an action.")] = None,
    every: Annotated[bool, typer.Option("--all", help="With verify: replay every pairing.")] = False,
    trusted: Trusted = False,
) -> None:
    """Serve a class: submissions, a ladder, grades (docs/serve.md). One process with children; no service is needed."""
    # Before numpy is loaded: the threads of a dozen processes would compete for the same cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from multigrid_rl.serve.supervisor import place_of, start

    action, *rest = words if words[0] in _ACTIONS else ("start", *words)
    if not rest:
        raise refused("COURSE", "a file such as course.yaml", "none")
    if len(rest) > {"restore": 2, "purge": 2, "export": 3}.get(action, 1):
        raise refused("ACTION", " or ".join(_ACTIONS), unknown("it", rest[0], _ACTIONS).partition("got ")[2])
    reads = {"start": ("host", "port", "url", "behind_proxy", "workers"), "links": ("port", "url")}
    reads |= {"verify": ("every",), **dict.fromkeys(("backup", "export", "final"), ("output",))}
    refuse_unread(context, action, ("words", "home", "database", "trusted", *reads.get(action, ())))
    with trusting_agents(trusted):
        place = place_of(Path(rest[0]), home, database)
        address = (url or f"http://{'localhost' if host == HOST else host}:{port}").rstrip("/")
        if action == "start":
            start(place, (host, port), address, behind_proxy=behind_proxy, workers=workers)
            return
        from multigrid_rl.serve import admin_commands

        one_thread()
        with exit_on_signals(), admin_commands.open_course(place, empty=action == "restore") as queue:
            request = admin_commands.AdminContext(place, queue, output, rest[1:], every, address)
            result = admin_commands.ADMIN_COMMANDS[action](request)
    if isinstance(result, str):
        typer.echo(result, nl=False)
        return
    typer.echo(json.dumps(result))
    if result.get("different"):
        raise typer.Exit(1)


def inspect(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A bundle or an agent, as a folder or a zip file (docs/agents.md).")],
    scenario: Annotated[
        str | None, typer.Option(help="Game that it is to play; a bundle's own by default, 1v1 for an agent.")
    ] = None,
    rookie: Annotated[str, typer.Option(help="The player that it meets.")] = "random",
    course: Annotated[Path | None, typer.Option(help="The file course.yaml, which says scenario and rookie.")] = None,
    trusted: Trusted = False,
) -> None:
    """Show what a bundle or an agent is, and let it play as a class server does to check it; the last line says ok."""
    if course is not None:
        refuse_unread(context, "--course, which says it", ("folder", "course", "trusted"))
    from multigrid_rl.serve.judge import inspection_lines

    one_thread()
    with exit_on_signals(), strangers(), trusting_agents(trusted):
        for line in inspection_lines(folder, scenario, rookie, course):
            typer.echo(line)


# --- submit


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a token goes to the named server only."""

    def redirect_request(self, *_: Any) -> None:
        return None


class CourseClient:
    """Client of a class server, with a student's token. Raises ``ConfigError``: an address without encryption."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS):
            raise ConfigError(expected("--to", "an address that begins with https://", shown(url)))
        self.url, self._token = url.rstrip("/"), token
        self._opener = urllib.request.build_opener(_NoRedirect)

    def request(self, path: str, data: bytes | None = None, **headers: str) -> dict[str, Any]:
        """Return the answer to GET, or to PUT of ``data``; after a broken connection the request is tried again.

        Raises ``ConfigError``: the server refuses, with its reason; ``RunError``: it does not answer.
        """
        all_headers = {"authorization": f"Bearer {self._token}", "accept": "application/json", **headers}
        all_headers = {key.replace("_", "-"): value for key, value in all_headers.items()}
        request = urllib.request.Request(self.url + path, data, all_headers, method="GET" if data is None else "PUT")
        for wait in (*_AGAIN_S, None):
            try:
                with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                    reply: dict[str, Any] = json.load(answer)
                    return reply
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _RETRY_STATUSES or wait is None:
                        raise ConfigError(_reason(error)) from error
                    retry_s = min(float(error.headers.get("retry-after") or 0), 60.0)
            except (OSError, ValueError) as error:  # no connection, or one that broke in an answer
                if wait is None:
                    raise RunError(f"{self.url}: does not answer: {shown(str(error))}") from error
                retry_s = 0.0
            time.sleep(max(wait, retry_s))
        raise AssertionError

    def send(self, archive: bytes, name: str = "upload.zip") -> str:
        """Send an archive, after the pieces of an earlier try; returns the number of the submission."""
        name = name.encode("ascii", "replace").decode()
        place = f"/parts/{hashlib.sha256(archive).hexdigest()}"
        answer = self.request(place)
        while "hand_in" not in answer:
            start = int(answer["received"])
            piece = archive[start : start + _PIECE]
            content_range = f"bytes {start}-{start + len(piece) - 1}/{len(archive)}"
            answer = self.request(place, piece, content_range=content_range, x_name=name)
        return str(answer["hand_in"])

    def follow(self, number: str) -> Iterator[dict[str, Any]]:
        """Yield a submission whenever its state has changed, the last time when it is rated or refused."""
        last_state = None
        while True:
            hand_in = self.request(f"/hand-in/{number}")
            if hand_in["state"] != last_state:
                last_state = hand_in["state"]
                yield hand_in
            if hand_in["done"]:
                return
            time.sleep(0.5)


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read(4_000).decode(errors="replace")
    try:
        text = json.loads(text)["reason"]
    except (ValueError, LookupError, TypeError):
        text = shown(text, 200)
    return printable(text) if text.strip() else f"the server answered {error.code}"


def as_zip(path: Path) -> bytes:
    """Return a folder as a zip file, the same for the same files, or a zip file as it is.

    Raises ``PlayerError``: content that no submission may have, such as a link.
    """
    if path.is_file():
        return path.read_bytes()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in read_parts(path):
            if part.kind == "link":
                raise PlayerError(expected(path / part.path, "a file, as links are not handed in", "a link"))
            if part.kind == "file":
                member = zipfile.ZipInfo(part.path.as_posix(), _DATE)
                member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | part.mode & 0o777) << 16
                archive.writestr(member, part.data)
    return file.getvalue()


def submit(
    folder: Annotated[Path, typer.Argument(help="Folder of a bundle or an agent, or a zip file of it.")],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Address of the class server.")],
    token: Annotated[Path, typer.Option(help="File with your token, as the server's page gives it.")] = TOKEN,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the submission until it is rated.")] = True,
) -> None:
    """Hand an agent in to a class server; the same command resumes what broke off. Leaves with 1 if it is refused."""
    if not folder.exists():
        raise refused("FOLDER", "a folder or a zip file", folder)
    try:
        secret = token.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise refused("--token", "a file with the token from the page My submissions", f"{token}: {error}") from error
    if not secret.isascii() or len(secret.split()) != 1:
        raise refused("--token", "a file with one token and nothing else", token)
    course = CourseClient(to, secret)
    number = course.send(as_zip(folder), f"{folder.resolve().stem}.zip")
    typer.echo(f"{course.url}/hand-in/{number}")
    last_log = ""
    for hand_in in course.follow(number) if wait else ():
        log = str(hand_in.get("log") or "")
        log_lines = log.splitlines() if log != last_log else ()
        for line in filter(None, (hand_in["state"], hand_in.get("reason"), *log_lines)):
            typer.echo(printable(line))
        last_log = log
        if hand_in["state"] == "refused":
            raise typer.Exit(1)
        if hand_in.get("rating") is not None:
            numbers = map(rounded, (hand_in["rating"], hand_in["low"], hand_in["high"]))
            typer.echo("rating {} ({} to {}, 95%)".format(*numbers))
