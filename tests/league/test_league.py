"""A league's arithmetic against numbers worked out by hand: weights, win rates, who joins, who plays."""

import numpy as np
import pytest

from multigrid_rl import tables
from multigrid_rl.config.compose import compose
from multigrid_rl.league import rules
from multigrid_rl.league.league import RECENT, League, Snapshot, add_scores
from multigrid_rl.league.rules import draw, nash
from multigrid_rl.league.settings import LeagueConfig
from multigrid_rl.runs.checkpoints import read_state
from multigrid_rl.text import ConfigError

RULES = LeagueConfig(
    anchors={"random": 1, "idle": 3}, anchor_share=0.2, latest_share=0.0, weighting="uniform", every=1000, win=None,
    win_over="pool", most=4, redraw=500,
)  # fmt: skip


def league(**changes) -> League:
    return League(RULES.model_copy(update=changes), seed=3)


def snapshot(env_steps: int) -> Snapshot:
    return Snapshot(f"step_{env_steps:09d}", env_steps, {"red_0": "0" * 64})


def with_snapshots(number: int, **changes) -> League:
    one = league(**changes)
    for k in range(number):
        one.add(snapshot(1000 * (k + 1)))
    return one


# --- weights


def shares(win, weighting, latest_share=0.0, payoffs=None):
    return rules.shares(win, weighting, latest_share, payoffs)


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        ("squared", [0.64, 0.25, 0.0]),  # (1 - x)^2
        ("variance", [0.16, 0.25, 0.0]),  # x (1 - x)
        ("linear", [0.8, 0.5, 0.0]),  # 1 - x
        ("linear_capped", [0.5, 0.5, 0.0]),  # min(.5, 1 - x)
    ],
)
def test_prioritised_weights_by_hand(weighting, weights):
    found = shares(np.array([0.2, 0.5, 1.0]), weighting)
    np.testing.assert_allclose(found, 0.9 * np.array(weights) / sum(weights) + 0.1 / 3)
    assert found.sum() == pytest.approx(1)


def test_plain_weights_by_hand():
    win = np.array([0.2, 0.5, 1.0])
    np.testing.assert_allclose(shares(win, "uniform"), 1 / 3)
    np.testing.assert_allclose(shares(win, "latest"), [0, 0, 1])
    np.testing.assert_allclose(shares(win, "uniform", latest_share=0.4), [0.2, 0.2, 0.6])


def test_unbeaten_learner_meets_all_equally():
    np.testing.assert_allclose(shares(np.ones(4), "squared"), 0.25)


@pytest.mark.parametrize(
    ("payoffs", "mixture"),
    [
        ([[0.5]], [1]),
        ([[0.5, 0.5], [0.5, 0.5]], [0.5, 0.5]),  # level: alike
        ([[0.5, 0.3], [0.7, 0.5]], [0, 1]),  # one beats the other
        ([[0.5, 0, 1], [1, 0.5, 0], [0, 1, 0.5]], [1 / 3, 1 / 3, 1 / 3]),  # a circle
        # A circle in which one win is half as clear, and one whom all beat.
        ([[0.5, 0.25, 1, 1], [0.75, 0.5, 0, 1], [0, 1, 0.5, 1], [0, 0, 0, 0.5]], [0.4, 0.4, 0.2, 0]),
    ],
)
def test_nash_mixtures_by_hand(payoffs, mixture):
    found = nash(np.array(payoffs, float))
    np.testing.assert_allclose(found, mixture, atol=1e-6)
    assert (found @ payoffs >= 0.5 - 1e-6).all()


def test_league_plays_nash_mixture_of_recorded_wins():
    one = league(weighting="nash", anchor_share=0.5)
    one.add(snapshot(1000))
    one.record(np.full(200, 2, np.int16), np.tile([1.0, 1.0, 1.0, 0.0], 50))  # the second beats the first
    one.add(snapshot(2000))
    one.redraw(2500)
    assert one.weights[2] == pytest.approx(0.5 * 0.05)  # a tenth of a half goes to both alike
    assert one.weights[3] == pytest.approx(0.5 * 0.95)
    other = league(weighting="nash", anchor_share=0.5)
    other.set_state(one.get_state())
    other.redraw(2500)
    assert other.weights == one.weights
    one.lost.append(3)
    one.redraw(3000)
    assert one.weights[2] == pytest.approx(0.5)


