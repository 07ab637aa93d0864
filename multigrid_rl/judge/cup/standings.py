"""From pairings to a cup's tables: Bradley-Terry ratings with bootstrap intervals, circles, ranks. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import networkx as nx
import numpy as np
from evalica import Winner, bradley_terry
from numpy.typing import NDArray

from multigrid_rl.judge.cup.entries import CupConfig, Entry
from multigrid_rl.judge.cup.results import CupResults, EntryResult, Fault, Pairing, PairResult, SideResult, Standing
from multigrid_rl.metrics import wilson_interval

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


#: Letters of ``Pairing.outcomes`` for the red entry, as (win, draw, loss).
_AS_RED = ("Rb", "D", "Br")
_AS_BLUE = ("Br", "D", "Rb")
_FORFEITED = "rb"
#: Ratings closer than this are equal.
_SAME = 1e-6


def results(entries: list[Entry], pairings: list[Pairing], config: CupConfig, versions: dict[str, str]) -> CupResults:
    """Everything that a cup's pairings say."""
    names = [entry.name for entry in entries]
    pairs = [_pair(one, two, pairings) for one, two in combinations(names, 2)]
    games = {(one, two): _by_game(one, two, pairings) for one, two in combinations(names, 2)}
    rated = ratings(names, games, np.random.default_rng(_seed(pairings)))
    beats = [(p.one, p.two) for p in pairs if p.low > 0.5] + [(p.two, p.one) for p in pairs if p.high < 0.5]
    return CupResults(
        scenario=config.scenario,
        games_per_side=config.games,
        seed=config.seed,
        rules=rules(config),
        entries=[_entry(entry, pairings) for entry in entries],
        standings=_standings(names, pairings, pairs, rated),
        pairs=pairs,
        sides=[_side(pairing) for pairing in pairings],
        cycles=cycles(beats),
        games=[game for pairing in pairings for game in pairing.kept],
        versions=versions,
    )


def rules(config: CupConfig) -> list[str]:
    """How the cup was played and judged, a sentence each."""
    return [
        f"Every entry meets every other from both sides of the board, {config.games} games on each; all pairings play "
        "the same games (seed and numbers), so everybody meets the same layouts.",
        "A game is won by the win flag alone: a door or an elimination. A win is 1 point, a draw 1/2.",
        "Ratings are Bradley-Terry on the Elo scale with mean 1000, fitted to all games, a draw as half a win and one "
        "drawn game added to each pair; their 95 % intervals are from 1,000 bootstrap samples of whole game numbers.",
        "Ranking is by rating. Equal ratings are decided by points in the games between the two, then by more wins, "
        "then by the larger margin of returns; who is still equal shares the rank.",
        "An entry that cannot be loaded forfeits all its games. One that exits, answers late or wrongly, or breaks a "
        "limit forfeits the unfinished games of that pairing; after three such pairings all the rest. "
        "Forfeited games are losses. Games between two that cannot play count for nobody.",
        "Intervals of shares are Wilson's, 95 %. A circle is named where each beats the next beyond such an interval.",
    ]


def _seed(pairings: list[Pairing]) -> int:
    # The bootstrap's own stream follows from what was played: the same results, the same intervals.
    text = json.dumps([[p.red, p.blue, p.outcomes] for p in pairings])
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def _of(pairings: list[Pairing], name: str) -> Iterator[tuple[Pairing, tuple[str, str, str]]]:
    for pairing in pairings:
        if name in (pairing.red, pairing.blue):
            yield pairing, _AS_RED if name == pairing.red else _AS_BLUE


def _between(one: str, two: str, pairings: list[Pairing]) -> list[tuple[Pairing, tuple[str, str, str]]]:
    return [(p, letters) for p, letters in _of(pairings, one) if two in (p.red, p.blue)]


def _by_game(one: str, two: str, pairings: list[Pairing]) -> NDArray[np.int64]:
    """Wins, draws and losses of ``one`` in each game number, both sides together (G, 3)."""
    counts = [
        [[letter in wanted for wanted in letters] for letter in pairing.outcomes]
        for pairing, letters in _between(one, two, pairings)
    ]
    return np.asarray(np.sum(counts, axis=0, dtype=np.int64))


def _margins(pairing: Pairing, name: str) -> NDArray[np.float64]:
    """Own return minus the opponent's, of the games that were played to their end."""
    played = np.array([letter in "RBD" for letter in pairing.outcomes])
    margin = np.array(pairing.return_red)[played] - np.array(pairing.return_blue)[played]
    return np.asarray(margin if name == pairing.red else -margin)


def _lengths(pairings: list[Pairing]) -> list[int]:
    return [n for p in pairings for n, letter in zip(p.length, p.outcomes, strict=True) if letter in "RBD"]


