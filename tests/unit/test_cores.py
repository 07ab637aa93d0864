"""How many threads a run takes: never results, only how long they take, hang on it."""

from __future__ import annotations

import time

import pytest

from multigrid_rl import jit
from multigrid_rl.config import ConfigError, compose
from multigrid_rl.rllib import cores
from multigrid_rl.rllib.cores import Team, idle_seconds


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(cores, "available_cpus", lambda: 2)
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    monkeypatch.setattr(cores, "most_threads", lambda: 2)
    monkeypatch.setattr(cores, "use_threads", lambda count: None)


def team(*overrides: str) -> Team:
    return Team(compose(["scenario=1v1", *overrides]))


def test_idle_time_is_that_of_the_cores_asked_for(tmp_path):
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
def test_who_plays_or_learns_elsewhere_keeps_its_core(overrides, most):
    assert team(*overrides).most == most


def test_two_threads_while_two_cores_are_free():
    ours, now = team(), time.monotonic()
    assert ours.count == 1
    ours.follow(2.0, now + 0.1)
    assert ours.count == 1  # not for a moment alone
    ours.follow(1.9, now + 1.0)
    assert ours.count == 2
    ours.follow(1.8, now + 2.0)
    assert ours.count == 2
    ours.follow(1.4, now + 3.0)
    assert ours.count == 1


def test_cores_that_are_taken_again_and_again_are_left_alone_for_longer():
    ours, now, waits = team(), time.monotonic(), []
    for _ in range(4):
        since = now
        while ours.count == 1:
            now += 0.25
            ours.follow(2.0, now)
        waits.append(now - since)
        now += 1.0
        ours.follow(1.0, now)
    assert waits == sorted(waits)
    assert waits[-1] >= 4 * waits[0]


def test_where_nobody_can_tell_there_is_one_thread():
    ours = team()
    ours.follow(float("nan"), time.monotonic() + 100.0)
    assert ours.count == 1


def test_a_number_of_threads_is_no_matter_of_measuring():
    ours = team("train.threads=2")
    ours.look()
    assert (ours.count, ours.told()) == (2, "2 thread(s)")


@pytest.mark.parametrize("bad", ["0", "many"])
def test_another_word_is_refused(bad):
    with pytest.raises(ConfigError, match=r"^train\.threads: expected 'auto', 1 or 2"):
        compose(["scenario=1v1", f"train.threads={bad}"])


def test_without_openmp_there_is_one(monkeypatch):
    jit.most_threads.cache_clear()
    monkeypatch.setattr(jit, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert jit.most_threads() == 1
    jit.most_threads.cache_clear()
