"""Several players take turns on a seat: how often, who decides, and what they remember."""

from pathlib import Path

import numpy as np
import pytest

from games import Always
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.factories import MatchFactory, match_of
from multigrid_rl.players.match import Match
from multigrid_rl.players.pool import OpponentPool
from multigrid_rl.streams import Streams
from multigrid_rl.types import GameSpec, SeatView
from multigrid_rl.world.constants import DONE

LENGTH = 3
SPEC = GameSpec(max_steps=LENGTH)
FOUR = GameSpec(blue=2, red=2, random_keys=False, max_steps=LENGTH)


def pool(*weights: float) -> OpponentPool:
    """Player k turns left or right or waits: its action is k."""
    return OpponentPool([Always(k) for k in range(len(weights))], weights)


def opponents(match: Match, steps: int, seat: str = "blue_0") -> np.ndarray:
    """(steps, N) what ``seat`` played, all focal seats idle."""
    agent, played = match.env.spec.seats.index(seat), []
    for _ in range(steps):
        match.step(dict.fromkeys(match.seats, np.full(match.num_envs, DONE)))
        played.append(match.env.actions[:, agent].copy())
    return np.array(played)


def test_player_whose_memory_is_no_array_cannot_take_turns():
    class Remembers(Always):
        def initial_state(self, games):
            return {"steps": np.zeros(games)}

    with pytest.raises(PlayerError, match=r"initial_state: expected one array with a row for each game, .* got dict"):
        match_of(SPEC, {"blue_0": OpponentPool([Always(0), Remembers(1)], (1, 1))}, 2)


@pytest.mark.parametrize("weights", [(3, 1), (1, 1, 2), (0.2, 0.3, 0.5), (7,)])
def test_game_shares_follow_weights(weights):
    games, rounds = 400, 10
    played = opponents(match_of(SPEC, {"blue_0": pool(*weights)}, games, seed=1), LENGTH * rounds)[::LENGTH]
    total = games * rounds
    counts = np.bincount(played.flatten(), minlength=len(weights))
    shares = np.array(weights) / sum(weights)
    assert (np.abs(counts - total * shares) <= 4 * np.sqrt(total * shares * (1 - shares))).all()


def test_early_ending_games_draw_without_affecting_others():
    match = match_of(GameSpec(max_steps=40), {"blue_0": pool(1, 1)}, 32, seed=3)
    rng = np.random.default_rng(1)
    before, ended = None, np.zeros(32, bool)
    for _ in range(200):
        done = match.step({"red_0": rng.integers(0, 7, 32)}).done.copy()
        now = match.env.actions[:, 0].copy()
        if before is not None:
            assert (now[~ended] == before[~ended]).all()
        before, ended = now, done


def test_drawn_opponent_depends_only_on_seed_and_game_number():
    many = opponents(match_of(SPEC, {"blue_0": pool(1, 1, 1)}, 16, seed=6), 60)
    one = opponents(match_of(SPEC, {"blue_0": pool(1, 1, 1)}, 1, seed=6, first=11), 60)
    other = opponents(match_of(SPEC, {"blue_0": pool(1, 1, 1)}, 1, seed=7, first=11), 60)
    assert many[:, 11].tolist() == one[:, 0].tolist()
    assert one.tolist() != other.tolist()
    assert len(set(one.flatten().tolist())) == 3


def test_team_mates_share_draw_and_teams_draw_separately():
    players = {seat: pool(1, 1, 1) for seat in FOUR.seats}
    match = match_of(FOUR, players, 200, seed=4)
    columns = []
    for _ in range(LENGTH * 5):
        match.step({})
        columns.append(match.env.actions.copy())
    blue_0, blue_1, red_0, red_1 = np.moveaxis(np.array(columns), 2, 0)
    assert (blue_0 == blue_1).all()
    assert (red_0 == red_1).all()
    assert (blue_0 == red_0).mean() == pytest.approx(1 / 3, abs=0.06)  # 1000 draws: four standard deviations


