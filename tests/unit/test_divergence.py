"""A run that diverged: one warning, an end that names what was lost, and never for a run that is well."""

import logging

import numpy as np
import pytest

from multigrid_rl.training.loop import PATIENCE, DivergedError, Divergence
from run_folders import write_checkpoint

FINITE = {"red_0": {"net.policy.0.weight": np.ones((2, 2)), "net.policy.0.bias": np.ones(2)}}
BROKEN = {"red_0": {"net.policy.0.weight": np.ones((2, 2)), "net.policy.0.bias": np.array([1.0, np.inf])}}


def row(steps: int, module: str = "red_0", **changes):
    learner = {"policy_loss": 0.1, "vf_loss": 0.2, "grad_norm": 0.3, "dropped_updates": 0.0, "lr": 1e-3} | changes
    entropy = learner.pop("entropy", 1.5)
    columns = {f"learner/{module}/{name}": value for name, value in learner.items()}
    return {"env_steps": steps, f"entropy/{module}": entropy, **columns}


def algorithm(weights=FINITE, lost_returns=()):
    """What a check takes of an algorithm."""
    return list(lost_returns), lambda: weights


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"entropy": None}, "entropy/red_0"),
        ({"policy_loss": None}, "learner/red_0/policy_loss"),
        ({"vf_loss": float("inf")}, "learner/red_0/vf_loss"),
        ({"grad_norm": None}, "learner/red_0/grad_norm"),
        ({"walking_loss": None}, "learner/red_0/walking_loss"),  # of a trainer of somebody's own
        ({"dropped_updates": 1.0}, "learner/red_0/grad_norm"),  # in an earlier minibatch than the last
    ],
)
def test_warns_once(tmp_path, caplog, changes, named):
    watch = Divergence(tmp_path)
    for k in range(4):
        watch.check(row(1024 + k, **changes), *algorithm())
    assert [(r.levelno, r.message) for r in caplog.records] == [(logging.WARNING, f"step 1,024: {named} is not finite")]


@pytest.mark.parametrize(
    ("told", "lost_returns", "named"),
    [
        ({"env_steps": 512, "learner/red_0/my_loss": None}, [], "learner/red_0/my_loss"),  # no step size
        (row(512, grad_norm=None), ["red_0"], "the training reward of red_0 (train.shaping, train.bonus)"),
        (row(512, policy_loss=None), [], "learner/red_0/policy_loss (train.objective=mine:objective)"),
    ],
)
def test_names_cause(tmp_path, caplog, told, lost_returns, named):
    Divergence(tmp_path, "mine:objective").check(told, *algorithm(lost_returns=lost_returns))
    assert caplog.messages == [f"step 512: {named} is not finite"]


def test_ends_run_after_many_in_a_row(tmp_path):
    write_checkpoint(tmp_path, 2048)
    watch = Divergence(tmp_path)
    for turn in range(3):
        for k in range(PATIENCE - 1):
            watch.check(row(1 + turn * 100 + k, grad_norm=None), *algorithm())
        watch.check(row(50 + turn * 100), *algorithm(BROKEN))  # nobody asks for the weights of a run that is well
    for k in range(PATIENCE - 1):
        watch.check(row(1000 + k, grad_norm=None), *algorithm())
    with pytest.raises(DivergedError) as caught:
        watch.check(row(4096, grad_norm=None), *algorithm())
    assert str(caught.value) == (
        "step 4,096: learner/red_0/grad_norm is not finite in 10 iterations in a row: the run diverged; "
        "the last checkpoint with finite weights is step_000002048"
    )


def test_non_finite_weights_end_run_at_once(tmp_path, caplog):
    with pytest.raises(DivergedError) as caught:
        Divergence(tmp_path).check(row(512, vf_loss=None), *algorithm({"blue_0": FINITE["red_0"], **BROKEN}))
    message = "step 512: weight net.policy.0.bias of red_0 is not finite"
    assert str(caught.value) == f"{message}: the run diverged; no checkpoint was written before"
    assert caplog.messages == [message]


def test_ignores_harmless_gaps_in_rows(tmp_path, caplog):
    watch = Divergence(tmp_path)
    absent = row(1, "red_1", lr=None, policy_loss=None, vf_loss=None, grad_norm=None, entropy=None)
    # Targets that do not vary have no explained variance; a network whose seats were out of every game tells nothing.
    for rows in (row(1) | {"explained_variance/red_0": None}, row(1) | {"entropy/red_1": None}, row(1) | absent):
        watch.check(rows, *algorithm(BROKEN))
    assert caplog.messages == []
