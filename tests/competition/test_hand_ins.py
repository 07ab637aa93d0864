"""What a class hands in: folders, folders around them, zip files made by strangers, and an agent's own folder."""

import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from agents import agent_of
from bundles import bundle, everything
from composing import refusal
from multigrid_rl.competition import folders, hand_ins
from multigrid_rl.competition.agents import MAX_AGENT_FILE_BYTES, read_agent
from multigrid_rl.players.cards import PlayerError


def zipped(path: Path, members: dict[str, bytes], **attributes: object) -> Path:
    """A zip file with these members; ``attributes`` of each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            for key, value in attributes.items():
                setattr(member, key, value)
            archive.writestr(member, data)
    return path


def found(tmp_path, name: str = "in"):
    """The hand-ins of a class by name, and where they were unpacked."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return {each.name: each for each in hand_ins.hand_ins(tmp_path / name, scratch)}


AGENT = {"agent.yaml": b"command: [sh, run.sh]\n", "lib/run.sh": b"exit 0\n"}


def test_wrapped_and_zipped_hand_ins_are_found(tmp_path):
    folder = tmp_path / "in"
    bundle(folder / "anna")
    bundle(folder / "bob_123_assignsubmission_file_" / "bob")
    (folder / "bob_123_assignsubmission_file_" / "report.pdf").touch()
    zipped(folder / "carl.zip", AGENT)
    zipped(folder / "dora_7" / "mine.ZIP", {"__MACOSX/mine/x": b"", **{f"mine/{k}": v for k, v in AGENT.items()}})
    (folder / ".hidden").mkdir()
    (folder / "_eve").mkdir()
    (folder / "notes.txt").touch()
    rows = found(tmp_path)
    names = ["_eve", "anna", "bob_123_assignsubmission_file_", "carl.zip", "dora_7", "notes.txt"]
    assert list(rows) == names
    assert {name for name, row in rows.items() if row.problem} == {"_eve", "notes.txt"}
    assert rows["notes.txt"].problem == (
        "notes.txt: expected a bundle or an agent, as a folder or in a .zip file, got another file"
    )
    assert "neither card.json nor agent.yaml" in rows["_eve"].problem
    assert rows["bob_123_assignsubmission_file_"].folder == folder / "bob_123_assignsubmission_file_" / "bob"
    for name in ("carl.zip", "dora_7"):
        content = everything(rows[name].folder)
        assert {key: value for key, value in content.items() if value is not None} == AGENT
        assert rows[name].folder.is_relative_to(tmp_path / "scratch")


OUT = ["../out", "/tmp/out", "a/../../out", "..\\out", "/".join("x" * 60)]
#: Members of a zip file, attributes of each, and why it is refused.
REFUSED = [
    *(({**AGENT, name: b"gotcha"}, {}, "expected paths that stay in the folder") for name in OUT),
    *(
        ({"secret": b"/etc/passwd"}, {"external_attr": (kind | 0o777) << 16}, "a link or a device, secret")
        for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR)
    ),
    (AGENT, {"compress_type": zipfile.ZIP_LZMA}, "another compression of agent.yaml"),
    ({"a": b"", "a/b": b""}, {}, "expected a zip file that can be unpacked"),
]


@pytest.mark.parametrize(("members", "attributes", "problem"), REFUSED)
def test_hostile_zip_files_are_refused_and_write_nothing(members, attributes, problem, tmp_path):
    zipped(tmp_path / "in" / "x.zip", members, **attributes)
    before = {path for path in tmp_path.rglob("*") if "scratch" not in path.parts}
    assert problem in found(tmp_path)["x.zip"].problem
    assert {path for path in tmp_path.rglob("*") if "scratch" not in path.parts} == before
    assert not Path("/tmp/out").exists()


def test_links_around_a_hand_in_are_not_followed(tmp_path):
    bundle(tmp_path / "secret")
    (tmp_path / "in" / "x").mkdir(parents=True)
    (tmp_path / "in" / "x" / "mine").symlink_to(tmp_path / "secret")
    assert "neither card.json nor agent.yaml" in found(tmp_path)["x"].problem


