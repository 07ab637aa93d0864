"""How strong a player is does not depend on the side it was given, and whole teams are measured as such."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bundles import bundle, network
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer
from multigrid_rl.players.factories import match_of, seat_players
from multigrid_rl.players.freeze import measure, playable_teams, team_players
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.scripted import RandomPlayer
from multigrid_rl.types import GameSpec, Rules

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


def test_random_against_random_wins_as_often_as_it_loses():
    found = result("random", "random", episodes=2000)
    decided = 2000 * (found.win + found.loss)
    assert abs(found.win - found.loss) * 2000 <= 4 * decided**0.5
    assert found.win > 0.2


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
