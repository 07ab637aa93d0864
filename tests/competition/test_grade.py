"""The grade verb: points by play, exit status for CI, nothing told that should stay hidden."""

import csv
import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from bundles import bundle, vouch
from commands import call, complaint
from multigrid_rl.competition import grading
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.competition.cup_commands import rubric_file
from multigrid_rl.competition.grading import Examiner
from multigrid_rl.competition.rubric import Check, EntropyMeter, read_rubric
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import MODEL_FILE
from multigrid_rl.players.catalogue import BUILT_IN
from multigrid_rl.players.episodes import play_games

BUNDLE = data_root() / "checkpoints" / "blue-master"
SPEC = load_scenario("1v1").spec
RUBRIC = {
    "scenario": "1v1",
    "team": "blue",
    "seed": 31_337,
    "pass_points": 5,
    "exams": [
        {
            "name": "against random",
            "opponent": "random",
            "sides": "both",
            "episodes": 400,
            "checks": [
                {"metric": "win/*", "at_least": 0.9, "points": 4},
                {"metric": "episode_len_mean", "at_most": 5, "points": 2},
                {"metric": "entropy/*", "at_most": 1.0, "points": 1},
                {"metric": "behaviour/*/key_pickup", "at_least": 0.1, "points": 1},
                {"metric": "return_mean/*", "at_least": 0.5, "points": 1},
            ],
        }
    ],
}

EXAM = RUBRIC["exams"][0]
SIDES = ("own", "other")


def grade(tmp_path, rubric=RUBRIC, bundle=BUNDLE, *options):
    """What the verb said, and its last line where that is JSON."""
    path = tmp_path / "rubric.yaml"
    path.write_text(json.dumps(rubric), encoding="utf-8")
    result = call("grade", bundle, "--rubric", path, *options)
    last = result.output.splitlines()[-1]
    return result, json.loads(last) if last.startswith("{") else None


def test_good_bundle_passes_with_reason(tmp_path):
    result, line = grade(tmp_path)
    assert (result.exit_code, line["passed"], line["points"], line["of"]) == (0, True, 7.0, 9.0)
    checks = line["exams"][0]["checks"]
    assert [check["met"] for check in checks] == [True, False, True, True, True]
    assert checks[0]["value"] > 0.95
    assert checks[0]["interval"][0] > 0.9
    assert "PASSED: 7 of 9 points, 5 are needed" in result.output
    assert "31337" not in result.output


def test_grade_repeats_and_other_seed_gives_other_games(tmp_path):
    values = []
    for options in ([], [], ["--seed", "5"]):
        _, line = grade(tmp_path, RUBRIC, BUNDLE, *options)
        values.append([check["value"] for check in line["exams"][0]["checks"]])
    assert values[0] == values[1] != values[2]


def test_too_few_points_are_status_1(tmp_path):
    result, line = grade(tmp_path, RUBRIC | {"pass_points": 8})
    assert (result.exit_code, line["passed"]) == (1, False)


def test_unplayable_bundle_gets_no_points_with_reason(tmp_path):
    broken = shutil.copytree(BUNDLE, tmp_path / "broken")
    (broken / MODEL_FILE).write_bytes(b"\x80\x04no tensors")
    result, line = grade(tmp_path, RUBRIC, broken)
    assert (result.exit_code, line["passed"], line["points"]) == (1, False, 0.0)
    assert "bytes" in line["problem"]


def test_overflowing_weights_get_no_points_and_valid_json(tmp_path):
    large = bundle(tmp_path / "large", ("blue_0",))
    weights = load_file(large / MODEL_FILE)
    save_file({name: torch.sign(w) * 3e38 for name, w in weights.items()}, large / MODEL_FILE)
    vouch(large)
    output = tmp_path / "grade.json"
    result, _ = grade(tmp_path, RUBRIC, large, "-o", output)
    assert result.exit_code == 1
    for text in (output.read_text(), result.output.splitlines()[-1]):
        line = json.loads(text, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
        assert (line["passed"], line["points"]) == (False, 0.0)
        assert line["problem"].startswith("large: expected finite entropy")


SHORT = RUBRIC | {"exams": [EXAM | {"opponent": "idle", "episodes": 100}]}


@pytest.mark.slow
def test_rubric_hash_does_not_depend_on_seed(tmp_path):
    hashes = [grade(tmp_path, SHORT | change)[1]["rubric_sha256"] for change in ({}, {"seed": 5}, {"pass_points": 6})]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("where", ["there", "file/grade.json", "f" * 300, "/proc/nowhere/grade.json"])
def test_rejects_unwritable_outputs_before_playing(tmp_path, where, monkeypatch):
    monkeypatch.setattr(Examiner, "grade", lambda *_: pytest.fail("it played"))
    for name in ("there", "file"):
        (tmp_path / name).write_text("")
    before = sorted(tmp_path.iterdir())
    result, _ = grade(tmp_path, RUBRIC, BUNDLE, "-o", tmp_path / where)
    assert complaint(result).startswith("multigrid-rl: --output: expected ")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "rubric.yaml"])


