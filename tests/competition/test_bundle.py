"""Bundles load as teams, and are shown."""

import pytest

from agents import agent_of
from bundles import ONE, TWO, bundle, edit, network
from commands import call, complaint, works
from multigrid_rl.competition.bundle import bundle_sha256, export, folder_kind, load_team, read_cards
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.cards import CARD_FILE, PlayerError, read_card
from multigrid_rl.players.episodes import play_games
from teams import refusal


@pytest.mark.parametrize("team", ["red", "blue"])
@pytest.mark.parametrize("greedy", [False, True])
def test_one_network_plays_every_seat(team, greedy, tmp_path):
    path = bundle(tmp_path / "two", ("red_0", "red_1"))
    players = load_team(path, TWO, team, greedy=greedy)
    assert list(players) == [f"{team}_0", f"{team}_1"]
    assert {(player.mirrored, player.greedy) for player in players.values()} == {(team == "blue", greedy)}
    assert len({id(player.network) for player in players.values()}) == 1


def test_joint_player_is_keyed_by_its_team(tmp_path):
    path = bundle(tmp_path / "joint", ("red_0", "red_1"), members=2)
    red, blue = (load_team(path, TWO, team) for team in ("red", "blue"))
    assert (list(red), list(blue)) == (["red"], ["blue"])
    assert play_games(TWO, {**red, **blue}, 3, seed=1).finished.all()
    assert "members: expected 1 or 1, got 2" in refusal(path)


def test_folder_per_seat_plays_either_side(tmp_path):
    for seat in ("red_0", "red_1"):
        bundle(tmp_path / seat, (seat,), seed=int(seat[-1]))
    hashes = {seat: player.sha256 for seat, player in load_team(tmp_path, TWO, "red").items()}
    assert hashes == {seat: read_card(tmp_path / seat).sha256 for seat in ("red_0", "red_1")}
    mirrored = load_team(tmp_path, TWO, "blue")
    assert [player.sha256 for player in mirrored.values()] == list(hashes.values())
    assert all(player.mirrored for player in mirrored.values())
    own = bundle(tmp_path / "blue_1", ("blue_1",), seed=5)
    assert load_team(tmp_path, TWO, "blue")["blue_1"].sha256 == read_card(own).sha256


def test_rejects_missing_or_misplaced_seat(tmp_path):
    bundle(tmp_path / "red_0", ("red_0",))
    assert refusal(tmp_path, TWO) == f"{tmp_path}: seat: expected one that has a folder, red_0, got red_1"
    assert list(load_team(tmp_path, ONE, "blue")) == ["blue_0"]
    bundle(tmp_path / "red_1", ("red_0",))
    assert "red_1: seats: expected a player of red_1 alone, got red_0" in refusal(tmp_path, TWO)


def test_rejects_team_missing_from_game(folder):
    single = load_scenario("single-v3").spec
    assert list(load_team(folder, single, "red")) == ["red_0"]
    assert "team: expected one with seats among red_0, got blue" in refusal(folder, single, "blue")


def test_hash_is_of_model_or_over_all_seats(folder, tmp_path):
    assert bundle_sha256(folder) == read_card(folder).sha256
    team = tmp_path / "team"
    for seat in ("red_0", "red_1"):
        bundle(team / seat, (seat,))
    before = bundle_sha256(team)
    assert len(before) == 64
    edit(team / "red_1", sha256="0" * 64)
    assert bundle_sha256(team) != before


def test_folder_is_either_bundle_or_agent(folder, tmp_path):
    assert folder_kind(folder) == "bundle"
    assert folder_kind(agent_of(tmp_path / "agent").folder) == "agent"
    with pytest.raises(PlayerError, match="expected a bundle, got an agent"):
        read_cards(tmp_path / "agent")
    (tmp_path / "agent" / CARD_FILE).touch()
    assert "got both card.json and agent.yaml" in refusal(tmp_path / "agent")
    assert "got neither card.json nor agent.yaml" in refusal(tmp_path)
    assert refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: cannot be read: No such file or directory"
    assert "cannot be read: Not a directory" in refusal(folder / CARD_FILE)


def inspected(*words) -> list[str]:
    """The lines that ``inspect`` prints, without their columns."""
    return [" ".join(line.split()) for line in works("inspect", *words).output.splitlines()]


def test_inspect_names_sides_that_fit(folder):
    lines = inspected(folder, "--scenario", "1v1")
    assert lines[0] == "mine: a frozen player"
    for begin in ("against itself: ", "as red against random: ", "as blue against random: "):
        assert sum(line.startswith(begin) and line.endswith(" drawn of 10") for line in lines) == 1
    assert lines[-1] == "ok: plays 1v1 as red and as blue"
    assert "does not fit seat red_1" in complaint(call("inspect", folder, "--scenario", "2v2"))
    assert inspected(folder, "--scenario", "single-v3")[-1] == "ok: plays single-v3 as red"


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("single", "observation: expected views of 7x7 cells, 51 tokens, got views of 5x5 cells, 27 tokens"),
        ("nowhere", ", got nowhere"),
        ("cartpole", "env: expected CartPole-v1, got the red/blue-door game"),
    ],
)
def test_inspect_rejects_unfit_bundle(scenario, message, folder):
    result = call("inspect", folder, "--scenario", scenario)
    assert message in complaint(result)
    assert "ok:" not in result.stdout


