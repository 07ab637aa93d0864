"""What is read of an agent's folder, and what is refused."""

import os

import pytest

from agents import agent_of
from composing import refusal
from multigrid_rl.competition import folders
from multigrid_rl.competition.agents import MAX_AGENT_FILE_BYTES, read_agent
from multigrid_rl.players.cards import PlayerError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected"),
        ("[a]", "expected"),
        ("name: x\n", "command: Field required"),
        ("command: python3 agent.py\n", "command: expected a list, such as [python3 agent.py]"),
        ("command: []\n", "command: expected a list of at least 1"),
        ("command: ['']\n", "command: expected a program"),
        ('command: ["a\\nb"]\n', "command.0: expected printable text"),
        ('command: ["a\\0b"]\n', "command.0: expected printable text"),
        ("command: [a]\nshell: true\n", "shell: Extra inputs are not permitted"),
        ("command: [a]\nname: a b\n", "name: String should match"),
        ("command: [a]\nname: ../x\n", "name: String should match"),
        ('command: [a]\nabout: "a\\x1b[2Jb"\n', "about: expected printable text"),
        (f"command: [a]\nabout: {'x' * 201}\n", "about: expected at most 200 characters"),
        ("command: [a]\ncommand: [b]\n", "command is there twice"),
        ("command: [!!python/name:os.system ls]\n", "not valid yaml"),
        ("command: [a\n", "not valid yaml"),
        ("command: [a]\n\tname: x", "not valid yaml"),
        ("[" * 1200, "not valid yaml"),
        ("command: [a]\nname: *x\n", "not valid yaml"),
        (b"command: [\xff]\n", "not valid yaml"),
        ("#" * (MAX_AGENT_FILE_BYTES + 1), f"expected at most {MAX_AGENT_FILE_BYTES} bytes"),
    ],
)
def test_rejects_bad_agent_file_in_one_line(text, message, tmp_path):
    (tmp_path / "agent.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    said = refusal(read_agent, tmp_path)
    assert message in said
    assert said.startswith(f"{tmp_path / 'agent.yaml'}: ")


def test_agent_file_converts_nothing(tmp_path):
    (tmp_path / "agent.yaml").write_text("command: [ls, 3, no, 2020-99-99]\nname: 007\n")
    agent = read_agent(tmp_path)
    assert (agent.file.command, agent.title) == (["ls", "3", "no", "2020-99-99"], "007")


@pytest.mark.parametrize("kind", ["missing", "folder", "link", "pipe"])
def test_rejects_special_files(kind, tmp_path):
    path = tmp_path / "agent.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(PlayerError, match=r"agent\.yaml: (cannot be read|expected a plain file)"):
        read_agent(tmp_path)


def test_hash_depends_only_on_names_and_contents(tmp_path):
    agent = agent_of(tmp_path / "a")
    assert agent.title == "a"
    hashes = [agent.sha256]
    for change in (
        lambda f: (f / "data").write_bytes(b"12"),
        lambda f: (f / "data").write_bytes(b"13"),
        lambda f: (f / "data").rename(f / "date"),
        lambda f: (f / "sub").mkdir(),
        lambda f: (f / "date").rename(f / "sub" / "date"),
        lambda f: (f / "link").symlink_to("sub/date"),
    ):
        change(agent.folder)
        hashes.append(read_agent(agent.folder).sha256)
    assert len(set(hashes)) == len(hashes)
    os.utime(agent.folder / "agent.py", (1, 1))
    copy = agent.folder.rename(tmp_path / "b")
    assert read_agent(copy).sha256 == hashes[-1]


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "."])
def test_links_must_stay_in_folder(target, tmp_path):
    agent = agent_of(tmp_path / "a")
    (tmp_path / "outside").touch()
    (agent.folder / "link").symlink_to(target)
    if target == ".":
        assert read_agent(agent.folder)
        return
    assert "link: expected a link to what lies in the folder" in refusal(read_agent, agent.folder)


def test_self_link_and_pipe_do_not_hang(tmp_path):
    agent = agent_of(tmp_path / "a")
    (agent.folder / "loop").symlink_to("loop")
    assert read_agent(agent.folder)
    os.mkfifo(agent.folder / "pipe")
    assert "expected a plain file" in refusal(read_agent, agent.folder)


def test_rejects_too_many_files_and_bytes(tmp_path, monkeypatch):
    agent = agent_of(tmp_path / "a")
    with (agent.folder / "sparse").open("wb") as file:
        file.truncate(10**10)
    assert "sparse: expected at most 50000000 bytes, got 10000000000" in refusal(read_agent, agent.folder)
    (agent.folder / "sparse").write_bytes(bytes(490))
    monkeypatch.setattr(folders, "MAX_FOLDER_BYTES", 500)
    assert "expected at most 500 bytes" in refusal(read_agent, agent.folder)
    monkeypatch.setattr(folders, "MAX_FOLDER_FILES", 1)
    assert "expected at most 1 files" in refusal(read_agent, agent.folder)
    monkeypatch.undo()
    (agent.folder / "/".join(["deep"] * 51)).mkdir(parents=True)
    assert "expected at most 50 folders in one another" in refusal(read_agent, agent.folder)
