"""What the soak makes of what it has seen."""

import pytest

from benchmarks.soak import faults, kind, summary

KILLS = [20.0, 40.0, 60.0]
#: Seconds in which only one of two runners was there.
AWAY = [(20.0, 28.0), (40.0, 47.0)]


def recorded(speed_after: float = 1000.0, seconds: int = 59):
    """Rows ten times a second: 1000 steps a second with both runners, 500 with one."""
    rows, steps = [], 0.0
    for tick in range(seconds * 10):
        at = tick / 10
        alone = any(begin <= at < end for begin, end in AWAY)
        steps += 0.1 * (500.0 if alone else speed_after if at >= 28 else 1000.0)
        rows.append((at, {"env_steps": steps, "env_runners": 1 if alone else 2, "env_runner_restarts": 2}))
    memory = [
        (float(at), 10 * 2**20 + at * 2**20 // 60, {"raylet": 30 * 2**20, "agent.py": at * 2**20 // 30}, at // 40)
        for at in range(0, seconds, 5)
    ]
    return rows, memory


def test_reports_runner_downtime_and_surrounding_speed():
    rows, memory = recorded()
    found = summary(rows, KILLS[:2], memory)
    assert (found["kills"], found["recovered"]) == (2, 2)
    assert (found["away_s"]["min"], found["away_s"]["max"]) == pytest.approx((7.0, 8.0), abs=0.11)
    assert found["speed_after_over_before"]["min"] == pytest.approx(1.0, abs=0.01)
    assert found["driver_mib_a_minute"] == pytest.approx(1.0, abs=0.05)
    assert found["mib_a_minute_by_process"] == {"agent.py": 2.0, "raylet": 0.0}
    assert (found["zombies_most"], found["zombies_at_end"]) == (1, 1)


def test_shows_slowdown_after_first_loss():
    rows, memory = recorded(speed_after=800.0)
    found = summary(rows, KILLS[:2], memory)
    assert found["speed_after_over_before"]["min"] == pytest.approx(0.8, abs=0.01)
    assert found["speed_after_over_before"]["max"] == pytest.approx(1.0, abs=0.01)


def test_downtime_is_excluded_from_speed_before_next_kill():
    rows, memory = recorded()
    found = summary(rows, [20.0, 32.0, 40.0], memory)  # 4 seconds after the first return
    assert found["speed_after_over_before"]["max"] == pytest.approx(1.0, abs=0.01)


def test_reports_very_short_soak():
    rows, memory = recorded(seconds=10)
    found = summary(rows, [], memory)
    assert (found["kills"], found["away_s"]) == (0, {})


def test_classifies_processes():
    assert kind("ray::BatchedEnvRunner.sample") == "ray::BatchedEnvRunner"
    assert kind("/some/where/raylet --node_manager_port=0") == "raylet"
    assert kind("python -u /some/where/log_monitor.py --session-dir=x") == "log_monitor.py"


def test_names_faults():
    sound = {"exit_code": 130, "kills": 9, "recovered": 8, "zombies_at_end": 0, "left_behind": []}
    assert faults(sound) == []
    worst = {"exit_code": 1, "kills": 9, "recovered": 5, "zombies_at_end": 2, "left_behind": ["ray::IDLE"]}
    assert faults(worst) == [
        "the run ended with status 1",
        "3 killed runners did not come back",
        "2 zombies",
        "left behind: ['ray::IDLE']",
    ]
