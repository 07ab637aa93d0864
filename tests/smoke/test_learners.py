"""Several learners compute the gradient of one."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from multigrid_rl.text import ConfigError
from tiny_runs import rows_of, tiny_run

pytestmark = pytest.mark.usefixtures("cores")

ONE_STEP = ["train.until=512", "train.epochs=1", "train.minibatch_size=512"]


def weights_of(run):
    path = run / json.loads((run / "verdict.json").read_text())["checkpoint"] / "players" / "red_0"
    return load_file(path / "model.safetensors")


MEMORY = ["scenario=single-obstacle", "model=gru", "model.hidden=[16]"]


@pytest.mark.long  # test_update averages the gradients of two in one process
@pytest.mark.parametrize("kind", [["scenario=1v1"], MEMORY, ["scenario=1v1", "train.kl_coef=5"]])
def test_two_learners_equal_one_on_whole_batch(session, tmp_path, kind):
    # Each computes half of every minibatch: only the order of additions differs.
    _, alone = tiny_run(tmp_path / "one", *kind, "train.until=1024")
    _, both = tiny_run(tmp_path / "two", *kind, "train.until=1024", "cluster.num_learners=2")
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    start = weights_of_start(tmp_path, kind)
    moved = np.sqrt(sum(np.sum((one[name] - start[name]) ** 2) for name in one))
    apart = np.sqrt(sum(np.sum((one[name] - two[name]) ** 2) for name in one))
    assert apart < 1e-3 * moved
    assert both[0]["gradient_steps"] == alone[0]["gradient_steps"]
    for name in ("learner/red_0/grad_norm", "learner/red_0/lr", "learner/red_0/entropy_coef"):
        assert both[0][name] == pytest.approx(alone[0][name], rel=1e-3)


def weights_of_start(tmp_path, kind):
    # A step size near nothing leaves the weights where they began.
    tiny_run(tmp_path / "start", *kind, "train.until=512", "train.lr=1e-12", "train.lr_final=1e-12")
    return weights_of(tmp_path / "start")


def test_learners_must_divide_minibatch(tmp_path):
    with pytest.raises(ConfigError, match=r"train.minibatch_size: expected what 3 learners can share"):
        tiny_run(tmp_path / "run", "cluster.num_learners=3")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_remote_learner_equals_driver(session, tmp_path):
    tiny_run(tmp_path / "here", *ONE_STEP)
    tiny_run(tmp_path / "there", *ONE_STEP, "cluster.num_learners=1")
    here, there = weights_of(tmp_path / "here"), weights_of(tmp_path / "there")
    assert all((here[name] == there[name]).all() for name in here)
    assert rows_of(tmp_path / "there")[0]["env_steps"] == 512
