"""Recordings keep what an environment pays, whatever a run was trained by."""

import sys
from types import ModuleType

import numpy as np
import pytest

from commands import call
from multigrid_rl.imitation.demonstrations import read_demonstrations
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")


def doubled(obs, action, next_obs, reward, info):
    return 2.0 * reward


def test_recordings_leave_a_users_reward_out(tmp_path, monkeypatch):
    own = ModuleType("own_rewards")
    own.doubled = doubled
    monkeypatch.setitem(sys.modules, own.__name__, own)
    tiny_run(tmp_path / "run", "env_id=CartPole-v1", "train.until=2048", "train.shaping=own_rewards:doubled")
    assert call("data", "record", tmp_path / "run", "--steps", 300, "-o", tmp_path / "demos").exit_code == 0
    assert set(read_demonstrations(tmp_path / "demos").rewards.tolist()) == {1.0}


def test_recordings_of_a_board_run_leave_its_bonus_out(tmp_path):
    tiny_run(tmp_path / "run", "scenario=single", "train.bonus={all: {step: 5.0}}", "train.until=512")
    assert call("data", "record", tmp_path / "run", "--steps", 300, "-o", tmp_path / "demos").exit_code == 0
    assert np.abs(read_demonstrations(tmp_path / "demos").rewards).max() < 5.0
