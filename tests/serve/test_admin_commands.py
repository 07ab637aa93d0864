"""What is done with a course: verified, kept, brought back, ended; and the check at home, which says the same."""

import json
import os
import shutil
import sys
import tarfile
import zipfile
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from commands import call, complaint, works
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import MODEL_FILE
from multigrid_rl.serve import admin_commands
from multigrid_rl.serve.database import HandIn, Job, Person, Setting, StoredPairing
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.supervisor import open_prepared, place_of
from multigrid_rl.serve.worker import Worker
from multigrid_rl.text import ConfigError
from sites import LANES

COURSE = """
scenario: 1v1
anchors: [random, blue-rookie]
games: 20
matches: 1
limits: {start_s: 300, step_s: 300, total_s: 2000, all_s: 9000}
rubric: rubric.yaml
"""
RUBRIC = """
scenario: 1v1
pass_points: 5
exams:
  - {name: a rookie, opponent: blue-rookie, episodes: 100, checks: [{metric: win/*, from: 0.1, full: 0.6, points: 10}]}
"""


def do_all(place):
    queue = place.open_queue()
    worker = Worker(queue, Judge(place.course, place.course_folder, place.home, queue.secrets()), "w", LANES)
    queue.begin()
    while worker.once() or queue.suggest():
        pass
    queue.engine.dispose()


@pytest.fixture(scope="module")
def _served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    (folder / "course.yaml").write_text(COURSE)
    (folder / "rubric.yaml").write_text(RUBRIC)
    (folder / "roster.csv").write_text("id,name,role\ns1,Ada,student\ns2,Ben,student\ni1,Ines,instructor\n")
    place = place_of(folder / "course.yaml")
    queue = open_prepared(place)
    for code, name in (("s1", "blue-adept"), ("s2", "blue-master")):
        queue.hand_in(queue.person_by_code(code).id, data_root() / "checkpoints" / name)
    queue.engine.dispose()
    do_all(place)
    return folder


@pytest.fixture
def course(_served, tmp_path):
    return shutil.copytree(_served, tmp_path / "course") / "course.yaml"


def last(result):
    return json.loads(result.output.splitlines()[-1])


@contextmanager
def queue_of(course, *where):
    """The course's queue, for a block."""
    queue = place_of(course, *where).open_queue()
    yield queue
    queue.engine.dispose()


def backup_of(course):
    file = course.parent.parent / "backup.tar.gz"
    works("serve", "backup", course, "-o", file)
    return file


@pytest.mark.slow
def test_verify_computes_the_same_and_finds_what_was_changed(course):
    result = works("serve", "verify", course)
    told = last(result)
    assert (told["ratings"], told["pairings"], told["replayed"], told["different"]) == (4, 12, 10, 0)
    with queue_of(course) as queue, queue.writing() as session:
        game = session.get_one(StoredPairing, 4)
        pairing = json.loads(game.pairing)
        first, rest = pairing["outcomes"][0], pairing["outcomes"][1:]
        game.pairing = json.dumps({**pairing, "outcomes": ("B" if first == "R" else "R") + rest})
    result = call("serve", "verify", course, "--all")
    assert result.exit_code == 1
    assert "rating of h" in result.output
    assert "games differ" in result.output


def test_verify_finds_weights_that_were_replaced(course, monkeypatch):
    monkeypatch.setattr(admin_commands, "REPLAYED", 0)
    with queue_of(course) as queue:
        row = next(row.hand_in for row in queue.ladder() if row.hand_in.kind == "frozen" and row.person is not None)
        weights = queue.entry_folder(row.id) / MODEL_FILE
        weights.write_bytes((data_root() / "checkpoints" / "blue-rookie" / MODEL_FILE).read_bytes())
    result = call("serve", "verify", course)
    assert (result.exit_code, f"h{row.id}: its files have changed" in result.output) == (1, True)


