"""Arithmetic behind metrics and over seeds: against numbers by hand and scipy; intervals by how often they hold."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from multigrid_rl.cli.output import spread
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.seed_statistics import (
    improvement,
    improvement_interval,
    interval,
    interval_of,
    iqm,
    iqm_difference,
    iqm_interval,
    mean_interval,
    permutation_p,
    resample,
    wilson_interval,
)
from multigrid_rl.metrics import explained_variance, glossary, matches, outcome_shares
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.types import Clock
from multigrid_rl.world.constants import BLUE, RED

NEVER = math.inf


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def strata(*rows) -> list[np.ndarray]:
    return [np.array(row, np.float64) for row in rows]


# --- estimates


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5], 5),
        ([1, 2, 9], 4),  # of three none is cut off
        ([9, 1, 2, 4], 3),  # of four one at each end
        ([1, 2, 3, 4, 100], 3),
        ([8, 7, 6, 5, 4, 3, 2, 1000], 5.5),  # two at each end
        ([1, 2, 3, NEVER], 2.5),
        ([1, 2, NEVER, NEVER], NEVER),
    ],
)
def test_iqm_is_mean_of_middle_half(values, expected):
    assert iqm(np.array(values, np.float64)) == expected


def test_iqm_equals_scipy_trimmed_mean_per_row():
    values = rng().normal(size=(20, 11))
    np.testing.assert_allclose(iqm(values), stats.trim_mean(values, 0.25, axis=1))


@pytest.mark.parametrize(
    ("ours", "theirs", "smaller", "expected"),
    [
        ([1, 2], [3, 4], True, 1),
        ([1, 2], [3, 4], False, 0),
        ([1, 3], [2, 3], True, (1 + 1 + 0 + 0.5) / 4),  # 1<2, 1<3, 3>2, 3=3
        ([5, NEVER], [NEVER, NEVER], True, (1 + 1 + 0.5 + 0.5) / 4),
        ([0.9], [0.5, 0.9, 1.0], False, 1.5 / 3),
    ],
)
def test_improvement_counts_pairs_and_ties_half(ours, theirs, smaller, expected):
    assert improvement(strata(ours), strata(theirs), smaller=smaller) == pytest.approx(expected)


def test_improvement_is_mann_whitney_u_over_pairs():
    ours, theirs = rng(1).integers(0, 6, 9).astype(float), rng(2).integers(0, 6, 7).astype(float)
    u = stats.mannwhitneyu(ours, theirs).statistic
    assert improvement([ours], [theirs], smaller=False) == pytest.approx(u / 63)


def test_improvement_averages_scenarios_equally():
    ours, theirs = strata([1, 1, 1, 1], [9]), strata([2, 2, 2], [5])
    assert improvement(ours, theirs, smaller=True) == 0.5


# --- bootstrap


def test_samples_draw_each_scenario_from_its_own_runs():
    samples = resample(strata([1, 2, 3], [10, 20]), 500, rng())
    assert samples.shape == (500, 5)
    assert set(np.unique(samples[:, :3])) == {1, 2, 3}
    assert set(np.unique(samples[:, 3:])) == {10, 20}
    # Each run is drawn as often as any other.
    assert np.abs((samples[:, :3] == 2).mean() - 1 / 3) < 0.03


def test_interval_is_middle_95_percent():
    samples = np.arange(1, 1001, dtype=np.float64)
    assert interval(7.0, samples) == (7.0, 25.0, 975.0)
    assert interval(0.0, np.array([1.0] * 10 + [NEVER] * 10)) == (0.0, 1.0, NEVER)


def test_equal_runs_have_zero_width_interval():
    assert iqm_interval(strata([3, 3, 3, 3]), 1000, rng()) == (3, 3, 3)
    assert iqm_difference(strata([3, 3]), strata([1, 1]), 1000, rng()) == (2, 2, 2)


def test_step_intervals_may_reach_never():
    its = iqm_interval(strata([100, 110, 120, 130, NEVER]), 2000, rng())
    assert its.value == 120
    assert 100 <= its.low < 120
    assert its.high == NEVER  # two or more of the five are often drawn as the one that never held
    assert iqm_difference(strata([1, 2, NEVER]), strata([1, 2, 3]), 1000, rng()) is None
    assert iqm_difference(strata([1, 2, 3]), strata([NEVER]), 1000, rng()) is None


def test_intervals_have_nominal_coverage():
    """Percentile intervals of few runs are known to be somewhat too narrow: 95 % is what they reach with many."""
    source, sets, runs = rng(7), 1000, 5
    held = np.zeros(3)
    for _ in range(sets):
        ours, theirs = [source.normal(0, 1, runs)], [source.normal(0, 1, runs)]
        found = (
            (iqm_interval(ours, 400, source), 0.0),
            (iqm_difference(ours, theirs, 400, source), 0.0),
            (improvement_interval(ours, theirs, 400, source, smaller=True), 0.5),
        )
        held += [its.low <= truth <= its.high for its, truth in found]
    share = held / sets
    assert (share > 0.89).all(), share
    assert (share < 0.97).all(), share


# --- permutation test


@pytest.mark.parametrize("seed", range(4))
def test_permutation_test_agrees_with_mann_whitney(seed):
    ours, theirs = rng(seed).normal(0, 1, 6), rng(seed + 10).normal(0.8, 1, 5)
    exact = stats.mannwhitneyu(ours, theirs, method="exact").pvalue
    assert permutation_p([ours], [theirs], 20_000, rng(), smaller=True) == pytest.approx(exact, abs=0.015)


def test_runs_are_permuted_within_scenario():
    # Between the scenarios lies a world, within them nothing: the deals must not mix them.
    ours, theirs = strata([1, 2, 3, 4], [101, 102, 103, 104]), strata([1, 2, 3, 4], [101, 102, 103, 104])
    assert permutation_p(ours, theirs, 2000, rng(), smaller=True) == 1.0
    apart = strata([0, 0.1, 0.2, 0.3], [100, 100.1, 100.2, 100.3])
    assert permutation_p(apart, theirs, 5000, rng(), smaller=True) < 0.005


def test_p_values_are_calibrated_without_difference():
    source = rng(3)
    small = [
        permutation_p([source.normal(size=6)], [source.normal(size=6)], 400, source, smaller=True) < 0.05
        for _ in range(300)
    ]
    assert 0.01 < np.mean(small) < 0.08


# --- metrics


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- explained variance


@pytest.mark.parametrize(
    ("targets", "values", "expected"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), 1.0),  # perfect
        ((1, 2, 3, 4), (7, 7, 7, 7), 0.0),  # a constant explains nothing, however wrong it is
        ((1, 2, 3, 4), (11, 12, 13, 14), 1.0),  # a constant offset costs nothing
        ((0, 2), (2, 0), -3.0),  # Var(t) = 1, errors -2 and 2: 1 - 4 / 1
        ((0, 0, 4, 4), (1, 1, 3, 3), 0.75),  # Var(t) = 4, errors -1, -1, 1, 1: 1 - 1 / 4
    ],
)
def test_explained_variance_by_hand(targets, values, expected):
    assert explained_variance(floats(*targets), floats(*values)) == pytest.approx(expected)


@pytest.mark.parametrize("values", [np.full(99_999, 0.1), np.zeros(99_999), np.arange(99_999.0)])
def test_explained_variance_of_constant_targets_is_nan(values):
    """Also of a constant that float32 does not have exactly."""
    assert math.isnan(explained_variance(np.full(99_999, 0.1, np.float32), values.astype(np.float32)))


def test_explained_variance_keeps_small_error_of_large_targets():
    targets = np.arange(1000, dtype=np.float32)
    errors = np.tile(floats(-0.5, 0.5), 500)
    assert explained_variance(targets, targets + errors) == pytest.approx(1 - 0.25 / targets.var(dtype=np.float64))


# --- outcomes


def test_outcome_shares_follow_win_flag():
    winner = np.array([RED, RED, RED, BLUE, -1, -1, -1, -1], np.int8)
    assert outcome_shares(winner, RED) == pytest.approx((3 / 8, 4 / 8, 1 / 8))
    assert outcome_shares(winner, BLUE) == pytest.approx((1 / 8, 4 / 8, 3 / 8))
    for flag, expected in ((RED, (1, 0, 0)), (-1, (0, 1, 0)), (BLUE, (0, 0, 1))):
        assert outcome_shares(np.array([flag], np.int8), RED) == expected


# --- Wilson interval (values of the closed form as published, for example by statsmodels' method="wilson")


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilson_interval_matches_known_values(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_needs_trial():
    with pytest.raises(ValueError, match=r"^trials: .*got 0$"):
        wilson_interval(0, 0)


# --- names


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("env_steps", "env_steps"),
        ("return_mean/red_0", "return_mean/<seat>"),
        ("behaviour/blue_1/door_open", "behaviour/<seat>/door_open"),
        ("learner/red_0/lr", "learner/<module>/lr"),
        ("gates/entropy/red_0 <= 0.3/met", "gates/<gate>/met"),
        ("gates/episode_len_mean <= 20/held_steps", "gates/<gate>/held_steps"),
        ("gates/held", "gates/held"),
        *((name, None) for name in ("env_step", "return_mean/", "return_mean/red_0/x", "behaviour/red_0/dance")),
        *((name, None) for name in ("gates//met", "gates/met", "learner//lr")),
    ],
)
def test_name_matches_only_its_pattern(name, pattern):
    assert [known for known in glossary() if matches(name, known)] == ([] if pattern is None else [pattern])


@pytest.mark.filterwarnings("ignore")  # tensorboard warns about its own future
def test_dashboards_group_gate_metrics(tmp_path):
    folder = RunFolder(tmp_path / "run", compose([]), {})
    folder.record({"env_steps": 8, "entropy/red_0": 0.5, "gates/entropy/red_0/met": 1.0, "gates/held": 0.0})
    folder.close()
    (events,) = (tmp_path / "run" / "tensorboard").glob("events*")
    board = EventAccumulator(str(events)).Reload()
    wanted = {"run/env_steps", "entropy/red_0", "gates/entropy/red_0", "gates/entropy/red_0/met", "gates/held"}
    assert set(board.Tags()["scalars"]) == wanted
    assert board.Scalars("gates/entropy/red_0")[0].value == 0.5


# --- interval of a mean


@pytest.mark.parametrize("count", [2, 3, 5, 10, 50])
def test_interval_of_a_mean_holds_it_in_95_of_100_cases_for_few_values(count):
    draws = np.random.default_rng(count).normal(size=(4000, count))
    held = [low <= 0 <= high for _, low, high in map(mean_interval, draws)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)


def test_single_value_has_no_interval_and_no_value_no_mean():
    assert np.isnan([interval_of(np.zeros(0, kind)) for kind in (np.bool_, np.float64)]).all()
    mean, low, high = mean_interval(np.array([3.0]))
    assert mean == 3
    assert math.isnan(low)
    assert math.isnan(high)
    assert spread(low, high, ".1f") == "-"
    assert spread(1, 2, ".1f") == "1.0 to 2.0"


def test_laps_add_up_by_part(monkeypatch):
    now = iter([0.0, 10.0, 11.0, 13.0, 20.0, 24.0])
    monkeypatch.setattr("multigrid_rl.types.time", SimpleNamespace(perf_counter=lambda: next(now)))  # nobody else's
    clock = Clock()
    clock.begin()
    clock.lap("engine")
    clock.lap("players")
    clock.begin()
    clock.lap("engine")
    assert clock.drain() == {"engine": pytest.approx(5.0), "players": pytest.approx(2.0)}
    assert clock.drain() == {}
