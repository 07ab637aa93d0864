"""Ctrl-C: a loadable checkpoint, a closing line, and no Ray process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trainings import marked

from multigrid_rl.players.cards import read_card, read_network


def ray_processes(marker: str) -> list[str]:
    """Command lines of Ray's processes whose environment carries ``marker``."""
    return [command for _, command in marked(marker) if "ray" in command]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")
@pytest.mark.parametrize("runners", [pytest.param(0, marks=pytest.mark.long), 1])
def test_ctrl_c_leaves_a_checkpoint_a_closing_line_and_no_process(tmp_path, runners):
    run, marker = tmp_path / "run", f"INTERRUPT_TEST={tmp_path.name}-{runners}-{os.getpid()}"
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", f"run_dir={run}", "train.num_envs=64"]
    command += ["train.num_steps=16", "train.minibatch_size=512", f"cluster.num_env_runners={runners}"]
    name, _, value = marker.partition("=")
    process = subprocess.Popen(
        command,
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").stat().st_size < 2000:
        assert time.monotonic() < deadline, "no iteration finished in time"
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "interrupted: writing a checkpoint" in output
    assert "saved:" in output.splitlines()[-1]
    assert "Traceback" not in output
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["ended"] == "interrupted"
    player = run / verdict["checkpoint"] / "players" / "red_0"
    assert read_network(player, read_card(player)) is not None
    patience = time.monotonic() + 15
    while ray_processes(marker) and time.monotonic() < patience:
        time.sleep(0.2)
    assert ray_processes(marker) == []
