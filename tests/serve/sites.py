"""A class server for tests: a course with games, a server in a thread, and a client that keeps cookies."""

import http.client
import io
import re
import secrets
import socket
import zipfile
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlencode

import pytest

from answering import answering
from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.replays import record
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.places import place_of
from multigrid_rl.serve import pages, people_pages
from multigrid_rl.serve.course import Course, Enrolled
from multigrid_rl.serve.database import make_tables
from multigrid_rl.serve.queue import Queue
from multigrid_rl.serve.site import Site, application, server_of

#: What a page must never take for its own words.
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}}</textarea></title>=cmd()"
LANES = ("bundle", "program", "slow")
SPEC = load_scenario("1v1").spec
AGENT = {"agent.yaml": b"command: [sh, run.sh]\n", "run.sh": b"exit 0\n"}


def agent_in(folder):
    """A program in the new ``folder``."""
    folder.mkdir()
    for name, data in AGENT.items():
        (folder / name).write_bytes(data)
    return folder


def token_of(site, code):
    """What a person's programs sign in with."""
    person = site.store.person_by_code(code)
    return site.store.signer.issue("token", person.id, person.token_version)


def students_of(store):
    """Rows of the ladder that are students'."""
    return [row for row in store.ladder() if row.person]


@cache
def game():
    """One real game of two random players."""
    players = {seat: place_of(SPEC).scripted(SPEC, "random", seat) for seat in SPEC.seats}
    played = play_games(SPEC, players, 1, seed=3)
    return record(SPEC, played, 0, seed=3, players={seat: seat for seat in SPEC.seats}, label="median")


def zipped(members=AGENT):
    """The bytes of a zip file with these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def pairing(red, blue, outcomes="RRRRRRRRBD"):
    zeros = [0.0] * len(outcomes)
    sits = dict(zip(SPEC.seats, (f"h{red}", f"h{blue}"), strict=True))
    notes = {seat: {0: f"{who} says {EVIL}"} for seat, who in sits.items()}
    kept = game().model_copy(update={"players": sits, "notes": notes})
    return Pairing(
        red=f"h{red}", blue=f"h{blue}", outcomes=outcomes, length=[1] * len(outcomes), return_red=zeros,
        return_blue=zeros, kept=[kept],
    )  # fmt: skip


def work(store, same_as=""):
    """Do all jobs as workers would, without playing."""
    while (job := store.claim("w", LANES)) is not None:
        if job.kind == "check":
            store.save_check(job, "frozen", secrets.token_hex(32), f"ok {EVIL}")
        elif job.kind == "pair":
            pair = (job.hand_in_id, job.other_id)
            store.save_pairings(job, [(a, b, pairing(a, b)) for a, b in (pair, pair[::-1])])
        elif job.kind == "rate":
            shot = store.snapshot(by_wins=True)
            values = {k: 1000.0 + 37 * k % 400 for met in shot[0] for k in met[:2] if k}
            store.save_ratings(job, shot, {k: (value, value - 60, value + 60, 40) for k, value in values.items()})
        elif job.kind == "grade":
            told = {"points": 7.5, "of": 10.0, "passed": True}
            store.save_grade(job, told, "{}", f"Holds its gate. {EVIL}")
        else:
            store.save_similar(job, same_as)


def course_of(folder, students=12, name="Student {}", **settings):
    """A course in which everybody has handed in twice; the last one is an instructor."""
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{folder}/serve.db"
    make_tables(url)
    settings = {"anchors": ["random", "blue-rookie"], "games": 10, "program_games": 4, "rubric": "r.yaml"} | settings
    store = Queue(url, folder / "home", Course(**settings))
    rows = [Enrolled(f"s{k}", name.format(k), f"s{k}@example.org") for k in range(students)]
    store.sync([*rows, Enrolled("i1", "Ines", role="instructor")])
    store.begin()
    mine = agent_in(folder / "mine")
    for k in [*range(students), *range(students)]:
        store.hand_in(store.person_by_code(f"s{k}").id, mine, name.format(k))
    work(store, f"like {EVIL}")
    return store


@contextmanager
def served(store, **settings):
    """Serve a course in a thread; yields its site, whose ``url`` is right."""
    listening = socket.create_server(("127.0.0.1", 0))
    site = Site(store, f"http://127.0.0.1:{listening.getsockname()[1]}", **settings)
    with answering(server_of(application(site, [*pages.PAGES, *people_pages.PAGES])), listening):
        yield site


class Client:
    """Asks one site, with its cookies."""

    def __init__(self, site, code=""):
        self.port, self.cookies, self.site = int(site.url.rpartition(":")[2]), {}, site
        if code:
            token = site.store.link(site.store.person_by_code(code), site.url).rpartition("/")[2]
            assert self.post("/enter", token=token)[0] == 303

    def ask(self, method, path, body=None, **headers):
        """Status, text and headers of an answer."""
        talk = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        told = {key.replace("_", "-"): value for key, value in headers.items()}
        if self.cookies:
            told["Cookie"] = "; ".join(f"{key}={value}" for key, value in self.cookies.items())
        talk.request(method, path, body, told)
        answer = talk.getresponse()
        text = answer.read().decode("utf-8", "replace")
        for cookie in answer.headers.get_all("set-cookie") or ():
            key, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[key] = value
        talk.close()
        return answer.status, text, answer.headers

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def post(self, path, **fields):
        """Send a form."""
        return self.ask("POST", path, urlencode(fields), Content_Type="application/x-www-form-urlencoded")

    def form(self, page="/mine"):
        """The secret of this session's forms."""
        found = re.search(r'name="form" value="([^"]+)"', self.get(page)[1])
        return found[1] if found else ""

    def upload(self, files, form=None, path="/hand-in", **headers):
        """Send files, as a browser does."""
        edge = "edge" + secrets.token_hex(8)
        fields = [(b'form-data; name="form"', (self.form() if form is None else form).encode())]
        fields += [(f'form-data; name="f"; filename="{name}"'.encode(), data) for name, data in files]
        body = b"".join(b"--%s\r\nContent-Disposition: %s\r\n\r\n%s\r\n" % (edge.encode(), *one) for one in fields)
        kind = f"multipart/form-data; boundary={edge}"
        return self.ask("POST", path, body + f"--{edge}--\r\n".encode(), Content_Type=kind, **headers)


def course_fixtures(students: int = 12) -> tuple[Any, Any]:
    """Return a module's fixtures ``store``, a course that its tests look at and may add to, and ``site``, its pages."""

    @pytest.fixture(scope="module")
    def store(tmp_path_factory):
        found = course_of(tmp_path_factory.mktemp("course"), students)
        yield found
        found.engine.dispose()

    @pytest.fixture(scope="module")
    def site(store):
        with served(store) as found:
            yield found

    return store, site