def test_players_compute_only_own_games_and_forget_finished():
    team, games = pool(1, 1), 8
    opponents(match_of(SPEC, {"blue_0": team}, games, seed=1), 9)
    for player in team.players.values():
        assert [set(row) for row in player.seen] == [{t % LENGTH} for t in range(9)]
    one, two = (player.seen for player in team.players.values())
    assert [len(mine) + len(others) for mine, others in zip(one, two, strict=True)] == [games] * 9


def test_added_players_join_later_games_and_leave_after_them():
    team = pool(1, 0)
    state = team.update({7: Always(7)}, {7: 1.0}, team.initial_state(6))
    assert (state.chosen.tolist(), team.name) == ([0] * 6, "always-0+always-1+always-7")
    team.assign(state, np.array([True, False] * 3), np.full(6, 0.5))
    assert state.chosen.tolist() == [7, 0] * 3
    rng = Streams(1, np.arange(6, dtype=np.int64))
    view = SeatView(np.zeros((6, 3), np.uint8), None, 0)
    actions, state = team.act(view, state, rng)
    assert actions[:, 0].tolist() == [7, 0] * 3
    assert state.states[7].tolist() == [1, 0] * 3
    state = team.update({5: Always(5)}, {5: 3.0, 1: 1.0}, state)  # 7 has no weight any more, and three games
    assert (list(team.players), team.weights) == ([0, 1, 5, 7], (0.0, 1.0, 3.0, 0.0))
    assert state.states[7].tolist() == [1, 0] * 3
    team.assign(state, np.ones(6, bool), np.array([0, 0.24, 0.26, 0.5, 0.9, 0.9999]))
    assert state.chosen.tolist() == [1, 1, 5, 5, 5, 5]
    state = team.update({}, {5: 1.0}, state)
    assert list(team.players) == list(state.states) == [0, 1, 5]  # those of the beginning stay


def test_zero_weight_players_do_not_change_draws():
    drawn, weights = np.random.default_rng(1).random(1000), {0: 0.1, 2: 0.2, 9: 0.7}
    one, two = pool(1), pool(1)
    mine = one.update({n: Always(n) for n in (2, 9)}, weights, one.initial_state(1000))
    yours = two.update({n: Always(n) for n in (2, 4, 5, 9, 11)}, weights, two.initial_state(1000))
    for team, state in ((one, mine), (two, yours)):
        team.assign(state, np.ones(1000, bool), drawn)
    assert mine.chosen.tolist() == yours.chosen.tolist()


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [float("nan"), 1], [1, 2, 3]])
def test_rejects_impossible_weights(weights):
    with pytest.raises(ValueError, match=r"^weights: expected 2 numbers from 0 on, not all 0, got \["):
        pool(1, 1).weigh(weights)


def test_factory_seats_players_with_scenario_weights():
    factory = MatchFactory(FOUR, {"blue_0": {"random": 3, "idle": 1}, "blue_1": {"idle": 5}}, Path("no"), {}, seed=1)
    seated = factory.load()
    assert [(row.name, row.weight) for row in seated["blue_0"]] == [("random", 0.75), ("idle", 0.25)]
    assert [(row.name, row.weight) for row in seated["blue_1"]] == [("idle", 1.0)]
    players = factory.build(2, 0).env._players
    assert (type(players["blue_0"]), players["blue_1"].name) == (OpponentPool, "idle")


def test_state_of_earlier_version_goes_on():
    whole, again = (match_of(SPEC, {"blue_0": pool(1, 1)}, 8, seed=3) for _ in range(2))
    opponents(whole, 4)
    whole.drain_episodes()
    state = whole.get_state()
    again.set_state({**state["env"], "memories": state["memories"], "streams": state["streams"]})
    assert opponents(again, 20).tolist() == opponents(whole, 20).tolist()
    np.testing.assert_equal(again.drain_episodes(), whole.drain_episodes())
