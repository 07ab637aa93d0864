"""Runs of bodies are taken up exactly."""

import pytest

from multigrid_rl.cli.train import resume_training
from tiny_runs import rows_of, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start


@pytest.mark.slow
def test_body_run_resumes_exactly(tmp_path):
    """Episodes of these cut hoppers end within and between batches."""
    hopper = [
        "scenario=hopper",
        "env_args={max_episode_steps: 25}",
        "model.normalise=true",
        "train.checkpoint_every=1024",
    ]
    steady = ["train.lr=3e-4", "train.lr_final=3e-4"]  # a step size that falls would know where the first half ends
    tiny_run(tmp_path / "halves", *hopper, *steady, "train.until=1024")
    resume_training(tmp_path / "halves", ["train.until=2048"])
    _, unbroken = tiny_run(tmp_path / "unbroken", *hopper, *steady, "train.until=2048")
    assert without_time(rows_of(tmp_path / "halves")) == without_time(unbroken)
