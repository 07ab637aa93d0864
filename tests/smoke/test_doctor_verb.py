"""``multigrid-rl doctor`` as it is called."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from commands import call

pytestmark = pytest.mark.usefixtures("no_session")


def doctor(*args: str):
    return call("doctor", *args)


@pytest.fixture
def silent_port():
    """A port of this machine on which nobody listens, and nobody will while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_doctor_of_a_sound_machine(tmp_path):
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    told = json.loads(last)
    assert told["problems"] == 0
    checks = [finding["check"] for finding in told["findings"]]
    assert {"python", "packages", "cpus", "threads", "torch", "gpu", "kernels", "shm", "disk"} <= set(checks)
    assert checks[-1] == "ray"
    shown = [line.split() for line in lines if not line.startswith(" ")]
    assert [words[:2] for words in shown[:-1]] == [[row["level"], row["check"]] for row in told["findings"]]
    assert sum(line.lstrip().startswith("-> ") for line in lines) == told["warnings"]
    assert lines[-1].endswith(f"{told['warnings']} warning(s), 0 problem(s)")
    assert "\x1b" not in done.stdout


def test_silent_address_is_a_problem(silent_port):
    result = doctor("--address", f"127.0.0.1:{silent_port}", "--patience", "60")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("problem")]
    assert line.split()[1:3] == ["cluster", f"127.0.0.1:{silent_port}:"]
    assert "nothing answers there: Connection refused" in line
    assert "-> ray start --head" in result.stdout
    assert "1 problem(s)" in result.stdout


def test_rejects_bad_address():
    result = doctor("--address", "nowhere")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "multigrid-rl: address=nowhere: allowed is auto, host:port or ray://host:port\n"
