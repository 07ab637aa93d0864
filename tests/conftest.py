"""Puts this folder on the path, so that every test file can say ``from games import ...``; how many work at a time."""

import fcntl
import gc
import inspect
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from lacking import pytest_runtest_call, pytest_terminal_summary  # noqa: F401 - pytest finds its hooks here

# Before anybody imports torch, for subprocesses and Ray's workers, too: threads of several at a time only fight.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# `make test ARGS=... lr=...` hands its own words down to every make that a test starts.
_TYPED = re.findall(r"(?<!\\)\s(\w+)=", os.environ.get("MAKEFLAGS", ""))
for _name in ("ARGS", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", *_TYPED):
    os.environ.pop(_name, None)
# What is printed to be typed next is found by its name, as in an environment that was activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# Ray starts a process for every core beforehand; tests that need one at all need one or two.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

# No test lists or plays the frozen players of the one who runs it.
os.environ["MULTIGRID_RL_PLAYERS"] = str(Path(tempfile.gettempdir(), "no-players-here"))

# On a machine without bubblewrap agents of tests run as plain children; what tests the sandbox itself skips there.
if shutil.which("bwrap") is None:
    os.environ.setdefault("MULTIGRID_RL_TRUSTED", "1")

#: More at a time would wait for one another's Ray sessions, however many cores there are.
MOST_WORKERS = 4
#: More than cores: half of the time a test waits for a process that starts or ends.
MORE_THAN_CORES = 1
#: What one worker may take with its Ray session: the driver, two env runners and Ray's own processes.
WORKER_BYTES = 3 * 2**30


def workers(cpus: int, memory: int) -> int:
    """Test processes for a machine; 0: no process but this one."""
    fitting = min(cpus + MORE_THAN_CORES, MOST_WORKERS, memory // WORKER_BYTES)
    return fitting if fitting > 1 else 0


def _frames(context: int = 0) -> list[inspect.FrameInfo]:
    """What ``inspect.stack`` returns, without a look into the files and modules of the frames."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


# Each of RLlib's connectors asks for the frame that makes it: with so many frames and modules, more than half of a
# tiny run.
inspect.stack = _frames


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage in what is collected, now or later: it takes seconds, and nothing goes before the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser) -> None:
    parser.addoption("--learning-seed", type=int, default=0, help="seed of the tests that train (make robustness)")


class Learning(NamedTuple):
    """What a test that trains is given: its seed, and the one way to judge what was learned."""

    seed: int
    record: Callable[[str, object], None]

    def check(self, name: str, value: float, *, above: float = -math.inf, below: float = math.inf) -> None:
        """Assert a bound that any seed keeps on any processor; ``make robustness`` reads how far away it was."""
        self.record(name, json.dumps([float(value), above, below]))
        assert above < value < below, f"{name}: expected between {above} and {below}, got {value}"


@pytest.fixture
def learning(request, record_property) -> Learning:
    return Learning(request.config.getoption("--learning-seed"), record_property)


def pytest_collection_modifyitems(items) -> None:
    """``make faults`` asks for them by their mark. What takes long comes first: it ends no run alone."""
    for item in items:
        if item.path.parent.name == "faults":
            item.add_marker("fault")
        if "learning" in item.fixturenames:
            item.add_marker("learns")
    items.sort(key=_turn)


def _turn(item) -> int:
    """Tests of one Ray session stand together, and one process starts it once; those of another kind come after it."""
    if "session" in item.fixturenames:
        return 0
    if "no_session" in item.fixturenames:
        return 1
    return 2 if item.path.parent.name == "learning" else 3


def pytest_xdist_auto_num_workers(config) -> int:
    """What ``-n auto`` means here."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return workers(cpus, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@pytest.fixture(autouse=True)
def _chance(monkeypatch) -> None:
    """Whoever draws without a seed draws the same at every run, whichever tests ran before in the same process."""
    import torch  # noqa: PLC0415
    from gymnasium.utils import seeding  # noqa: PLC0415

    fresh, drawn = count(), seeding.np_random
    monkeypatch.setattr(seeding, "np_random", lambda seed=None: drawn(next(fresh) if seed is None else seed))
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch) -> None:
    """No second core unless a test asks for it: others test there, and kernels would be compiled twice."""
    for module in ("stages", "warm_up"):
        monkeypatch.setattr(f"multigrid_rl.training.{module}.available_cpus", lambda: 1)


def _compile_the_game() -> None:
    import numpy as np  # noqa: PLC0415

    from multigrid_rl.players.episodes import play_games  # noqa: PLC0415
    from multigrid_rl.players.scripted import Hunter, KeyRunner, RandomPlayer  # noqa: PLC0415
    from multigrid_rl.types import GameSpec  # noqa: PLC0415
    from multigrid_rl.world.engine import World  # noqa: PLC0415

    spec = GameSpec(max_steps=2)
    World(spec, 2).step(np.zeros((2, 2), np.int8))
    for player in (RandomPlayer(), Hunter(spec), KeyRunner(spec)):
        play_games(spec, {"red_0": player, "blue_0": RandomPlayer()}, 2, seed=0)


def _compile_networks() -> None:
    from multigrid_rl.config.compose import compose  # noqa: PLC0415
    from multigrid_rl.training.warm_up import warm_up  # noqa: PLC0415

    warm_up(compose([]))


@pytest.fixture(scope="session", autouse=True)
def _compiled(request) -> None:
    """Where several processes test, each kernel is compiled by one of them, and the others wait and load it.

    Alone, all of them and their env runners would compile the same for minutes after a fresh clone.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    parts = [_compile_the_game, _compile_networks]
    first = int(worker.removeprefix("gw")) % len(parts)
    folder = request.config.cache.mkdir("compiled")
    for part in parts[first:] + parts[:first]:
        with (folder / part.__name__).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            part()


@pytest.fixture(scope="session")
def _last():
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def session(_last):
    """A Ray session for tests of remote processes; the next file finds it, too. Runs of the driver alone need none."""
    import ray  # noqa: PLC0415 - a second

    if not ray.is_initialized():
        # More cores than there may be: nothing here waits for a free one. A cluster of another process is none of ours.
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")


@pytest.fixture(scope="module")
def no_session(_last):
    """For files whose tests start a Ray of their own: none is there, and none stays."""
    import ray  # noqa: PLC0415

    ray.shutdown()
    yield
    ray.shutdown()


@pytest.fixture
def cores(monkeypatch):
    """Four, whatever the machine has."""
    monkeypatch.setattr("multigrid_rl.config.schema.available_cpus", lambda: 4)


@pytest.fixture(scope="module")
def browser():
    """A Chromium of the machine (Debian: ``apt-get install chromium``); none is downloaded."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=flags)
        yield running
        running.close()


@pytest.fixture
def trusted(monkeypatch) -> None:
    """Agents run as plain children: they write where the test reads, and it sees their processes."""
    monkeypatch.setenv("MULTIGRID_RL_TRUSTED", "1")


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A folder of players with one of them; runs would land below the working directory ``tmp_path``."""
    from bundles import make_player  # noqa: PLC0415 - imports torch

    monkeypatch.chdir(tmp_path)
    make_player(tmp_path / "players", "rookie")
    return tmp_path / "players"
