"""A run's folder stands wherever a player's name does: its newest players, on either side."""

import json
import shutil

import pytest

import multigrid_rl
from commands import call, complaint, works
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.runs.reader import opponent_hashes
from tiny_runs import TINY, rows_of, tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    tiny_run(home / "one", "scenario=1v1", "train.until=1024")
    tiny_run(home / "two", "scenario=2v2", "scheme=dtde", "experiment=none", "train.until=1024")
    tiny_run(home / "team", "scenario=2v2", "scheme=ctce", "experiment=none", "train.until=1024")
    return home


def folder_of(run, player="red_0"):
    return run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip() / "players" / player


@pytest.mark.parametrize("seat", ["red_0", "blue_0"])
def test_a_run_sits_on_either_side_as_its_newest_player(runs, seat):
    spec = load_scenario("1v1").kind.spec
    loaded = Catalogue().seat(str(runs / "one"), spec, seat)
    assert loaded.sha256 == read_card(folder_of(runs / "one")).sha256
    assert loaded.player.mirrored == (seat == "blue_0")


def test_seats_of_a_team_have_the_players_of_their_counterparts(runs):
    spec, catalogue = load_scenario("2v2").kind.spec, Catalogue()
    seated = {seat: catalogue.seat(str(runs / "two"), spec, seat) for seat in spec.seats}
    weights = {seat: next(iter(loaded.player.network.state_dict().values())) for seat, loaded in seated.items()}
    networks = {seat: weight.sum().item() for seat, weight in weights.items()}
    assert networks["blue_0"] == networks["red_0"] != networks["red_1"] == networks["blue_1"]
    assert len({loaded.sha256 for loaded in seated.values()}) == 1  # one name, one hash


def test_a_team_that_acts_as_one_plays_for_either_side(runs):
    assert multigrid_rl.evaluate(runs / "team", opponent=runs / "team", episodes=4)["episodes"] == 4


@pytest.mark.parametrize(("run", "scenario"), [("one", "1v1"), ("two", "2v2"), ("team", "2v2")])
def test_a_run_takes_part_in_a_cup(runs, tmp_path, run, scenario):
    (tmp_path / "none").mkdir()
    also = ["--with", runs / run, "--with", "random"]
    result = works("cup", tmp_path / "none", "--scenario", scenario, "--games", 2, "-o", tmp_path / "out", *also)
    assert set(json.loads(result.output.splitlines()[-1])["ranking"]) == {run, "random"}
    assert call("cup", "verify", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("inside", ["checkpoints", "checkpoints/latest", "checkpoints/step_000001024/players/red_0"])
def test_a_folder_inside_of_a_run_that_is_resumed_names_the_run(runs, inside):
    said = complaint(call("train", "--resume", runs / "one" / inside))
    assert "expected a run folder, got " in said
    assert said.endswith(f" (did you mean {runs / 'one'}?)")


def test_a_run_takes_part_in_every_function(runs):
    run, other = multigrid_rl.Run(runs / "one"), str(runs / "one")
    by_name = multigrid_rl.evaluate(run, opponent=f"{folder_of(runs / 'one')}/", episodes=20)
    assert {**multigrid_rl.evaluate(run, opponent=run, episodes=20), "against": 0} == {**by_name, "against": 0}
    assert multigrid_rl.evaluate("hunter", "scenario=1v1", opponent=run, episodes=4)["episodes"] == 4
    assert multigrid_rl.play(run, run, episodes=2).game.players["blue_0"] == other
    assert multigrid_rl.load_player(run, "blue_0").mirrored
    for players in ({"blue_0": run}, {"blue_0": {run: 3, "random": 1}}, {"blue_0": other}):
        env = multigrid_rl.make("1v1", players=players)
        env.reset(seed=0)
        env.step(2)


@pytest.mark.parametrize(("name", "seats"), [("one", "blue_0"), ("two", "blue_0 blue_1")])
def test_a_run_trains_against_a_run_and_goes_on_against_it(runs, tmp_path, name, seats):
    """Whether the seat is told by a key or by Python; the rows are those against the player's own folder."""
    against = {seat: multigrid_rl.Run(runs / name) for seat in seats.split()}
    game = [f"scenario={'1v1' if name == 'one' else '2v2'}", "scheme=dtde", "experiment=none", "train.until=1024"]
    run = multigrid_rl.train(None, *TINY, *game, players=against, run_dir=tmp_path / "run")
    assert set(opponent_hashes(run.path)) == {str(runs / name)}
    typed = [f"scenario.seats.{seat}={folder_of(runs / name, seat.replace('blue', 'red'))}/" for seat in against]
    _, rows = tiny_run(tmp_path / "by-folder", *game, *typed)
    key = "learner/red_0/policy_loss"
    assert [row[key] for row in rows_of(run.path)] == [row[key] for row in rows]
    assert multigrid_rl.train(resume=run, until=2048).verdict["env_steps"] == 2048


@pytest.mark.slow
def test_a_run_is_handed_to_other_processes(runs, tmp_path):
    seat = f"scenario.seats.blue_0={runs / 'one'}"
    verdict, _ = tiny_run(tmp_path / "run", "scenario=1v1", seat, "cluster.num_env_runners=1", "train.until=1024")
    assert verdict["env_steps"] == 1024


def test_a_run_is_an_opponent_on_the_command_line(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs)
    works("evaluate", "hunter", "scenario=1v1", "--opponent", "one", "--episodes", "4", "-o", tmp_path / "e")
    against = call("evaluate", "one", "--opponent", "./team", "--episodes", "4", "-o", tmp_path / "f")
    assert "does not fit" in complaint(against)


def test_a_run_that_is_no_player_says_why(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "new", ignore=lambda *_: {"checkpoints"})
    with pytest.raises(PlayerError, match=r"new: expected a run with a checkpoint, got No such file"):
        multigrid_rl.evaluate("hunter", "scenario=1v1", opponent=tmp_path / "new", episodes=2)
    folder = tmp_path / "rllib"
    folder.mkdir()
    (folder / "rllib_checkpoint.json").write_text("{}")
    said = r"multigrid-rl export makes one of it, got .*rllib, a checkpoint of RLlib's$"
    with pytest.raises(PlayerError, match=said):
        multigrid_rl.evaluate(folder, episodes=2)
