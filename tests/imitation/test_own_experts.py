"""Classes of the user's own in environments of Gymnasium: they evaluate, record and are asked, and are watched."""

import json
import sys
from types import ModuleType

import numpy as np
import pytest

from commands import call, complaint, works
from multigrid_rl.imitation.demonstrations import read_demonstrations
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")


class Leaner:
    """Pushes the cart to where its pole leans: about 150 steps of CartPole."""

    def __init__(self, observation_space, action_space) -> None:
        assert observation_space.shape == (4,)
        assert action_space.nvec.tolist() == [2]

    def act(self, view, state, rng):
        return (view.tokens[:, 2] + view.tokens[:, 3] > 0).astype(int), None


class Twister:
    """Brakes a pendulum, and asks for more torque than there is."""

    def __init__(self, *spaces) -> None:
        pass

    def act(self, view, state, rng):
        return -5 * view.tokens[:, 2:3], None


class Wrong(Leaner):
    def act(self, view, state, rng):
        return np.full(len(view.tokens), 2), None


class Lost(Leaner):
    def act(self, view, state, rng):
        return np.full(len(view.tokens), np.nan), None


class Fails(Leaner):
    def act(self, view, state, rng):
        raise ZeroDivisionError("no idea")


@pytest.fixture(autouse=True)
def module(monkeypatch):
    own = ModuleType("own_experts")
    for one in (Leaner, Twister, Wrong, Lost, Fails):
        setattr(own, one.__name__, one)
    monkeypatch.setitem(sys.modules, own.__name__, own)


def test_evaluates_and_records_where_overrides_say(tmp_path):
    works("evaluate", "own_experts:Leaner", "scenario=cartpole", "--episodes", 20, "-o", tmp_path / "judged")
    modes = json.loads((tmp_path / "judged" / "summary.json").read_text())["modes"]
    assert modes["stochastic"]["return_mean"] > 100, "random has 22"
    works("data", "record", "own_experts:Twister", "env_id=Pendulum-v1", "-o", tmp_path / "demos", "--steps", 400)
    data = read_demonstrations(tmp_path / "demos")
    assert np.allclose(data.actions, np.clip(-5 * data.observations[:, 2:3], -2, 2), atol=1e-5), "as the task took them"


def test_labels_what_a_learner_visits(tmp_path):
    run = ["scenario=cartpole", "train=dagger", "expert=own_experts:Leaner", "train.until=1024", "train.epochs=1"]
    _, rows = tiny_run(tmp_path / "run", *run)
    assert rows[-1]["dagger/labels"] == 1024
    assert rows[-1]["learner/agent_0/cloning_loss"] < rows[0]["learner/agent_0/cloning_loss"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Wrong", "actions: expected integers 0 to [1] of shape (3, 1)"),
        ("Lost", "actions: expected finite numbers of shape (3, 1)"),
        ("Fails", "ZeroDivisionError: no idea"),
        ("None", "own_experts:None"),
    ],
)
def test_what_cannot_act_is_refused_before_the_start(name, said):
    result = call("evaluate", f"own_experts:{name}", "scenario=cartpole", "--episodes", 20)
    assert result.exit_code not in (0, 70), result.output
    assert said in complaint(result), result.output
