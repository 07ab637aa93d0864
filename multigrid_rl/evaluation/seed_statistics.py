"""Statistics over games, means with their intervals, and over seeds, differences between a few runs. Pure numpy.

After Agarwal, Schwarzer, Castro, Courville, Bellemare: Deep Reinforcement Learning at the Edge of the Statistical
Precipice (NeurIPS 2021): the interquartile mean (IQM) instead of mean or median, stratified bootstrap intervals (Efron
1979; runs are drawn anew within each task), and the probability of improvement, which is Mann and Whitney's U over the
number of pairs. Values are in ``strata``: one array for each scenario. An infinite value means a run that never reached
a target, worse than every other. All randomness comes from the given generator.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Strata = list[Array]  # values (n_s,) of each scenario, n_s >= 1

#: Share that the IQM cuts off at each end, rounded down as scipy.stats.trim_mean does: of 4 runs 1, of 3 none.
TRIM = 0.25
_LOW, _HIGH = 0.025, 0.975
#: Bootstrap samples behind the band of a curve, and behind an interval that is reported.
BAND_REPS, REPORT_REPS = 1000, 10_000
#: Minimum seeds for a reported interval or p: a bootstrap interval of fewer is meaninglessly narrow.
ENOUGH = 5


class Interval(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def iqm(values: Array) -> Array:
    """Return the mean of the middle half along the last axis, of all scenarios together (Agarwal et al., section 4.3).

    Infinite where an infinite value is in the middle half.
    """
    ranked = np.sort(values, axis=-1)
    cut = int(TRIM * ranked.shape[-1])
    return np.asarray(ranked[..., cut : ranked.shape[-1] - cut].mean(axis=-1), np.float64)


def resample(strata: Strata, reps: int, rng: np.random.Generator) -> Array:
    """Return bootstrap samples (reps, n): runs drawn with replacement within each scenario."""
    return np.concatenate([values[rng.integers(len(values), size=(reps, len(values)))] for values in strata], axis=1)


def interval(value: float, samples: Array) -> Interval:
    """Return the percentile interval of bootstrap ``samples`` (reps,) around an estimate."""
    # No interpolation: between a number and infinity ("never") there is no value.
    low, high = np.quantile(samples, (_LOW, _HIGH), method="inverted_cdf")
    return Interval(value, float(low), float(high))


def iqm_interval(strata: Strata, reps: int, rng: np.random.Generator) -> Interval:
    """Return the IQM with its stratified bootstrap interval."""
    return interval(float(iqm(np.concatenate(strata))), iqm(resample(strata, reps, rng)))


def median_text(values: Array, form: str) -> str:
    """Return median, 95 % interval of at least :data:`ENOUGH` values, and range as text; infinite is "never"."""

    def text_of(value: float) -> str:
        return format(value, form) if np.isfinite(value) else "never"

    text = f"median {text_of(float(np.median(values)))}"
    if len(values) >= ENOUGH:
        # A fixed seed: the same numbers have the same interval everywhere.
        medians = np.median(resample([values], REPORT_REPS, np.random.default_rng(0)), axis=1)
        _, low, high = interval(float(np.median(values)), medians)
        text += f" (95 % interval {text_of(low)} to {text_of(high)})"
    return f"{text}, {text_of(float(values.min()))} to {text_of(float(values.max()))}"


def iqm_difference(ours: Strata, theirs: Strata, reps: int, rng: np.random.Generator) -> Interval | None:
    """Return the IQM of ``ours`` minus that of ``theirs``; the two are resampled independently, not paired.

    ``None`` where one of them, or one of their resamples, is infinite: the difference is undefined.
    """
    samples = np.stack([iqm(resample(strata, reps, rng)) for strata in (ours, theirs)])
    values = np.array([iqm(np.concatenate(strata)) for strata in (ours, theirs)])
    if not (np.isfinite(samples).all() and np.isfinite(values).all()):
        return None
    return interval(float(values[0] - values[1]), samples[0] - samples[1])


def _better(ours: Array, theirs: Array, *, smaller: bool) -> Array:
    """Return (n, m): 1 where ours is better, 1/2 where they are equal."""
    ahead = ours[:, None] < theirs if smaller else ours[:, None] > theirs
    return np.where(ours[:, None] == theirs, 0.5, ahead)


def improvement(ours: Strata, theirs: Strata, *, smaller: bool) -> float:
    """Return the probability that a run of ``ours`` is better than one of ``theirs``; ties count half.

    Over all pairs of a scenario (Mann and Whitney 1947: U / nm), then the mean over scenarios.
    """
    return float(np.mean([_better(a, b, smaller=smaller).mean() for a, b in zip(ours, theirs, strict=True)]))


def improvement_interval(
    ours: Strata, theirs: Strata, reps: int, rng: np.random.Generator, *, smaller: bool
) -> Interval:
    """Return :func:`improvement` with its stratified bootstrap interval."""
    samples = np.zeros(reps)
    for a, b in zip(ours, theirs, strict=True):
        # The number of draws of each run is enough, and needs no (reps, n, m) array.
        drawn = [rng.multinomial(len(x), np.full(len(x), 1 / len(x)), size=reps) for x in (a, b)]
        pairs = _better(a, b, smaller=smaller)
        samples += ((drawn[0] @ pairs) * drawn[1]).sum(axis=1) / pairs.size
    return interval(improvement(ours, theirs, smaller=smaller), samples / len(ours))


def permutation_p(ours: Strata, theirs: Strata, reps: int, rng: np.random.Generator, *, smaller: bool) -> float:
    """Return the share of random permutations with at least this :func:`improvement`; two-sided.

    Runs are permuted within their scenario. A bootstrap interval of few runs is too narrow: for three runs that all
    beat three others it has no width, though every tenth permutation of the six looks so.
    """
    observed = abs(improvement(ours, theirs, smaller=smaller) - 0.5)
    permuted = np.zeros(reps)
    for a, b in zip(ours, theirs, strict=True):
        pooled = np.concatenate([a, b])
        pairs = _better(pooled, pooled, smaller=smaller)
        sides = rng.permuted(np.tile(np.arange(len(pooled)) < len(a), (reps, 1)), axis=1).astype(np.float64)
        permuted += ((sides @ pairs) * (1 - sides)).sum(axis=1) / (len(a) * len(b))
    extreme = np.abs(permuted / len(ours) - 0.5) >= observed - 1e-9
    return float((1 + extreme.sum()) / (1 + reps))


def bootstrap_band(
    values: Array, rng: np.random.Generator, statistic: Callable[[Array], Array]
) -> tuple[Array, Array, Array]:
    """Return a statistic over curves ``values`` (n, points) and its 95 % interval; whole runs are resampled."""
    drawn = rng.integers(len(values), size=(BAND_REPS, len(values)))
    # Point by point: all samples of a long curve at once would take hundreds of megabytes.
    samples = np.stack([statistic(column[drawn]) for column in values.T])  # (points, reps)
    low, high = np.quantile(samples, (_LOW, _HIGH), axis=1)
    return statistic(values.T), low, high


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion (Wilson 1927); a draw may count as half a success.

    Raises ``ValueError``: no trials.
    """
    if trials < 1:
        raise ValueError(f"trials: expected at least 1, got {trials}")
    p, z = successes / trials, 1.96
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * float(np.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)))
    # With no or only successes, rounding may leave [0, 1] slightly, which prints as "-0.0%".
    return max(0.0, centre - half), min(1.0, centre + half)


