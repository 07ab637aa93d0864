"""A training reward of the user's own in games of PettingZoo's kind."""

import json

import pytest

from multigrid_rl.cli.train import run_training
from multigrid_rl.text import ConfigError
from tiny_runs import rows_of

OWN = """
def constant(obs, action, next_obs, reward, info):
    return {"agent_0": 1.0, "agent_1": 2.0}.get(info["agent"], 0.0)
def moved(obs, action, next_obs, reward, info):
    return float(abs(next_obs[2:4] - obs[2:4]).sum() > 0)
def text(obs, action, next_obs, reward, info):
    return "much"
"""
TINY = [
    *("scenario=simple-spread", "scenario.gates=[]", "train.until=100", "train.checkpoint_every=100"),
    *("train.num_envs=4", "train.num_steps=25", "train.minibatch_size=100", "train.stop_when_held=false"),
]


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    """A module of rewards that can be imported."""
    (tmp_path / "spread_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_agents_are_paid_by_it_and_episodes_counted_by_the_game(tmp_path):
    """Values follow what trains; returns and gates stay the game's own."""
    plain, own = tmp_path / "plain", tmp_path / "own"
    run_training([*TINY, f"run_dir={plain}"])
    run_training([*TINY, "train.shaping=spread_rewards:constant", f"run_dir={own}"])
    loss = "learner/agent/vf_loss"
    assert rows_of(plain)[0][loss] != rows_of(own)[0][loss]
    first, second = (json.loads((run / "verdict.json").read_text())["last_report"] for run in (plain, own))
    assert first == second
    assert first["return_mean/agent_0"] < 0


def test_what_is_no_number_is_refused_before_the_run(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"train\.shaping=spread_rewards:text: expected one number"):
        run_training([*TINY, "train.shaping=spread_rewards:text", f"run_dir={run}"])
    assert not (run / "metrics.jsonl").exists()


def test_where_agents_take_turns_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.shaping: expected null, as .* has turns, got spread_rewards:moved"):
        run_training(["scenario=tictactoe", "train.shaping=spread_rewards:moved", f"run_dir={tmp_path / 'run'}"])
