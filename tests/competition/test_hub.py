"""Players go to a hub and come from it: a stand-in on this machine that speaks as much of its language."""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from bundles import bundle
from commands import call
from multigrid_rl.competition.bundle import export
from multigrid_rl.config.compose import compose
from multigrid_rl.config.recipes import check_harmless
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.players.cards import MODEL_FILE, PlayerError, read_card
from multigrid_rl.trust import SAFE
from multigrid_rl.types import RunError

pytest.importorskip("huggingface_hub")
from multigrid_rl.competition import hub

COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """Keeps files of one repository."""

    files: ClassVar[dict[str, bytes]] = {}
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, content: bytes, status: int = 200, **headers: str):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        reply = {}
        if "/preupload/" in self.path:
            kept = [{"path": row["path"], "uploadMode": "regular"} for row in json.loads(data)["files"]]
            reply = {"files": [{**row, "shouldIgnore": False, "oid": None} for row in kept]}
        elif "/commit/" in self.path:
            for line in map(json.loads, data.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/user/mine/commit/{COMMIT}"
            reply = {"commitUrl": url, "commitOid": COMMIT, "success": True}
        elif self.path.endswith("/repos/create"):
            reply = {"url": f"http://{self.headers['Host']}/user/mine", "name": "user/mine"}
        self.answer(json.dumps(reply).encode(), Content_Type="application/json")

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if "/user/mine/resolve/" not in self.path or name not in self.files:
            self.answer(b"", 404, X_Error_Code="EntryNotFound" if "mine" in self.path else "RepoNotFound")
            return
        etag = hashlib.sha256(self.files[name]).hexdigest()
        self.answer(self.files[name], ETag=f'"{etag}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub of this test alone."""
    constants = hub.import_module("huggingface_hub.constants")
    found = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=found.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{found.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", here)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", here + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    monkeypatch.setattr(Hub, "files", {})
    hub.fetched.cache_clear()
    yield found
    found.shutdown()
    found.server_close()
    hub.fetched.cache_clear()


def test_pushed_player_is_seated_and_cached_offline(server, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    export({"": bundle(tmp_path / "made")}, mine)
    assert hub.push(mine, "user/mine").endswith(f"/user/mine/commit/{COMMIT}")
    assert Hub.files["README.md"].startswith(b"---\nlibrary_name: multigrid-rl\n")
    Hub.files["agent.yaml"] = b"command: [rm, -rf, /]\n"
    factory = env_factory(compose(["scenario=1v1", "scenario.seats.blue_0=hf:user/mine:1,random:1"])).packed()
    row = factory.load()["blue_0"][0]
    assert (row.name, row.sha256) == ("hf:user/mine", read_card(mine).sha256)
    assert not (hub.fetched("hf:user/mine") / "agent.yaml").exists()
    monkeypatch.setattr(hub.import_module("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    hub.fetched.cache_clear()
    assert read_card(hub.fetched("hf:user/mine")).sha256 == row.sha256


def test_rejects_missing_and_oversized_files(server):
    for name in ("hf:user/nobody", "hf:mine", "hf:user/mine"):
        with pytest.raises(PlayerError, match=f"player {name}: expected|player: expected hf:user/name"):
            hub.fetched(name)
    Hub.files.update({"card.json": b"{}", MODEL_FILE: bytes(5_000_001)})
    with pytest.raises(PlayerError, match=r"model.safetensors of 5000001 bytes"):
        hub.fetched("hf:user/mine")


def test_failed_push_leaves_no_folder_and_the_next_succeeds(server, tmp_path, monkeypatch):
    made = bundle(tmp_path / "made")
    monkeypatch.setattr("multigrid_rl.runs.players.players_for", lambda *_: {"": made})
    command = ("export", "run", "--seat", "red_0", "-o", tmp_path / "mine", "--push", "user/mine")
    with monkeypatch.context() as meanwhile:  # nothing listens there
        meanwhile.setattr(hub.import_module("huggingface_hub.constants"), "ENDPOINT", "http://127.0.0.1:9")
        failed = call(*command)
    assert (failed.exit_code, len(failed.stderr.splitlines())) == (3, 1)
    assert "--push: no answer from the hub" in failed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]
    assert call(*command).exit_code == 0
    assert set(Hub.files) >= {"card.json", MODEL_FILE, "README.md"}
    assert (tmp_path / "mine" / "card.json").read_bytes() == Hub.files["card.json"]


def test_unreachable_hub_is_no_mistake_of_the_user(tmp_path, monkeypatch):
    constants = hub.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    hub.fetched.cache_clear()
    with pytest.raises(RunError, match="player hf:user/other: no answer from the hub"):
        hub.fetched("hf:user/other")


def test_recipe_fetches_nothing_where_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(SAFE, "1")
    with pytest.raises(ValueError, match="hf:user/mine"):
        check_harmless("experiment", tmp_path, {"scenario.seats.blue_0": "hf:user/mine"})