def student_quantiles(freedom: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the 97.5 % quantiles of Student's distribution by degrees of freedom, to 0.2 %.

    By its expansion (https://personal.math.ubc.ca/~cbm/aands/page_949.htm, 26.7.5): scipy's would take 40 MB.
    """
    z = 1.959963984540054
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    found = z + sum(term / freedom**power for power, term in enumerate(terms, 1))
    return np.select([freedom == 1, freedom == 2], [12.706205, 4.302653], found)  # where the expansion is inexact


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of ``(M,)`` values, ``M >= 1``, and its 95 % interval by Student's distribution.

    The bounds for a single value are NaN.
    """
    mean, count = float(values.mean()), len(values)
    if count == 1:
        return mean, float("nan"), float("nan")
    half = float(student_quantiles(np.array(count - 1)) * values.std(ddof=1)) / float(np.sqrt(count))
    return mean, mean - half, mean + half


def interval_of(values: NDArray[Any]) -> tuple[float, float, float]:
    """Return the mean of values (M,), NaN of none, and its 95 % interval: of flags Wilson's, else the mean's."""
    if not len(values):  # of metrics of some episodes only, such as those that were won
        return np.nan, np.nan, np.nan
    if values.dtype == np.bool_:
        count = int(values.sum())
        return count / len(values), *wilson_interval(count, len(values))
    return mean_interval(values.astype(np.float64))
