"""Grading where entries play alone: returns of fresh episodes, copies, a class, what a rubric may not ask; points."""

import csv
import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch

from bundles import torch_files_here
from commands import call, complaint, works
from multigrid_rl.competition.grading import check_cells
from multigrid_rl.competition.rubric import Check, Rubric
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.files import data_root
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import signature, write_player
from multigrid_rl.tables import HEADS

pytestmark = pytest.mark.filterwarnings("ignore")

RUBRIC = """
scenario: cartpole
mode: argmax
seed: 5
pass_points: 60
refuse_known: true
exams:
  - name: fresh episodes
    checks:
      - {metric: return_mean/*, from: 20, full: 120, points: 80}
      - {metric: episode_len_mean, at_least: 100, points: 20}
"""


def bundle(folder, weight: float, noise: float = 0.0, *, hidden: int = 4):
    """A policy that pushes to where the pole leans, the surer the larger ``weight``; 0: it always pushes left."""
    generator = torch.Generator().manual_seed(3)
    sizes, state = (4, hidden, hidden, 2), {}
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        state[f"actor.{2 * k}.weight"] = noise * torch.randn(outputs, inputs, generator=generator)
        state[f"actor.{2 * k}.bias"] = torch.zeros(outputs)
        state[f"critic.{2 * k}.weight"] = torch.zeros(1 if k == 2 else outputs, inputs)
        state[f"critic.{2 * k}.bias"] = torch.zeros(1 if k == 2 else outputs)
    state["actor.0.weight"][0, 2:] += 1.0
    state["actor.2.weight"][0, 0] += 1.0
    state["actor.4.weight"][1, 0] += weight
    path = folder.with_suffix(".pt")
    torch.save(state, path)
    with torch_files_here():
        assert call("data", "import-policy", path, "scenario=cartpole", "-o", folder).exit_code == 0
    path.unlink()
    return folder


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    home = tmp_path_factory.mktemp("class")
    (home / "rubric.yaml").write_text(RUBRIC)
    (home / "in").mkdir()
    bundle(home / "in" / "ada", 9.0)
    bundle(home / "in" / "bob", 0.0)
    shutil.copytree(home / "in" / "bob", home / "in" / "eve")
    model = home / "in" / "eve" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-40])
    return home


def rubric_in(folder, text: str = RUBRIC):
    (folder / "rubric.yaml").write_text(text)
    return folder / "rubric.yaml"


def test_class_is_one_table_and_names_copies(entries, tmp_path):
    hand_ins = tmp_path / "in"
    shutil.copytree(entries / "in", hand_ins)
    bundle(hand_ins / "kim", 9.0, noise=1e-4)  # as ada's, weights shaken a little
    works("grade", hand_ins, "--rubric", rubric_in(tmp_path), "-o", tmp_path / "grades.csv")
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "grades.csv").open())}
    assert float(rows["ada"]["points"]) >= 90
    assert float(rows["bob"]["points"]) < 10, "nine steps an episode"
    assert "model.safetensors" in rows["eve"]["problem"]
    assert rows["ada"]["same_as"].startswith("kim")
    assert rows["kim"]["same_as"].startswith("ada")
    assert not rows["bob"]["same_as"], "it always does the same, as others who learned nothing"
    assert "100 episodes." in (tmp_path / "grades" / "feedback" / "ada.md").read_text()


def test_copies_of_earlier_hand_ins_get_no_points(entries, tmp_path):
    shutil.copytree(entries / "in" / "ada", tmp_path / "earlier" / "ada")
    options = ["--rubric", entries / "rubric.yaml", "--earlier", tmp_path / "earlier"]
    result = call("grade", entries / "in" / "ada", *options)
    assert result.exit_code == 1
    assert "a copy of earlier/ada" in json.loads(result.output.splitlines()[-1])["problem"]
    works("grade", entries / "in" / "ada", *options, "--allow-copies")


