"""What somebody may hand in to spoil a cup for everybody: it is an entry like others, and told in plain letters."""

import csv
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agents import agent_of
from commands import call, complaint, works
from multigrid_rl.cli.main import app
from multigrid_rl.competition import entries as hand_ins
from multigrid_rl.competition.cup import play_pairing
from multigrid_rl.competition.cup_folder import existing_cup
from multigrid_rl.competition.entries import CupConfig, Entry, entry_in, find_entries
from multigrid_rl.competition.folders import ScratchError, remove_tree
from multigrid_rl.competition.hand_ins import entry_name, filed_name
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue

TABLE = CupConfig("1v1", load_scenario("1v1").spec, 2, 5, Limits())
SOUND = "blue-rookie"
EVIL = "a\nwinner: me\x1b]0;x\x07\x1b[2J"


def bundle(folder: Path) -> Path:
    return Path(shutil.copytree(data_root() / "checkpoints" / SOUND, folder))


def found(folder: Path, *names: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in find_entries(folder, list(names), Catalogue(folder), TABLE)}


@contextmanager
def without_rights():
    """Nobody in particular, where the tests run as root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(12345)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(
    "name", ["M\udcfcller", "Müller", "a" * 200, EVIL, "=cmd|' -C calc'!A0", "-1+1", "..x", "日本"]
)
def test_any_name_is_stored_in_plain_letters(name):
    filed = filed_name(name)
    assert filed.isascii()
    assert filed.isprintable()
    assert filed[0].isalnum() or filed[0] == "_"
    assert len(filed) <= 64
    assert filed == filed_name(name)
    assert filed != filed_name(name + "x")


@pytest.mark.parametrize("name", ["Team 7 v1.2_final-x", "Peggy Müller", "日本"])
def test_true_name_is_shown(name):
    assert entry_name(name) == name


@pytest.mark.parametrize("name", ["M\udcfcller", "a" * 200, EVIL, "=cmd|' -C calc'!A0", "-1+1", "x\u202ey"])
def test_unsafe_name_is_not_shown(name):
    assert entry_name(name) == filed_name(name)


def test_names_that_share_a_path_are_refused(tmp_path):
    bundle(tmp_path / "Müller")
    bundle(tmp_path / filed_name("Müller"))
    with pytest.raises(PlayerError, match="expected one entry of this name"):
        found(tmp_path)


def test_cup_plays_folders_with_odd_names(tmp_path):
    names = [os.fsdecode(b"M\xfcller"), "Müller", "a" * 250, "b" * 120, "=cmd|' -C calc'!A0", EVIL]
    for name in names:
        (tmp_path / "in" / name).mkdir(parents=True)
    for name in ("a" * 250, "Müller"):
        shutil.copytree(data_root() / "checkpoints" / SOUND, tmp_path / "in" / name, dirs_exist_ok=True)
    result = works("cup", tmp_path / "in", "--games", "2", "-o", tmp_path / "cup", "--allow-copies")
    assert "\x1b" not in result.output
    assert "\nwinner: me" not in result.output
    data = json.loads((tmp_path / "cup" / "results.json").read_text())["entries"]
    assert sorted(entry["name"] for entry in data) == sorted(map(entry_name, names))
    assert {entry["name"] for entry in data if entry["kind"] == "frozen"} == {filed_name("a" * 250), "Müller"}
    assert (tmp_path / "cup" / "entries" / filed_name("Müller")).is_dir()
    assert "Müller" in (tmp_path / "cup" / "report.html").read_text(encoding="utf-8")
    for table in (tmp_path / "cup").glob("*.csv"):
        with table.open(newline="") as file:
            assert not [cell for row in csv.DictReader(file) for cell in row.values() if cell[:1] in ("=", "@", "+")]


def test_stored_program_keeps_its_name_and_checkpoints_names_the_catalogue(tmp_path):
    agent_of(tmp_path / "in" / "Müller")
    bundle(tmp_path / "own" / "mine")
    (tmp_path / "own" / "catalogue.yaml").write_text("players: {mine: {scenario: 1v1}}")
    words = ("--with", "mine", f"checkpoints={tmp_path / 'own'}", "--games", "1", "--trusted")
    works("cup", tmp_path / "in", *words, "-o", tmp_path / "cup", "--allow-copies")
    program, frozen = existing_cup(tmp_path / "cup")[1]
    assert (program.name, program.agent.name, frozen.name) == ("Müller", "Müller", "mine")


def test_unprintable_letters_do_not_end_cup(tmp_path):
    bundle(tmp_path / "in" / "日本")
    command = ["cup", tmp_path / "in", "--with", "idle", "--games", "1", "--allow-copies", "-o", tmp_path / "cup"]
    result = CliRunner(charset="ascii").invoke(app, list(map(str, command)))
    assert result.exit_code == 0, (result.output, result.exception)
    assert r"\u65e5\u672c: mlp" in result.output


def test_unreadable_folder_is_broken_entry_with_reason(tmp_path):
    for name, mode in (("closed", 0o000), ("listed", 0o644)):
        bundle(tmp_path / name).chmod(mode)
    agent = agent_of(tmp_path / "half")
    (agent.folder / "sub").mkdir()
    (agent.folder / "sub" / "data").touch()
    (agent.folder / "sub").chmod(0o644)
    bundle(tmp_path / "sound")
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o005 != 0o005:  # pytest's own, more of them where several processes test
            parent.chmod(0o755)
    with without_rights():
        seen = found(tmp_path)
    problems = [seen[name].problem or "" for name in ("closed", "listed", "half")]
    assert all("Permission denied" in problem for problem in problems), problems
    assert not any(str(tmp_path) in problem for problem in problems), problems
    assert seen["sound"].kind == "frozen"


def test_rejects_unreadable_folders(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "can be read, got Permission denied" in complaint(call("cup", tmp_path, "-o", tmp_path / "cup"))


def deep(folder: Path, depth: int, name: str) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.parametrize(("name", "message"), [("d", "at most 50 folders in one another"), ("d" * 250, "too long")])
def test_endlessly_nested_agent_is_broken_entry(name, message, tmp_path):
    deep(agent_of(tmp_path / "in" / "deep").folder, 1500, name)
    bundle(tmp_path / "in" / "sound")
    try:
        assert message in found(tmp_path / "in")["deep"].problem
    finally:
        remove_tree(tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_agent_file_names_are_printed_safely(tmp_path):
    agent = agent_of(tmp_path / "in" / "culprit")
    os.mkfifo(agent.folder / os.fsdecode(b"\xff" + EVIL.encode()))
    (tmp_path / "in" / "key").mkdir()
    (tmp_path / "in" / "key" / "agent.yaml").write_text('command: [a]\n"\\e[2J\\nx": 1\n')
    seen = found(tmp_path / "in")
    for name, message in (("culprit", "expected a plain file"), ("key", "Extra inputs are not permitted")):
        problem = seen[name].problem
        assert message in problem
        assert problem.isprintable()
        problem.encode()
        shown = call("inspect", tmp_path / "in" / name)
        assert complaint(shown)
        assert shown.output.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "x"), RecursionError("deep"), ValueError("!")]
)
def test_any_read_error_breaks_only_that_entry(error, tmp_path, monkeypatch):
    bundle(tmp_path / "one")
    bundle(tmp_path / "two")

    def load(folder, spec, team):
        if folder.name == "one":
            raise error
        return load_team(folder, spec, team)

    load_team = hand_ins.load_team
    monkeypatch.setattr(hand_ins, "load_team", load)
    seen = found(tmp_path)
    assert (seen["one"].kind, seen["two"].kind) == ("broken", "frozen")
    assert str(error.args[-1]) in seen["one"].problem or "Permission" in seen["one"].problem


def test_full_disk_causes_no_forfeit(tmp_path, monkeypatch):
    agent = agent_of(tmp_path / "agent")
    entry = entry_in(agent.folder, TABLE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ScratchError, match="No such file"):
        play_pairing(entry, Entry("random", "scripted", ""), TABLE)


@pytest.mark.parametrize("part", ["entry", "seat"])
def test_rejects_links_to_other_folders(part, tmp_path):
    bundle(tmp_path / "good")
    if part == "entry":
        (tmp_path / "thief").symlink_to("good")
    else:
        (tmp_path / "thief").mkdir()
        (tmp_path / "thief" / "blue_0").symlink_to("../good")
    assert "link" in found(tmp_path)["thief"].problem


def test_deeply_nested_scratch_folder_keeps_result(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    code = """
os.chdir(os.environ["TMPDIR"])
for _ in range(1200): os.mkdir("d" * 100); os.chdir("d" * 100)
os.chmod(os.environ["TMPDIR"], 0)
"""
    agent = agent_of(tmp_path / "agent", code)
    entry = entry_in(agent.folder, TABLE)
    pairing = play_pairing(entry, Entry("random", "scripted", ""), TABLE)
    assert pairing.reason is None
    assert not list(scratch.iterdir())


def test_folder_removal_never_raises_or_follows_links(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").touch()
    folder = tmp_path / "scratch"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "link").symlink_to(tmp_path / "mine")
    (folder / "a" / os.fsdecode(b"\xff")).touch()
    (folder / "a" / "b" / "c").touch()
    (folder / "a" / "b").chmod(0o000)
    remove_tree(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "kept").exists()
    remove_tree(folder)


@pytest.mark.parametrize("around", ["zip", "wrapper", "zip in a wrapper", "zip of a folder in folders"])
def test_cup_opens_what_a_platform_puts_around_an_entry(around, tmp_path):
    source = data_root() / "checkpoints" / "blue-rookie"
    if around == "wrapper":
        shutil.copytree(source, tmp_path / "in" / "bob" / "mine")
    elif around == "zip of a folder in folders":
        shutil.copytree(source, tmp_path / "deep" / "some" / "mine")
        shutil.make_archive(str(tmp_path / "in" / "bob"), "zip", tmp_path / "deep")
    else:
        shutil.make_archive(str(tmp_path / "in" / ("bob" if around == "zip" else "bob/mine")), "zip", source)
    entry = found(tmp_path / "in", "random")["bob"]
    assert (entry.kind, entry.problem) == ("frozen", None)
    assert entry.players