def test_full_disk_after_games_prints_grade_without_verdict(tmp_path, monkeypatch):
    def full(path, *_, **__):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    graded = {"passed": True, "points": 9.0, "of": 9.0, "pass_points": 5.0, "problem": None, "exams": []}
    graded |= {"measurable": 9.0, "close": False}
    monkeypatch.setattr(Examiner, "grade", lambda *_: graded)
    (tmp_path / "rubric.yaml").write_text(yaml.safe_dump(RUBRIC))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(type(tmp_path), "write_text", full)
        output = tmp_path / "out" / "grade.json"
        result = call("grade", BUNDLE, "--rubric", tmp_path / "rubric.yaml", "-o", output)
    assert (result.exit_code, result.stderr) == (3, f"multigrid-rl: {output}: No space left on device\n")
    assert json.loads(result.stdout.splitlines()[-1]) == graded
    assert list((tmp_path / "out").iterdir()) == []


def test_program_fault_gives_no_verdict(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(Examiner, "grade", fails)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result, _ = grade(tmp_path, RUBRIC, BUNDLE, "-o", tmp_path / "out" / "grade.json")
    assert result.exit_code == 70
    assert "no locator available" in result.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pass_points": 99}, "pass_points: expected above 0 to 9, all there are, got 99"),
        ({"scenario": "1v7"}, "1v7"),
        ({"colour": "red"}, "colour"),
        ({"seed": 2**63}, "whole numbers beyond 64 bits are not allowed"),
        ({"seed": -1}, "seed: expected greater than or equal to 0"),
        ({"exams": [EXAM | {"opponent": "nobody"}]}, "opponent=nobody"),
        ({"exams": [EXAM | {"checks": [{"metric": "luck", "at_least": 1, "points": 9}]}]}, "got luck"),
        ({"exams": [EXAM | {"checks": [{"metric": "win/*", "points": 9}]}]}, "exactly one of at_most and at_least"),
        ({"scenario": "single", "exams": [EXAM | {"opponent": None}]}, "exams.0.sides: expected own, as in"),
        ({"exams": [EXAM, EXAM | {"opponent": "elsewhere"}]}, "opponent=elsewhere"),
        ({"exams": [EXAM | {"episodes": 50}]}, "exams.0.episodes: expected greater than or equal to 100, got 50"),
        ({"exams": [{"checks": []}]}, "exams.0.name: expected a value, got none"),
        ({"pass_point": 3}, "did you mean pass_points?"),
        *(
            ({"exams": [EXAM | {"checks": [{"metric": "win/*", "points": 9, **ramp}]}]}, f"got {got}")
            for ramp, got in [
                ({"from": 0.5}, "0.5, None"),
                ({"from": 0.5, "full": 0.5}, "0.5, 0.5"),
                ({"from": True, "full": 0.5}, "True, 0.5"),
                ({"from": 0.2, "full": 0.5, "at_least": 0.4}, "0.2, 0.5"),
            ]
        ),
        ({"exams": [EXAM | {"chekcs": []}]}, "did you mean checks?"),
        ({"exams": [{"name": "x", "checks": [{"metric": "wins/*", "at_least": 1, "points": 5}]}]}, "did you mean win/"),
        ("scenario: 1v1\nseed: 31337: 1\n", "line 2"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nscenario: 1v1\n", "anchors and aliases"),
        ("scenario: 1v1\nexams: [{name: x, name: y}]\n", "name is there twice"),
    ],
)
def test_rejects_bad_rubrics_before_any_game(tmp_path, monkeypatch, change, message):
    monkeypatch.setattr(grading, "play_games", lambda *_: pytest.fail("it played"))
    bundle(tmp_path / "elsewhere", ("red_0",), scenario="2v2", members=2)
    path = tmp_path / "rubric.yaml"
    path.write_text(change if isinstance(change, str) else json.dumps(RUBRIC | change))  # JSON is yaml, without anchors
    line = complaint(call("grade", BUNDLE, "--rubric", path))
    assert message in line
    assert "31337" not in line