def _mean(values: NDArray[np.float64] | list[int] | list[float]) -> float:
    return round(float(np.mean(values)), 6) if len(values) else 0.0


def _pair(one: str, two: str, pairings: list[Pairing]) -> PairResult:
    both = _between(one, two, pairings)
    win, draw, loss = (sum(p.count(letters[k]) for p, letters in both) for k in range(3))
    games = win + draw + loss
    share = (win + draw / 2) / games if games else 0.5
    low, high = wilson_interval(win + draw / 2, games) if games else (0.0, 1.0)
    return PairResult(
        one=one,
        two=two,
        games=games,
        win=win,
        draw=draw,
        loss=loss,
        forfeited=sum(p.count(_FORFEITED) for p, _ in both),
        share=share,
        low=low,
        high=high,
        margin=_mean(np.concatenate([_margins(p, one) for p, _ in both])),
        length_mean=_mean(_lengths([p for p, _ in both])),
    )


def _side(pairing: Pairing) -> SideResult:
    played = [letter in "RBD" for letter in pairing.outcomes]
    return SideResult(
        red=pairing.red,
        blue=pairing.blue,
        games=pairing.count("RBDrb"),
        red_win=pairing.count(_AS_RED[0]),
        draw=pairing.count("D"),
        blue_win=pairing.count(_AS_RED[2]),
        forfeited=pairing.count(_FORFEITED),
        length_mean=_mean(_lengths([pairing])),
        return_red=_mean([r for r, done in zip(pairing.return_red, played, strict=True) if done]),
        return_blue=_mean([r for r, done in zip(pairing.return_blue, played, strict=True) if done]),
    )


def _entry(entry: Entry, pairings: list[Pairing]) -> EntryResult:
    faults = [
        Fault(red=p.red, blue=p.blue, games=p.count(_FORFEITED), reason=str(p.reason))
        for p in pairings
        if p.at_fault == entry.name and entry.kind != "broken"
    ]
    return EntryResult(
        name=entry.name, kind=entry.kind, sha256=entry.sha256, about=entry.about, problem=entry.problem, faults=faults
    )


def _standings(
    names: list[str], pairings: list[Pairing], pairs: list[PairResult], rated: dict[str, Rating]
) -> list[Standing]:
    rows = {name: _row(name, pairings, rated[name]) for name in names}
    order = _ranked(names, rows, pairs)
    standings: list[Standing] = []
    for place, name in enumerate(order):
        reason = _decider(rows[name], rows[order[place + 1]], pairs) if place + 1 < len(order) else "last"
        shares = place > 0 and standings[-1].decided_by == "nothing"
        rank = standings[-1].rank if shares else place + 1
        standings.append(rows[name].model_copy(update={"rank": rank, "decided_by": reason}))
    return standings


def _row(name: str, pairings: list[Pairing], rating: Rating) -> Standing:
    own = list(_of(pairings, name))
    win, draw, loss = (sum(p.count(letters[k]) for p, letters in own) for k in range(3))
    mine = [p.count("r" if name == p.red else "b") for p, _ in own]
    return Standing(
        rank=1,
        name=name,
        rating=round(rating.value, 2),
        low=round(rating.low, 2),
        high=round(rating.high, 2),
        points=win + draw / 2,
        games=win + draw + loss,
        win=win,
        draw=draw,
        loss=loss,
        forfeited=sum(mine),
        margin=_mean(np.concatenate([_margins(p, name) for p, _ in own])),
        decided_by="",
    )


def _ranked(names: list[str], rows: dict[str, Standing], pairs: list[PairResult]) -> list[str]:
    """Names from best to worst. Head to head is looked at among those with the same rating only."""

    def key(name: str) -> tuple[float, float, int, float, str]:
        row = rows[name]
        equals = [other for other in names if other != name and _equal(rows[other], row)]
        return -row.rating, -sum(_points(name, other, pairs) for other in equals), -row.win, -row.margin, name

    return sorted(names, key=key)


def _equal(one: Standing, two: Standing) -> bool:
    return abs(one.rating - two.rating) < _SAME


def _points(name: str, other: str, pairs: list[PairResult]) -> float:
    for pair in pairs:
        if (pair.one, pair.two) == (name, other):
            return pair.win + pair.draw / 2
        if (pair.two, pair.one) == (name, other):
            return pair.loss + pair.draw / 2
    return 0.0


def _decider(one: Standing, two: Standing, pairs: list[PairResult]) -> str:
    """What puts ``one`` before ``two``; "nothing" where they share the rank."""
    if not _equal(one, two):
        return "rating"
    if _points(one.name, two.name, pairs) > _points(two.name, one.name, pairs):
        return "points between them"
    if one.win > two.win:
        return "more wins"
    return "larger margin" if one.margin > two.margin else "nothing"