def test_backup_comes_back_in_either_database(course, database, tmp_path):
    file, home = backup_of(course), tmp_path / "other"
    where = ("--home", home, "--database", database)
    works("serve", "restore", course, file, *where)
    assert last(works("serve", "verify", course, *where))["different"] == 0
    with queue_of(course) as old, queue_of(course, home, database) as new:
        rows = [[(row.rank, row.title, row.rating) for row in queue.ladder()] for queue in (old, new)]
        assert rows[0] == rows[1]
        assert new.hand_in(new.person_by_code("s1").id, data_root() / "checkpoints" / "blue-adept").id == 5
    assert "expected an empty folder" in complaint(call("serve", "restore", course, file, *where))


def write_otherwise(monkeypatch, old, new):
    """Backups are as another version would make them."""
    dumped = admin_commands._dumped
    monkeypatch.setattr(admin_commands, "_dumped", lambda queue: (line.replace(old, new) for line in dumped(queue)))


def test_a_backup_of_an_older_version_comes_back(course, tmp_path, monkeypatch):
    write_otherwise(monkeypatch, '"role":', '"token_hash": "x", "role":')
    works("serve", "restore", course, backup_of(course), "--home", tmp_path / "other")
    with queue_of(course, tmp_path / "other") as queue:
        assert [row.title for row in queue.ladder() if row.person is None] == ["blue-rookie", "random"]


def test_a_backup_of_a_newer_version_is_refused(course, tmp_path, monkeypatch):
    write_otherwise(monkeypatch, '"0002"', '"0003"')
    said = complaint(call("serve", "restore", course, backup_of(course), "--home", tmp_path / "other"))
    assert "expected version 0002 (use the version of multigrid-rl that made it), got 0003" in said


def test_a_backup_that_is_not_there_or_a_folder_is_a_mistake_of_the_input(tmp_path):
    (tmp_path / "course.yaml").write_text(COURSE)
    for file in (tmp_path / "nowhere.tar.gz", tmp_path):
        said = complaint(call("serve", "restore", tmp_path / "course.yaml", file, "--home", tmp_path / "new"))
        assert f"{file}: expected a file of `serve backup`, got " in said


def test_a_python_that_unpacks_whatever_an_archive_says_restores_none(course, tmp_path, monkeypatch):
    file = backup_of(course)
    monkeypatch.delattr(tarfile, "data_filter")
    said = complaint(call("serve", "restore", course, file, "--home", tmp_path / "other"))
    assert "Python: expected 3.10.12 or newer" in said


@pytest.mark.slow
def test_final_cup_has_fresh_seeds_and_verifies(course, tmp_path):
    folder = tmp_path / "final"
    result = works("serve", "final", course, "-o", folder)
    assert last(result)["entries"] == 4
    seed = json.loads((folder / "cup.json").read_text())["seed"]
    with queue_of(course) as queue:
        assert str(seed) != queue.setting("seed")
    works("cup", "verify", folder)
    assert last(call("serve", "final", course, "-o", folder)) == last(result)


def test_grades_and_copies_are_there(course):
    with queue_of(course) as queue:
        row = queue.history(queue.person_by_code("s2").id)[0]
    assert row.grade.passed
    assert "a rookie" in row.grade.feedback
    assert "blue-master" in row.same_as
    assert last(call("serve", "regrade", course)) == {"to_grade": 2}


def test_who_left_the_roster_gets_no_link(course):
    (course.parent / "roster.csv").write_text("id,name,role\ns1,Ada,student\n")
    lines = call("serve", "links", course).output.splitlines()
    assert [line.split(",")[0] for line in lines] == ["id", "s1"]


def test_freeze_links_and_tables(course, tmp_path):
    assert last(call("serve", "freeze", course)) == {"frozen": True}
    with queue_of(course) as queue, pytest.raises(ConfigError, match="frozen"):
        queue.hand_in(queue.person_by_code("s1").id, data_root() / "checkpoints" / "blue-adept")
    links = call("serve", "links", course, "--url", "https://x.org/").output.splitlines()
    assert len(links) == 4
    assert all("https://x.org/enter/" in line for line in links[1:])
    for name in ("ladder.csv", "moodle.csv", "canvas.csv", "gradescope.zip"):
        works("serve", "export", course, name, "-o", tmp_path / name)
    assert "late_days" in (tmp_path / "ladder.csv").read_text()
    assert "s1/results.json" in zipfile.ZipFile(tmp_path / "gradescope.zip").namelist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bundle", "damaged", "zip", "agent"])
