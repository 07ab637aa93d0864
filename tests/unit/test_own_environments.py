"""Environments and code from outside: which files may name them, and the messages for their mistakes."""

import json
import sys

import gymnasium
import numpy as np
import pytest

from bundles import cheetah
from commands import call, complaint, has_verb, works
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.config.schema import to_yaml
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import signature, write_player
from multigrid_rl.runs.reader import run_config
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import import_object, user_code_place
from multigrid_rl.types import RunError
from tiny_runs import TINY

FEW = ("train.until=512", "train.checkpoint_every=512")
ENVS = """
import gymnasium
import numpy as np


class Right(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {}

    def step(self, action):
        return np.zeros(2), 0.0, False, False, {}


class Four(Right):
    def step(self, action):
        return np.zeros(2), 0.0, False, {}


class Alone(Right):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2)


class Unseeded(Right):
    def reset(self):
        return np.zeros(2), {}


class Three(Right):
    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}


class Free(Right):
    def step(self, action):
        return np.zeros(2), None, False, False, {}


class Silent(Right):
    def step(self, action):
        return np.zeros(2), 0.0, False, False, None


class Blind(Right):
    observation_space = gymnasium.spaces.Box(-1, 1, (0,), np.float32)


class Unmade(Right):
    def __init__(self):
        self.size = self.width


class Fileless(Right):
    def reset(self, *, seed=None, options=None):
        return open("no_such_map.txt")


class Late(Right):
    def step(self, action):
        self.steps += 1
        if self.steps > 3:
            raise self.fault
        return super().step(action)

    fault = KeyError("fourth")


class Gone(Late):
    fault = EOFError("gone")


class Leaves(Late):
    fault = SystemExit(0)


class Nowhere(Right):
    begun = 0

    def reset(self, *, seed=None, options=None):
        self.begun += 1
        return np.full(2, np.nan if self.begun > 2 else 0), {}

    def step(self, action):
        return np.zeros(2), 0.0, True, False, {}


for its in (Right, Four, Alone, Unseeded, Three, Free, Silent, Blind, Unmade, Fileless, Late, Gone, Leaves, Nowhere):
    gymnasium.register(f"{its.__name__}-v0", its, order_enforce=False)
"""


@pytest.fixture
def own_envs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(gymnasium.registry)
    (tmp_path / "own_envs.py").write_text(ENVS)
    yield tmp_path
    sys.modules.pop("own_envs", None)
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_files_import_no_environment_where_code_is_refused(own_envs, monkeypatch):
    (own_envs / "own_envs.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Pole-v0', CartPoleEnv, max_episode_steps=9)\n"
    )
    env = {"package": "gymnasium", "env_id": "own_envs:Pole-v0", "env_args": {}, "agents": 1}
    run, player = own_envs / "run", own_envs / "player"
    agent = env_factory(compose(["env_id=CartPole-v1"])).specs.agents[0]
    architecture = {"name": "mlp", "hidden": [4]}
    about = {"name": "mine", "architecture": architecture, "scenario": "gymnasium", "env": env}
    card = {**about, **signature(agent, None), "seats": ["agent_0"], "provenance": {}}
    weights = network_of(agent, compose(["env_id=CartPole-v1", "model.hidden=[4]"]).model.model_dump()).state_dict()
    for folder in (player, run / "checkpoints" / "step_1" / "players" / "agent_0"):
        write_player(folder, weights, card)
    (run / "checkpoints" / "latest").write_text("step_1")
    (run / "config.yaml").write_text(to_yaml(compose(["env_id=own_envs:Pole-v0"])))
    monkeypatch.setenv("MULTIGRID_RL_SAFE", "1")
    verbs = (["evaluate", player], ["evaluate", run], ["record", run], ["video", run])
    for verb in (verb for verb in verbs if has_verb(verb[0])):
        said = complaint(call(*verb, "-o", own_envs / "out.gif"))
        assert "env_id: expected an environment of Gymnasium" in said
        assert said.endswith("got own_envs:Pole-v0")
        assert "own_envs" not in sys.modules
    monkeypatch.delenv("MULTIGRID_RL_SAFE")
    for k, who in enumerate((player, run)):
        assert call("evaluate", who, "--episodes", 2, "-o", own_envs / f"out{k}").exit_code == 0
    assert call("evaluate", run, "--episodes", 2, "-o", own_envs / "there").exit_code == 0  # nothing is run anew
    sys.modules.pop("own_envs")
    gymnasium.registry.pop("Pole-v0")
    works("evaluate", player, "env_id=own_envs:Pole-v0", "--episodes", 2, "-o", own_envs / "typed")
    sys.modules.pop("own_envs")
    gymnasium.registry.pop("Pole-v0")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Four", "step: expected (observation, reward, terminated, truncated, info), got 4 values"),
        ("Alone", "reset: expected (observation, info), got a ndarray alone"),
        ("Unseeded", "reset: expected (observation, info), got TypeError: Unseeded.reset() got an unexpected keyword"),
        ("Three", "reset: observation: expected shape (2,) of its space, got (3,)"),
        ("Free", "step: reward: expected one number, got None"),
        ("Silent", "step: expected (observation, reward, terminated, truncated, info), got None as info"),
        ("Blind", "expected observations of 1 to 100,000 numbers"),
        ("Fileless", "reset: expected (observation, info), got FileNotFoundError: No such file or directory: 'no_suc"),
        ("Unmade", "AttributeError: 'Unmade' object has no attribute 'width' (own_envs.py:54)"),
    ],
)
def test_rejects_bad_environments_before_run_folder_exists(own_envs, name, said):
    run = own_envs / "run"
    message = complaint(call("train", f"env_id=own_envs:{name}-v0", f"run_dir={run}"))
    assert f"own_envs:{name}-v0: {said}" in message
    assert not run.exists()


