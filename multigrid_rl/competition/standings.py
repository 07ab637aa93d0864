"""Tables of a cup from its pairings: Bradley-Terry ratings with bootstrap intervals, ranks. Pure."""

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from itertools import combinations, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.competition.cup_folder import Pairing
from multigrid_rl.competition.entries import CupConfig, Entry
from multigrid_rl.competition.likelihoods import MEAN, SCALE, Pairs, strengths
from multigrid_rl.evaluation.cup_results import (
    CupResults,
    EntryResult,
    Fault,
    PairResult,
    ReturnsRow,
    SideResult,
    Standing,
    Surprise,
)
from multigrid_rl.evaluation.seed_statistics import Interval, interval_of, wilson_interval
from multigrid_rl.players.places import place_of

#: Per pair of entries: wins, draws and losses of ``one`` over both sides for each game number, (G, 3).
PairGames = Mapping[tuple[str, str], NDArray[np.int64]]

#: Maximum distance of a pair's interval from the share that the other games predict.
SURPRISE = 0.2


def ratings(names: list[str], games: PairGames, rng: np.random.Generator, resamples: int = 1000) -> dict[str, Interval]:
    """Fit Bradley-Terry ratings of ``names``, the mean of all is 1000.

    A draw counts half for each side, and a pair without games is left out. The Bayesian bootstrap
    (https://doi.org/10.1214/aos/1176345338) draws weights of whole game numbers: all games of one number, of every pair
    and from both sides of the board, have one seed and stay together. The added draws have a weight, too: else an entry
    that won every game has an interval without width.
    """
    if not (pairs := [pair for pair, rows in games.items() if rows.sum()]):
        return {name: Interval(MEAN, MEAN, MEAN) for name in names}
    results = np.stack([games[pair] for pair in pairs], axis=1)
    weights = rng.exponential(size=(resamples, len(results) + 1))
    # The fit adds draws of weight one: games have their weights relative to those.
    drawn = np.tensordot(weights[:, 1:] / weights[:, :1], results, 1)
    values, *samples = _fit(names, pairs, [results.sum(axis=0), *drawn])
    low, high = np.percentile(samples, (2.5, 97.5), axis=0)
    return {
        name: Interval(*map(float, row)) for name, row in zip(names, zip(values, low, high, strict=True), strict=True)
    }


def _fit(names: list[str], pairs: list[tuple[str, str]], samples: list[NDArray[Any]]) -> NDArray[np.float64]:
    """Fit ratings (samples, len(names)) to wins, draws and losses (pairs, 3) of the first of each pair.

    Each group of entries connected by games has a mean of 1000: groups are not comparable.
    """
    one, two = np.array([[names.index(name) for name in pair] for pair in pairs], np.intp).T
    group = np.arange(len(names))
    for first, other in zip(one, two, strict=True):
        group[group == group[other]] = group[first]
    free, strength = np.flatnonzero(group != np.arange(len(names))), np.zeros(len(names))
    values = np.zeros((len(samples), len(names)))
    for sample, counts in enumerate(samples):
        points = counts @ np.array([1.0, 0.5, 0.0])
        strength = strengths(Pairs(one, two, points, counts.sum(axis=1).astype(np.float64)), strength, free)
        values[sample] = strength
    joined = group[:, None] == group
    return np.asarray(MEAN + SCALE / np.log(10) * (values - values @ joined / joined.sum(axis=0)))


#: Letters of ``Pairing.outcomes`` for the red and the blue entry, as (win, draw, loss).
_LETTERS = {"red": ("Rb", "D", "Br"), "blue": ("Br", "D", "Rb")}
_PLAYED, _FORFEITED = "RBD", "rb"
#: Criteria of the ranking, first to last: the parts of an entry's place.
_DECIDERS = ("rating", "points between them", "more wins", "larger margin")


