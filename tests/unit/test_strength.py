"""How strong players are, on either side and as whole teams, and how several take turns on a seat."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bundles import bundle, network
from games import Always
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer
from multigrid_rl.players.factories import match_of, seat_players
from multigrid_rl.players.freeze import measure, playable_teams, team_players
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import Match
from multigrid_rl.players.pool import OpponentPool
from multigrid_rl.players.scripted import RandomPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.types import GameSpec, Rules, SeatView
from multigrid_rl.world.constants import DONE

DUEL = load_scenario("1v1").spec
FOUR = GameSpec(blue=2, red=2, random_keys=False, max_steps=30)
NOBODY = Catalogue(Path("nowhere"))


def result(name: str, opponent: str, spec: GameSpec = DUEL, episodes: int = 1000, catalogue: Catalogue = NOBODY):
    return measure(catalogue, playable_teams(catalogue, name, spec), opponent, spec, "some", episodes)


def save(root: Path, name: str, seats: list[str], members: int = 1) -> None:
    sha = read_card(bundle(root / name, seats, members, scenario="2v2")).sha256
    Catalogue(root).add(name, {"scenario": "2v2", "seats": seats, "sha256": sha})


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A team with a joint action, and one player that has learned red_0 alone."""
    path = tmp_path_factory.mktemp("players")
    save(path, "team", ["red_0", "red_1"], members=2)
    save(path, "alone", ["red_0"])
    return path


# --- sides


@pytest.mark.parametrize("rules", [Rules.classic(), Rules()], ids=["classic", "fair"])
def test_player_against_itself_is_even(rules):
    # Under the classic rules blue is handled first and wins four of five games between key-runners (test_players.py).
    found = result("key-runner", "key-runner", replace(DUEL, rules=rules))
    assert found.win == pytest.approx(0.5, abs=0.07)
    assert found.loss == pytest.approx(0.5, abs=0.07)


def test_opponent_result_is_mirrored():
    hunter, runner = result("hunter", "key-runner"), result("key-runner", "hunter")
    assert hunter.win == pytest.approx(runner.loss, abs=0.06)
    assert hunter.loss == pytest.approx(runner.win, abs=0.06)
    assert abs(hunter.win - hunter.loss) > 0.1  # they are not equally strong, so that a swap would show


@pytest.mark.parametrize("episodes", [1, 2, 7])
def test_odd_number_of_games_is_counted_once_each(episodes):
    found = result("hunter", "idle", episodes=episodes)
    assert (found.episodes, found.win, found.draw, found.loss) == (episodes, 1.0, 0.0, 0.0)


def test_player_plays_alone_without_blue_team():
    spec = load_scenario("single").spec
    found = result("key-runner", "nobody at all", spec, episodes=5)
    assert (found.win, found.length_mean) == (1.0, 13.0)


# --- teams


def test_player_fills_every_seat_of_its_team():
    players = team_players(NOBODY, "hunter", FOUR, "blue")
    assert {seat: player.name for seat, player in players.items()} == {"blue_0": "hunter", "blue_1": "hunter"}


@pytest.mark.parametrize(("team", "mirrored"), [("red", False), ("blue", True)])
def test_random_fills_seats_unfit_for_player(team, mirrored, root):
    players = team_players(Catalogue(root), "alone", FOUR, team)
    assert {seat: player.name for seat, player in players.items()} == {f"{team}_0": "alone", f"{team}_1": "random"}
    assert players[f"{team}_0"].mirrored is mirrored


@pytest.mark.parametrize(("team", "mirrored"), [("red", False), ("blue", True)])
def test_team_player_is_one_player_for_whole_team(team, mirrored, root):
    ((name, player),) = team_players(Catalogue(root), "team", FOUR, team).items()
    assert (name, player.members, player.mirrored) == (team, 2, mirrored)


def test_team_player_is_measured_from_both_sides(root):
    found = result("team", "random", FOUR, episodes=21, catalogue=Catalogue(root))
    assert found.win + found.draw + found.loss == pytest.approx(1, abs=2e-4)
    assert found == result("team", "random", FOUR, episodes=21, catalogue=Catalogue(root))


def test_rejects_player_that_fits_nowhere(root):
    with pytest.raises(PlayerError, match=r"^player team does not fit seat red_0: members: .* got 2$"):
        result("team", "random", episodes=4, catalogue=Catalogue(root))


def test_team_player_acts_by_logits_of_each_member():
    games, net = 12, network(members=2)
    match = match_of(
        FOUR, {"red": FrozenPlayer("team", net, "", members=2, greedy=True), "blue_0": RandomPlayer()}, games
    )
    assert match.seats == ("blue_1",)
    seen = []
    for _ in range(25):
        tokens = match.env.world.outputs.tokens[:, 2:].reshape(games, -1).copy()
        match.step({"blue_1": np.full(games, 6)})
        with torch.no_grad():
            wanted = net(torch.from_numpy(tokens))[0].view(games, 2, 7).argmax(2)
        assert match.env.actions[:, 2:].tolist() == wanted.tolist()
        seen.append(wanted.numpy())
    assert (np.array(seen)[..., 0] != np.array(seen)[..., 1]).any()


TEAM = LoadedPlayer(FrozenPlayer("team", network(2), "", members=2), "team")
RANDOM = LoadedPlayer(RandomPlayer(), "random")


@pytest.mark.parametrize(
    ("seated", "message"),
    [
        ({"red_0": (TEAM,)}, r"^scenario\.seats\.red_0=team: .*, got red_0: team 100%, red_1: learn$"),
        ({"red_0": (TEAM,), "red_1": (RANDOM,)}, r"^scenario\.seats\.red_0=team: .* red_1: random 100%$"),
        ({"red_0": (TEAM, RANDOM), "red_1": (TEAM, RANDOM)}, r"^scenario\.seats\.red_0=team\+random: expected"),
    ],
    ids=["part", "beside another", "in turns with another"],
)
def test_rejects_team_player_without_whole_team(seated, message):
    with pytest.raises(PlayerError, match=message):
        seat_players(FOUR, seated)


# --- several players take turns on a seat


LENGTH = 3
SPEC = GameSpec(max_steps=LENGTH)
SHORT_FOUR = GameSpec(blue=2, red=2, random_keys=False, max_steps=LENGTH)


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


def test_drawn_opponent_depends_only_on_seed_and_game_number():
    many = opponents(match_of(SPEC, {"blue_0": pool(1, 1, 1)}, 16, seed=6), 60)
    one = opponents(match_of(SPEC, {"blue_0": pool(1, 1, 1)}, 1, seed=6, first=11), 60)
    other = opponents(match_of(SPEC, {"blue_0": pool(1, 1, 1)}, 1, seed=7, first=11), 60)
    assert many[:, 11].tolist() == one[:, 0].tolist()
    assert one.tolist() != other.tolist()
    assert len(set(one.flatten().tolist())) == 3


def test_team_mates_share_draw_and_teams_draw_separately():
    players = {seat: pool(1, 1, 1) for seat in SHORT_FOUR.seats}
    match = match_of(SHORT_FOUR, players, 200, seed=4)
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


def test_state_of_earlier_version_goes_on():
    whole, again = (match_of(SPEC, {"blue_0": pool(1, 1)}, 8, seed=3) for _ in range(2))
    opponents(whole, 4)
    whole.drain_episodes()
    state = whole.get_state()
    again.set_state({**state["env"], "memories": state["memories"], "streams": state["streams"]})
    assert opponents(again, 20).tolist() == opponents(whole, 20).tolist()
    np.testing.assert_equal(again.drain_episodes(), whole.drain_episodes())
