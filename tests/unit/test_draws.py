"""Who is ahead where returns differ by the order in which floats were added up: nobody, in every judge of a game."""

from types import SimpleNamespace

import numpy as np
import pytest

from multigrid_rl.envs.pettingzoo import ZooSpec
from multigrid_rl.metrics import ahead
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.places import place_of

UP, DOWN = np.array([0.1 + 0.2 + 0.3]), np.array([0.3 + 0.2 + 0.1])


@pytest.mark.parametrize(
    ("one", "other", "sign"),
    [(UP, DOWN, 0), (DOWN, UP, 0), (1e9 + 1e-4, 1e9, 0), (2e-6, 0, 1), (1e9, 1e9 + 1, -1)],
)
def test_ahead_is_who_is_so_by_more_than_rounding(one, other, sign):
    assert np.all(ahead(np.asarray(one, float), np.asarray(other, float)) == sign)


def test_game_of_equal_sums_of_returns_is_a_draw():
    teams = {"up_0": "up", "down_0": "down"}
    spec = ZooSpec("pettingzoo:strange_games:wages", {}, teams, wins=True)
    players = {seat: place_of(spec).scripted(spec, "random", seat) for seat in teams}
    played = play_games(spec, players, 3, seed=0)
    assert played.table.returns[0].tolist() == [*UP, *DOWN]
    assert played.table.winner.tolist() == [-1, -1, -1]


def test_league_scores_equal_sums_of_returns_as_a_draw():
    from multigrid_rl.league.snapshots import RunLeague  # noqa: PLC0415 - an add-on may be left out

    scores = []
    league = SimpleNamespace(_winner=False, _team=0, _own=np.array([True, False]), _column=0, metrics=dict)
    league.record = lambda players, points: scores.extend(points.tolist())
    table = SimpleNamespace(
        winner=np.full(3, -1), returns=np.array([[*UP, *DOWN], [*DOWN, *UP], [1, 0]]), players=np.zeros((3, 1))
    )
    RunLeague.take(league, table)
    assert scores == [0.5, 0.5, 1.0]


def test_cup_of_three_sides_places_equal_sums_of_returns_alike():
    from multigrid_rl.competition.cup import _outcomes  # noqa: PLC0415 - an add-on may be left out

    config = SimpleNamespace(rated=True, games=1)
    assert _outcomes(config, None, UP, [DOWN, DOWN]) == ["D"]
    assert _outcomes(config, None, UP, [DOWN, np.zeros(1)]) == ["R"]