def tabulate(entries: list[Entry], pairings: list[Pairing], config: CupConfig, versions: dict[str, str]) -> CupResults:
    """Compute the results of a cup from its pairings."""
    finished = {name for p in pairings if p.count(_PLAYED) for name in p.names}
    ranked = [entry.name for entry in entries if entry.name in finished]
    # A walk-over is no win and must not raise the opponent's rating.
    counted = [p for p in pairings if p.names <= finished]
    by_pair = {
        (one, two): [pairing for pairing in counted if pairing.names == {one, two}]
        for one, two in (combinations(ranked, 2) if config.rated else ())
    }
    pairs = [_pair(one, two, matched) for (one, two), matched in by_pair.items()]
    games = {}
    for (one, two), matched in by_pair.items():  # in each game number, both sides together
        counts = [[[letter in wanted for wanted in _letters(p, one)] for letter in p.outcomes] for p in matched]
        games[one, two] = np.asarray(np.sum(counts, axis=0, dtype=np.int64))
    # The bootstrap's seed is a hash of the results: the same results, the same intervals.
    text = json.dumps([[p.red, p.blue, p.outcomes] for p in pairings])
    rng = np.random.default_rng(int(hashlib.sha256(text.encode()).hexdigest()[:16], 16))
    found = CupResults(
        scenario=config.scenario,
        games_per_side=config.games,
        seed=config.seed,
        rules=rules(config),
        entries=[_entry(entry, pairings) for entry in entries],
        standings=_standings(ranked, counted, ratings(ranked, games, rng)) if config.rated else [],
        unranked=[entry.name for entry in entries if entry.name not in finished],
        pairs=pairs,
        sides=[_side(pairing) for pairing in counted],
        surprises=surprises(pairs, games),
        games=[game for pairing in pairings for game in pairing.kept],
        versions=versions,
        teams=_teams(config),
        rated=config.rated,
        returns=[] if config.rated else _returns_table(ranked, counted, config),
    )
    digest = hashlib.sha256(found.model_dump_json().encode())
    for pairing in pairings:
        digest.update(pairing.model_dump_json().encode())
    return found.model_copy(update={"sha256": digest.hexdigest()})


def surprises(pairs: list[PairResult], games: PairGames) -> list[Surprise]:
    """Return the pairs whose result contradicts the ratings from all other games, the largest contradiction first.

    Style alone makes small differences significant, so only one of :data:`SURPRISE` beyond the interval counts. Found
    pairs are left out of the ratings for the rest: one false result would make others look false.
    """
    found: list[Surprise] = []
    remaining = [pair for pair in pairs if pair.games]
    while remaining:
        worst = max(remaining, key=partial(_contradiction, shares=_expected_shares(remaining, remaining, games)))
        remaining.remove(worst)
        shares = _expected_shares([worst], remaining, games)
        if not shares or _contradiction(worst, shares) <= SURPRISE:
            break
        found.append(Surprise(one=worst.one, two=worst.two, share=worst.share, expected=shares[worst.one, worst.two]))
    return found


def _contradiction(pair: PairResult, shares: Mapping[tuple[str, str], float]) -> float:
    share = shares[pair.one, pair.two]
    return max(pair.low - share, share - pair.high)


def _expected_shares(
    pairs: list[PairResult], rated: list[PairResult], games: PairGames
) -> dict[tuple[str, str], float]:
    """Return the expected share of points of ``one`` in each of ``pairs`` with ratings from ``rated``."""
    keys = [(pair.one, pair.two) for pair in rated]
    if not (names := sorted({name for key in keys for name in key})):
        return {}
    (values,) = _fit(names, keys, [np.stack([games[key].sum(axis=0) for key in keys])])
    fitted = dict(zip(names, values.tolist(), strict=True))
    both = [(pair.one, pair.two) for pair in pairs if pair.one in fitted and pair.two in fitted]
    return {(one, two): float(1 / (1 + 10 ** ((fitted[two] - fitted[one]) / SCALE))) for one, two in both}


