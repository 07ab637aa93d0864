"""Bradley-Terry strengths (Bradley and Terry 1952), natural logarithms of odds, for a cup and a ladder. Pure."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: A drawn game added to every pair: keeps strengths finite for entries that won or lost every game.
PRIOR_DRAWS = 1.0
#: Elo's scale: 400 points are odds of 10 to 1.
SCALE = 400.0
MEAN = 1000.0
_STEP, _CLOSE, _ITERATIONS = 2.0, 1e-11, 200


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
