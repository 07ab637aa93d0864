"""Training learns: short runs of every kind reach a bound that chance does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from multigrid_rl.cli.train import run_training
from tiny_runs import rows_of

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start


def test_red_learns_to_beat_idle_within_131_072_steps(tmp_path):
    verdict = run_training(
        [f"run_dir={tmp_path / 'run'}", "scenario.seats.blue_0=idle", "train.until=131072", "seed=0"]
    )
    reports = [row for row in rows_of(tmp_path / "run") if "return_mean/red_0" in row]
    # Uniform random play scores 0.3 against idle (more in the first reports: short games finish first). The best there
    # is 1.461 (rules, section 9).
    assert reports[0]["return_mean/red_0"] < 1.0
    assert reports[0]["episode_len_mean"] > 30
    assert reports[-1]["return_mean/red_0"] > 1.35
    assert reports[-1]["episode_len_mean"] < 20
    assert reports[-1]["win/red_0"] > 0.95
    assert verdict["env_steps"] == 131_072


def learned(path: Path, *overrides: str) -> dict[str, float]:
    """Train with a seed of its own, on one core (the others test, too), and return the last report."""
    run_training([f"run_dir={path / 'run'}", "seed=0", "train.stop_when_held=false", "train.threads=1", *overrides])
    return [row for row in rows_of(path / "run") if "report_episodes" in row][-1]


def test_cartpole_is_balanced_within_50_000_steps(tmp_path):
    # The course's bound, in half of its steps; 500 is the most there is, chance about 22.
    assert learned(tmp_path, "env_id=CartPole-v1", "train.until=50000")["return_mean/agent_0"] > 475


def test_a2c_learns_cartpole(tmp_path):
    assert learned(tmp_path, "env_id=CartPole-v1", "train=a2c")["return_mean/agent_0"] > 250


@pytest.mark.long
def test_gaussian_learns_pendulum_swing_up(tmp_path):
    # Chance earns about -1,200.
    assert learned(tmp_path, "experiment=pendulum", "train.until=70000")["return_mean/agent_0"] > -500


@pytest.mark.parametrize(("model", "low", "high"), [("gru", 0.95, 1.0), ("mlp", 0.3, 0.7)])
def test_only_recurrent_network_recalls_cue(tmp_path, monkeypatch, model, low, high):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    sizes = (
        "train.num_envs=32",
        "train.num_steps=16",
        "train.minibatch_size=256",
        "model.hidden=[32]",
        "train.lr=3e-3",
    )
    last = learned(tmp_path, "env_id=strangers:Recall-v0", f"model={model}", "train.until=12000", *sizes)
    assert low <= last["return_mean/agent_0"] <= high


def test_central_critics_learn_together(tmp_path):
    last = learned(tmp_path, "scenario=2v2", "scheme=ctde", "train.until=80000")
    assert last["team_return_mean/red"] > 1.0


def test_joint_action_learns(tmp_path):
    last = learned(tmp_path, "scenario=2v2", "train.until=120000")
    assert last["team_return_mean/red"] > 1.0


def test_mixture_of_opponents_is_beaten_one_by_one(tmp_path):
    last = learned(tmp_path, "scenario=1v1", "scenario.seats.blue_0=random:1,idle:1", "train.until=125000")
    assert last["win_against/red_0/random"] > 0.8
    assert last["win_against/red_0/idle"] > 0.8


def test_self_play_holds_its_gates_beside_earlier_selves(tmp_path):
    # Seeds 0 to 6 take 295,000 to 406,000 steps; with newcomers every 40,000 none of ten seeds did (docs/league.md).
    verdict = run_training([f"run_dir={tmp_path / 'run'}", "scenario=1v1-selfplay", "seed=0", "train.until=450000"])
    assert verdict["ended"] == "held"
    last = rows_of(tmp_path / "run")[-1]
    assert last["league/size"] >= 2
    assert last["win_against/red_0/snapshots"] > 0.85