def rules(config: CupConfig) -> list[str]:
    """Return the rules of playing and ranking, one sentence each."""
    words, sides, games = place_of(config.spec).words, len(config.sides), config.games
    shared_games = f"(seed and numbers), so all entries meet the same {words.identical}."
    single_rules = [f"Every entry plays {games} episodes without another; all play the same ones {shared_games}"]
    pair_rules = [
        f"Every entry meets every other from {words.sides}, {games} games on each; all pairings play the same games "
        f"{shared_games}"
    ]
    if sides > 2:
        pair_rules += ["In each pairing one of the two sits on one side alone, the other on all others."]
    winning = (
        words.win if sides == 2 else "Who sits alone wins if it earns more than more of the others than it earns less."
    )
    faults = (
        "An entry that cannot be loaded does not play. One that exits, answers late or wrongly, or breaks a limit "
        "forfeits the unfinished games of that pairing. After three such pairings, or after more than "
        f"{config.cup_s:g} s for its starts and answers in the whole cup, it forfeits all the rest. "
    )
    if not config.rated:
        return [
            *(pair_rules if sides > 1 else single_rules),
            "The result of an entry is the mean of its returns, with the 95 % interval of the mean over game numbers.",
            "Ranking is by that mean; an entry that forfeited a game is ranked behind all that forfeited none.",
            f"{faults}Forfeited games are in no mean.",
        ]
    return [
        *pair_rules,
        f"{winning} A win is 1 point, a draw 1/2.",
        "Ratings are Bradley-Terry on the Elo scale with mean 1000, fitted to all games, a draw as half a win and one "
        "drawn game added to each pair; their 95 % intervals are from 1,000 bootstrap weightings of game numbers.",
        "Ranking is by rating. Equal ratings are decided by points in the games between them, then by more wins, "
        "then by the larger margin of returns; entries that are still equal share the rank.",
        f"{faults}Forfeited games are losses. An entry that has finished no game at all is not ranked, and what was "
        "forfeited to it or by it does not count.",
        "Intervals of shares are Wilson's, 95 %.",
    ]


def _teams(config: CupConfig) -> list[str]:
    return list(config.sides) if len(config.sides) <= 2 else ["alone", "others"]


def _returns_table(names: list[str], pairings: list[Pairing], config: CupConfig) -> list[ReturnsRow]:
    """Return the table of mean returns, the best first."""
    rows = []
    for name in names:
        played_sides = [(p, p.side or _teams(config)[0], p.return_red) for p in pairings if p.red == name]
        played_sides += [(p, _teams(config)[1], p.return_blue) for p in pairings if p.blue == name]
        played = np.array([[letter in _PLAYED for letter in p.outcomes] for p, *_ in played_sides])
        earned = np.where(played, np.array([values for *_, values in played_sides]), np.nan)
        own_sides = [side for _, side, _ in played_sides]
        by_side = {side: earned[(np.array(own_sides) == side)[:, None] & played] for side in dict.fromkeys(own_sides)}
        mean, low, high = interval_of(np.nanmean(earned[:, played.any(axis=0)], axis=0))
        rows.append(
            ReturnsRow(
                rank=0,
                name=name,
                mean=round(mean, 6),
                low=round(low, 6),
                high=round(high, 6),
                games=int(played.sum()),
                forfeited=sum(p.count("r" if name == p.red else "b") for p, *_ in played_sides),
                length_mean=_mean([length for p, *_ in played_sides for length in _unforfeited(p.length, p)]),
                sides={side: _mean(values.tolist()) for side, values in by_side.items()} if len(by_side) > 1 else {},
            )
        )
    rows.sort(key=lambda row: (row.forfeited > 0, -row.mean, row.name))
    places = [(row.forfeited > 0, row.mean) for row in rows]
    return [row.model_copy(update={"rank": places.index(place) + 1}) for row, place in zip(rows, places, strict=True)]


def _letters(pairing: Pairing, name: str) -> tuple[str, str, str]:
    return _LETTERS["red" if name == pairing.red else "blue"]


def _totals(name: str, pairings: list[Pairing]) -> dict[str, Any]:
    """Add up the pairings of ``name``: counts, and its mean margin of returns over finished games."""
    win, draw, loss = (sum(p.count(_letters(p, name)[k]) for p in pairings) for k in range(3))
    margins: list[float] = []
    for p in pairings:
        sign = 1 if name == p.red else -1
        rows = zip(p.outcomes, p.return_red, p.return_blue, strict=True)
        margins += [sign * (red - blue) for letter, red, blue in rows if letter in _PLAYED]
    return {"games": win + draw + loss, "win": win, "draw": draw, "loss": loss, "margin": _mean(margins)}


