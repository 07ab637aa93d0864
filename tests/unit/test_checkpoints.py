"""Checkpoints: whole or passed over, and only as many as were asked for; runs that diverged."""

import errno
import logging
import math

import numpy as np
import pytest

from multigrid_rl.gates import Gate, GateKeeper, Moment
from multigrid_rl.runs.checkpoints import (
    MANIFEST,
    REMOVED,
    UNFINISHED,
    check,
    commit,
    newest_good,
    prune,
    read_state,
    seal,
    set_aside_newer,
    write_state,
)
from multigrid_rl.text import ConfigError
from multigrid_rl.training.loop import PATIENCE, DivergedError, Divergence
from run_folders import write_checkpoint


def written(run, env_steps, margin=None, stage=0):
    folder = run / "checkpoints"
    unfinished = folder / UNFINISHED
    (unfinished / "rllib").mkdir(parents=True)
    (unfinished / "rllib" / "weights").write_bytes(bytes(range(100)))
    write_state(unfinished, {"env_steps": env_steps})
    seal(unfinished, {"env_steps": env_steps, "stage": stage, "gate_margin": margin, "metrics_bytes": 10 * env_steps})
    commit(unfinished, folder / f"step_{env_steps:09d}")
    return folder / f"step_{env_steps:09d}"


def names(run):
    return sorted(path.name for path in (run / "checkpoints").glob("step_*"))


def test_written_checkpoint_is_found_complete(tmp_path):
    path = written(tmp_path, 512, margin=-0.5)
    assert check(path) == (path, 512, -0.5, 5120)
    assert read_state(path) == {"env_steps": 512}
    assert newest_good(tmp_path).path == path
    prune(tmp_path / "checkpoints", 1)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step_000000512\n"


def test_disk_that_is_full_after_a_checkpoint_is_no_error_of_that_checkpoint(tmp_path, monkeypatch):
    """The loop reports an error of ``commit`` as a checkpoint that could not be written, of ``prune`` as old ones."""

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("multigrid_rl.runs.checkpoints.write_atomic", full)
    path = written(tmp_path, 512)
    assert check(path).path == path
    with pytest.raises(OSError, match="No space left"):
        prune(tmp_path / "checkpoints", 1)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: (path / "rllib" / "weights").write_bytes(bytes(100)), ", got 100 bytes with sha256"),
        (lambda path: (path / "rllib" / "weights").write_bytes(b""), ", got 0 bytes with sha256"),
        (lambda path: (path / "run.pkl").unlink(), "run.pkl: expected a file of a whole checkpoint, got No such file"),
        (lambda path: (path / MANIFEST).unlink(), "manifest.json: expected"),
        (lambda path: (path / MANIFEST).write_text("{"), "manifest.json: expected"),
        (lambda path: (path / MANIFEST).write_text("[]"), "manifest.json: expected"),
        (lambda path: (path / MANIFEST).write_text('{"files": {}}'), "manifest.json: expected"),
    ],
)
def test_skips_damaged_checkpoints(tmp_path, caplog, damage, expected):
    before, newest = written(tmp_path, 512), written(tmp_path, 1024)
    damage(newest)
    with pytest.raises(ConfigError) as caught:
        check(newest)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert newest_good(tmp_path).path == before
    assert "step_000001024 is damaged and passed over" in caplog.text
    assert "going on from step_000000512" in caplog.text


@pytest.mark.parametrize("at", ["begun", "written", "sealed"])
def test_kill_before_final_rename_leaves_previous_checkpoint(tmp_path, at):
    before = written(tmp_path, 512)
    unfinished = tmp_path / "checkpoints" / UNFINISHED
    unfinished.mkdir()
    if at != "begun":
        write_state(unfinished, {})
    if at == "sealed":
        seal(unfinished, {"env_steps": 1024, "gate_margin": None, "metrics_bytes": 0})
    assert newest_good(tmp_path).path == before


