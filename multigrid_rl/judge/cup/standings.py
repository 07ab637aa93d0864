"""From pairings to the cup's tables. Pure: the same pairings give the same tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.judge.cup.entries import Entry, Table
from multigrid_rl.judge.cup.pairings import Pairing
from multigrid_rl.judge.cup.ratings import Rating, cycles, ratings
from multigrid_rl.judge.cup.results import CupResults, EntryResult, Fault, PairResult, SideResult, Standing
from multigrid_rl.metrics import wilson_interval

#: Letters of ``Pairing.outcomes`` for the red entry, as (win, draw, loss).
_AS_RED = ("Rb", "D", "Br")
_AS_BLUE = ("Br", "D", "Rb")
_FORFEITED = "rb"
#: Ratings closer than this are equal.
_SAME = 1e-6


def results(entries: list[Entry], pairings: list[Pairing], table: Table, versions: dict[str, str]) -> CupResults:
    """Everything that a cup's pairings say."""
    names = [entry.name for entry in entries]
    pairs = [_pair(one, two, pairings) for one, two in combinations(names, 2)]
    games = {(one, two): _by_game(one, two, pairings) for one, two in combinations(names, 2)}
    rated = ratings(names, games, np.random.default_rng(_seed(pairings)))
    beats = [(p.one, p.two) for p in pairs if p.low > 0.5] + [(p.two, p.one) for p in pairs if p.high < 0.5]
    return CupResults(
        scenario=table.scenario,
        games_per_side=table.games,
        seed=table.seed,
        rules=rules(table),
        entries=[_entry(entry, pairings) for entry in entries],
        standings=_standings(names, pairings, pairs, rated),
        pairs=pairs,
        sides=[_side(pairing) for pairing in pairings],
        cycles=cycles(beats),
        games=[game for pairing in pairings for game in pairing.kept],
        versions=versions,
    )


def rules(table: Table) -> list[str]:
    """How the cup was played and judged, a sentence each."""
    return [
        f"Every entry meets every other from both sides of the board, {table.games} games on each; all pairings play "
        "the same games (seed and numbers), so everybody meets the same layouts.",
        "A game is won by the win flag alone: a door or an elimination. A win is 1 point, a draw 1/2.",
        "Ratings are Bradley-Terry on the Elo scale with mean 1000, fitted to all games, a draw as half a win and one "
        "drawn game added to each pair; their 95 % intervals are from 1,000 bootstrap samples of whole game numbers.",
        "Ranking is by rating. Equal ratings are decided by points in the games between the two, then by more wins, "
        "then by the larger margin of returns; who is still equal shares the rank.",
        f"An entry that cannot be loaded forfeits all its games. One that exits, answers late or wrongly, or breaks a "
        f"limit forfeits the unfinished games of that pairing; after {STRIKES_TOLD} such pairings all the rest. "
        "Forfeited games are losses. Games between two that cannot play count for nobody.",
        "Intervals of shares are Wilson's, 95 %. A circle is named where each beats the next beyond such an interval.",
    ]


STRIKES_TOLD = "three"


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
