"""Ratings: the cup's for the same games, free of order, with intervals that hold what they promise."""

import numpy as np
import pytest

from multigrid_rl.competition.standings import ratings
from multigrid_rl.evaluation.seed_statistics import student_quantiles
from multigrid_rl.serve.rating import PairingResult, compute_ratings

ANCHORS = [1, 2, 3]


def met(rng, strengths, pairs, games=100):
    """Both sides of each pair, of strengths on Elo's scale."""
    found = []
    for one, two in pairs:
        share = 1 / (1 + 10 ** ((strengths[two] - strengths[one]) / 400))
        for red, blue, chance in ((one, two, share), (two, one, 1 - share)):
            letters = "".join("RB"[int(rng.random() > chance)] for _ in range(games))
            found.append(PairingResult(red, blue, "", letters))
    return found


def against_anchors(strengths):
    names = sorted(strengths)
    return [(a, b) for k, a in enumerate(names) for b in names[k + 1 :] if a in ANCHORS]


STRENGTHS = {1: 900.0, 2: 1000.0, 3: 1100.0, 4: 1050.0, 5: 1200.0}


def test_free_of_order_and_of_who_else_is_there():
    rng = np.random.default_rng(0)
    games = met(rng, STRENGTHS, against_anchors(STRENGTHS))
    first = compute_ratings(games, ANCHORS)
    shuffled = [games[k] for k in rng.permutation(len(games))]
    assert compute_ratings(shuffled, ANCHORS) == first
    alone = [game for game in games if 5 not in game[:2]]
    assert {name: rated for name, rated in first.items() if name != 5} == compute_ratings(alone, ANCHORS)


def test_anchors_keep_their_ratings():
    rng = np.random.default_rng(1)
    among = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3)])
    fixed = compute_ratings(among, ANCHORS)
    assert np.mean([fixed[name].value for name in ANCHORS]) == pytest.approx(1000, abs=0.01)
    later = compute_ratings(among + met(rng, STRENGTHS, [(1, 5), (2, 5), (4, 5), (1, 4)]), ANCHORS)
    assert {name: later[name] for name in ANCHORS} == fixed
    assert later.keys() == STRENGTHS.keys()


def test_same_model_as_a_cup():
    games = met(np.random.default_rng(2), STRENGTHS, [(1, 2), (1, 3), (2, 3)])
    by_pair = {}
    for red, blue, _, letters, *_ in games:
        rows = np.array([[letter == wanted for wanted in "RDB"] for letter in letters], np.int64)
        one, two = sorted((red, blue))
        counts = rows if red == one else rows[:, ::-1]
        by_pair[str(one), str(two)] = by_pair.get((str(one), str(two)), 0) + counts
    cup = ratings(["1", "2", "3"], by_pair, np.random.default_rng(0))
    for name, mine in compute_ratings(games, ANCHORS).items():
        assert mine.value == pytest.approx(cup[str(name)].value, abs=0.02)


def test_intervals_hold_the_truth_19_times_of_20():
    rng, inside, trials, widths = np.random.default_rng(3), 0, 200, []
    pairs = [(name, 9) for name in ANCHORS]
    # Anchors' ratings are exact here, as a course takes them to be.
    among = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3)], games=5_000)
    for _ in range(trials):
        rated = compute_ratings(among + met(rng, STRENGTHS | {9: 1080.0}, pairs, games=50), ANCHORS)[9]
        inside += rated.low <= 1080 <= rated.high
        widths.append(rated.high - rated.low)
    assert 0.91 * trials < inside < 0.99 * trials
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 400 / np.log(10) / np.sqrt(300 * 0.23), rel=0.1)


def test_who_won_everything_has_a_rating_and_an_interval():
    rng = np.random.default_rng(4)
    games = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3)]) + met(rng, STRENGTHS | {9: 9000.0}, [(1, 9), (2, 9), (3, 9)])
    best = compute_ratings(games, ANCHORS)[9]
    assert 1500 < best.low < best.value < best.high < 3000


def test_forfeits_are_losses_and_games_of_nobody_are_none():
    rng = np.random.default_rng(5)
    games = met(rng, STRENGTHS, [(1, 2), (1, 3), (2, 3), (1, 4)])
    out = [g._replace(outcomes="-" * 100) if 4 in g[:2] else g for g in games]
    assert compute_ratings(out, ANCHORS)[4].games == 0
    lost = "r" * 100
    gone = [g._replace(outcomes=lost) if g.red == 4 else g for g in games]
    assert compute_ratings(gone, ANCHORS)[4].value < compute_ratings(games, ANCHORS)[4].value


def test_returns_are_the_rating_where_nobody_wins():
    rows = {1: [1.0, 2.0, 3.0, 4.0], 2: [2.0, 3.0, 4.0, 5.0], 4: [5.0, 5.0, 0.0, 0.0]}
    none = [0.0] * 4
    games = [PairingResult(n, 0, "", "DDrr" if n == 4 else "DDDD", its, none) for n, its in rows.items()]
    found = compute_ratings(games, [1, 2], by_wins=False)
    assert [found[n].value for n in rows] == [2.5, 3.5, 3.0]  # forfeited games count as the worst of all, 1.0


def test_intervals_are_students():
    known = {1: 12.706, 2: 4.303, 3: 3.182, 9: 2.262, 99: 1.984}  # of any table
    assert student_quantiles(np.array([*known])) == pytest.approx([*known.values()], rel=0.002)


def test_friends_who_lose_on_purpose_do_not_lift_a_rating_from_anchors_alone():
    rng = np.random.default_rng(2)
    strengths = STRENGTHS | {4: 1100.0} | dict.fromkeys((6, 7, 8), 1100.0)
    games = met(rng, strengths, against_anchors(strengths))
    lost = [PairingResult(4, k, side, "R" * 100) for k in (6, 7, 8) for side in ("", "other")]
    every, alone = compute_ratings([*games, *lost], ANCHORS)[4], compute_ratings(games, ANCHORS)[4]
    assert every.value > alone.high + 40
    assert alone.low < 1100 < alone.high
