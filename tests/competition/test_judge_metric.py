"""A metric of episodes from outside: one file and one entry of a table, for gates, evaluations and grades."""

import json

import numpy as np
import pytest
import yaml

from commands import works
from multigrid_rl import tables
from multigrid_rl.competition.cup_folder import scenario_and_game
from multigrid_rl.competition.rubric import measure
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import data_root
from multigrid_rl.metrics import episode_metrics, glossary
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.runs.reports import gates_of

FILE = """
from multigrid_rl.metrics import MetricGroup, Sample


def samples(table, specs, who):
    won = {seat: table.winner == specs.team_names.index(specs.teams[specs.seats.index(seat)])
           for seat in who if seat in specs.seats}
    return {f"quick/{seat}": Sample.of((table.length < 13) & wins) for seat, wins in won.items()}


QUICK = MetricGroup({"quick/<seat>": ("share of episodes that the seat won in less than 13 steps", "share")}, samples)
"""


@pytest.fixture
def quick(tmp_path, monkeypatch):
    (tmp_path / "quick_metrics.py").write_text(FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tables.METRICS, "quick", "quick_metrics:QUICK")
    return tmp_path


def test_gate_and_row(quick):
    config = compose(["scenario=1v1", "scenario.gates=[{metric: quick/*, at_least: 0.1}]"])
    specs = env_factory(config).specs
    assert [gate.metric for gate in gates_of(config, specs)] == ["quick/red_0"]
    assert glossary()["quick/<seat>"][1] == "share"
    spec = config.scenario.spec
    players = {"red_0": BUILT_IN["key-runner"](spec), "blue_0": BUILT_IN["idle"](spec)}
    table = play_games(spec, players, 200, seed=1).table
    wanted = float(np.mean((table.length < 13) & (table.winner == 0)))
    assert 0 < wanted < 1
    assert episode_metrics(table, specs)["quick/red_0"] == wanted


def test_evaluation_shows_it_in_a_column(quick):
    few = ("--episodes", 100, "--mode", "argmax")
    done = works("evaluate", "key-runner", "--opponent", "idle", *few, "-o", quick / "out")
    assert "quick/red_0" in done.output
    part = json.loads((quick / "out" / "summary.json").read_text())["parts"][0]
    assert 0 < part["metrics"]["quick/red_0"]["mean"] < part["win"]


def test_grade_checks_it(quick):
    check = {"metric": "quick/*", "at_least": 0.01, "points": 1}
    exam = {"name": "fast", "opponent": "idle", "sides": "both", "episodes": 100, "checks": [check]}
    rubric = quick / "rubric.yaml"
    rubric.write_text(yaml.safe_dump({"scenario": "1v1", "seed": 1, "pass_points": 1, "exams": [exam]}))
    done = works("grade", data_root() / "checkpoints" / "blue-master", "--rubric", rubric)
    (row,) = json.loads(done.output.splitlines()[-1])["exams"][0]["checks"]
    assert row["interval"][0] < row["value"] < row["interval"][1]


def test_sides_of_three_and_one_seats_are_measured_together():
    pytest.importorskip("mpe2", reason="the extra pettingzoo is not installed")
    spec, sides = scenario_and_game("simple-tag")[1], ("adversaries", "prey")
    players = {seat: Catalogue().seat("random", spec, seat).player for seat in spec.seats}
    played = [(side, play_games(spec, players, 5, seed=k).full_table()) for k, side in enumerate(sides)]
    hunters, prey = (table.returns.tolist() for _, table in played)
    wanted = [float(np.mean([row[k] for row in hunters] + [row[3] for row in prey])) for k in range(3)]
    found = measure("return_mean/*", spec, played, [])
    assert [row.value for row in found] == pytest.approx(wanted)
