"""A verb ends the Ray session that it started, and leaves one alone that was there."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import ray
from ray._private import worker

from commands import works
from multigrid_rl.rllib.session import ray_session
from tiny_runs import TINY, rows_of

pytestmark = [
    pytest.mark.usefixtures("no_session"),
    pytest.mark.filterwarnings("ignore"),  # ray and tensorboard warn about their own future at every start
]


def living(session):
    """Processes of a session that are not dead yet."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            _, _, rest = (process / "stat").read_text().rpartition(") ")
            if rest.split()[3] == str(session) and rest[0] != "Z":
                found.append((process / "cmdline").read_bytes())
    return found


@pytest.mark.slow
def test_session_ignores_signals_and_leaves_no_files():
    before = signal.signal(signal.SIGTERM, ours := lambda number, frame: None)
    try:
        with ray_session():
            with ray_session():
                pass
            assert ray.is_initialized()
            assert ray.util.get_node_ip_address() == "127.0.0.1"  # nothing listens for other machines
            assert signal.getsignal(signal.SIGTERM) is ours
            os.kill(os.getpid(), signal.SIGTERM)  # the handler that the kernel knows, too
            node = worker._global_node
            scratch = Path(node.get_session_dir_path())
            assert scratch.is_dir()
            if sys.platform == "linux":
                pids = [row.process.pid for rows in node.all_processes.values() for row in rows]
                assert os.getsid(0) not in [os.getsid(pid) for pid in pids]
                raylet = node.all_processes["raylet"][0].process.pid
                os.kill(raylet, signal.SIGTERM)  # as a service manager does that ends all of a service
        deadline = time.monotonic() + 120
        while sys.platform == "linux" and living(raylet):
            assert time.monotonic() < deadline, living(raylet)
            time.sleep(0.05)
        assert not ray.is_initialized()
        assert not scratch.exists()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.long
def test_train_command_writes_folder_and_stops_ray(tmp_path):
    assert not ray.is_initialized()
    path = tmp_path / "run"
    result = works("train", *TINY, "cluster.num_env_runners=1", "seed=5", f"run_dir={path}", "--until", "512")
    assert "NOT HELD" in result.output
    assert not ray.is_initialized()
    verdict = json.loads((path / "verdict.json").read_text())
    assert verdict["env_steps"] == rows_of(path)[-1]["env_steps"]
    assert (path / verdict["checkpoint"] / "players" / "red_0").is_dir()
