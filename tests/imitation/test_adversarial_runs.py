"""Runs whose reward a discriminator pays: gates stay the environment's, and a checkpoint holds all that decides."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from commands import call, complaint
from demonstrated import pusher
from multigrid_rl.metrics import glossary, matches
from multigrid_rl.runs.checkpoints import read_learner_state
from multigrid_rl.training.start import resume_training
from tiny_runs import rows_of, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

SMALL = [
    "env_id=Pendulum-v1", "env_args={max_episode_steps: 20}", "train.num_envs=8", "train.num_steps=32",
    "train.minibatch_size=64", "train.until=1024", "train.checkpoint_every=512", "train.adversarial.steps=2",
    "scenario.report_episodes=8", "model.normalise=true", "model.scale_values=true",
]  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return pusher(tmp_path_factory.mktemp("demos"), 20)


@pytest.mark.parametrize("kind", ["gail", "airl"])
def test_learnt_reward_run_resumes_exactly(demo, tmp_path, kind):
    whole = tmp_path / "whole"
    verdict, rows = tiny_run(whole, *SMALL, f"train={kind}", f"data={demo}")
    names = {name for row in rows for name in row}
    assert [name for name in names if not any(matches(name, pattern) for pattern in glossary())] == []
    assert all(0 <= row["learner/agent_0/discriminator_accuracy"] <= 1 for row in rows)
    assert all(np.isfinite(row["learner/agent_0/learnt_reward"]) for row in rows)
    # Pendulum pays nothing above 0; 20 steps of a reward that is learnt would.
    assert all(row["return_mean/agent_0"] < 0 for row in rows if "return_mean/agent_0" in row)
    data = json.loads((whole / "provenance.json").read_text())["data"]
    assert (data["who"], data["rows"]) == ("pusher", 200)
    broken = shutil.copytree(whole, tmp_path / "broken")
    (broken / "verdict.json").unlink()
    shutil.rmtree(broken / "checkpoints" / "step_000001024")
    assert resume_training(broken, [])["weights"] == verdict["weights"]
    assert without_time(rows_of(broken)) == without_time(rows)


def test_airl_reward_trains_fresh_policy(demo, tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    few = ["train.until=512", f"data={demo}"]
    tiny_run(first, *SMALL, "train=airl", *few)
    _, rows = tiny_run(again, *SMALL, "train=airl", *few, f"train.adversarial.reward={first}")
    before, after = (read_learner_state(run)["update"]["adversaries"]["agent_0"] for run in (first, again))
    for name, value in before["discriminator"].items():
        np.testing.assert_array_equal(value, after["discriminator"][name])
    assert np.isfinite(rows[-1]["learner/agent_0/learnt_reward"])
    assert "learner/agent_0/discriminator_loss" not in rows[-1]
    for words, message in (
        (["train=airl", f"train.adversarial.reward={again}"], "expected a run that learned"),  # `again` did not
        (["train=gail", f"train.adversarial.reward={first}"], "by train.adversarial.kind=airl, with that kind"),
        (
            ["train=airl", f"train.adversarial.reward={first}", "train.adversarial.hidden=[8]"],
            "train.adversarial.hidden",
        ),
    ):
        assert message in complaint(call("train", *SMALL, *few, *words, f"run_dir={tmp_path / 'refused'}"))


def test_rejects_demonstrations_of_another_environment(demo, tmp_path):
    other = ["env_id=CartPole-v1", "experiment=none", "train=gail", f"data={demo}", f"run_dir={tmp_path / 'run'}"]
    assert "env: expected CartPole-v1, got Pendulum-v1" in complaint(call("train", *other))


@pytest.mark.parametrize("head", ["mixture", "bins"])
def test_probabilistic_heads_train_by_ppo_and_evaluate(tmp_path, head):
    run = tmp_path / "run"
    _, rows = tiny_run(run, "env_id=Pendulum-v1", f"model.head={head}", "train.until=512", "train.checkpoint_every=512")
    assert np.isfinite([row["entropy/agent_0"] for row in rows]).all()
    assert rows[-1]["learner/agent_0/grad_norm"] > 0
    result = call("evaluate", run, "--episodes", 4, "-o", tmp_path / "judged")
    assert result.exit_code == 0, result.output
