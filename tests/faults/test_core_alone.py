"""The core without its add-ons: a checkout in which their folders are missing passes the core's own tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.house import ADDONS

ROOT = Path(__file__).parents[2]
#: Folders of tests that ask for the core alone.
CORE = ("unit", "contract", "smoke", "golden")


@pytest.mark.long
def test_core_passes_its_tests_without_the_add_ons(tmp_path):
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    without = tuple(f"{above}/{name}/" for above in ("multigrid_rl", "tests") for name in ADDONS)
    for file in listing.stdout.splitlines():
        if not file.startswith(without):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    folders = [f"tests/{name}" for name in CORE]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *folders]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