def _mean(values: list[float] | list[int]) -> float:
    return round(float(np.mean(values)), 6) if values else 0.0


def _unforfeited(values: list[float] | list[int], pairing: Pairing) -> list[float]:
    return [value for value, letter in zip(values, pairing.outcomes, strict=True) if letter in _PLAYED]


def _pair(one: str, two: str, both: list[Pairing]) -> PairResult:
    totals = _totals(one, both)
    points, games = totals["win"] + totals["draw"] / 2, totals["games"]
    low, high = wilson_interval(points, games) if games else (0.0, 1.0)
    return PairResult(
        one=one,
        two=two,
        **totals,
        forfeited=sum(p.count(_FORFEITED) for p in both),
        share=points / games if games else 0.5,
        low=low,
        high=high,
        length_mean=_mean([length for p in both for length in _unforfeited(p.length, p)]),
    )


def _side(pairing: Pairing) -> SideResult:
    win, draw, loss = (pairing.count(letters) for letters in _LETTERS["red"])
    return SideResult(
        red=pairing.red,
        blue=pairing.blue,
        games=win + draw + loss,
        red_win=win,
        draw=draw,
        blue_win=loss,
        forfeited=pairing.count(_FORFEITED),
        length_mean=_mean(_unforfeited(pairing.length, pairing)),
        return_red=_mean(_unforfeited(pairing.return_red, pairing)),
        return_blue=_mean(_unforfeited(pairing.return_blue, pairing)),
        side=pairing.side,
    )


def _entry(entry: Entry, pairings: list[Pairing]) -> EntryResult:
    faults: dict[str, Fault] = {}
    for p in pairings:
        if p.at_fault == entry.name:
            reason = str(p.reason)
            fault = faults.setdefault(reason, Fault(red=p.red, blue=p.blue, pairings=0, games=0, reason=reason))
            fault.games, fault.pairings = fault.games + p.count(_FORFEITED), fault.pairings + 1
    keys = ("name", "kind", "sha256", "env_steps", "about", "problem", "same_as")
    fields = {key: getattr(entry, key) for key in keys}
    spent = [p.seconds[entry.name] for p in pairings if entry.name in p.seconds]
    return EntryResult(**fields, faults=list(faults.values()), seconds=round(sum(spent), 3) if spent else None)


def _standings(names: list[str], pairings: list[Pairing], rated: dict[str, Interval]) -> list[Standing]:
    by_entry = {name: [p for p in pairings if name in (p.red, p.blue)] for name in names}
    totals = {name: _totals(name, by_entry[name]) for name in names}
    rating = {name: round(rated[name].value, 2) for name in names}
    places: dict[str, tuple[float, ...]] = {}
    for name in names:
        tied = {other for other in names if rating[other] == rating[name]}
        tie = _totals(name, [p for p in by_entry[name] if {p.red, p.blue} <= tied])
        places[name] = rating[name], tie["win"] + tie["draw"] / 2, totals[name]["win"], totals[name]["margin"]
    order = sorted(names, key=lambda name: (*(-part for part in places[name]), name))
    ranked, standings = [places[name] for name in order], list[Standing]()
    for name, following in zip_longest(order, ranked[1:]):
        parts = zip(_DECIDERS, places[name], following or (), strict=False)
        differing = (decider for decider, upper, other in parts if upper != other)
        total = totals[name]
        standings.append(
            Standing(
                rank=ranked.index(places[name]) + 1,
                name=name,
                rating=rating[name],
                low=round(rated[name].low, 2),
                high=round(rated[name].high, 2),
                points=total["win"] + total["draw"] / 2,
                **total,
                forfeited=sum(p.count("r" if name == p.red else "b") for p in by_entry[name]),
                decided_by=next(differing, "nothing") if following else "last",
            )
        )
    return standings