def test_rubrics_of_ours_have_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {rubric_file(Path(name)).parent.name for name in ("1v1", "4-imitation")} == {"grade", "rubrics"}
    assert read_rubric(rubric_file(Path("1v1"))).points == 100
    Path("1v1").write_text("mine")
    assert rubric_file(Path("1v1")) == Path("1v1")
    assert complaint(call("grade", BUNDLE, "--rubric", "nowhere.yaml")).endswith("6-two-teams, got nowhere.yaml")


@pytest.mark.parametrize(
    ("bounds", "value", "low", "high", "points", "close"),
    [
        ({"from": 0.2, "full": 0.6}, 0.5, 0.4, 0.7, 7.5, False),
        ({"from": 0.2, "full": 0.6}, 0.1, 0.0, 0.3, 0.0, False),
        ({"from": 30, "full": 20}, 19, 18, 21, 10.0, False),
        ({"from": 30, "full": 20}, 28, 27, 29, 2.0, False),
        ({"at_least": 0.5}, 0.51, 0.49, 0.53, 10.0, True),
        ({"at_most": 20}, 20.5, 19.5, 21.5, 0.0, True),
        ({"at_least": 0.5}, 0.53, 0.51, 0.55, 10.0, False),
    ],
)
def test_points_rise_between_from_and_full(bounds, value, low, high, points, close):
    check = Check.model_validate({"metric": "win/*", "points": 10, **bounds})
    row = check.row_of([Interval(value, low, high)])
    assert (row["points"], row["close"]) == (points, close)
    assert row["least"] <= points <= row["most"]


def test_entropy_is_of_decisions_made():
    spec = replace(SPEC, max_steps=60)
    plain = load_team(BUNDLE, spec, "blue")
    metered = {seat: EntropyMeter(player) for seat, player in plain.items()}
    rivals = {"red_0": BUILT_IN["random"](spec)}
    without = play_games(spec, {**plain, **rivals}, 50, seed=2)
    played = play_games(spec, {**metered, **rivals}, 50, seed=2)
    np.testing.assert_array_equal(without.actions, played.actions)
    meter = metered["blue_0"]
    assert meter.decisions == played.table.length.sum()
    assert 0 < meter.mean < np.log(7)


# --- mistakes of whoever grades are no verdict


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere: expected a folder with a bundle, got nothing there"),
        ("nowhere.zip", "nowhere.zip: expected a folder with a bundle, got nothing there"),
        ("a.tar", "a.tar: expected a folder with a bundle, got a file"),
        ("class", "-o grades.csv grades each folder in it, got one with other folders, anna first"),
    ],
)
def test_rejects_invalid_hand_in(name, message, tmp_path):
    bundle(tmp_path / "class" / "anna", ("blue_0",))
    (tmp_path / "a.tar").touch()
    assert message in complaint(grade(tmp_path, SHORT, tmp_path / name)[0])


def test_no_room_to_unpack_is_no_verdict(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    shutil.make_archive(str(tmp_path / "mine"), "zip", bundle(tmp_path / "mine", ("blue_0",)))
    monkeypatch.setattr("multigrid_rl.competition.hand_ins.write_parts", full)
    result, _ = grade(tmp_path, SHORT, tmp_path / "mine.zip")
    assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1)
    assert "expected a TMPDIR with room, got No space left on device" in result.stderr


@pytest.mark.slow
def test_unseeded_grading_draws_and_reports_seed(tmp_path):
    fresh = {key: value for key, value in SHORT.items() if key != "seed"}
    one, two = (grade(tmp_path, fresh)[0].stderr for _ in range(2))
    assert one != two
    seed = one.split("--seed ")[1].split()[0]
    assert int(seed) > 2**32
    played = [grade(tmp_path, fresh, BUNDLE, "--seed", seed)[1]["exams"] for _ in range(2)]
    assert played[0] == played[1]


@pytest.fixture
def a_class(tmp_path):
    folder = tmp_path / "class"
    for seed, name in enumerate(("anna", "bert", "Müller", "=1+1")):
        bundle(folder / name, ("blue_0",), seed=seed)
    (folder / "bert" / MODEL_FILE).write_bytes(b"")
    (folder / "notes.txt").touch()
    (folder / "caro").mkdir()
    return folder