def test_check_at_home_says_what_the_server_says(course, tmp_path, kind, monkeypatch):
    monkeypatch.setattr("multigrid_rl.serve.judge.CHECK_S", 2_000.0)  # of busy machines
    folder = tmp_path / "mine"
    source = "examples/agents/python" if kind == "agent" else "checkpoints/blue-adept"
    shutil.copytree(data_root() / source, folder)
    if kind == "damaged":
        next(folder.glob("*.safetensors")).write_bytes(b"no weights")
    if kind == "zip":
        folder = shutil.make_archive(str(tmp_path / "wrapped"), "zip", tmp_path, "mine")
    home = call("inspect", folder, "--course", course)
    with queue_of(course) as queue:
        row = queue.hand_in(queue.person_by_code("s1").id, tmp_path / folder)
    do_all(place_of(course))
    with queue_of(course) as queue:
        row = queue.get(HandIn, row.id)
    assert home.exit_code == (2 if kind == "damaged" else 0), home.output
    assert row.state == ("refused" if kind == "damaged" else "rated"), row.reason
    if kind == "damaged":
        assert row.reason.partition(": ")[2] in complaint(home)
    assert home.output.replace("mine", "h5").endswith(row.log.replace("mine", "h5") + "\n" * bool(row.log))


def test_what_cannot_be_served_is_one_line(tmp_path):
    course = tmp_path / "course.yaml"
    for text, message in (
        ("anchors: [nobody]\n", None),
        ("games: 1\n", "games: expected"),
        ("deadlines: [{name: a, at: 2026-12-01T23:59:00}]\n", "deadlines.0.at"),
        ("deadlines: [{name: a, at: 9999-12-31T23:59:00Z}]\n", "deadlines.0.at"),
        ("deadlines: [{name: a, at: 2026-12-01T23:59:00Z, grace_h: true}]\n", "grace_h: expected a number, got True"),
        ("rookie: hunter\nanchors: [random]\n", "rookie: expected random, got hunter"),
    ):
        course.write_text(text)
        (tmp_path / "roster.csv").write_text("id,name\ns1,Ada\n")
        said = complaint(call("serve", "verify", course))
        assert message is None or message in said


def test_a_rubric_that_cannot_be_read_is_known_before_anybody_hands_in(course):
    (course.parent / "rubric.yaml").write_text(RUBRIC.replace("win/*", "wins/*"))
    place = place_of(course)
    with pytest.raises(ConfigError, match=r"rubric\.yaml: .*metric.*wins/\*"):
        Judge(place.course, place.course_folder, place.home, None).warm()
    course.write_text(COURSE.replace("rubric: rubric.yaml\n", ""))
    assert "rubric: expected a file, got none" in complaint(call("serve", "regrade", course))


@pytest.mark.parametrize("words", ["verify -o x", "freeze --all", "backup --workers 2", "start --all"])
def test_options_that_an_action_does_not_read_are_refused(course, words):
    action, option, *value = words.split()
    assert f"{option.replace('-o', '--output')}: expected nothing with {action}, got" in complaint(
        call("serve", action, course, option, *value)
    )


def test_inspect_refuses_a_rookie_beside_a_course(course):
    agent = data_root() / "checkpoints" / "blue-adept"
    said = complaint(call("inspect", agent, "--course", course, "--rookie", "hunter"))
    assert "--rookie: expected nothing with --course, which says it, got hunter" in said
    missing = call("inspect", agent, "--course", course.parent / "nowhere.yaml")
    assert "expected a course in yaml" in complaint(missing)
    assert not missing.stdout  # no report comes before


