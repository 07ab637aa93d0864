"""Cups in any game: from every side, in roles, among three, and where nobody meets; grading by the same rubrics."""

import csv
import json
import shutil

import numpy as np
import pytest

from bundles import game_bundle
from commands import call, complaint, works
from multigrid_rl.competition import cup as cups
from multigrid_rl.evaluation.cup_results import read_results
from multigrid_rl.files import data_root
from multigrid_rl.types import RunError

TABLES = ("results.json", "standings.csv", "games.csv")
AUCTION = ("env_id=pettingzoo:strange_games:auction", "scenario.symmetric=[[bidder_0,bidder_1,bidder_2]]")


def cup(folder, output, *options, games=10):
    result = works("cup", folder, "--games", games, "--seed", 5, "-o", output, *options)
    assert call("cup", "verify", output).exit_code == 0
    return read_results(output / "results.json"), result.output


def games_of(output):
    return list(csv.DictReader((output / "games.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def tictactoe(tmp_path_factory):
    """Two sound entries, and one whose file is torn."""
    folder = tmp_path_factory.mktemp("tictactoe")
    for seed, name in enumerate(("ada", "bob", "eve"), 1):
        game_bundle(folder / name, "player_1", seed, "scenario=tictactoe")
    model = folder / "eve" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-40])
    return folder


@pytest.fixture(scope="module")
def played(tictactoe, tmp_path_factory):
    output = tmp_path_factory.mktemp("cup") / "out"
    return output, *cup(tictactoe, output, "--scenario", "tictactoe", "--with", "random")


def test_cup_from_both_seats_of_tictactoe(played):
    output, found, printed = played
    assert {(side.red, side.blue) for side in found.sides} == {
        (one, two) for one in ("ada", "bob", "random") for two in ("ada", "bob", "random") if one != two
    }
    assert "ada (player_1) - bob (player_2): " in printed
    assert (found.teams, found.unranked) == (["player_1", "player_2"], ["eve"])
    assert sum(row.games for row in found.standings) == 2 * 60
    winners = {row["winner"]: float(row["return_player_1"]) for row in games_of(output)}
    assert {"player_1": 1.0, "player_2": -1.0}.items() <= winners.items()
    page = (output / "report.html").read_text()
    assert "Rows play player_1" in page
    assert "model.safetensors: expected the" in page
    assert "red" not in "".join(found.rules).replace("numbered", "")
    assert 'id="replay-data"' in page, "games that write themselves as text are stepped through"


def test_resumed_cup_ends_with_the_same_tables(played, tictactoe, tmp_path):
    output, *_ = played
    again = tmp_path / "again"
    shutil.copytree(output, again)
    for path in sorted((again / "pairings").iterdir())[:3]:
        path.unlink()
    _, printed = cup(tictactoe, again, "--scenario", "tictactoe", "--with", "random")
    assert printed.count("played before") == 3
    assert all((again / name).read_bytes() == (output / name).read_bytes() for name in TABLES)


@pytest.mark.slow
def test_copies_are_found_by_play_or_said_not_to_be(tictactoe, tmp_path):
    shutil.copytree(tictactoe, tmp_path / "in")
    game_bundle(tmp_path / "in" / "kim", "player_2", 1, "scenario=tictactoe")  # as ada, for the other seat
    game_bundle(tmp_path / "in" / "lee", "player_1", 2, "scenario=tictactoe", noise=0.02)  # as bob's, shaken a little
    found, _ = cup(tmp_path / "in", tmp_path / "out", "--scenario", "tictactoe", games=2)
    alike = {entry.name: entry.same_as for entry in found.entries}
    assert alike["kim"] == ["ada (the same)"]
    assert alike["lee"][0].startswith("bob (")
    assert alike["lee"][0] != "bob (the same)"
    assert alike["eve"] == []
    kuhn = "env_id=openspiel:kuhn_poker"
    for seed in (1, 2):
        game_bundle(tmp_path / "kuhn" / f"p{seed}", "player_0", seed, kuhn, seats=("player_1",))
    _, printed = cup(tmp_path / "kuhn", tmp_path / "kuhns", kuhn, games=2)
    assert "copies are found by content alone" in printed


def test_three_sides_seat_one_alone_against_two(tmp_path):
    for seed in (1, 2):
        game_bundle(tmp_path / "in" / f"p{seed}", "bidder_0", seed, *AUCTION)
    found, _ = cup(tmp_path / "in", tmp_path / "out", *AUCTION)
    assert {(side.red, side.side) for side in found.sides} == {
        (name, f"bidder_{k}") for name in ("p1", "p2") for k in range(3)
    }
    assert found.teams == ["alone", "others"]
    (pair,) = found.pairs
    assert pair.games == 60
    rows = games_of(tmp_path / "out")
    for (
        row
    ) in rows:  # a place, of who sits alone against the mean of the others: both earn nothing where they are equal
        alone, others = float(row["return_alone"]), float(row["return_others"])
        wanted = "nobody" if alone == 0 and others == 0 else "alone" if alone > 0 else None
        assert wanted in (None, row["winner"])
    assert {row["winner"] for row in rows} >= {"alone"}


def test_roles_are_played_by_those_that_have_them(tmp_path):
    tag = "scenario=simple-tag"
    game_bundle(tmp_path / "in" / "hunters", "adversary_0", 1, tag)
    game_bundle(tmp_path / "in" / "prey", "agent_0", 2, tag)
    game_bundle(tmp_path / "in" / "both" / "adversary_0", "adversary_0", 3, tag)
    game_bundle(tmp_path / "in" / "both" / "agent_0", "agent_0", 4, tag)
    found, _ = cup(tmp_path / "in", tmp_path / "out", "--scenario", "simple-tag", "--with", "random", games=3)
    assert not found.rated
    assert found.teams == ["adversaries", "prey"]
    rows = {row.name: row for row in found.returns}
    assert {name: set(row.sides) for name, row in rows.items()}["both"] == {"adversaries", "prey"}
    assert (rows["both"].forfeited, rows["hunters"].forfeited, rows["prey"].forfeited) == (0, 6, 6)
    assert {row.name for row in found.returns[:2]} == {"both", "random"}, "who forfeits a role is ranked behind"
    reasons = {entry.name: entry.reason for entry in found.entries}
    assert reasons["hunters"].startswith("cannot play prey: player hunters does not fit seat agent_0")
    assert "Mean returns of every pairing" in (tmp_path / "out" / "report.html").read_text()


def test_team_mates_alone_are_a_leaderboard_by_return(tmp_path):
    for seed in (1, 2):
        game_bundle(tmp_path / "in" / f"p{seed}", "agent_0", seed, "scenario=simple-spread")
    found, _ = cup(tmp_path / "in", tmp_path / "out", "--scenario", "simple-spread", games=4)
    assert [row.games for row in found.returns] == [4, 4]
    rows = games_of(tmp_path / "out")
    assert list(rows[0]) == ["agents", "game", "forfeited_by", "length", "return_agents"]
    means = {row.name: row.mean for row in found.returns}
    own = [float(row["return_agents"]) for row in rows if row["agents"] == "p1"]
    assert means["p1"] == pytest.approx(sum(own) / 4, abs=1e-5)


@pytest.mark.slow
def test_nobody_meets_in_an_environment_of_gymnasium(tmp_path):
    for name in ("cheetah-expert", "blue-adept"):
        shutil.copytree(data_root() / "checkpoints" / name, tmp_path / "in" / name)
    options = ("--scenario", "halfcheetah", "--with", "random", "--allow-copies")
    found, printed = cup(tmp_path / "in", tmp_path / "out", *options, games=2)
    assert [row.name for row in found.returns] == ["cheetah-expert", "random"]
    assert found.returns[0].low > found.returns[1].high
    assert "blue-adept does not fit this environment" in printed
    before = {name: (tmp_path / "out" / name).read_bytes() for name in TABLES}
    next((tmp_path / "out" / "pairings").glob("random*")).unlink()
    again = call("cup", tmp_path / "in", "--games", 2, "--seed", 5, "-o", tmp_path / "out", *options)
    assert again.output.count("played before") == 1
    assert {name: (tmp_path / "out" / name).read_bytes() for name in TABLES} == before
    assert "Leaderboard" in (tmp_path / "out" / "report.html").read_text()


def test_single_game_has_no_interval_and_results_that_are_strict_json(tmp_path):
    for seed in (1, 2):
        game_bundle(tmp_path / "in" / f"p{seed}", "agent_0", seed, "scenario=simple-spread")
    found, printed = cup(tmp_path / "in", tmp_path / "out", "--scenario", "simple-spread", games=1)
    assert np.isnan([[row.low, row.high] for row in found.returns]).all()
    assert printed.count(" (-) ") == 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count('<span class="range">-</span>') == 2
    assert ">nan" not in page
    assert json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=str)["returns"][0]["low"] is None


