"""Strength out of results: Bradley-Terry ratings with bootstrap intervals, and circles in which nobody is best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import networkx as nx
import numpy as np
from evalica import Winner, bradley_terry
from numpy.typing import NDArray

#: Per pair of entries: for each game number (G) how often ``one`` won, drew and lost over both sides, (G, 3).
PairGames = Mapping[tuple[str, str], NDArray[np.int64]]

#: A drawn game added to every pair: without it nobody who won or lost every game would have a finite rating.
PRIOR_DRAWS = 1.0
#: Elo's scale: 400 points are odds of 10 to 1.
SCALE = 400.0
MEAN = 1000.0
_TOLERANCE = 1e-9
_ITERATIONS = 10_000
_OUTCOMES = (Winner.X, Winner.Draw, Winner.Y)


class Rating(NamedTuple):
    """Rating on the Elo scale, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def ratings(names: list[str], games: PairGames, rng: np.random.Generator, resamples: int = 1000) -> dict[str, Rating]:
    """Bradley-Terry ratings of ``names`` (Bradley and Terry 1952), the mean of all is 1000.

    A draw counts half for each side. The bootstrap draws whole game numbers, so the two games from both sides of the
    board that share a seed stay together.

    Args:
        names: all entries.
        games: results of the pairs that played; a pair without games is left out.
        rng: of the bootstrap.
        resamples: how many times the games are drawn anew.
    """
    pairs = [pair for pair, rows in games.items() if rows.sum()]
    if len(names) < 2 or not pairs:
        return {name: Rating(MEAN, MEAN, MEAN) for name in names}
    values = _fit(names, pairs, np.stack([games[pair].sum(axis=0) for pair in pairs]))
    drawn = np.stack([_resampled(games[pair], resamples, rng) for pair in pairs], axis=1)  # (resamples, pairs, 3)
    samples = np.stack([_fit(names, pairs, counts) for counts in drawn])
    low, high = np.percentile(samples, (2.5, 97.5), axis=0)
    return {
        name: Rating(*map(float, row)) for name, row in zip(names, zip(values, low, high, strict=True), strict=True)
    }


def _resampled(rows: NDArray[np.int64], resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    number = len(rows)
    return np.asarray(rng.multinomial(number, np.full(number, 1 / number), size=resamples) @ rows)


def _fit(names: list[str], pairs: list[tuple[str, str]], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ratings (len(names),) out of wins, draws and losses (pairs, 3) of the first of each pair."""
    weights = counts + np.array([0.0, PRIOR_DRAWS, 0.0])
    result = bradley_terry(
        [one for one, _ in pairs for _ in _OUTCOMES],
        [two for _, two in pairs for _ in _OUTCOMES],
        [winner for _ in pairs for winner in _OUTCOMES],
        weights=weights.reshape(-1).tolist(),
        tolerance=_TOLERANCE,
        limit=_ITERATIONS,
    )
    scores = np.array([float(result.scores.get(name, math.nan)) for name in names])
    elo = SCALE * np.log10(scores)
    return np.asarray(np.where(np.isnan(elo), MEAN, elo - np.nanmean(elo) + MEAN))


def cycles(beats: list[tuple[str, str]], longest: int = 4) -> list[list[str]]:
    """Circles in which each beats the next and the last the first, of up to ``longest`` entries, shortest first.

    Args:
        beats: pairs (winner, loser).
        longest: more than four in a circle say nothing that smaller circles do not.
    """
    found = nx.simple_cycles(nx.DiGraph(beats), length_bound=longest)
    turned = [circle[circle.index(min(circle)) :] + circle[: circle.index(min(circle))] for circle in found]
    return sorted(turned, key=lambda circle: (len(circle), circle))
