"""The benchmarks against peers from an empty folder: their verbs set up what they measure against."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