def test_player_that_breaks_an_environment_forfeits_alone(tmp_path, monkeypatch):
    whole = cups.play_games

    def play(spec, players, *rest, **more):
        if any(player.name == "cheetah-expert" for player in players.values()):
            raise RunError("env_id=HalfCheetah-v5: expected finite rewards, got NaN")
        return whole(spec, players, *rest, **more)

    shutil.copytree(data_root() / "checkpoints" / "cheetah-expert", tmp_path / "in" / "cheetah-expert")
    monkeypatch.setattr(cups, "play_games", play)
    options = ("--scenario", "halfcheetah", "--with", "random", "--allow-copies")
    found, _ = cup(tmp_path / "in", tmp_path / "out", *options, games=2)
    assert ([row.name for row in found.returns], found.unranked) == (["random"], ["cheetah-expert"])
    assert "expected finite rewards, got NaN" in found.entries[0].reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scenario", "tictactoe", "--with", "hunter"], "player: expected random, a folder or module:Class in pe"),
        (["--scenario", "unity"], "scenario.package: expected "),
        (["both", "more"], "expected one folder of entries, or verify and the folder of a cup"),
    ],
)
def test_impossible_cups_are_refused_in_one_line(tictactoe, tmp_path, options, said):
    assert said in complaint(call("cup", tictactoe, *options, "-o", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


RUBRIC = """
scenario: tictactoe
seed: 3
pass_points: 6
refuse_known: true
exams:
  - name: chance
    opponent: random
    sides: both
    episodes: 200
    checks:
      - {metric: win/*, at_least: 0.1, points: 4}
      - {metric: return_mean/*, from: -1, full: 1, points: 3}
      - {metric: entropy/*, at_most: 2.0, points: 1}
  - name: hidden
    opponent: secret
    episodes: 100
    checks: [{metric: episode_len_mean, at_least: 5, points: 2}]
"""


def graded(tictactoe, tmp_path, text=RUBRIC, name="ada", **more):
    if not (tmp_path / "secret").exists():
        game_bundle(tmp_path / "secret", "player_1", 7, "scenario=tictactoe")
    (tmp_path / "rubric.yaml").write_text(text)
    return call("grade", tictactoe / name, "--rubric", tmp_path / "rubric.yaml", *more.get("options", ()))


def test_grade_in_tictactoe(tictactoe, tmp_path):
    first, second = (json.loads(graded(tictactoe, tmp_path).output.splitlines()[-1]) for _ in range(2))
    assert first["exams"] == second["exams"]
    win, earned, entropy = first["exams"][0]["checks"]
    assert first["exams"][0]["episodes"] == 200
    assert 0 < win["value"] < 1
    assert -1 < earned["value"] < 1
    assert 0 <= entropy["value"] <= 2.2, "nats of at most nine choices"
    assert (first["exams"][1]["hidden"], first["same_as"]) == (True, [])
    broken = graded(tictactoe, tmp_path, name="eve")
    assert broken.exit_code == 1
    assert "model.safetensors" in json.loads(broken.output.splitlines()[-1])["problem"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed: 3", "team: red", "team: expected player_1 or player_2, got red"),
        ("opponent: secret", "opponent: blue-adept", "player blue-adept does not fit seat player_2"),
        ("opponent: random", "opponent: null", "opponent: expected a player, got None"),
        ("scenario: tictactoe", "scenario: simple-tag", "exams.0.checks: expected a metric of this scenario"),
    ],
)
def test_rubrics_that_do_not_fit_the_game_are_refused(tictactoe, tmp_path, old, new, said):
    assert said in complaint(graded(tictactoe, tmp_path, RUBRIC.replace(old, new)))
