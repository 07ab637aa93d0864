"""Rules of matchmaking: each snapshot's share of a league's games. A rule is an entry of WEIGHTINGS.

*Prioritised fictitious self-play* plays an opponent in proportion to a function of the learner's win rate ``x`` against
it: AlphaStar (Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.tables import entries, load

Array = NDArray[np.float64]
#: Weight of a Nash mixture's smallest part in the objective: it decides only between mixtures of equal value.
_EVENLY = 1e-6


@dataclass(frozen=True)
class Rule:
    """A rule of opponents.

    Attributes:
        weights: from the learner's win rates against snapshots (K,), oldest first, and the snapshots' win rates against
            one another (K, K) to their weights (K,), not normalised.
        checks: share spread evenly, as win rates become outdated without new games.
    """

    weights: Callable[[Array, Array], Array]
    checks: float = 0.1


def nash(payoffs: Array) -> Array:
    """Return a Nash mixture (K,) of players from their win rates against one another (K, K).

    Of several equilibria one with the largest smallest part: uniform for equal players.
    """
    # Imported here: it takes a second, and few leagues need it.
    from scipy.optimize import linprog  # noqa: PLC0415

    count = len(payoffs)
    # Variables: the mixture, its value against the worst opponent, its smallest part.
    worst = np.column_stack([-payoffs.T, np.ones(count), np.zeros(count)])
    smallest = np.column_stack([-np.eye(count), np.zeros(count), np.ones(count)])
    solution = linprog(
        np.array([*np.zeros(count), -1.0, -_EVENLY]),
        A_ub=np.vstack([worst, smallest]),
        b_ub=np.zeros(2 * count),
        A_eq=np.array([[*np.ones(count), 0.0, 0.0]]),
        b_eq=[1.0],
    )
    mixture: Array = np.maximum(solution.x[:count], 0.0)
    return mixture


SQUARED = Rule(lambda win, _: (1 - win) ** 2)
VARIANCE = Rule(lambda win, _: win * (1 - win))
LINEAR = Rule(lambda win, _: 1 - win)
LINEAR_CAPPED = Rule(lambda win, _: np.minimum(0.5, 1 - win))
UNIFORM = Rule(lambda win, _: np.ones_like(win), checks=0.0)
LATEST = Rule(lambda win, _: np.where(np.arange(len(win)) == len(win) - 1, 1.0, 0.0), checks=0.0)
NASH = Rule(lambda _, payoffs: nash(payoffs))


def shares(win: Array, weighting: str, latest_share: float, payoffs: Array) -> Array:
    """Return the share of games of each snapshot (K,), ``K >= 1``, together 1.

    Args:
        win: learner's win rates (K,), oldest snapshot first.
        weighting: name of the rule; uniform if all its weights are 0.
        latest_share: minimum share of the newest snapshot.
        payoffs: win rates of snapshots against one another (K, K).
    """
    rule: Rule = load(entries("weightings")[weighting])
    weights = rule.weights(win, payoffs)
    even = np.full(len(win), 1 / len(win))
    drawn = weights / weights.sum() if weights.sum() > 0 else even
    drawn = (1 - rule.checks) * drawn + rule.checks * even
    drawn = (1 - latest_share) * drawn
    drawn[-1] += latest_share
    return drawn


def draw(share: Array, most: int, offset: float) -> Array:
    """Draw shares (K,) with at most ``most`` non-zero snapshots; their mean is ``share`` (K,).

    Systematic resampling: each of ``most`` evenly spaced points in [0, 1), shifted by ``offset`` in [0, 1), gives an
    equal part of the games to the snapshot whose interval of ``share`` contains it.
    """
    if len(share) <= most:
        return share
    points = (np.arange(most) + offset) / most
    chosen = np.searchsorted(np.cumsum(share), points, side="right")
    return np.bincount(np.minimum(chosen, len(share) - 1), minlength=len(share)) / most