def test_earlier_hand_ins_in_folders_of_one_name_are_all_compared(entries, tmp_path):
    for name in ("ada", "bob"):
        shutil.copytree(entries / "in" / name, tmp_path / "earlier" / f"{name}_1" / "my-agent" / "my-agent")
    for name in ("ada", "bob"):
        options = ["--rubric", entries / "rubric.yaml", "--earlier", tmp_path / "earlier"]
        result = call("grade", entries / "in" / name, *options)
        assert f"a copy of earlier/{name}_1 " in json.loads(result.output.splitlines()[-1])["problem"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("    opponent: hunter\n", "exams.0.opponent: expected null, as in scenario=cartpole nobody meets, got hunter"),
        ("    sides: both\n", "exams.0.sides: expected own, as in scenario=cartpole nobody meets, got both"),
    ],
)
def test_rubric_may_ask_for_nobody_to_meet(entries, tmp_path, change, said):
    rubric = rubric_in(tmp_path, RUBRIC.replace("    checks:\n", f"{change}    checks:\n"))
    assert said in complaint(call("grade", entries / "in" / "ada", "--rubric", rubric))


def test_player_of_another_environment_gets_no_points(entries, tmp_path):
    rubric = rubric_in(tmp_path, RUBRIC.replace("cartpole", "halfcheetah"))
    result = call("grade", entries / "in" / "ada", "--rubric", rubric)
    assert result.exit_code == 1
    assert "does not fit this environment" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_head_is_graded_and_entropy_only_where_a_check_names_it(tmp_path, head):
    config = compose(["scenario=gymnasium", "scenario.env_id=Pendulum-v1"])
    (agent,) = env_factory(config).specs.agents
    shape = {"name": "mlp", "hidden": [8], "activation": "tanh", "head": head, "head_size": HEADS[head].size}
    card = {
        "name": "one", "architecture": shape, **signature(agent, None), "scenario": "gymnasium",
        "env": env_signature(config.scenario), "seats": [agent.name], "provenance": {},
    }  # fmt: skip
    write_player(tmp_path / "one", network_of(agent, shape, seed=2).state_dict(), card)
    scenario = (data_root() / "configs" / "scenario" / "gymnasium.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(scenario.replace("CartPole-v1", "Pendulum-v1"))
    text = RUBRIC.replace("cartpole", str(tmp_path / "mine.yaml")).replace("from: 20, full: 120", "at_least: -1e6")
    rubric = rubric_in(tmp_path, text)
    result = call("grade", tmp_path / "one", "--rubric", rubric)
    assert json.loads(result.output.splitlines()[-1])["points"] == 100, result.output
    rubric.write_text(rubric.read_text() + "      - {metric: entropy/*, at_most: 100, points: 1}\n")
    result = call("grade", tmp_path / "one", "--rubric", rubric)
    line = json.loads(result.output.splitlines()[-1])
    assert line["points"] == 101 if HEADS[head].probability else "finite entropy" in line["problem"]


# --- points, and values beside their bounds


def test_metric_of_no_episode_is_worth_nothing():
    unknown = Interval(np.nan, -np.inf, np.inf)
    for bounds in ({"from": 0.2, "full": 0.6}, {"from": 0.6, "full": 0.2}, {"at_least": 0.5}, {"at_most": 0.5}):
        row = Check.model_validate({"metric": "win/*", "points": 10, **bounds}).row_of([unknown])
        assert (row["points"], row["met"]) == (0.0, False)


def test_value_beside_its_bound_shows_on_which_side_it_lies():
    check = Check.model_validate({"metric": "win/*", "points": 10, "at_least": 0.9})
    for value, text in ((0.89996, "0.89996"), (0.8996, "0.8996"), (0.9, "0.900"), (0.85, "0.850")):
        row = check.row_of([Interval(value, 0.8, 0.95)])
        assert check_cells(row)[1] == text
        assert row["met"] == (row["value"] >= 0.9)


@pytest.mark.parametrize(
    ("points", "needed", "passed"),
    [([0.1] * 10, 1, 1.0), ([33.3] * 3 + [0.1], 100, 100.0), ([33.333] * 3, 100, 100.0), ([33.333], 33.333, 33.33)],
)
def test_all_points_are_what_there_is_and_enough(points, needed, passed):
    checks = [{"metric": "win/*", "at_least": 0.5, "points": each} for each in points]
    exams = [{"name": "one", "opponent": "random", "checks": checks}]
    rubric = Rubric.model_validate({"scenario": "1v1", "pass_points": needed, "exams": exams})
    earned = round(rubric.points / sum(points) * sum(points), 2)
    assert rubric.points == earned == rubric.pass_points == passed
