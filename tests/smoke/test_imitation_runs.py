"""Runs that learn from recorded play: the same folder, gates, players and resume as every run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from commands import call
from composing import error_of
from multigrid_rl.cli.train import resume_training, run_training
from multigrid_rl.config import ConfigError
from multigrid_rl.metrics import METRICS, matches
from tiny_runs import rows_of, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

TINY = [
    "train.num_envs=8", "train.num_steps=128", "train.minibatch_size=128", "train.checkpoint_every=4096",
    "train.cloning.play_every=4096", "train.lr_final=null", "model.hidden=[32,32]", "scenario.report_episodes=16",
]  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demos") / "runner"
    result = call("record", "key-runner", "scenario=1v1", "--steps", 12_000, "-o", out)
    assert result.exit_code == 0, (result.output, result.exception)
    return out


def cloned(demo, path, *overrides):
    run_training(["scenario=1v1", "train=bc", f"data={demo}", f"run_dir={path}", *TINY, *overrides])
    return rows_of(path)


@pytest.fixture(scope="module")
def run(demo, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "clone"
    return path, cloned(demo, path, "train.until=16384")


def test_clone_learns_and_tells_its_story(run, demo):
    path, rows = run
    names = {name for row in rows for name in row}
    assert [name for name in names if not any(matches(name, pattern) for pattern in METRICS)] == []
    assert [row["env_steps"] for row in rows] == [1024 * k for k in range(1, 17)]
    losses = [row["learner/red_0/cloning_loss"] for row in rows]
    assert losses[0] > 1.6 > losses[-1] + 0.3
    played = [row for row in rows if "win/red_0" in row]
    assert [row["env_steps"] for row in played] == [4096 * k for k in range(1, 5)]
    assert all(row["report_episodes"] == 16 and "learner/red_0/held_out_loss" in row for row in played)
    assert played[-1]["entropy/red_0"] < np.log(7)
    verdict = json.loads((path / "verdict.json").read_text())
    assert [gate["metric"].split("/")[0] for gate in verdict["gates"]] == ["episode_len_mean", "return_mean", "entropy"]
    told = json.loads((path / "provenance.json").read_text())["data"]
    assert (told["who"], told["folder"], told["rows"]) == ("key-runner", str(demo), 12_000)
    result = call("evaluate", path, "--episodes", 20, "-o", path.parent / "judged")
    assert result.exit_code == 0, (result.output, result.exception)


def test_interrupted_and_resumed_clone_equals_the_unbroken_one(run, demo, tmp_path):
    path = tmp_path / "short"
    cloned(demo, path, "train.until=5120")
    resume_training(path, ["train.until=16384"])
    assert without_time(rows_of(path)) == without_time(run[1])


def test_run_ends_when_held_out_episodes_gain_nothing_more(demo, tmp_path):
    path = tmp_path / "still"
    verdict = run_training(
        ["scenario=1v1", "train=bc", f"data={demo}", f"run_dir={path}", *TINY, "train.lr=1e-30",
         "train.until=65536", "train.cloning.patience=2", "train.cloning.play_every=1024"]
    )  # fmt: skip
    assert (verdict["ended"], verdict["env_steps"]) == ("plateau", 3072)


def test_other_data_does_not_go_on_with_a_run(run, demo, tmp_path):
    path, _ = run
    card = demo / "card.json"
    text = card.read_text()
    try:
        card.write_text(text.replace('"sha256": "', '"sha256": "0', 1))
        with pytest.raises(ConfigError, match="data: "):
            resume_training(path, ["train.until=32768"])
    finally:
        card.write_text(text)


def test_rejects_what_cannot_be_cloned(demo):
    assert error_of("scenario=1v1", "train=bc").startswith("data: expected a folder that `multigrid-rl record` wrote")
    assert error_of("scenario=1v1", "data=x") == "data: expected null without train=bc, got x"
    for key, value in (("model", "gru"), ("cluster.num_env_runners", "1"), ("train.runner", "stock")):
        assert error_of("scenario=1v1", "train=bc", "data=x", f"{key}={value}").startswith(f"{key}: expected ")
