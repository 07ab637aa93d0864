"""How people sign in to a class server, what stands before every page, and the files that run a server elsewhere."""

import base64
import re
import shlex
import shutil
import socket
import subprocess
import time
from configparser import RawConfigParser
from contextlib import suppress
from pathlib import Path

import pytest
import typer
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from answering import answering
from multigrid_rl.serve import guard, pages, people_pages
from multigrid_rl.serve.course import Course, HandInQuota
from multigrid_rl.serve.guard import Guard, Pace, patient_protocol, same_site
from multigrid_rl.serve.people import KINDS, Signer
from multigrid_rl.serve.serve_commands import serve
from multigrid_rl.serve.site import _FORM_BYTES

SIGNER = Signer(b"k" * 32, clock=lambda: 1000.0)


def test_a_token_says_who_until_it_ends():
    token = SIGNER.issue("link", 7, 3)
    until = 1000 + KINDS["link"]
    assert SIGNER.read("link", token) == (7, 3)
    assert Signer(SIGNER.secret, clock=lambda: until - 1).read("link", token)
    assert Signer(SIGNER.secret, clock=lambda: until).read("link", token) is None


def test_forged_tokens_say_nothing():
    token = SIGNER.issue("session", 7, 1)
    said, signature = token.split(".")
    other = base64.urlsafe_b64encode(b"999999999 1 1").decode().rstrip("=")
    forged = [
        *("", ".", "..", "a.b", token + ".", f".{signature}", f"{said}.", token * 10, "\u00fc.\u00fc", "=.=", said),
        f"{other}.{signature}",
        Signer(b"x" * 32, clock=SIGNER.clock).issue("session", 7, 1),
        token.replace(".", "=."),  # another way to write the same bytes
        *(token[:k] + ("A" if token[k] != "A" else "B") + token[k + 1 :] for k in range(len(token))),
    ]
    assert SIGNER.read("session", token)
    assert [each for each in forged if SIGNER.read("session", each)] == []
    for kind in ("link", "token"):
        assert SIGNER.read(kind, token) is None


def test_forms_belong_to_one_session():
    one, two = (SIGNER.issue("session", name, 1) for name in (7, 8))
    assert SIGNER.form_is_valid(one, SIGNER.form_secret(one))
    assert not any(
        SIGNER.form_is_valid(one, told) for told in ("", "\u00fc", SIGNER.form_secret(two), SIGNER.form_secret(""))
    )


def test_pace_lets_a_burst_through_then_one_after_another():
    now = [0.0]
    pace = Pace(3, 10, clock=lambda: now[0])
    assert [pace.wait("a") for _ in range(5)] == [0, 0, 0, 10, 10]
    assert pace.wait("b") == 0
    now[0] = 10.0
    assert [pace.wait("a") for _ in range(2)] == [0, 10]
    now[0] = 1000.0
    assert [pace.wait("a") for _ in range(4)] == [0, 0, 0, 10]


def test_pace_forgets_people_before_it_fills_the_memory():
    pace = Pace(1, 1e9, clock=lambda: 0.0)
    for k in range(10_500):
        pace.wait(str(k))
    assert len(pace._full_at) <= 10_000
    assert pace.wait("10499") > 0


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({}, True),
        ({"origin": "http://course"}, True),
        ({"origin": "http://course.evil"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "http://course"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
    ],
)
def test_requests_of_other_sites_are_told(headers, ours):
    assert same_site(headers, "course") is ours


# --- what stands before every page


@pytest.fixture
def port():
    """A server with a page that reads what it is sent, behind the guard, for the time of a test."""

    async def page(request):
        response = PlainTextResponse(str(len(await request.body())))
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    routes = [Route("/{path:path}", page, methods=["GET", "POST"])]
    app = Guard(Starlette(routes=routes), {"/large": 200_000}, secure=True, patience_s=0.6)
    config = uvicorn.Config(app, log_level="critical", lifespan="off", http=patient_protocol(0.6))
    with answering(uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))) as found:
        yield found


