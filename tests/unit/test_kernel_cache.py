"""Machine code that an earlier process left on disk must not outlive the sources it came from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import multigrid_rl

#: Reads the first world's red key and what picking it up pays; the second line counts kernels loaded from disk.
PROGRAM = """
import numpy as np
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c, kernels
from multigrid_rl.world.engine import World

world = World(GameSpec(blue=0, red=1, random_keys=False, view_size=3), 1)
key = int(np.flatnonzero(world.state.cells[0] == c.KEY)[0])
world.step(np.full((1, 1), c.DONE, np.int8))
print(*divmod(key, c.HEIGHT), int(world.state.clock[0]))
print(sum(kernels.step_games.stats.cache_hits.values()))
"""


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, with any machine code beside it so that the first process need not compile."""
    package = Path(multigrid_rl.__file__).parent
    unfinished = shutil.ignore_patterns("*.pyc*", "*.tmp.*")  # files that another process is about to rename
    shutil.copytree(package, tmp_path / "multigrid_rl", ignore=unfinished)
    return tmp_path


def run(folder: Path) -> tuple[str, int]:
    """Play one step in a new process that imports the copy; returns what it saw and its cache hits."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    saw, hits = done.stdout.splitlines()
    return saw, int(hits)


@pytest.mark.long
def test_kernels_are_kept_between_processes_and_dropped_when_a_constant_they_import_changes(copy):
    saw, _ = run(copy)
    assert saw == "7 4 1"
    saw, hits = run(copy)
    assert (saw, hits) == ("7 4 1", 1)  # the second process starts from disk
    constants = copy / "multigrid_rl" / "world" / "constants.py"
    text = constants.read_text()
    old = "FIXED_KEY: Final = (cell_index(7, 4), cell_index(8, 3))"
    assert old in text
    constants.write_text(text.replace(old, "FIXED_KEY: Final = (cell_index(6, 5), cell_index(8, 3))"))
    saw, hits = run(copy)
    assert (saw, hits) == ("6 5 1", 0)