def test_warns_of_environment_that_never_ends(own_envs, monkeypatch):
    monkeypatch.setattr("multigrid_rl.training.loop.QUIET_STEPS", 16)
    warned = call("train", "env_id=own_envs:Right-v0", f"run_dir={own_envs / 'run'}", *TINY, *FEW).stderr
    assert warned.count("no episode has ended in 16 steps of each environment: env_args={max_episode_steps: 200}") == 1
    limited = "env_args={max_episode_steps: 9}"
    fine = call("train", "env_id=own_envs:Right-v0", limited, f"run_dir={own_envs / 'fine'}", *TINY, *FEW)
    assert (fine.exit_code, fine.stderr) == (0, "")
    monkeypatch.setattr("multigrid_rl.players.episodes.MOST_STEPS", 20)
    stopped = call("evaluate", own_envs / "run", "--episodes", 2, "-o", own_envs / "out")
    assert stopped.exit_code == 3
    assert "env_args={max_episode_steps: 200} sets one), got none in 20" in stopped.stderr
    assert call("evaluate", own_envs / "fine", "--episodes", 2, "-o", own_envs / "out").exit_code == 0


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("Gone", "step: .*EOFError: gone"),
        ("Leaves", "step: .*SystemExit: 0"),
        ("Nowhere", "finite observations, got one that is not in environment 0, from reset for its episode 3"),
    ],
)
def test_whatever_an_environment_raises_or_shows_ends_a_run_in_one_line(own_envs, name, got):
    env = env_factory(compose([f"env_id=own_envs:{name}-v0"])).build(2, 0)
    acts = {"agent_0": np.zeros((2, 1), np.int64)}
    for _ in range(3 if name != "Nowhere" else 1):
        env.step(acts)
    with pytest.raises(RunError, match=got):
        env.step(acts)


# --- the card of a stranger's player names an environment: it opens neither files nor windows


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"env_args": {"render_mode": "human"}}, "scenario.env_args: expected no render_mode"),
        (
            {"env_args": {"xml_file": "/etc/hostname"}},
            "env.env_args: expected no paths and ${...}; of a card that you tr",
        ),
        ({"env_args": {"nested": {"files": ["..\\a"]}}}, "env.env_args: expected no paths"),
        ({"env_args": {"xml_file": "${seed}"}}, "env.env_args: expected no paths and ${...}"),
        ({"env_args": {"a b": 1}}, "env.env_args: expected no paths and ${...}"),
        ({"env_args": {"xml_file": "none.xml"}}, "scenario.env_args: expected arguments of HalfCheetah-v5"),
        ({"env_id": "HalfCheetah-v99"}, "scenario.env_id: expected the id of a registered environment"),
    ],
)
def test_card_with_strange_environment_is_refused_in_one_line(tmp_path, env, message):
    player = cheetah(tmp_path / "player", **env)
    assert message in complaint(call("evaluate", player, "--episodes", 1, "-o", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_environment_that_is_typed_replaces_that_of_card(tmp_path):
    player = cheetah(tmp_path / "player", env_args={"xml_file": "/etc/hostname"})
    typed = ["env_id=HalfCheetah-v5", "env_args={max_episode_steps: 5}"]
    done = call("evaluate", player, *typed, "--episodes", 2, "-o", tmp_path / "out")
    assert (done.exit_code, json.loads(done.output.splitlines()[-1])["length_mean"]) == (0, 5.0)


def test_typed_window_is_refused_before_training(tmp_path):
    done = call("train", "env_id=CartPole-v1", "env_args={render_mode: human}", f"run_dir={tmp_path / 'run'}")
    assert "scenario.env_args: expected no render_mode" in complaint(done)


# --- where mistakes in code that files name are said to be, and settings of older versions that named it


MINE = """import json


def fails():
    raise ValueError("mine")


def calls(function):
    return function("{")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_trust.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield import_object("key", "mine_of_trust:calls").__globals__
    sys.modules.pop("mine_of_trust", None)


def place_of(function, *arguments) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - where it was raised is looked at
        function(*arguments)
    return user_code_place(error.value.with_traceback(error.tb.tb_next))  # without this file


def test_own_place_is_last_line_of_users_file_also_where_it_called_a_library_or_this_package(mine):
    assert place_of(mine["fails"]) == " (mine_of_trust.py:5)"
    for called in (json.loads, compose):
        assert place_of(mine["calls"], called) == " (mine_of_trust.py:9)"


def test_own_place_of_mistake_in_this_package_or_a_library_is_none():
    assert place_of(compose, ["nothing"]) == ""
    assert place_of(json.loads, "{") == ""


def test_runner_of_older_versions(tmp_path):
    text = to_yaml(compose([]))
    (tmp_path / "config.yaml").write_text(text.replace("train:\n", "train:\n  runner: batched\n"))
    assert run_config(tmp_path).train.trainer == "ppo"
    (tmp_path / "config.yaml").write_text(text.replace("train:\n", "train:\n  runner: stock\n"))
    with pytest.raises(ConfigError) as error:
        run_config(tmp_path)
    wanted = "no such key: train again without it, or run RLlib's own by `python -m benchmarks.stock`"
    assert str(error.value) == f"{tmp_path / 'config.yaml'}: train.runner: expected {wanted}, got stock"


def test_players_of_shipped_scenarios_are_found_from_any_folder(tmp_path, monkeypatch):
    beside = tmp_path / "data"
    beside.mkdir()
    (beside / "beside_our_configs.py").write_text("class Player:\n    pass\n")
    monkeypatch.setattr("multigrid_rl.trust.data_root", lambda: beside)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert import_object("key", "beside_our_configs:Player").__name__ == "Player"
    sys.modules.pop("beside_our_configs")