def test_a_final_plays_the_anchor_of_the_ladder(course, tmp_path, monkeypatch):
    shutil.copytree(data_root() / "checkpoints" / "blue-adept", course.parent / "blue-rookie")
    with queue_of(course) as queue, queue.writing() as session:
        session.get_one(Person, queue.person_by_code("s1").id).pseudonym = "_x"
    seen = []
    monkeypatch.setattr(admin_commands, "play_cup", lambda entries, *rest: seen.extend(entries) or sys.exit(9))
    call("serve", "final", course, "-o", tmp_path / "final")
    place = place_of(course)
    anchor = Judge(place.course, place.course_folder, place.home, None).anchors["blue-rookie"]
    assert [entry.sha256 for entry in seen if entry.name == "blue-rookie"] == [anchor.sha256]
    assert "_x" in [entry.name for entry in seen]
    # Equal entries share the first place, here as in a cup.
    monkeypatch.setattr(admin_commands, "play_cup", lambda *_: [])
    monkeypatch.setattr(admin_commands, "write_files", lambda *_: [])
    rows = [SimpleNamespace(name=name, rank=rank) for name, rank in (("a", 1), ("b", 1), ("c", 3))]
    monkeypatch.setattr(admin_commands, "tabulate", lambda *_: SimpleNamespace(table=rows, sha256="0"))
    assert json.loads(call("serve", "final", course, "-o", tmp_path / "tied").stdout)["winner"] == "a, b"


def test_backups_hold_no_links_no_hidden_folders_and_no_backups(course, tmp_path, monkeypatch):
    (course.parent / "python").symlink_to("/usr/bin/python3")
    (course.parent / ".venv").mkdir()
    (course.parent / ".venv" / "large").write_bytes(bytes(1000))
    files = [course.parent / f"{day}.tar.gz" for day in ("monday", "tuesday")]
    (place_of(course).home / "uploads" / ".unfinished").mkdir()
    true, home = os.listdir, str(place_of(course).home)
    # What is listed last is gone by then: of a person who is forgotten meanwhile.
    monkeypatch.setattr(os, "listdir", lambda path: [*true(path), *(["zz"] if str(path).startswith(home) else [])])
    for file in files:
        works("serve", "backup", course, "-o", file)
    monkeypatch.undo()
    with tarfile.open(files[1]) as archive:
        names = archive.getnames()
    assert {"course/course.yaml", "course/roster.csv", "course/rubric.yaml"} <= set(names)
    assert not [name for name in names if "python" in name or name.endswith(".gz")]
    assert not [name for name in names if ".venv" in name or ".unfinished" in name]
    works("serve", "restore", course, files[1], "--home", tmp_path / "other")


def test_a_changed_rubric_is_read_by_who_runs(course):
    place = place_of(course)
    judge = Judge(place.course, place.course_folder, place.home, None)
    assert judge.examiner is judge.examiner
    assert judge.examiner.rubric.pass_points == 5
    (course.parent / "rubric.yaml").write_text(RUBRIC.replace("pass_points: 5", "pass_points: 6"))
    assert judge.examiner.rubric.pass_points == 6
    bounds = judge.examiner.limits
    worker = Worker(place.open_queue(), judge, "w", LANES)
    assert worker._programs_s(Job(kind="grade")) == 15 * (bounds.start_s + bounds.total_s)  # watched as two, and red
    worker.queue.engine.dispose()


def test_programs_of_a_final_have_the_time_of_as_many_games(course, tmp_path, monkeypatch):
    course.write_text(course.read_text() + "program_games: 4\n")
    with queue_of(course) as queue, queue.writing() as session:
        began = session.get_one(Setting, "fixed")
        began.value = began.value.replace('"program_games": 20', '"program_games": 4')
    seen = []
    monkeypatch.setattr(admin_commands, "play_cup", lambda _, config, *rest: seen.append(config) or sys.exit(9))
    call("serve", "final", course, "-o", tmp_path / "final")
    assert (seen[0].limits.total_s, seen[0].limits.step_s) == (5 * 2000, 5 * 300)
    assert seen[0].cup_s > 10**5


def test_somebody_who_was_forgotten_stops_nothing(course, tmp_path):
    with queue_of(course) as queue:
        queue.forget(queue.person_by_code("s1").id)
        queue.redo("copies")
    do_all(place_of(course))
    assert last(works("serve", "final", course, "-o", tmp_path / "final"))["entries"] == 3
    assert "Ada" not in call("serve", "links", course).output