@pytest.mark.parametrize(
    ("written_ones", "keep", "left", "best"),
    [
        (((1, -0.5, 0), (2, 0.4, 0), (3, 0.1, 0), (4, None, 0), (5, -0.2, 0)), 2, (2, 4, 5), 2),
        (((1, None, 0), (2, None, 0), (3, None, 0)), 1, (3,), None),  # no margins
        (((1, 0.9, 0), (2, -0.3, 1), (3, -0.4, 1), (4, -0.5, 1)), 1, (2, 4), 2),  # margins of the latest stage count
        (((999_000_000, None, 0), (1_000_000_000, None, 0)), 1, (1_000_000_000,), None),  # beyond nine digits
    ],
)
def test_keeps_newest_and_best(tmp_path, written_ones, keep, left, best):
    for steps, margin, stage in written_ones:
        newest = written(tmp_path, steps, margin, stage)
    assert newest_good(tmp_path).path == newest
    prune(tmp_path / "checkpoints", keep)
    assert names(tmp_path) == [f"step_{steps:09d}" for steps in left]
    file = tmp_path / "checkpoints" / "best"
    assert (file.read_text() if file.exists() else None) == (best and f"step_{best:09d}\n")
    assert not (tmp_path / "checkpoints" / REMOVED).exists()


def test_skipped_damaged_checkpoint_never_evicts_sound_one(tmp_path):
    before, damaged = written(tmp_path, 600), written(tmp_path, 900)
    (damaged / "run.pkl").unlink()
    set_aside_newer(newest_good(tmp_path).path)
    newest = written(tmp_path, 700)
    prune(tmp_path / "checkpoints", 1)
    assert not before.exists()
    assert newest_good(tmp_path).path == newest
    assert (tmp_path / "checkpoints" / "damaged_step_000000900" / MANIFEST).exists()


@pytest.mark.parametrize("text", ["[]", "{", "{}", "null"])
def test_damaged_manifest_is_never_best(tmp_path, text):
    first = written(tmp_path, 1, margin=0.5)
    (first / MANIFEST).write_text(text)
    written(tmp_path, 2, margin=0.1)
    prune(tmp_path / "checkpoints", 1)
    assert not first.exists()


def test_rewritten_checkpoint_replaces_first(tmp_path):
    assert written(tmp_path, 512, margin=0.1) == written(tmp_path, 512, margin=0.2)
    assert check(tmp_path / "checkpoints" / "step_000000512").margin == 0.2
    assert names(tmp_path) == ["step_000000512"]


def test_margin_is_of_worst_gate_relative_to_bound():
    keeper = GateKeeper([Gate("length", "<=", 20.0, window=100), Gate("return", ">=", 1.0, window=100)])
    assert math.isnan(keeper.margin())
    keeper.report(Moment(100, 1, 1.0), 200, {"length": 10.0, "return": 1.5})
    assert keeper.margin() == pytest.approx(0.5)
    keeper.report(Moment(150, 2, 2.0), 200, {"length": 28.0, "return": 1.5})  # the window's mean is 19
    assert keeper.margin() == pytest.approx(0.05)
    keeper.report(Moment(160, 3, 3.0), 200, {"length": math.nan, "return": 1.5})
    assert math.isnan(keeper.margin())


def test_gates_resume_their_state():
    gates = [Gate("length", "<=", 20.0, window=100)]
    whole, first, second = GateKeeper(gates), GateKeeper(gates), GateKeeper(gates)
    reports = [(50, 30.0), (100, 10.0), (150, 12.0), (200, 11.0), (260, 10.0)]
    for k, (steps, value) in enumerate(reports):
        whole.report(Moment(steps, k, steps / 10), 200, {"length": value})
        if k == 3:
            second.set_state(first.get_state())
        (first if k < 3 else second).report(Moment(steps, k, steps / 10), 200, {"length": value})
    assert second.verdict() == whole.verdict()
    assert second.held
    with pytest.raises(
        ValueError, match=r"history of the gates: expected length <= 30 \(every, window 100\), got length <= 20 \("
    ):
        GateKeeper([Gate("length", "<=", 30.0, window=100)]).set_state(first.get_state())


# --- a run that diverged: one warning, and an end that names what was lost


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
        ({"walking_loss": None}, "learner/red_0/walking_loss"),  # of another package's trainer
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
        watch.check(row(50 + turn * 100), *algorithm(BROKEN))  # weights of a run that is well are not read
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
