"""How many threads a run takes: never results, only how long they take, hang on it."""

import subprocess
import sys
import time

import pytest

from multigrid_rl import jit
from multigrid_rl.config.compose import compose
from multigrid_rl.fast import threads as cores
from multigrid_rl.fast.threads import ThreadTuner, idle_seconds
from multigrid_rl.text import ConfigError
from multigrid_rl.training import stages as settings
from multigrid_rl.training.stages import thread_tuner


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(settings, "available_cpus", lambda: 2)
    monkeypatch.setattr(settings, "cpu_quota", lambda: None)
    monkeypatch.setattr(cores, "most_threads", lambda: 2)
    monkeypatch.setattr(cores, "use_threads", lambda count: None)
    play.now = time.monotonic() + 1000.0


def team(*overrides: str) -> ThreadTuner:
    return thread_tuner(compose(["scenario=1v1", "train.threads=auto", *overrides]))


def test_idle_time_counts_requested_cores(tmp_path):
    rows = ["cpu  9 9 9 9 9", "cpu0 1 2 3 100 50 0 0", "cpu1 1 2 3 700 0 0 0", "cpu10 1 1 1 900 0 0", "intr 5"]
    (tmp_path / "stat").write_text("\n".join(rows) + "\n")
    ticks = cores.os.sysconf("SC_CLK_TCK")
    assert idle_seconds({0}, tmp_path) == 150 / ticks
    assert idle_seconds({0, 10}, tmp_path) == 1050 / ticks
    assert idle_seconds({0}, tmp_path / "none") != idle_seconds({0}, tmp_path / "none")  # nan


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        ([], 2),
        (["train.threads=1"], 1),
        (["train.threads=2"], 2),
        (["cluster.num_env_runners=1"], 1),
        (["cluster.num_learners=2"], 1),
    ],
)
def test_remote_runners_and_learners_keep_their_cores(overrides, most):
    assert team(*overrides).limit == most


def play(ours: ThreadTuner, seconds: float, free: float = 2.0, iterations: int = 1) -> None:
    for _ in range(iterations):
        play.now += seconds
        ours._adjust(seconds, free, play.now)


def test_uses_two_threads_if_free_and_faster():
    ours = team()
    play(ours, 0.04, iterations=2)
    assert ours.count == 1  # how long it takes one is not known yet
    play(ours, 0.04)
    assert ours.count == 2
    play(ours, 0.03, iterations=100)
    assert ours.count == 2
    play(ours, 0.03, iterations=250)  # now and then one thread is measured anew
    assert ours.count == 2 or len(ours._paces) < 3


def test_leaves_busy_cores_to_others():
    ours = team()
    play(ours, 0.04, free=1.6, iterations=50)
    assert ours.count == 1
    play(ours, 0.04, free=float("nan"), iterations=50)  # where nobody can tell
    assert ours.count == 1


@pytest.mark.parametrize(("slow", "iterations"), [(0.2, 2), (0.041, 3)])
def test_drops_second_thread_if_slower(slow, iterations):
    ours = team()
    play(ours, 0.04, iterations=3)
    play(ours, slow, iterations=iterations)
    assert ours.count == 1


def test_one_slow_iteration_changes_nothing():
    ours = team()
    play(ours, 0.04, iterations=3)
    play(ours, 0.03, iterations=5)
    play(ours, 0.5)  # a checkpoint was written
    play(ours, 0.03)
    assert ours.count == 2


def test_retries_grow_rarer_on_busy_machine():
    ours, lost, played = team(), 0.0, 0.0
    for _ in range(3000):
        seconds = 0.2 if ours.count == 2 else 0.04
        lost, played = lost + seconds - 0.04, played + seconds
        play(ours, seconds)
    assert lost < 0.03 * played


def test_fixed_thread_count_is_not_measured():
    ours = team("train.threads=2")
    ours.update()
    assert (ours.count, ours.describe()) == (2, "2 thread(s)")


@pytest.mark.parametrize("bad", ["0", "many"])
def test_rejects_invalid_thread_setting(bad):
    with pytest.raises(ConfigError, match=r"^train\.threads: expected 'auto', 1 or 2"):
        compose(["scenario=1v1", f"train.threads={bad}"])


def test_one_thread_without_openmp(monkeypatch):
    jit.most_threads.cache_clear()
    monkeypatch.setattr(jit, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert jit.most_threads() == 1
    jit.most_threads.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(jit.most_threads() < 2, reason="one CPU, or no OpenMP")
def test_leaves_torch_threads_unchanged():
    # In a process of its own: threads are launched once.
    code = (
        "import torch; torch.set_num_threads(1); from multigrid_rl.fast.threads import set_threads; "
        "set_threads(2); print(torch.get_num_threads()); set_threads(1); print(torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["1", "1"]
