"""Copies of the checkout: without add-ons, with benchmarks in an empty folder; and a class server that is killed."""

import json
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


@pytest.mark.long
def test_bench_verbs_run_from_an_empty_folder(tmp_path):
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in listing.stdout.splitlines():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["EXTRAS"] = "control"  # what a student installs who wants to measure and not to develop
    verbs = {"bench": ("ratio_to_stock_rllib", "ratio_to_sb3"), "bench-control": ("ratio_to_sb3",)}
    for verb, measured in verbs.items():
        command = ["make", verb, "ARGS=--quick"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert all(found[name] for name in measured), found


@pytest.mark.long
def test_nothing_is_lost_or_stuck_or_counted_twice():
    """A class server whose processes are killed at 50 random moments of a storm; `make soak-serve` kills a thousand."""
    pytest.importorskip("sqlalchemy", reason="the extra serve is not installed")
    command = [sys.executable, "-m", "benchmarks.soak_serve", "--kills", "50", "--hand-ins", "20", "--port", "8123"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert json.loads(told.stdout.splitlines()[-1])["wrong"] == 0
