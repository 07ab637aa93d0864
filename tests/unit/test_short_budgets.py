"""A gate that a run is too short to hold is named before the run starts, with the window to set."""

from pathlib import Path

import pytest

from multigrid_rl.config.compose import compose
from multigrid_rl.training.screen import closing_lines, preflight


@pytest.mark.parametrize("window", [18_976, 20_480, 100_000, 10])
def test_gate_with_a_window_longer_than_the_budget_is_told_before_the_start(window):
    gate = f"scenario.gates=[{{metric: return_mean/*, at_least: 10, window: {window}}}]"
    batch = ["train.num_envs=8", "train.num_steps=128"]
    config = compose(["env_id=CartPole-v1", gate, *batch, "train.until=20000"])
    most = config.train.env_steps - config.train.batch_size
    lines = [line for line in preflight(config, {}, Path("run"), "") if "cannot be held" in line]
    assert len(lines) == (window > most)
    if lines:
        assert f"at most {most:,} steps" in lines[0]


@pytest.mark.parametrize(("window", "until"), [(100_000, 104_096 + 1024), (100, 8192)])
def test_end_of_a_run_that_was_too_short_names_a_budget_that_its_windows_fit_in(window, until):
    row = {"metric": "return_mean/agent_0", "comparison": ">=", "bound": 10.0, "window": window}
    verdict = {
        "gates": [row | {"value": 20.0, "held": False, "met": True}], "held": False, "stage": 0, "stages": 1,
        "ended": "until", "env_steps": 4096, "policy_updates": 4, "seconds": 1.0, "env_steps_per_s": 4096.0,
        "checkpoint": "checkpoints/step_000004096", "last_report": {},
    }  # fmt: skip
    config = compose(["env_id=CartPole-v1", "train.num_envs=8", "train.num_steps=128"])
    _, hint, *_, result = closing_lines(verdict, Path("run"), config)
    assert hint.startswith("hint:     every gate is met now, and not yet long enough")
    assert result.endswith(f"train --resume run --until {until}")