def test_opponent_rule_from_outside_is_one_entry(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(
        "from multigrid_rl.league.rules import Rule\nEASIEST = Rule(lambda win, _: win == win.max(), checks=0.0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tables.WEIGHTINGS, "easiest", "my_rules:EASIEST")
    settings = compose(["scenario=1v1-league", "scenario.league.weighting=easiest"]).scenario.league
    np.testing.assert_allclose(shares(np.array([0.2, 0.9, 0.5]), settings.weighting), [0, 1, 0])
    with pytest.raises(ConfigError, match=r"^scenario\.league\.weighting: expected one of .*, easiest, got hardest"):
        compose(["scenario=1v1-league", "scenario.league.weighting=hardest"])


# --- who plays


def test_drawn_snapshots_by_hand():
    # Points (0 + .5) / 2 and (1 + .5) / 2 lie in the stretches [.2, .6) and [.6, 1).
    np.testing.assert_allclose(draw(np.array([0.2, 0.4, 0.4]), 2, 0.5), [0, 0.5, 0.5])
    # Points .05 and .55.
    np.testing.assert_allclose(draw(np.array([0.2, 0.4, 0.4]), 2, 0.1), [0.5, 0.5, 0])
    # Points .175, .425, .675 and .925: three of them in [.1, .7).
    np.testing.assert_allclose(draw(np.array([0.1, 0.6, 0.1, 0.1, 0.1]), 4, 0.7), [0, 0.75, 0, 0, 0.25])


def test_average_play_matches_shares():
    share = np.array([0.05, 0.15, 0.3, 0.04, 0.46])
    drawn = [draw(share, 3, number) for number in np.linspace(0, 1, 3000, endpoint=False)]
    np.testing.assert_allclose(np.mean(drawn, axis=0), share, atol=1e-3)
    assert all((row > 0).sum() <= 3 for row in drawn)


def test_anchors_play_alone_until_first_snapshot():
    one = league()
    assert one.weights == {0: 0.25, 1: 0.75}
    one.redraw(500)
    assert one.weights == {0: 0.25, 1: 0.75}
    one.add(snapshot(1000))
    one.redraw(1000)
    assert one.weights == pytest.approx({0: 0.05, 1: 0.15, 2: 0.8})


def test_newest_snapshot_has_its_share_of_all_games():
    one = with_snapshots(3, latest_share=0.5)
    one.redraw(3000)
    assert one.weights == pytest.approx({0: 0.05, 1: 0.15, 2: 0.1, 3: 0.1, 4: 0.6})


def test_lineup_depends_only_on_seed_and_step():
    one, two, other = (League(RULES, seed) for seed in (3, 3, 4))
    for each in (one, two, other):
        for k in range(50):
            each.add(snapshot(1000 * (k + 1)))
    one.redraw(60_000)
    for each in (one, two, other):
        each.redraw(61_000)
    assert one.weights == two.weights != other.weights


# --- win rates


def test_counts_fade_by_hand():
    # 1, then 0, then a draw: games 1 -> .99 + 1 -> 1.99 * .99 + 1, points 1 -> .99 -> .99^2 + .5.
    games, points = add_scores(0.0, 0.0, np.array([1.0, 0.0, 0.5]))
    assert (games, points) == pytest.approx((2.9701, 1.4801))
    assert add_scores(*add_scores(0.0, 0.0, np.array([1.0])), np.array([0.0, 0.5])) == pytest.approx((games, points))
    assert add_scores(3.0, 2.0, np.empty(0)) == (3.0, 2.0)


def test_win_rates_by_opponent():
    one = with_snapshots(1)
    assert one.win_rates().tolist() == [0.5, 0.5, 0.5]  # unplayed
    one.record(np.array([0, 2, 0], np.int16), np.array([1.0, 0.5, 1.0]))
    assert one.win_rates().tolist() == [1.0, 0.5, 0.5]
    one.record(np.array([2], np.int16), np.array([0.0]))
    assert one.win_rates()[2] == pytest.approx(0.99 * 0.5 / 1.99)
    assert one.metrics() == {"league/size": 3.0, "league/min_win": pytest.approx(0.99 * 0.5 / 1.99)}


# --- who joins


def test_joins_by_steps():
    one = league()
    assert [one.due(step) for step in (999, 1000, 1512)] == [False, True, True]
    one.add(snapshot(1512))
    assert [one.due(step) for step in (2511, 2512)] == [False, True]


def test_joins_by_last_episodes():
    one = league(every=None, win=0.85, win_over="episodes")
    one.record(np.zeros(RECENT - 1, np.int16), np.ones(RECENT - 1))
    assert not one.due(10**9)
    one.record(np.array([0], np.int16), np.array([0.0]))
    assert one.due(1)
    one.record(np.zeros(30, np.int16), np.repeat([0.0, 0.5], [14, 16]))
    assert not one.due(2)  # 69 wins and 16 draws
    one.record(np.zeros(RECENT, np.int16), np.ones(RECENT))
    one.add(snapshot(3))
    assert not one.due(4)  # it has not played yet
    one.redraw(5)
    assert not one.due(6)
    one.record(np.zeros(RECENT, np.int16), np.ones(RECENT))
    assert one.due(7)


def test_joins_by_hardest_current_opponent():
    one = league(every=None, win=0.7)
    both = np.repeat(np.array([0, 1], np.int16), 60)
    one.record(both, np.repeat([1.0, 0.6], 60))
    assert not one.due(1)
    one.record(both, np.repeat([1.0, 1.0], 60))
    assert one.due(2)
    one.add(snapshot(2))
    one.redraw(2)
    one.record(both, np.ones(120))
    assert not one.due(3)  # the newcomer was not met yet
    one.record(np.full(60, 2, np.int16), np.ones(60))
    assert one.due(4)


def test_joins_only_after_enough_games_against_each():
    one = league(every=None, win=0.7)
    one.record(np.zeros(RECENT, np.int16), np.ones(RECENT))
    one.record(np.ones(22, np.int16), np.ones(22))
    assert not one.due(1)  # they count as (1 - .99^22) / .01 = 19.8 games
    one.record(np.ones(1, np.int16), np.ones(1))
    assert one.due(2)


def test_redraws_on_schedule():
    one = league()
    assert [one.stale(step) for step in (499, 500)] == [False, True]
    one.redraw(500)
    assert not one.stale(512)
    one.add(snapshot(600))
    assert one.stale(600)  # the first one plays at once
    one.redraw(600)
    one.add(snapshot(700))
    assert [one.stale(step) for step in (700, 1099, 1100)] == [False, False, True]


def test_lost_snapshot_is_neither_played_nor_counted():
    one = with_snapshots(2)
    one.lost.append(2)
    one.redraw(2000)
    assert set(one.weights) == {0, 1, 3}
    assert one.metrics()["league/size"] == 3


def test_state_restores_league_completely():
    one = with_snapshots(9)
    one.record(np.array([0, 2, 5], np.int16), np.array([1.0, 0.5, 0.0]))
    one.lost.append(4)
    one.redraw(9000)
    two = league()
    two.set_state(one.get_state())
    for each in (one, two):
        each.record(np.array([5, 5], np.int16), np.array([1.0, 0.5]))
        each.add(snapshot(10_000))
        each.redraw(10_000)
    assert one.weights == two.weights
    assert one.metrics() == two.metrics()
    assert one.snapshots == two.snapshots


# --- configuration


def test_state_of_older_version_names_moved_modules(tmp_path):
    # As protocol 0 writes the class League of players/league.py, which is in league/ today.
    (tmp_path / "run.pkl").write_bytes(b"cmultigrid_rl.players.league\nLeague\n.")
    assert read_state(tmp_path).__module__ == "multigrid_rl.league.league"