def test_inspect_and_export_name_other_environment_of_player(folder, tmp_path):
    edit(folder, scenario="gymnasium", seats=["agent_0"], env={"package": "gymnasium", "env_id": "CartPole-v1"})
    lines = inspected(folder)
    assert "seats agent_0 of CartPole-v1" in lines
    assert lines[-1] == f"ok: for CartPole-v1; multigrid-rl evaluate {folder} plays it there"
    refused = complaint(call("inspect", folder, "--scenario", "1v1"))
    assert "env: expected the red/blue-door game, got CartPole-v1" in refused
    export({"": folder}, tmp_path / "copy")
    page = (tmp_path / "copy" / "README.md").read_text()
    assert "A trained player of CartPole-v1" in page
    assert "red/blue" not in page
    assert "multigrid-rl evaluate copy/\n" in page


def test_export_of_external_network_says_what_it_needs(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("multigrid_rl.runs.players.players_for", lambda *_: {"": folder})
    monkeypatch.setattr("multigrid_rl.competition.bundle.read_network", lambda *_: network())
    assert "warning" not in call("export", "run", "--seat", "red_0", "-o", tmp_path / "ours").output
    edit(folder, architecture={"name": "own_nets:Wide", "hidden": [8]})
    result = call("export", "run", "--seat", "red_0", "-o", tmp_path / "theirs")
    assert "warning: its network own_nets:Wide is code, which does not lie in this folder" in result.output
    assert "But its network own_nets:Wide is code" in (tmp_path / "theirs" / "README.md").read_text()
    assert "where Python finds the module own_nets, and in no cup" in (tmp_path / "theirs" / "README.md").read_text()
    assert "own_nets" not in (tmp_path / "ours" / "README.md").read_text()


def test_inspect_rejects_class():
    message = complaint(call("inspect", "my_bots:Left"))
    assert message.endswith("takes part as an agent that calls it, docs/extending.md), got my_bots:Left")


def test_inspect_asks_for_game_if_unknown(folder):
    edit(folder, scenario="3v3")
    assert "say which game with --scenario" in complaint(call("inspect", folder))
    works("inspect", folder, "--scenario", "1v1")


def test_inspect_output_is_safe_to_print(folder):
    edit(folder, provenance={"commit": "\x1b[2J", "versions": {"a\n": ["b"] * 10**4}, "opponents": [{"seat": "\n"}, 3]})
    result = works("inspect", folder)
    assert all(line.isprintable() and len(line) < 400 for line in result.output.splitlines())


def test_inspect_lists_only_first_opponents(folder):
    row = {"scenario": "1v1", "opponent": "x" * 99, "episodes": 9, "win": 1, "draw": 0, "loss": 0}
    edit(folder, strength=[{**row, "length_mean": 1, "seed": 1}] * 2000)
    result = works("inspect", folder)
    assert len(result.output) < 8000
    assert "and 1,970 rows more" in result.output


@pytest.mark.slow
def test_inspect_starts_agent(tmp_path):
    lines = inspected(agent_of(tmp_path / "mine").folder)
    assert lines[0] == "mine: an agent in a process of its own"
    assert sum("against random: " in line for line in lines) == 2
    assert lines[-1] == "ok: plays 1v1 as red and as blue"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def act(m): sys.exit('help')", "against itself: step 0: exited with status 1: help"),
        ("def hello(m): say('hi')", "against itself: start: answer: expected JSON, got hi"),
    ],
)
def test_inspect_reports_agent_fault(code, message, tmp_path):
    assert complaint(call("inspect", agent_of(tmp_path / "mine", code).folder)) == f"multigrid-rl: {message}"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("multigrid-rl train run_dir=/home/ann/x/mine seed=3", "multigrid-rl train run_dir=mine seed=3"),
        ("multigrid-rl train 'run_dir=/home/ann b/mine' data=demos/a", "multigrid-rl train run_dir=mine data=demos/a"),
        ("train 'scenario.seats.blue_0={/a/b/red: 1, /c/blue: 2}'", "train 'scenario.seats.blue_0={red: 1, blue: 2}'"),
        ("train env_id=ALE/Pong-v5 experiment=../mine.yaml", "train env_id=ALE/Pong-v5 experiment=../mine.yaml"),
        ("/home/ann b/demos", "demos"),
        ("an open ' quote /home/x", "an open ' quote x"),
        ("pip install 'a' from https://host/simple", "pip install 'a' from https://host/simple"),
    ],
)
def test_export_keeps_no_folder_of_the_machine_it_comes_from(tmp_path, value, wanted):
    source = bundle(tmp_path / "mine", provenance={"command": value, "resumed": [{"command": value}], "seed": 1})
    (card,) = export({"": source}, tmp_path / "out").values()
    assert card.provenance == {"command": wanted, "resumed": [{"command": wanted}], "seed": 1}
