"""Statistics over seeds: against hand-computed values, against scipy, and intervals against how often they hold."""

import math

import numpy as np
import pytest
from scipy import stats

from multigrid_rl.evaluation.seed_statistics import (
    improvement,
    improvement_interval,
    interval,
    iqm,
    iqm_difference,
    iqm_interval,
    permutation_p,
    resample,
)

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
