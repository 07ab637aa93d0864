"""What smoke tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from catalogues import make_player


@pytest.fixture(scope="session")
def _last():
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def session(_last):
    """A Ray session for tests of remote processes; the next file finds it, too. Runs of the driver alone need none."""
    if not ray.is_initialized():
        # More cores than there may be: nothing here waits for a free one. A cluster of another process is none of ours.
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")


@pytest.fixture(scope="module")
def no_session(_last):
    """For files whose tests start a Ray of their own: none is there, and none stays."""
    ray.shutdown()
    yield
    ray.shutdown()


@pytest.fixture
def cores(monkeypatch):
    """Four, whatever the machine has."""
    monkeypatch.setattr("multigrid_rl.schema.available_cpus", lambda: 4)


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A folder of players with one of them; runs would land below the working directory ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    make_player(tmp_path / "players", "rookie")
    return tmp_path / "players"
