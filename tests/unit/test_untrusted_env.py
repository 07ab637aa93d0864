"""The card of a stranger's player names an environment: it opens neither files nor windows."""

import json

import pytest

from bundles import cheetah
from commands import call, complaint


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
