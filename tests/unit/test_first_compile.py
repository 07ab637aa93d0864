"""A first start compiles by two processes, each form once; later ones start none."""

import collections
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["scenario=1v1", "train.until=8192", "train.num_envs=64", "train.num_steps=16", "train.minibatch_size=512"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The package without machine code, as a clone has it."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "multigrid_rl", folder / "multigrid_rl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("configs", "checkpoints"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def trained(checkout: Path, name: str) -> list[dict]:
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", *SMALL, f"run_dir={name}"]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (checkout / name / "metrics.jsonl").read_text().splitlines()]
    told = ("learner", "entropy", "approx", "episodes")
    return [{k: v for k, v in row.items() if k.startswith(told)} for row in rows]


def kept(checkout: Path) -> list[str]:
    return [file.name for file in checkout.rglob("*.nbc")]


@pytest.mark.long
def test_first_start_equals_the_second_and_compiles_no_large_form_twice(checkout):
    first = trained(checkout, "first")
    serial = [name for name in kept(checkout) if "_beside" not in name]
    assert trained(checkout, "second") == first
    assert sorted(name for name in kept(checkout) if "_beside" not in name) == sorted(serial)
    forms = collections.Counter(name.split("-")[0] for name in serial)
    large = ["towers.both_forward", "towers.policy_forward", "descent._descend", "compiled_match._play"]
    assert [forms[name] for name in (*large, "kernels.step_games")] == [1] * 5
