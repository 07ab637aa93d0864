"""Training that diverges: said, ended, and nothing that cannot be used is kept as whole."""

import pytest

from multigrid_rl.cli.drive import resume_hint
from multigrid_rl.cli.train import resume_training
from multigrid_rl.learn.flat import FlatAdam
from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.text import ConfigError
from multigrid_rl.training import loop
from multigrid_rl.training.loop import PATIENCE, DivergedError
from multigrid_rl.types import RunError
from run_folders import write_checkpoint
from tiny_runs import rows_of, tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start


def test_diverged_weights_end_run_without_checkpoint(tmp_path, capsys):
    with pytest.raises(DivergedError, match=r"^step [0-9,]+: weight net\.\S+ of red_0 is not finite: the run diverged"):
        tiny_run(tmp_path / "run", "train.lr=1e38", "train.checkpoint_every=1")
    assert "is not finite" in (tmp_path / "run" / "run.log").read_text()
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "is not finite" in line]
    assert warning.startswith("multigrid-rl: step ")
    for player in (tmp_path / "run").glob("checkpoints/step_*/players/red_0"):
        read_network(player, read_card(player))  # refuses what is not finite
    assert not (tmp_path / "run" / "verdict.json").exists()


def test_diverged_weights_hint_is_smaller_step_size(tmp_path):
    with pytest.raises(DivergedError) as caught, resume_hint(write_checkpoint(tmp_path, 2048)):
        raise DivergedError("step 4,096: weight net.table of red_0 is not finite")
    said = "what was reported stays, and a checkpoint at step 2,048; it would diverge again: lower the step size, "
    assert caught.value.hint == f"{said}train.lr, in a new run"


def test_lost_env_runner_hint_is_to_resume(tmp_path):
    with pytest.raises(RunError) as caught, resume_hint(write_checkpoint(tmp_path, 2048)):
        raise RunError("env runner 1 was lost")
    assert caught.value.hint.endswith(f"a checkpoint at step 2,048; go on: multigrid-rl train --resume {tmp_path}")


def test_nan_reward_ends_run_after_some_iterations(tmp_path, monkeypatch, capsys):
    (tmp_path / "turning.py").write_text(
        "calls = 0  # two of them before the start, four when kernels are warmed up\n"
        "def reward(events, reward):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    return reward * float('nan') if calls > 6 + 6 * 16 else reward\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    last = (6 + PATIENCE) * 512
    with pytest.raises(DivergedError) as caught:
        tiny_run(run, "train.shaping=turning:reward", "train.until=1e6", "train.checkpoint_every=1024")
    assert str(caught.value).startswith(f"step {last:,}: the training reward of red_0")
    assert f"is not finite in {PATIENCE} iterations in a row" in str(caught.value)
    # Weights are finite all the time, and so is every checkpoint.
    assert str(caught.value).endswith("the last checkpoint with finite weights is step_000007168")
    assert "go on: multigrid-rl train --resume" in caught.value.hint
    said = [line for line in capsys.readouterr().err.splitlines() if "not finite" in line]
    assert said == ["multigrid-rl: step 3,584: the training reward of red_0 (train.shaping, train.bonus) is not finite"]
    rows = rows_of(run)
    assert [row["learner/red_0/dropped_updates"] for row in rows] == [0.0] * 6 + [4.0] * PATIENCE
    assert [row["learner/red_0/grad_norm"] is None for row in rows] == [False] * 6 + [True] * PATIENCE


def test_broken_weights_are_never_saved_or_resumed(tmp_path, monkeypatch):
    count_steps, calls = FlatAdam.count_steps, []

    def break_at_the_end(self, count):
        calls.append(None)
        if len(calls) == 4:  # the fourth iteration, at which a checkpoint is due
            self.param_groups[0]["params"][0].data[5] = float("nan")
        count_steps(self, count)

    monkeypatch.setattr(FlatAdam, "count_steps", break_at_the_end)
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"step 2,048: weight net\.\S+ of red_0 is not finite.* is step_000001024$"):
        tiny_run(run, "train.checkpoint_every=1024")
    assert [path.name for path in (run / "checkpoints").glob("step_*")] == ["step_000001024"]
    # One that an earlier version wrote.
    calls.clear()
    monkeypatch.setattr(loop, "not_finite", lambda weights: None)
    other = tmp_path / "other"
    tiny_run(other, "train.until=2048")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"step_000002048: expected .*, got weight net\.\S+ of red_0 is not finite"):
        resume_training(other, ["train.until=4096"])
