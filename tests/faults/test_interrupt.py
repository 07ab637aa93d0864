"""Ctrl-C, SIGTERM, a closed terminal or pipe: a loadable checkpoint, a closing line, and no Ray process left behind."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes import SMALL, rows_of
from tiny_runs import without_time


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_resumes_exactly_after_signal_to_group(start, tmp_path, number):
    run, whole = tmp_path / "run", tmp_path / "whole"
    training = start(f"run_dir={run}", "--until", "1e9")
    training.until(lambda: len(rows_of(run)) > 3, "the first rows")
    # timeout signals its child, and the group that the child is in; a second Ctrl-C would not wait for a checkpoint
    for _ in range(1 if number == signal.SIGINT else 2):
        os.killpg(training.process.pid, number)
    output = training.end()
    assert training.process.returncode == 130, output
    assert "Traceback" not in output
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["ended"] == "interrupted"
    assert any(line.startswith("saved:") for line in output.splitlines()[-4:])
    assert training.gone()
    until = str(verdict["env_steps"] + 2048)
    for command in (["--resume", str(run)], [f"run_dir={whole}"]):
        again = start(*command, "--until", until)
        assert "NOT HELD" in again.end()
        assert again.process.returncode == 0
    assert without_time(rows_of(run)) == without_time(rows_of(whole))
    ends = [json.loads((path / "verdict.json").read_text()) for path in (run, whole)]
    assert ends[0]["weights"] == ends[1]["weights"]
    assert ends[0]["gates"] == ends[1]["gates"]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")
def test_closed_terminal_leaves_checkpoint(tmp_path):
    run = tmp_path / "run"
    number, terminal = pty.fork()
    if number == 0:
        command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", *SMALL, f"run_dir={run}", "--until", "1e9"]
        os.execv(sys.executable, command)
    deadline = time.monotonic() + 240
    while len(rows_of(run)) < 4:
        assert time.monotonic() < deadline, "no iteration finished in time"
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 10_000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 130
    assert json.loads((run / "verdict.json").read_text())["ended"] == "interrupted"


@pytest.mark.long
def test_broken_pipe_leaves_checkpoint_and_clean_stderr(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", *SMALL, f"run_dir={run}", "--until", "1e9"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()  # train ... | head -1
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 130
    assert json.loads((run / "verdict.json").read_text())["ended"] == "interrupted"
