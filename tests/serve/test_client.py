"""``multigrid-rl submit``: it resumes, follows, says why, and gives its token to nobody else."""

import http.server
import threading
import zipfile
from io import BytesIO

import pytest

from commands import call, complaint, works
from composing import refusal
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.serve import serve_commands as client
from multigrid_rl.serve.database import HandIn
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError
from sites import AGENT, Client, agent_in, course_fixtures, token_of, work

store, site = course_fixtures(3)


@pytest.fixture
def agent(tmp_path):
    folder = agent_in(tmp_path / "my-agent")
    (folder / "weights").write_bytes(bytes(range(256)) * 40)
    return folder


def test_a_folder_is_handed_in_and_followed(site, agent, tmp_path):
    (tmp_path / "token").write_text(token_of(site, "s0") + "\n")
    thread = threading.Timer(1.0, work, [site.store])
    thread.start()
    lines = works("submit", agent, "--to", site.url, "--token", tmp_path / "token").output.splitlines()
    thread.join()
    assert lines[0].startswith(f"{site.url}/hand-in/")
    assert lines[1] == "received"
    assert "rated" in lines
    assert len(set(lines)) == len(lines)  # what the check said stands there once
    assert lines[-1].startswith("rating 1")
    number = int(lines[0].rpartition("/")[2])
    with zipfile.ZipFile(site.store.upload_folder(number) / "upload.zip") as archive:
        assert {name: archive.read(name) for name in AGENT} == AGENT
    assert site.store.get(HandIn, number).name == "my-agent.zip"


def test_what_broke_off_is_resumed(site, agent, monkeypatch):
    monkeypatch.setattr(client, "_PIECE", 200)
    monkeypatch.setattr(client, "_AGAIN_S", (0.01, 0.01))
    course, archive, sent = client.CourseClient(site.url, token_of(site, "s1")), client.as_zip(agent), []
    assert client.as_zip(agent) == archive  # the same folder, the same archive
    true = course._opener.open

    def breaking(request, **how):
        if request.data is not None:
            sent.append(request.get_header("Content-range"))
            if len(sent) == 3:
                raise OSError("the connection broke")
            if len(sent) == 5:
                raise KeyboardInterrupt
        return true(request, **how)

    monkeypatch.setattr(course._opener, "open", breaking)
    with pytest.raises(KeyboardInterrupt):
        course.send(archive, "my-agent.zip")
    before = len(site.store.history(site.store.person_by_code("s1").id))
    monkeypatch.setattr(course._opener, "open", true)
    number = int(course.send(archive, "my-agent.zip"))
    assert (site.store.upload_folder(number) / "upload.zip").read_bytes() == archive
    assert sent[2] == sent[3]  # once more
    assert len(site.store.history(site.store.person_by_code("s1").id)) == before + 1
    work(site.store)


def test_a_lost_answer_to_the_last_piece_is_no_second_submission(site, agent, monkeypatch):
    monkeypatch.setattr(client, "_AGAIN_S", (0.01, 0.01))
    course, archive, lost = client.CourseClient(site.url, token_of(site, "s1")), client.as_zip(agent), []
    true = course._opener.open

    def losing(request, **how):
        answer = true(request, **how)
        if request.data is not None and not lost:
            lost.append(answer.read())
            raise OSError("the connection broke")
        return answer

    before = len(site.store.history(site.store.person_by_code("s1").id))
    monkeypatch.setattr(course._opener, "open", losing)
    number = course.send(archive)
    assert f'"hand_in":{number}' in lost[0].decode()
    assert len(site.store.history(site.store.person_by_code("s1").id)) == before + 1
    assert course.send(archive) != number  # handed in once more
    work(site.store)


def test_pieces_of_another_file_are_refused(site):
    token = token_of(site, "s2")

    def put(data, where, sha256="b" * 64):
        headers = {"Authorization": f"Bearer {token}", "Content_Range": where, "Accept": "application/json"}
        return Client(site).ask("PUT", f"/parts/{sha256}", data, **headers)[:2]

    assert put(b"abc", "bytes 0-2/6") == (200, '{"received":3}')
    assert put(b"abc", "bytes 0-2/6") == (200, '{"received":3}')  # again: it counts once
    assert put(b"xy", "bytes 4-5/6") == (200, '{"received":3}')
    status, text = put(b"def", "bytes 3-5/6")
    assert (status, "this SHA-256" in text) == (409, True)
    for where in ("", "bytes 2-1/6", "bytes 0-2/2", "bytes -1-2/6", "bytes 0-2/6/7", "bytes 0-2/99999999999"):
        assert put(b"abc", where)[0] == 409, where
    for name in ("../../x", "B" * 64, "b" * 63):
        assert put(b"abc", "bytes 0-2/6", name)[0] == 404
    assert put(b"abc", "bytes 0-2/6", "c" * 64)[0] == 200
    assert [path.name for path in (site.store.home / "incoming").rglob("*") if path.is_file()] == ["c" * 64]


def test_reasons_are_told(site, agent, tmp_path):
    token = tmp_path / "token"
    token.write_text("x.y")
    command = ["--to", site.url, "--token", token]
    assert "token: expected one of this course" in complaint(call("submit", agent, *command))
    for text in ("", "two words", "\u00fc"):
        token.write_text(text)
        assert complaint(call("submit", agent, *command))
    assert complaint(call("submit", tmp_path / "nothing", *command))
    (agent / "link").symlink_to("/etc/passwd")
    with pytest.raises(PlayerError):
        client.as_zip(agent)
    site.store.freeze(True)
    assert "frozen" in refusal(client.CourseClient(site.url, token_of(site, "s2")).send, b"PK")
    site.store.freeze(False)


def test_a_token_goes_nowhere_else(monkeypatch):
    for url in ("http://example.org", "ftp://localhost", "localhost:8080", "http://localhost.example.org"):
        assert "https" in refusal(client.CourseClient, url, "x")
    asked = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["authorization"]))
            self.send_response(302)
            self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(ConfigError, match="answered 302"):
            client.CourseClient(f"http://127.0.0.1:{server.server_port}", "x").request("/")
        assert asked == [("/", "Bearer x")]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    monkeypatch.setattr(client, "_AGAIN_S", (0.01,))
    with pytest.raises(RunError, match="does not answer"):
        client.CourseClient(f"http://127.0.0.1:{server.server_port}", "x").request("/")


def test_an_archive_keeps_which_files_are_programs(agent):
    (agent / "run.sh").chmod(0o755)
    with zipfile.ZipFile(BytesIO(client.as_zip(agent))) as archive:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    assert modes["run.sh"] == 0o755
    assert modes["weights"] & 0o111 == 0