def test_class_grading_writes_points_table_and_feedback(tmp_path, a_class):
    result, line = grade(tmp_path, SHORT, a_class, "-o", tmp_path / "out" / "grades.csv")
    assert (result.exit_code, line["graded"], line["refused"]) == (0, 6, 3)
    with (tmp_path / "out" / "grades.csv").open(newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["'=1+1", "Müller", "anna", "bert", "caro", "notes.txt"]
    assert "truncated" in rows["bert"]["problem"]
    points = [float(value) for key, value in rows["anna"].items() if key.startswith("against")]
    assert float(rows["anna"]["points"]) == sum(points)
    for name, row in rows.items():
        output = (tmp_path / "out" / "grades" / row["feedback"]).read_text()
        assert f"{float(row['points']):g} of 9 points" in output
        assert ("could not be played" in output) == bool(row["problem"]), name
        assert "31337" not in output
    key = tmp_path / "out" / "grades" / "keep-to-yourself.json"
    assert key.stat().st_mode & 0o077 == 0
    assert json.loads(key.read_text())["seed"] == 31_337


@pytest.mark.slow
def test_interrupted_class_resumes_to_same_table(tmp_path, a_class, monkeypatch):
    fresh = {key: value for key, value in SHORT.items() if key != "seed"}
    played, grade_one = [], Examiner.grade

    def noted(self, folder):
        if folder.name == "bert" and not played.count("bert"):
            played.append("bert")
            raise KeyboardInterrupt
        played.append(folder.name)
        return grade_one(self, folder)

    monkeypatch.setattr(Examiner, "grade", noted)
    table = tmp_path / "grades.csv"
    cut = grade(tmp_path, fresh, a_class, "-o", table)[0]
    assert (cut.exit_code, "resumes the class" in cut.stderr, table.exists()) == (130, True, False)
    assert grade(tmp_path, fresh, a_class, "-o", table)[0].exit_code == 0
    whole = table.read_text()
    assert sorted(set(played)) == ["=1+1", "Müller", "anna", "bert"]
    assert [played.count(name) for name in ("anna", "Müller")] == [1, 1]
    # A hand-in that changes is graded again, the others are not; another rubric wants another table.
    shutil.rmtree(a_class / "anna")
    shutil.copytree(BUNDLE, a_class / "anna")
    assert grade(tmp_path, fresh, a_class, "-o", table)[0].exit_code == 0
    assert [played.count(name) for name in ("anna", "Müller")] == [2, 1]
    assert table.read_text() != whole
    assert "rubric and seed it began with" in complaint(grade(tmp_path, SHORT, a_class, "-o", table)[0])


def test_rejects_empty_class_and_foreign_folders(tmp_path, a_class):
    (tmp_path / "empty").mkdir()
    assert "one folder for each student" in complaint(grade(tmp_path, SHORT, tmp_path / "empty", "-o", "g.csv")[0])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    for table, wanted in (
        ("mine.csv", "got something else"),
        ("class.csv", "expected another name: the folder beside it, class/, is for results"),
        ("class/grades.csv", "expected a place outside of"),
    ):
        assert wanted in complaint(grade(tmp_path, SHORT, a_class, "-o", tmp_path / table)[0])


@pytest.mark.slow
def test_resumed_class_meets_the_opponents_and_the_rule_of_copies_of_now(tmp_path):
    bundle(tmp_path / "class" / "anna", ("blue_0",), seed=1)
    shutil.copytree(BUNDLE, tmp_path / "class" / "bert")
    bundle(tmp_path / "secret", ("red_0",), seed=2)
    check = {"metric": "episode_len_mean", "from": 300, "full": 0, "points": 9}
    exams = [
        {"name": "hidden", "opponent": "secret", "sides": side, "episodes": 100, "checks": [check]} for side in SIDES
    ]
    options = RUBRIC | {"exams": exams, "refuse_known": True}, tmp_path / "class", "-o", tmp_path / "grades.csv"

    def points(*more):
        assert grade(tmp_path, *options, *more)[0].exit_code == 0
        with (tmp_path / "grades.csv").open(newline="") as file:
            return {row["student"]: float(row["points"]) for row in csv.DictReader(file)}

    first = points("--allow-copies")
    assert first["bert"] > 0
    assert points() == first | {"bert": 0}
    shutil.rmtree(tmp_path / "secret")
    shutil.copytree(BUNDLE, tmp_path / "secret")
    assert points()["anna"] != first["anna"]


def test_class_table_has_a_column_for_each_of_two_equal_checks(tmp_path):
    bundle(tmp_path / "class" / "anna", ("blue_0",), seed=1)
    exams = [EXAM | {"episodes": 100, "sides": side, "checks": EXAM["checks"][:2]} for side in SIDES]
    table = tmp_path / "grades.csv"
    assert grade(tmp_path, RUBRIC | {"exams": exams}, tmp_path / "class", "-o", table)[0].exit_code == 0
    columns = table.read_text().splitlines()[0].split(",")[4:8]
    assert columns == [
        f"against random: {check}{time}" for time in ("", " (2)") for check in ("win/* >= 0.9", "episode_len_mean <= 5")
    ]
