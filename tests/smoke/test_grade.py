"""The grade verb: points by play, exit status for CI, nothing told that should stay hidden."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from commands import call
from multigrid_rl.config import data_root, load_scenario
from multigrid_rl.judge.entropy import Metered
from multigrid_rl.judge.grading import read_rubric
from multigrid_rl.players.bundle import load_team
from multigrid_rl.players.catalogue import BUILT_IN
from multigrid_rl.players.games import play_games

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
                {"metric": "win/*", "at_least": 0.9, "beyond_doubt": True, "points": 4},
                {"metric": "episode_len_mean", "at_most": 5, "points": 2},
                {"metric": "entropy/*", "at_most": 1.0, "points": 1},
                {"metric": "behaviour/*/key_pickup", "at_least": 0.1, "points": 1},
                {"metric": "return_mean/*", "at_least": 0.5, "points": 1},
            ],
        }
    ],
}


def grade(tmp_path, rubric=RUBRIC, bundle=BUNDLE, *options):
    path = tmp_path / "rubric.yaml"
    path.write_text(yaml.safe_dump(rubric), encoding="utf-8")
    result = call("grade", bundle, "--rubric", path, *options)
    last = result.output.splitlines()[-1]
    return result, json.loads(last) if last.startswith("{") else None


def test_a_good_bundle_passes_and_the_line_says_why(tmp_path):
    result, line = grade(tmp_path)
    assert result.exit_code == 0, result.output
    assert (line["passed"], line["points"], line["of"]) == (True, 7.0, 9.0)
    checks = line["exams"][0]["checks"]
    assert [check["met"] for check in checks] == [True, False, True, True, True]
    assert checks[0]["value"] > 0.95
    assert checks[0]["interval"][0] > 0.9
    assert "PASSED: 7 of 9 points, 5 are needed" in result.output
    assert "31337" not in result.output


def test_the_same_grade_again_and_another_seed_gives_other_games(tmp_path):
    values = []
    for options in ([], [], ["--seed", "5"]):
        _, line = grade(tmp_path, RUBRIC, BUNDLE, *options)
        values.append([check["value"] for check in line["exams"][0]["checks"]])
    assert values[0] == values[1] != values[2]


def test_too_few_points_are_status_1(tmp_path):
    result, line = grade(tmp_path, RUBRIC | {"pass_points": 8})
    assert result.exit_code == 1
    assert line["passed"] is False


def test_a_hidden_opponent_lies_beside_the_rubric(tmp_path):
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", tmp_path / "secret")
    exams = [RUBRIC["exams"][0] | {"opponent": "secret"}]
    result, line = grade(tmp_path, RUBRIC | {"exams": exams})
    assert result.exit_code == 0, result.output
    assert line["exams"][0]["checks"][0]["met"]


def test_a_bundle_that_cannot_be_played_gets_no_points_and_the_reason(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(BUNDLE, broken)
    (broken / "model.safetensors").write_bytes(b"\x80\x04no tensors")
    result, line = grade(tmp_path, RUBRIC, broken)
    assert result.exit_code == 1
    assert (line["passed"], line["points"]) == (False, 0.0)
    assert "bytes" in line["problem"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pass_points": 99}, "pass_points=99: allowed is above 0 to 9"),
        ({"scenario": "1v7"}, "1v7"),
        ({"colour": "red"}, "colour"),
        ({"exams": [RUBRIC["exams"][0] | {"opponent": "nobody"}]}, "opponent=nobody"),
        ({"exams": [RUBRIC["exams"][0] | {"checks": [{"metric": "luck", "at_least": 1, "points": 9}]}]}, "metric=luck"),
        (
            {"exams": [RUBRIC["exams"][0] | {"checks": [{"metric": "win/*", "points": 9}]}]},
            "exactly one of at_most and at_least",
        ),
    ],
)
def test_a_rubric_that_cannot_be_used_is_one_line_and_status_2(tmp_path, change, message):
    result, _ = grade(tmp_path, RUBRIC | change)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_the_shipped_rubric_is_one():
    rubric = read_rubric(data_root() / "configs" / "grade" / "1v1.yaml")
    assert rubric.points == 100


def test_entropy_is_that_of_the_decisions_that_were_made():
    spec = replace(SPEC, max_steps=60)
    plain = load_team(BUNDLE, spec, "blue")
    metered = {seat: Metered(player) for seat, player in plain.items()}
    rivals = {"red_0": BUILT_IN["random"](spec)}
    without = play_games(spec, {**plain, **rivals}, 50, seed=2)
    played = play_games(spec, {**metered, **rivals}, 50, seed=2)
    np.testing.assert_array_equal(without.actions, played.actions)
    meter = metered["blue_0"]
    assert meter.decisions == played.table.length.sum()
    assert 0 < meter.mean < np.log(7)


def test_a_greedy_player_is_as_sure_as_its_distribution():
    greedy = {seat: Metered(player) for seat, player in load_team(BUNDLE, SPEC, "blue", greedy=True).items()}
    play_games(SPEC, {**greedy, "red_0": BUILT_IN["idle"](SPEC)}, 20, seed=2)
    assert greedy["blue_0"].mean > 0
