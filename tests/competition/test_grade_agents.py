"""Grading programs: what is measured of them, their time, and what of their words a student gets to read."""

import json
import shutil

import pytest
import yaml

from agents import agent_of
from commands import works
from multigrid_rl.competition import grading
from multigrid_rl.competition.sandbox import bwrap_available
from multigrid_rl.files import data_root

pytestmark = pytest.mark.skipif(not bwrap_available(), reason="bubblewrap is not available")
CHECKS = [
    {"metric": "draw/*", "at_least": 0.9, "points": 3},
    {"metric": "win/*", "at_least": 0.9, "points": 3},
    {"metric": "entropy/*", "at_most": 0.3, "points": 2},
]
RUBRIC = {
    "scenario": "1v1",
    "pass_points": 4,
    "seed": 31_337,
    "exams": [{"name": "waits", "opponent": "idle", "episodes": 20_000, "checks": CHECKS}],
}


@pytest.fixture
def rubric(tmp_path, monkeypatch):
    """A rubric with few games of agents."""
    monkeypatch.setattr(grading, "PROGRAM_EPISODES", 3)
    path = tmp_path / "rubric.yaml"
    path.write_text(yaml.safe_dump(RUBRIC))
    return path


def graded(tmp_path, rubric, *options):
    """Grade the class in ``in``; returns results and feedback by name."""
    table = tmp_path / "out.csv"
    works("grade", tmp_path / "in", "--rubric", rubric, "-o", table, *options)
    folder = tmp_path / "out"
    results = {path.stem: json.loads(path.read_text()) for path in (folder / "results").iterdir()}
    return results, {path.stem: path.read_text() for path in (folder / "feedback").iterdir()}, table.read_text()


@pytest.mark.slow
def test_points_of_what_can_be_measured_count_for_all(tmp_path, rubric):
    agent_of(tmp_path / "in" / "sleeper", "def act(m): say(json.dumps({'actions': [6 for g in m['games']]}))")
    shutil.make_archive(str(tmp_path / "in" / "dozer"), "zip", tmp_path / "in", "sleeper")
    results, feedback, table = graded(tmp_path, rubric)
    found = results["sleeper"]
    assert results["dozer.zip"]["points"] == 4.0
    assert (found["points"], found["of"], found["measurable"], found["passed"]) == (4.0, 8.0, 6.0, True)
    assert found["exams"][0]["episodes"] == 3
    assert found["seconds"] > 0
    assert "Entropy cannot be measured for a program" in feedback["sleeper"]
    assert "| entropy/&#42; <= 0.3 | not measured | - | left out |" in feedback["sleeper"]
    assert table.splitlines()[2].startswith("sleeper,4.0,8.0,True,3.0,0.0,,")


SECRET = "seed 31337"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def act(m): sys.exit('%s')", "step 0: exited with status 1"),
        ("def hello(m): say('%s')", "start: answer: expected JSON"),
        ('def act(m): say(\'{"actions": ["%s"]}\')', "step 0: actions: expected one for each of the 3 games"),
        ("def act(m): say(json.dumps({'actions': ['%s' for g in m['games']]}))", "game 0: red_0: expected an integer"),
        ('def hello(m): print(\'{"type":"ready"}\\n%s\', flush=True)', "start: answer: expected one line"),
    ],
)
def test_own_words_of_agent_stay_with_instructor(code, reason, tmp_path, rubric):
    agent_of(tmp_path / "in" / "mallory", code.replace("%s", SECRET))
    results, feedback, _ = graded(tmp_path, rubric)
    assert reason in results["mallory"]["problem"]
    assert reason in feedback["mallory"]
    assert SECRET in results["mallory"]["problem"] or "actions: expected one for each" in reason
    assert "31337" not in feedback["mallory"]


@pytest.mark.slow
def test_agent_has_limits_of_grading(tmp_path, rubric):
    agent_of(tmp_path / "in" / "slow", "def act(m): time.sleep(30)")
    agent_of(
        tmp_path / "in" / "slower", "def act(m): time.sleep(0.3); say(json.dumps({'actions': [6]*len(m['games'])}))"
    )
    results, feedback, _ = graded(tmp_path, rubric, "--step-s", "0.5", "--total-s", "0.8")
    assert results["slow"]["problem"].endswith("step 0: no answer within 0.5 s")
    assert "more than 0.8 s for all answers" in feedback["slower"]
    assert 0.5 <= results["slow"]["seconds"] < 20


@pytest.mark.slow
def test_hidden_opponent_is_not_named(tmp_path, rubric):
    (tmp_path / "my-secret").symlink_to(data_root() / "checkpoints" / "blue-rookie")
    exams = [{**RUBRIC["exams"][0], "opponent": opponent} for opponent in ("my-secret", "hunter")]
    rubric.write_text(json.dumps(RUBRIC | {"exams": exams}))  # yaml, without anchors
    agent_of(tmp_path / "in" / "anna")
    _, feedback, _ = graded(tmp_path, rubric)
    assert "3 games against a hidden opponent, sides: own." in feedback["anna"]
    assert "3 games against hunter, sides: own." in feedback["anna"]
    assert "my-secret" not in feedback["anna"]
