"""From all games to the ladder: Bradley-Terry with fixed anchors, in whatever order games were played. Pure.

The model of a cup (``competition.standings``) with two differences. Anchors are rated by the games among them alone,
and keep their ratings: a growing ladder does not drift. Intervals are not from a bootstrap but from its limit, the
sandwich estimate with games of one number as a cluster (https://doi.org/10.2307/1912526).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.competition.likelihoods import MEAN, PRIOR_DRAWS, SCALE, Array, Pairs, curvature, strengths
from multigrid_rl.evaluation.seed_statistics import interval_of, student_quantiles

_PLAYED = "RBD"


class PairingResult(NamedTuple):
    """The result of a pairing of two submissions, by id; ``blue`` is 0 without an opponent."""

    red: int
    blue: int
    side: str
    outcomes: str  # a letter a game
    return_red: Sequence[float] = ()  # of each game, where nobody wins
    return_blue: Sequence[float] = ()
    id: int = 0
    has_replays: bool = False  # there are games to look at


class RatingInterval(NamedTuple):
    """A rating with its 95 % interval, and how many games it is from."""

    value: float
    low: float
    high: float
    games: int


Ratings = dict[int, RatingInterval]  # by the id of a submission


def compute_ratings(results: Iterable[PairingResult], anchors: Sequence[int], *, by_wins: bool = True) -> Ratings:
    """Return the ratings of all players, by id, from all pairings in any order; to two decimals.

    ``anchors`` are rated by the games among them alone. Without ``by_wins`` ratings are mean returns against anchors.
    """
    results = sorted(results, key=lambda result: (result.red, result.blue, result.side))
    if not by_wins:
        return _mean_returns(results, {*anchors, 0})
    anchor_results = [result for result in results if {result.red, result.blue} <= {*anchors}]
    fixed, ratings = dict.fromkeys(anchors[:1], 0.0), dict[int, RatingInterval]()
    fitted, rows = _fit(anchor_results, fixed)
    if fitted:
        shift = float(np.mean([*fitted.values()]))
        fixed = {name: value - shift for name, value in fitted.items()}
        # The first anchor is the reference of all others: it has games, and no interval.
        played = sum(len(result.outcomes) for result in anchor_results if anchors[0] in (result.red, result.blue))
        ratings = {name: _on_scale(value, *rows.get(name, (0.0, played))) for name, value in fixed.items()}
    fitted, rows = _fit([result for result in results if not {result.red, result.blue} <= fixed.keys()], fixed)
    return ratings | {name: _on_scale(fitted[name], *row) for name, row in rows.items()}


def _on_scale(strength: float, half_width: float, games: int) -> RatingInterval:
    unit = SCALE / np.log(10)
    low, value, high = (round(MEAN + unit * (strength + sign * half_width), 2) for sign in (-1, 0, 1))
    return RatingInterval(value, low, high, games)


def _fit(played: list[PairingResult], fixed: dict[int, float]) -> tuple[dict[int, float], dict[int, tuple[float, int]]]:
    """Return all strengths (natural logarithms of odds), and half the interval and the games of those not ``fixed``."""
    if not played:
        return fixed, {}
    names = sorted({name for result in played for name in (result.red, result.blue)} | fixed.keys())
    index = {name: k for k, name in enumerate(names)}
    strength = np.array([fixed.get(name, 0.0) for name in names])
    free = np.array([k for k, name in enumerate(names) if name not in fixed], np.intp)
    pairs, points, games = _pairs_of(played, index)
    strength = strengths(pairs, strength, free)
    half_width = _half_widths(pairs, points, games, strength, free)
    one, two = (np.bincount(side, pairs.games, len(names)) for side in (pairs.one, pairs.two))
    rows = {names[k]: (float(half_width[n]), int(one[k] + two[k])) for n, k in enumerate(free.tolist())}
    return dict(zip(names, strength.tolist(), strict=True)), rows


def _pairs_of(results: list[PairingResult], index: dict[int, int]) -> tuple[Pairs, Array, Array]:
    """Return the pairs, and by pair and game number (pairs, G) the points of the first one, and games."""
    longest = max(len(result.outcomes) for result in results)
    keys = sorted({tuple(sorted((index[result.red], index[result.blue]))) for result in results})
    row = {key: k for k, key in enumerate(keys)}
    points, games = np.zeros((len(keys), longest)), np.zeros((len(keys), longest))
    for result in results:
        one, two = index[result.red], index[result.blue]
        k, letters = row[min(one, two), max(one, two)], np.frombuffer(result.outcomes.encode(), "S1")
        played = (letters != b"-").astype(float)
        won = ((letters == b"R") | (letters == b"b")) + 0.5 * (letters == b"D")
        points[k, : len(letters)] += won if one < two else played - won
        games[k, : len(letters)] += played
    one, two = np.array(keys, np.intp).T
    return Pairs(one, two, points.sum(axis=1), games.sum(axis=1)), points, games


def _half_widths(pairs: Pairs, points: Array, games: Array, strength: Array, free: NDArray[np.intp]) -> Array:
    """Return half the 95 % intervals of the strengths of ``free``.

    All games of one number (one board) are one observation, as is each added draw: perfect players have intervals too.
    """
    share = pairs.share(strength)
    surplus = points - games * share[:, None]
    _, hessian = curvature(pairs, strength)
    number = surplus.shape[1]
    rows = np.zeros((number + len(share), len(strength)))
    for side, sign in ((pairs.one, 1.0), (pairs.two, -1.0)):
        np.add.at(rows[:number].T, side, sign * surplus)
        np.add.at(rows, (number + np.arange(len(share)), side), sign * PRIOR_DRAWS * (0.5 - share))
    spread = np.linalg.solve(hessian[np.ix_(free, free)], rows[:, free].T)
    numbers = np.zeros((len(strength), number), np.bool_)
    for side in (pairs.one, pairs.two):
        np.logical_or.at(numbers, side, games > 0)
    count = np.maximum(numbers[free].sum(axis=1), 2)
    return np.asarray(student_quantiles(count - 1) * np.sqrt((spread**2).sum(axis=1) * count / (count - 1)))


def _mean_returns(results: list[PairingResult], anchors: set[int]) -> dict[int, RatingInterval]:
    """Return mean returns against ``anchors``; a forfeited game counts as the worst one of any player in that role."""
    rows_by_player: dict[int, list[tuple[str, str, Sequence[float]]]] = {}
    worst: dict[str, float] = {}
    for red, blue, side, outcomes, return_red, return_blue, *_ in results:
        roles = [(red, blue, return_red, side), (blue, red, return_blue, f"not {side}")]
        for player, rival, returns, role in roles:
            if player and rival in anchors:
                rows_by_player.setdefault(player, []).append((role, outcomes, returns))
                played = [value for value, letter in zip(returns, outcomes, strict=True) if letter in _PLAYED]
                worst[role] = min([worst.get(role, np.inf), *played])
    ratings = {}
    for player, rows in rows_by_player.items():
        table = np.full((len(rows), max(len(outcomes) for _, outcomes, _ in rows)), np.nan)
        for k, (role, outcomes, returns) in enumerate(rows):
            worst_return = worst[role] if np.isfinite(worst[role]) else 0.0
            values = zip(outcomes, returns, strict=True)
            table[k, : len(returns)] = [value if letter in _PLAYED else worst_return for letter, value in values]
        value, low, high = interval_of(np.nanmean(table, axis=0))
        low, high = (value, value) if np.isnan(low) else (low, high)  # a single game number gives no interval
        ratings[player] = RatingInterval(round(value, 6), round(low, 6), round(high, 6), int(np.isfinite(table).sum()))
    return ratings
