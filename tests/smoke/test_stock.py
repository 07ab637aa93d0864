"""`train.runner=stock`: the same run on RLlib's own sampling path, and another of its algorithms on our games."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from multigrid_rl.config.compose import compose
from multigrid_rl.metrics import glossary, matches
from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.stock import StockPPO
from tiny_runs import TINY, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

STOCK = ["train.runner=stock", "train.until=600", "seed=5"]
TEAM = ["scenario=2v2-deathmatch", "scenario.game.max_steps=30", "train.until=512"]
BATCH, GAMES = 512, 32


@pytest.fixture(scope="module")
def local(session, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "local"
    return path, *tiny_run(path, *STOCK)


def test_run_reports_same_metrics_as_own_loop(local, tmp_path):
    _, verdict, rows = local
    _, ours = tiny_run(tmp_path / "ours", "train.until=600", "seed=5")
    # RLlib's env runner and learner do not tell what they spend their time on, nor all that ours measure.
    own = ("timing/", "learner/red_0/dropped_updates", "approx_kl/", "clip_fraction/")
    finer = {name for name in set().union(*ours) - set().union(*rows) if name.startswith(own)}
    assert set().union(*rows) | finer == set().union(*ours)
    assert "timing/engine_s" in finer
    assert all(any(matches(name, pattern) for pattern in glossary()) for row in rows for name in row)
    assert [row["policy_updates"] for row in rows] == [1, 2]
    played = [
        after - before for before, after in zip([0, rows[0]["env_steps"]], [r["env_steps"] for r in rows], strict=True)
    ]
    assert all(BATCH <= steps < BATCH + GAMES for steps in played)
    assert rows[0]["gradient_steps"] >= 2 * BATCH // 256
    assert all(row["timing/sample_s"] > 0 and row["timing/other_s"] >= 0 for row in rows)
    assert rows[0]["timing/sample_s"] != rows[1]["timing/sample_s"]
    assert rows[-1]["episodes"] > 0
    assert verdict["policy_updates"] == 2
    for row, other in zip(rows, ours, strict=True):
        for name in ("learner/red_0/lr", "learner/red_0/entropy_coef"):
            assert row[name] == pytest.approx(other[name], rel=0.02)


def test_networks_start_with_same_weights(session):
    weights = []
    for runner in ("batched", "stock"):
        config = compose([*TINY, f"train.runner={runner}", "seed=5"])
        spec = algorithm_config(config).rl_module_spec.rl_module_specs["red_0"]
        weights.append(spec.build().net.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_seed_determines_run(local, tmp_path):
    _, verdict, rows = local
    again, its = tiny_run(tmp_path / "again", *STOCK)
    other, _ = tiny_run(tmp_path / "other", *STOCK, "seed=6")
    assert without_time(its) == without_time(rows)
    assert again["weights"] == verdict["weights"] != other["weights"]


def test_checkpoint_loads_into_rllib_and_as_player(local):
    path, verdict, _ = local
    folder = path / verdict["checkpoint"]
    player = folder / "players" / "red_0"
    network = read_network(player, read_card(player))
    algorithm = StockPPO.from_checkpoint(str((folder / "rllib").resolve()))
    try:
        restored = algorithm.env_runner.module["red_0"].net.state_dict()
        assert all(torch.equal(value, restored[name]) for name, value in network.state_dict().items())
    finally:
        algorithm.stop()


@pytest.mark.parametrize(
    ("overrides", "networks"),
    [([], {"red_0", "red_1"}), (["shared=true"], {"red"}), (["scheme=ctce"], {"red"})],
    ids=["dtde", "shared", "ctce"],
)
def test_teams_train_with_eliminated_seats(session, tmp_path, overrides, networks):
    verdict, rows = tiny_run(tmp_path / "run", *STOCK, *TEAM, *overrides)
    assert set(verdict["weights"]) == networks
    # A joint action is one of 7 for each of two seats.
    most = 2 * 1.946 if overrides == ["scheme=ctce"] else 1.946
    assert all(most - 0.2 < rows[0][f"entropy/{name}"] <= most for name in networks)


@pytest.mark.long
def test_remote_runners_share_games(session, tmp_path, monkeypatch):
    monkeypatch.setattr("multigrid_rl.config.schema.available_cpus", lambda: 4)
    verdict, rows = tiny_run(tmp_path / "run", *STOCK, "cluster.num_env_runners=2", "train.until=512")
    assert BATCH <= rows[0]["env_steps"] < BATCH + GAMES
    assert rows[0]["episodes"] > 0
    assert verdict["policy_updates"] == 1


@pytest.mark.long
def test_documented_other_algorithm_trains(session):
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "DQNConfig" in block]
    scope: dict = {}
    exec(example, scope)
    assert scope["results"]["learners"]["red_0"]["num_module_steps_trained_lifetime"] > 0
