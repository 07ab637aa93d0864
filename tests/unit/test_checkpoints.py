"""Checkpoints: whole or passed over, and only as many as were asked for."""

import json
import math

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
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step_000000512\n"
    assert newest_good(tmp_path).path == path


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
    first = written(tmp_path, 512, margin=0.1)
    stamp = json.loads((first / MANIFEST).read_text())
    again = written(tmp_path, 512, margin=0.2)
    assert first == again
    assert check(again).margin == 0.2
    assert stamp["gate_margin"] == 0.1
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