def test_bombs_are_refused_before_they_unpack(tmp_path, monkeypatch):
    monkeypatch.setattr(hand_ins, "MAX_FOLDER_BYTES", 100_000)
    monkeypatch.setattr(hand_ins, "MAX_FOLDER_FILES", 40)
    folder = tmp_path / "in"
    zipped(folder / "large.zip", {"zeros": bytes(2_000_000), **AGENT})
    zipped(folder / "many.zip", dict.fromkeys(map(str, range(50)), b""))
    zipped(folder / "deep.zip", {"/".join(map(str, range(k, k + 9))): b"" for k in range(9)})
    # A size that says less than there is.
    small = zipped(folder / "liar.zip", {"zeros": bytes(90_000), "more": bytes(90_000)})
    data = small.read_bytes()
    small.write_bytes(data.replace(struct.pack("<L", 90_000), struct.pack("<L", 1_000)))
    rows = found(tmp_path)
    wanted = {"large": "at most 100000 bytes when", "many": "at most 40 files", "deep": "at most 40 files"}
    for name, problem in (wanted | {"liar": "expected a zip file"}).items():
        assert problem in rows[f"{name}.zip"].problem, rows[f"{name}.zip"].problem
    assert sum(len(data or b"") for data in everything(tmp_path / "scratch").values()) < 100_000


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x05\x06" + bytes(18)])
def test_what_cannot_be_unpacked_has_a_reason(data, tmp_path):
    path = tmp_path / "in" / "x.zip"
    path.parent.mkdir()
    path.write_bytes(data)
    assert found(tmp_path)["x.zip"].problem


def test_password_is_refused(tmp_path):
    path = zipped(tmp_path / "in" / "x.zip", AGENT)
    path.write_bytes(path.read_bytes().replace(b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\1\0"))
    assert "password" in found(tmp_path)["x.zip"].problem


def test_two_in_one_are_refused(tmp_path):
    for name in ("one", "two"):
        agent_of(tmp_path / "in" / "x" / name)
    assert found(tmp_path)["x"].problem == "x: expected one bundle or one agent, got one and two"


def test_empty_class_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(PlayerError, match="one folder for each student"):
        found(tmp_path)


@pytest.mark.parametrize("file", ["card.json", "agent.yaml"])
def test_submission_itself_is_no_class(tmp_path, file):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / file).touch()  # each of its files would be a student without points
    with pytest.raises(PlayerError, match="one folder for each student, got a submission itself"):
        found(tmp_path)


@pytest.mark.parametrize(
    ("bound", "most", "members", "said"),
    [
        ("_MAX_UNPACKED", 1_000_000, {"zeros": bytes(400_000)}, "at most 1000000 bytes"),
        ("MAX_FOLDER_FILES", 60, {f"{k}/": b"" for k in range(50)}, "at most 120 files"),
    ],
)
def test_zip_files_in_zip_files_share_one_bound(bound, most, members, said, tmp_path, monkeypatch):
    monkeypatch.setattr(hand_ins, bound, most)
    inner = zipped(tmp_path / "inner.zip", members).read_bytes()
    zipped(tmp_path / "in" / "x.zip", {f"{k}.zip": inner for k in range(50)})
    assert f"expected {said} when unpacked, got more" in found(tmp_path)["x.zip"].problem
    unpacked = everything(tmp_path / "scratch")
    assert len(unpacked) < 300
    assert sum(len(data or b"") for data in unpacked.values()) < 1_100_000


def test_a_pipe_with_the_name_of_a_zip_file_is_not_waited_for(tmp_path):
    for path in (tmp_path / "in" / "anna" / "x.zip", tmp_path / "in" / "y.zip"):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    problems = [each.problem for each in found(tmp_path).values()]
    assert "neither card.json nor agent.yaml" in problems[0]
    assert problems[1] == "y.zip: expected a bundle or an agent, as a folder or in a .zip file, got another file"


def test_a_long_list_of_files_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(hand_ins, "_MAX_LIST", 100_000)
    zipped(tmp_path / "in" / "x.zip", dict.fromkeys(map(str, range(3_000)), b""))
    assert "a list of files of more than 100000 bytes" in found(tmp_path)["x.zip"].problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected"),
        ("[a]", "expected"),
        ("name: x\n", "command: expected a value, got none"),
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
