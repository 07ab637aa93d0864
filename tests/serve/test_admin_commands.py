"""What is done with a course: verified, kept, brought back, ended; and the check at home, which says the same."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import zipfile

import pytest

from commands import call, complaint
from multigrid_rl.files import data_root
from multigrid_rl.serve import admin_commands
from multigrid_rl.serve.database import HandIn, Job, Setting, StoredPairing
from multigrid_rl.serve.judge import Judge
from multigrid_rl.serve.supervisor import open_prepared, place_of
from multigrid_rl.serve.worker import Worker
from multigrid_rl.text import ConfigError

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
LANES = ("bundle", "program", "slow")


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


@pytest.mark.slow
def test_verify_computes_the_same_and_finds_what_was_changed(course):
    result = call("serve", "verify", course)
    assert result.exit_code == 0, result.output
    told = last(result)
    assert (told["ratings"], told["pairings"], told["replayed"], told["different"]) == (4, 12, 10, 0)
    queue = place_of(course).open_queue()
    with queue.writing() as session:
        game = session.get_one(StoredPairing, 4)
        pairing = json.loads(game.pairing)
        first, rest = pairing["outcomes"][0], pairing["outcomes"][1:]
        game.pairing = json.dumps({**pairing, "outcomes": ("B" if first == "R" else "R") + rest})
    queue.engine.dispose()
    result = call("serve", "verify", course, "--all")
    assert result.exit_code == 1
    assert "rating of h" in result.output
    assert "games differ" in result.output


def test_backup_comes_back_in_either_database(course, database, tmp_path):
    file = tmp_path / "backup.tar.gz"
    assert call("serve", "backup", course, "-o", file).exit_code == 0
    home = tmp_path / "other"
    where = ("--home", home, "--database", database)
    result = call("serve", "restore", course, file, *where)
    assert result.exit_code == 0, result.output
    verified = call("serve", "verify", course, *where)
    assert (verified.exit_code, last(verified)["different"]) == (0, 0), verified.output
    old, new = place_of(course).open_queue(), place_of(course, home, database).open_queue()
    assert [(r.rank, r.title, r.rating) for r in old.ladder()] == [(r.rank, r.title, r.rating) for r in new.ladder()]
    mine = new.hand_in(new.person_by_code("s1").id, data_root() / "checkpoints" / "blue-adept")
    assert mine.id == 5
    for queue in (old, new):
        queue.engine.dispose()
    assert "expected an empty folder" in complaint(call("serve", "restore", course, file, *where))


def test_a_backup_of_an_older_version_comes_back(course, tmp_path, monkeypatch):
    dumped = admin_commands._dumped
    monkeypatch.setattr(
        admin_commands,
        "_dumped",
        lambda queue: (line.replace('"role":', '"token_hash": "x", "role":') for line in dumped(queue)),
    )
    file, home = tmp_path / "backup.tar.gz", tmp_path / "other"
    assert call("serve", "backup", course, "-o", file).exit_code == 0
    result = call("serve", "restore", course, file, "--home", home)
    assert result.exit_code == 0, result.output
    assert [row.title for row in place_of(course, home).open_queue().ladder() if row.person is None] == [
        "blue-rookie",
        "random",
    ]


def test_a_backup_of_a_newer_version_is_refused(course, tmp_path, monkeypatch):
    dumped = admin_commands._dumped
    monkeypatch.setattr(
        admin_commands, "_dumped", lambda queue: (line.replace('"0002"', '"0003"') for line in dumped(queue))
    )
    file = tmp_path / "backup.tar.gz"
    assert call("serve", "backup", course, "-o", file).exit_code == 0
    said = complaint(call("serve", "restore", course, file, "--home", tmp_path / "other"))
    assert "expected version 0002 (use the version of multigrid-rl that made it), got 0003" in said


def test_a_python_that_unpacks_whatever_an_archive_says_restores_none(course, tmp_path, monkeypatch):
    file = tmp_path / "backup.tar.gz"
    assert call("serve", "backup", course, "-o", file).exit_code == 0
    monkeypatch.delattr(tarfile, "data_filter")
    said = complaint(call("serve", "restore", course, file, "--home", tmp_path / "other"))
    assert "Python: expected 3.10.12 or newer" in said


@pytest.mark.slow
def test_final_cup_has_fresh_seeds_and_verifies(course, tmp_path):
    folder = tmp_path / "final"
    result = call("serve", "final", course, "-o", folder)
    assert result.exit_code == 0, result.output
    assert last(result)["entries"] == 4
    seed = json.loads((folder / "cup.json").read_text())["seed"]
    queue = place_of(course).open_queue()
    assert str(seed) != queue.setting("seed")
    queue.engine.dispose()
    assert call("cup", "verify", folder).exit_code == 0
    assert last(call("serve", "final", course, "-o", folder)) == last(result)


def test_grades_and_copies_are_there(course):
    queue = place_of(course).open_queue()
    row, _, grade = queue.history(queue.person_by_code("s2").id)[0]
    assert grade.passed
    assert "a rookie" in grade.feedback
    assert "blue-master" in row.same_as
    queue.engine.dispose()
    assert last(call("serve", "regrade", course)) == {"to_grade": 2}


def test_freeze_links_and_tables(course, tmp_path):
    assert last(call("serve", "freeze", course)) == {"frozen": True}
    queue = place_of(course).open_queue()
    with pytest.raises(ConfigError, match="frozen"):
        queue.hand_in(queue.person_by_code("s1").id, data_root() / "checkpoints" / "blue-adept")
    queue.engine.dispose()
    links = call("serve", "links", course, "--url", "https://x.org").output.splitlines()
    assert len(links) == 4
    assert all("https://x.org/enter/" in line for line in links[1:])
    for name in ("ladder.csv", "moodle.csv", "canvas.csv", "gradescope.zip"):
        assert call("serve", "export", course, name, "-o", tmp_path / name).exit_code == 0
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
    place = place_of(course)
    queue = place.open_queue()
    row = queue.hand_in(queue.person_by_code("s1").id, tmp_path / folder)
    queue.engine.dispose()
    do_all(place)
    queue = place.open_queue()
    row = queue.get(HandIn, row.id)
    queue.engine.dispose()
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
        ("rookie: hunter\nanchors: [random]\n", "rookie: expected random, got hunter"),
    ):
        course.write_text(text)
        (tmp_path / "roster.csv").write_text("id,name\ns1,Ada\n")
        said = complaint(call("serve", "verify", course))
        assert message is None or message in said


def test_backups_hold_no_links_no_hidden_folders_and_no_backups(course, tmp_path):
    (course.parent / "python").symlink_to("/usr/bin/python3")
    (course.parent / ".venv").mkdir()
    (course.parent / ".venv" / "large").write_bytes(bytes(1000))
    files = [course.parent / f"{day}.tar.gz" for day in ("monday", "tuesday")]
    for file in files:
        assert call("serve", "backup", course, "-o", file).exit_code == 0
    with tarfile.open(files[1]) as archive:
        names = archive.getnames()
    assert {"course/course.yaml", "course/roster.csv", "course/rubric.yaml"} <= set(names)
    assert not [name for name in names if "python" in name or ".venv" in name or name.endswith(".gz")]
    result = call("serve", "restore", course, files[1], "--home", tmp_path / "other")
    assert result.exit_code == 0, result.output


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
    queue = place_of(course).open_queue()
    with queue.writing() as session:
        began = session.get_one(Setting, "fixed")
        began.value = began.value.replace('"program_games": 20', '"program_games": 4')
    queue.engine.dispose()
    seen = []
    monkeypatch.setattr(admin_commands, "play_cup", lambda _, config, *rest: seen.append(config) or sys.exit(9))
    call("serve", "final", course, "-o", tmp_path / "final")
    assert (seen[0].limits.total_s, seen[0].limits.step_s) == (5 * 2000, 5 * 300)
    assert seen[0].cup_s > 10**5


def test_somebody_who_was_forgotten_stops_nothing(course, tmp_path):
    queue = place_of(course).open_queue()
    queue.forget(queue.person_by_code("s1").id)
    queue.redo("copies")
    queue.engine.dispose()
    do_all(place_of(course))
    result = call("serve", "final", course, "-o", tmp_path / "final")
    assert (result.exit_code, last(result)["entries"]) == (0, 3)
    assert "Ada" not in call("serve", "links", course).output
