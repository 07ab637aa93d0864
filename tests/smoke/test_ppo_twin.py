"""PPO written a second time (``ppo_twin``): number for number what ``make train SCENARIO=1v1`` does."""

import math
import re
from pathlib import Path

import pytest

import ppo_twin as one
from multigrid_rl.cli.train import run_training
from tiny_runs import rows_of

ITERATIONS = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 5])
def test_three_iterations_are_those_of_a_run_number_for_number(tmp_path, seed):
    until = ITERATIONS * one.NUM_ENVS * one.NUM_STEPS
    run_training(["scenario=1v1", f"seed={seed}", f"train.until={until}", f"run_dir={tmp_path / 'run'}"])
    expected = rows_of(tmp_path / "run")
    found = list(one.train(seed, until))
    assert len(found) == len(expected) == ITERATIONS
    told = set()
    for mine, theirs in zip(found, expected, strict=True):
        for name, value in mine.items():
            told.add(name)
            # Sums of float32 in another order; explained variance, a difference from 1, is near 0.
            assert math.isclose(value, theirs[name], rel_tol=1e-5, abs_tol=1e-7), (name, value, theirs[name])
    assert {"return_mean/red_0", "approx_kl/red_0", "learner/red_0/vf_loss", "explained_variance/red_0"} <= told


def test_it_brings_its_own_algorithm():
    ours = re.findall(r"^(?:from|import) (multigrid_rl\S*)", Path(one.__file__).read_text(), re.MULTILINE)
    assert set(ours) == {"multigrid_rl", "multigrid_rl.streams", "multigrid_rl.world.constants"}