def spoken(port, *pieces, pause=0.0):
    """What a server answers to bytes that come in pieces, and after how many seconds."""
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as talk:
        answer = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                talk.sendall(piece)
                time.sleep(pause)
                talk.setblocking(False)
                with suppress(BlockingIOError):  # what a reset would throw away
                    answer += talk.recv(65536)
                talk.settimeout(20)
        with suppress(ConnectionResetError):
            while data := talk.recv(65536):
                answer += data
    return answer.decode("latin-1"), time.monotonic() - begin


HEAD = b"Host: course\r\nConnection: close\r\n"


def test_every_answer_has_strict_headers(port):
    text, _ = spoken(port, b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n")
    head = text.partition("\r\n\r\n")[0]
    assert "default-src 'none'; script-src 'self'" in head
    assert "unsafe" not in head
    for each in ("nosniff", "frame-ancestors 'none'", "strict-transport-security", "a=1", "b=2", "no-store"):
        assert each in head


@pytest.mark.parametrize(("path", "size", "status"), [("/", 60_000, 200), ("/", 70_000, 413), ("/large", 70_000, 200)])
def test_sizes_are_bounded_by_path(port, path, size, status):
    text, _ = spoken(
        port, f"POST {path} HTTP/1.1\r\nContent-Length: {size}\r\n".encode() + HEAD + b"\r\n" + bytes(size)
    )
    assert text.startswith(f"HTTP/1.1 {status}")


def test_a_size_that_is_not_told_is_counted(port):
    chunk = b"4000\r\n" + bytes(0x4000) + b"\r\n"
    text, _ = spoken(port, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HEAD + b"\r\n", *[chunk] * 4)
    assert text.startswith("HTTP/1.1 413")


@pytest.mark.slow
def test_slow_requests_are_not_waited_for(port):
    head = b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n" + HEAD + b"\r\n"
    text, seconds = spoken(port, head, *[b"x"] * 4, pause=0.1)
    assert text.startswith("HTTP/1.1 408")
    text, seconds = spoken(port, head, *[b"x"] * 20, pause=0.1)  # it goes on as if nothing had been said
    assert "200" not in text
    for said in (b"", b"GET / HT"):
        text, seconds = spoken(port, said)
        assert text == ""
        assert seconds < 3
    # The head of a second request, letter by letter.
    first = b"GET / HTTP/1.1\r\nHost: course\r\n\r\n"
    text, seconds = spoken(port, first, *[b"G", b"E", b"T", b" "] * 10, pause=0.1)
    assert text.count("HTTP/1.1 200") == 1


def test_slow_requests_hold_nobody_up(port):
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    for each in held:
        each.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n")
    text, seconds = spoken(port, b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n")
    assert text.startswith("HTTP/1.1 200")
    assert seconds < 0.5
    for each in held:
        each.close()


def test_connections_of_one_address_are_bounded_and_idle_ones_go_first():
    closed = []

    class Talk:
        def __init__(self, name, asks):
            self.name, self.asks, self.transport = name, asks, self

        def _idle(self):
            return not self.asks

        def close(self):
            closed.append(self.name)

    own = []
    for k in range(8):
        own = guard._bounded([*own, Talk(k, asks=k in (0, 2))], 3)
    assert ([each.name for each in own], closed) == ([0, 2, 7], [1, 3, 4, 5, 6])
    assert len(guard._bounded([*own, *own], None)) == 6


ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
SERVICES = yaml.safe_load((DOCKER / "serve.yaml").read_text())
SERVER, CADDY = SERVICES["services"]["server"], SERVICES["services"]["caddy"]
CADDYFILE = "\n".join(line.partition("#")[0] for line in (DOCKER / "Caddyfile").read_text().splitlines())
UNIT_FILE = DOCKER / "multigrid-rl-serve.service"


def parsed(words):
    """What the command makes of its words; it refuses an option that there is not, or a value that does not fit."""
    app = typer.Typer()
    app.command()(serve)
    return typer.main.get_command(app).make_context("serve", list(words), resilient_parsing=False).params


def unit():
    found = RawConfigParser(strict=False)
    found.optionxform = str
    found.read(UNIT_FILE)
    return found


def test_the_command_takes_what_they_say():
    in_container = parsed(SERVER["command"][1:])
    assert SERVER["command"][0] == "serve"
    assert (in_container["host"], in_container["port"], in_container["behind_proxy"]) == ("0.0.0.0", 8080, True)
    assert in_container["database"].startswith("postgresql")
    program, verb, *words = shlex.split(unit()["Service"]["ExecStart"])
    here = parsed(words)
    assert (Path(program).name, verb) == ("multigrid-rl", "serve")
    assert (here["host"], here["url"], here["behind_proxy"]) == ("127.0.0.1", "https://ladder.example.org", True)
    for line in (*UNIT_FILE.read_text().splitlines(), *(DOCKER / "serve.yaml").read_text().splitlines()):
        if "multigrid-rl serve " in line and line.startswith("#"):
            parsed(shlex.split(line.partition("multigrid-rl serve ")[2]))
    with pytest.raises(Exception, match="no-such"):
        parsed(["--no-such"])


def test_ports_paths_and_names_are_there():
    port = parsed(SERVER["command"][1:])["port"]
    assert CADDY["environment"]["UPSTREAM"] == f"server:{port}"
    assert f"{{$UPSTREAM:127.0.0.1:{parsed(['course.yaml'])['port']}}}" in CADDYFILE
    assert "ports" not in SERVER  # Caddy alone is reached from outside
    assert "ports" not in SERVICES["services"]["db"]
    # A host that asks by another name than the site's, as Caddy's own checks would, is refused.
    assert "health_uri" not in CADDYFILE
    address, path = re.search(r"http://([\d.]+:\d+)(/\w+)", SERVER["healthcheck"]["test"][-1]).groups()
    assert address == f"127.0.0.1:{port}"
    assert path in {page.path for page in (*pages.PAGES, *people_pages.PAGES)}
    assert (DOCKER / SERVER["build"]["context"] / SERVER["build"]["dockerfile"]).resolve() == DOCKER / "Dockerfile"
    mounts = {its.split(":")[1]: its.split(":")[0] for each in SERVICES["services"].values() for its in each["volumes"]}
    assert str(Path(SERVER["command"][1]).parent) in mounts
    assert (DOCKER / mounts["/etc/caddy/Caddyfile"]).exists()
    assert {name for name in mounts.values() if not name.startswith(".")} == SERVICES["volumes"].keys()
    for each in SERVICES["services"].values():
        assert each.get("depends_on", {}).keys() <= SERVICES["services"].keys()


def test_variables_are_set_where_they_are_read():
    read = set(re.findall(r"\{\$(\w+)", CADDYFILE))
    assert read == CADDY["environment"].keys()
    needed = set(re.findall(r"\$\{(\w+):\?", (DOCKER / "serve.yaml").read_text()))
    said = re.search(r"^#   export (.*)$", (DOCKER / "serve.yaml").read_text(), re.MULTILINE)[1]
    assert needed == set(re.findall(r"(\w+)=", said))


def test_the_proxy_lets_the_largest_upload_through():
    most = int(re.search(r"max_size (\d+)MB", CADDYFILE)[1]) * 1e6
    quota = max(bound.le for bound in HandInQuota.model_fields["megabytes"].metadata if hasattr(bound, "le"))
    assert most >= quota * 1e6 + _FORM_BYTES


def test_the_image_has_what_a_server_needs():
    text = (DOCKER / "Dockerfile").read_text()
    extras = set(re.findall(r"extras\['(\w+)'\]", text))
    assert {"serve", "postgres"} <= extras
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    assert extras <= tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    assert "bubblewrap" in text
    assert 'ENTRYPOINT ["multigrid-rl"]' in text


def test_the_unit_writes_where_it_may(tmp_path):
    service = unit()["Service"]
    assert service["WorkingDirectory"] in service["ReadWritePaths"].split()
    assert "RestrictNamespaces" not in service  # bubblewrap makes them
    if (systemd := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd is not installed")
    file = tmp_path / UNIT_FILE.name
    file.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={shutil.which('true')}", UNIT_FILE.read_text()))
    told = subprocess.run([systemd, "verify", file], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def test_anchors_are_players_or_folders_beside_the_course():
    with pytest.raises(ValueError, match=r"anchors: expected each once, a player's name or a folder beside the course"):
        Course(anchors=["random", "bots/mine"])
