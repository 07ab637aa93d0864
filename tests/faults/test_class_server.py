"""A class server whose processes are killed at 50 random moments of a storm; `make soak-serve` kills a thousand."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("sqlalchemy", reason="the extra serve is not installed")


@pytest.mark.long
def test_nothing_is_lost_or_stuck_or_counted_twice():
    command = [sys.executable, "-m", "benchmarks.soak_serve", "--kills", "50", "--hand-ins", "20", "--port", "8123"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert json.loads(told.stdout.splitlines()[-1])["wrong"] == 0
