"""What is loaded, and when: one process that goes from the package and the help to a picture."""

import subprocess
import sys

from multigrid_rl import tables
from run_folders import write_run

PROGRAM = """
import sys
def none_of(*names):
    found = [name for name in names if name in sys.modules]
    assert not found, found
def ended(*words):
    try:
        app(list(words))
    except SystemExit as left:
        return left.code

import multigrid_rl
none_of("numpy", *(name for name in sys.modules if name.startswith("multigrid_rl.")))
import gymnasium
import multigrid_rl.gym
gymnasium.spec("multigrid_rl/1v1-red-v0")
none_of("torch", "pydantic", "numba", "ray")
from multigrid_rl.cli.main import app
assert ended("--help") == 0
none_of("torch", "numba", "scipy", "ray", "matplotlib", "hydra")
from multigrid_rl.players.gymnasium_env import SeatEnv
from multigrid_rl.world.pettingzoo_env import parallel_env
env = parallel_env("1v1", render_mode="rgb_array")
env.reset(seed=0)
none_of("multigrid", "pygame")
env.render()
none_of("multigrid", "pygame", "matplotlib")
for mistake in ("scenario=nowhere", "train.lrr=3", "scenario.seats.blue_0=nobody", "train.shaping=math:pi"):
    assert ended("train", mistake) == 2
assert ended("explain", "scenario=coop") == 0
assert ended("compare", "one", "two", "-o", "picture.png") == 0
none_of("ray", "matplotlib.pyplot")
"""


def test_imports_are_lazy_and_avoid_ray_and_pyplot(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert all(message in done.stdout for message in ("Train the learning seats", "red/blue-door games", "--version"))
    assert len(done.stderr.splitlines()) == 4
    drawn = ["picture.png"] if tables.has(tables.FIGURES, "comparison") else []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", *drawn, "two"]
