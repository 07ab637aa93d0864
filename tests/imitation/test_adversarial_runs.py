"""Runs whose reward a discriminator pays: gates stay the environment's, and a checkpoint holds all that decides."""

import json

import numpy as np
import pytest

from commands import call, complaint, works
from demonstrated import pusher
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.imitation.imitation_trainers import AdversarialOptions
from run_folders import killed
from tiny_runs import rows_of, tiny_run, unknown_metrics, without_time

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
    assert unknown_metrics(rows) == []
    assert all(0 <= row["learner/agent_0/discriminator_accuracy"] <= 1 for row in rows)
    assert all(np.isfinite(row["learner/agent_0/learnt_reward"]) for row in rows)
    # Pendulum pays nothing above 0; 20 steps of a reward that is learnt would.
    assert all(row["return_mean/agent_0"] < 0 for row in rows if "return_mean/agent_0" in row)
    data = json.loads((whole / "provenance.json").read_text())["data"]
    assert (data["who"], data["rows"]) == ("pusher", 200)
    broken = killed(whole, tmp_path / "broken", "step_000001024")
    assert resume_training(broken, [])["weights"] == verdict["weights"]
    assert without_time(rows_of(broken)) == without_time(rows)


def test_reward_of_another_run_is_no_key_but_its_null_in_older_files_is_read(demo):
    asked = [*SMALL, "train=gail", f"data={demo}"]
    assert "train.adversarial.reward" in complaint(call("train", *asked, "train.adversarial.reward=x"))
    options = compose(asked).train.adversarial
    assert AdversarialOptions.model_validate({**options.model_dump(), "reward": None, "replay": 0}) == options


def test_rejects_demonstrations_of_another_environment(demo, tmp_path):
    other = ["env_id=CartPole-v1", "experiment=none", "train=gail", f"data={demo}", f"run_dir={tmp_path / 'run'}"]
    assert "env: expected CartPole-v1, got Pendulum-v1" in complaint(call("train", *other))


@pytest.mark.parametrize("head", ["mixture", "bins"])
def test_probabilistic_heads_train_by_ppo_and_evaluate(tmp_path, head):
    run = tmp_path / "run"
    _, rows = tiny_run(run, "env_id=Pendulum-v1", f"model.head={head}", "train.until=512", "train.checkpoint_every=512")
    assert np.isfinite([row["entropy/agent_0"] for row in rows]).all()
    assert rows[-1]["learner/agent_0/grad_norm"] > 0
    works("evaluate", run, "--episodes", 4, "-o", tmp_path / "judged")
