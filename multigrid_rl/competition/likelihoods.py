"""Two models fitted by likelihood: strengths of players from their games, and shares of players in decisions. Pure.

Strengths are those of Bradley and Terry (1952), natural logarithms of odds, for a cup and a ladder. The other model
draws decisions from a mixture of known players at any temperature, and noise, fitted by expectation maximisation, or
from one player for each group of decisions. Its fit is measured by the calibration error
(https://arxiv.org/abs/1706.04599) in bins of each player's probabilities.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: A drawn game added to every pair: keeps strengths finite for entries that won or lost every game.
PRIOR_DRAWS = 1.0
#: Elo's scale: 400 points are odds of 10 to 1.
SCALE = 400.0
MEAN = 1000.0
_STEP, _CLOSE, _ITERATIONS = 2.0, 1e-11, 200
#: Factors of a player's logits (inverse temperatures); the last one makes it take its likeliest action.
_SHARPER = (0.6, 1.0, 2.0, 20.0)
_ROUNDS, _BINS = 100, 5


class Pairs(NamedTuple):
    """Results of each pair: ``one[k]`` against ``two[k]``, indices of entries."""

    one: NDArray[np.intp]
    two: NDArray[np.intp]
    points: Array  # (pairs,) of the first one
    games: Array  # (pairs,)

    def share(self, strength: Array) -> Array:
        """Return the expected share of points of the first entry of each pair (pairs,)."""
        return np.asarray(1 / (1 + np.exp(strength[self.two] - strength[self.one])))


def strengths(pairs: Pairs, start: Array, free: NDArray[np.intp]) -> Array:
    """Fit the strengths (N,) of ``free`` entries to the games; the others stay as in ``start``."""
    strength: Array = start.copy()
    for _ in range(_ITERATIONS):  # Newton's steps on a concave likelihood, none so long that it overshoots
        gradient, hessian = curvature(pairs, strength)
        step = np.clip(np.linalg.solve(hessian[np.ix_(free, free)], gradient[free]), -_STEP, _STEP)
        strength[free] += step
        if np.abs(step).max() < _CLOSE:
            break
    return strength


def curvature(pairs: Pairs, strength: Array) -> tuple[Array, Array]:
    """Return gradient (N,) and negative Hessian (N, N) of the likelihood, with a drawn game added to every pair."""
    one, two, share = pairs.one, pairs.two, pairs.share(strength)
    excess = pairs.points - pairs.games * share + PRIOR_DRAWS * (0.5 - share)
    weight = (pairs.games + PRIOR_DRAWS) * share * (1 - share)
    gradient, hessian = np.zeros(len(strength)), np.zeros((len(strength), len(strength)))
    np.add.at(gradient, one, excess)
    np.add.at(gradient, two, -excess)
    for at, sign in (((one, one), 1), ((two, two), 1), ((one, two), -1), ((two, one), -1)):
        np.add.at(hessian, at, sign * weight)
    return gradient, hessian


def attribute(
    actions: NDArray[Any], scores: Sequence[NDArray[Any]], groups: Sequence[NDArray[Any]]
) -> tuple[float, NDArray[np.float64], float]:
    """Explain taken ``actions`` (rows,) by the best mixture of ``K`` players.

    Returns its calibration error, the share (K,) of decisions of each player, where the rest is noise, and the mean
    error of draws from the mixture itself. ``scores``: log-probabilities (rows, actions) of each player. ``groups``:
    group numbers (rows,) of decisions; each group may be another player's.
    """
    rows = np.arange(len(actions))
    parts = np.stack([_sharpen(each, factor) for each in scores for factor in _SHARPER])
    taken = parts[:, rows, actions]
    chosen = [_likeliest_by_group(taken, group) for group in groups]
    # Each decision comes from one part or from noise: two weights to fit.
    mixtures = [_fit_mixture(parts[best, rows][None], actions) for best in chosen]
    by_player = [np.bincount(best // len(_SHARPER), minlength=len(scores)) / len(actions) for best in chosen]
    mixed, weights = _fit_mixture(parts, actions)
    models = [(mixed, weights.reshape(len(scores), -1).sum(axis=1))]
    models += [(probs, share[0] * each) for (probs, share), each in zip(mixtures, by_player, strict=True)]
    probabilities = [np.exp(each) for each in scores]
    return min(
        ((_error(actions, probs, probabilities), shares, _mean_error(probs)) for probs, shares in models),
        key=lambda model: model[0],
    )


def _sharpen(scores: NDArray[Any], factor: float) -> NDArray[np.float64]:
    scaled = factor * scores.astype(np.float64)
    return np.asarray(np.exp(scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)))


def _likeliest_by_group(taken: NDArray[np.float64], group: NDArray[Any]) -> NDArray[np.intp]:
    """Return for each decision the likeliest part for all decisions of its group."""
    sums = np.stack([np.bincount(group, np.log(0.9 * each + 0.01)) for each in taken])
    return np.asarray(sums.argmax(axis=0)[group])


def _fit_mixture(parts: NDArray[np.float64], actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the likeliest mixture of parts (M, rows, actions) and noise, and the parts' weights."""
    noise = np.full_like(parts[:1], 1 / parts.shape[2])
    components = np.concatenate([parts, noise])
    taken, weights = components[:, np.arange(len(actions)), actions], np.full(len(components), 1 / len(components))
    for _ in range(_ROUNDS):
        joint = weights[:, None] * taken
        weights = (joint / joint.sum(axis=0)).mean(axis=1)
    return np.tensordot(weights, components, 1), weights[:-1]


def _mean_error(probs: NDArray[np.float64]) -> float:
    """Return the mean of :func:`_error` for draws from these probabilities, in bins of these probabilities."""
    spread = [
        np.sqrt(2 / np.pi * np.clip(each[rows] * (1 - each[rows]), 0, 1).sum())
        for each in probs.T
        for rows in np.array_split(np.argsort(each, kind="stable"), _BINS)
    ]
    return float(sum(spread) / (2 * max(len(probs), 1)))


def _error(actions: NDArray[Any], probs: NDArray[np.float64], players: Sequence[NDArray[Any]]) -> float:
    """Return the calibration error: half the summed difference of action frequencies, for the worst player's bins."""
    excess = np.eye(probs.shape[1])[actions] - probs
    errors = [
        sum(
            abs(excess[rows, action].sum())
            for action in range(probs.shape[1])
            for rows in np.array_split(np.argsort(player[:, action], kind="stable"), _BINS)
        )
        for player in [probs, *players]
    ]
    return float(max(errors) / (2 * max(len(actions), 1)))
