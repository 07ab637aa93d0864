"""Training rewards of the user's own: what they see, what stays canonical, what is refused."""

import json
import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest

from commands import call, complaint
from multigrid_rl import tables
from multigrid_rl.cli.train import run_training
from multigrid_rl.envs.base import AGENT, reset_seed
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.text import ConfigError
from tiny_runs import rows_of, tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")

SEEN: list = []


def keeps(obs, action, next_obs, reward, info):
    SEEN.append((obs.copy(), np.array(action), next_obs.copy(), reward, dict(info)))
    for mine in (obs, next_obs, *([action] if np.ndim(action) else [])):  # in place, as students write
        mine[:] = 0
    return 2 * reward + 1


def doubled(obs, action, next_obs, reward, info):
    return np.array([2.0 * reward])  # one number, as any environment may pay it


def fails(obs, action, next_obs, reward, info):
    raise KeyError("height")


def text(*step):
    return "much"


def later(obs, action, next_obs, reward, info):
    return float("nan") if abs(next_obs[3]) > 1.5 else reward


def constant(obs, action, next_obs, reward, info):
    return {"agent_0": 1.0, "agent_1": 2.0}.get(info["agent"], 0.0)


@pytest.fixture(autouse=True)
def module(monkeypatch):
    own = ModuleType("own_rewards")
    for function in (keeps, doubled, fails, text, later, constant):
        setattr(own, function.__name__, function)
    monkeypatch.setitem(sys.modules, own.__name__, own)
    SEEN.clear()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5", "Walker-v0"])
def test_function_sees_every_step_as_the_environment_played_it(env_id):
    pytest.importorskip("mujoco")
    if env_id.startswith("Walker-") and not tables.has(tables.BATCHED, "multigrid_rl.walkers.bodies:WalkerEnv"):
        pytest.skip("walkers are left out")
    envs = GymnasiumFactory(env_id, 7, {"max_episode_steps": 3}, "own_rewards:keeps").build(2, 0)
    one = gymnasium.make(env_id, max_episode_steps=3)
    shown, _ = one.reset(seed=reset_seed(7, 1, 0))
    acts = envs.native
    envs.action_space.seed(1)
    for k in range(3):
        drawn = np.stack([np.atleast_1d(envs.action_space.sample()) for _ in range(2)])
        step = envs.step({AGENT: drawn})
        obs, action, after, reward, _ = SEEN[2 * k + 1]
        native = acts(drawn)[1]
        next_shown, paid, *_ = one.step(native)
        assert np.array_equal(obs, np.asarray(shown, np.float32))
        assert np.array_equal(action, native)
        assert np.array_equal(after, np.asarray(next_shown, np.float32)), (
            "also of the last step, not of the fresh start"
        )
        assert reward == pytest.approx(paid)
        assert step.rewards[AGENT][1] == pytest.approx(2 * paid + 1)
        shown = next_shown
    assert step.done.all()
    table = envs.drain_episodes()
    assert table.returns[1, 0] == pytest.approx(sum(row[3] for row in SEEN[1::2])), "what the environment paid"


def test_gates_and_scores_stay_canonical(tmp_path):
    run = ["env_id=CartPole-v1", "train.until=2048", "seed=4"]
    _, plain = tiny_run(tmp_path / "plain", *run)
    _, rows = tiny_run(tmp_path / "run", *run, "train.shaping=own_rewards:doubled")
    assert rows[-1]["return_mean/agent_0"] == rows[-1]["episode_len_mean"], "1 a step"
    assert rows[0]["learner/agent_0/vf_loss"] > 2 * plain[0]["learner/agent_0/vf_loss"], "values learn the shaped one"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", "KeyError: 'height'"),
        ("text", "train.shaping=own_rewards:text: expected one number, got 'much'"),
        ("none", "own_rewards:none"),
    ],
)
def test_what_pays_nothing_is_refused_before_the_start(tmp_path, name, said):
    run = ["scenario=cartpole", f"train.shaping=own_rewards:{name}", f"run_dir={tmp_path / 'run'}"]
    result = call("train", *run)
    assert said in complaint(result)
    assert not (tmp_path / "run").exists()


def test_what_pays_no_number_later_ends_the_run_with_its_name(tmp_path):
    run = ["scenario=cartpole", "train.shaping=own_rewards:later", f"run_dir={tmp_path / 'run'}", "train.until=4096"]
    result = call("train", *run)
    assert result.exit_code not in (0, 70), result.output
    assert "train.shaping=own_rewards:later: expected a finite number for each step, got nan" in result.output


# --- in games of PettingZoo's kind


SPREAD = [
    *("scenario=simple-spread", "scenario.gates=[]", "train.until=100", "train.checkpoint_every=100"),
    *("train.num_envs=4", "train.num_steps=25", "train.minibatch_size=100", "train.stop_when_held=false"),
]


def test_agents_are_paid_by_it_and_episodes_counted_by_the_game(tmp_path):
    """Values follow what trains; returns and gates stay the game's own."""
    plain, own = tmp_path / "plain", tmp_path / "own"
    run_training([*SPREAD, f"run_dir={plain}"])
    run_training([*SPREAD, "train.shaping=own_rewards:constant", f"run_dir={own}"])
    loss = "learner/agent/vf_loss"
    assert rows_of(plain)[0][loss] != rows_of(own)[0][loss]
    first, second = (json.loads((run / "verdict.json").read_text())["last_report"] for run in (plain, own))
    assert first == second
    assert first["return_mean/agent_0"] < 0


def test_what_is_no_number_is_refused_before_the_run(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"train\.shaping=own_rewards:text: expected one number"):
        run_training([*SPREAD, "train.shaping=own_rewards:text", f"run_dir={run}"])
    assert not (run / "metrics.jsonl").exists()


def test_where_agents_take_turns_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.shaping: expected null, as .* has turns, got own_rewards:keeps"):
        run_training(["scenario=tictactoe", "train.shaping=own_rewards:keeps", f"run_dir={tmp_path / 'run'}"])
