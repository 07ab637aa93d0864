"""Bundles load as teams, act as the run's own network did, and are shown."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from agents import agent_of
from bundles import ONE, TWO, bundle, edit, network
from commands import call, complaint, works
from multigrid_rl.competition.bundle import about, bundle_sha256, export, folder_kind, load_team, read_cards
from multigrid_rl.competition.entries import CupConfig, entry_in
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.models.registry import fingerprint, network_of
from multigrid_rl.players.cards import (
    CARD_FILE,
    MAX_MODEL_BYTES,
    MODEL_FILE,
    PlayerError,
    read_card,
    signature,
    write_player,
)
from multigrid_rl.players.episodes import play_games
from multigrid_rl.rllib.algorithm import MultigridAlgorithm
from multigrid_rl.rllib.private import without_object_store
from multigrid_rl.streams import LEARNER_PURPOSE, Streams
from multigrid_rl.types import AgentSpec, SeatView
from teams import refusal
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start


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
    assert {
        "trained for 10 environment steps",
        "strength not measured",
        "network mlp, hidden [8], activation tanh",
    } <= {*lines}
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


ACTS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
AGENT = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), ACTS)


@pytest.mark.parametrize(
    ("head", "size"), [(None, None), ("deterministic", None), ("mixture", 3), ("bins", 9), ("diffusion", 4)]
)
def test_inspect_names_head_its_size_and_its_pace(tmp_path, head, size):
    shape = {"name": "mlp", "hidden": [16, 12], "activation": "tanh", "head": head, "head_size": size}
    card = {
        "name": "one", "architecture": shape, **signature(AGENT, None), "scenario": "gymnasium", "seats": ["a"],
        "env": {"package": "gymnasium", "env_id": "Some-v0"}, "provenance": {},
    }  # fmt: skip
    write_player(tmp_path / "one", network_of(AGENT, shape, seed=2).state_dict(), card)
    output = "\n".join(about(tmp_path / "one"))
    assert " ms an action, one at a time" in output
    assert (f"head {head}" in output) == (head is not None)
    assert (f"head_size {size}" in output) == (size is not None)


SHORT = ("train.num_envs=16", "train.num_steps=64", "train.until=1024", "train.checkpoint_every=1024", "seed=4")
RUNS = {
    "mlp": ("scenario=1v1",),
    "gru": ("scenario=1v1", "model=gru", "model.hidden=[16]"),
    "ctce": ("scenario=2v2", "scheme=ctce", "train.bonus={}"),
    "dtde": ("scenario=2v2", "scheme=dtde", "model=mlp", "train.bonus={}"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A tiny run of each kind."""
    root = tmp_path_factory.mktemp("runs")
    for name, overrides in RUNS.items():
        tiny_run(root / name, *SHORT, *overrides)
    return {name: root / name for name in RUNS}


def played(run: Path):
    """The collector of the restored run after it has sampled from fresh games, and the seed that it draws from."""
    folder = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    with without_object_store():
        algorithm = MultigridAlgorithm.from_checkpoint(str((folder / "rllib").resolve()))
    try:
        learnt = {
            name: fingerprint(weights, quick=True) for name, weights in algorithm.run.learner.get_weights().items()
        }
        assert algorithm.env_runner.weights_hash() == learnt
        algorithm.env_runner.sample()
        return algorithm.env_runner.collector, algorithm.config.settings.run.seed
    finally:
        algorithm.stop()


@pytest.mark.parametrize(("name", "seat"), [("mlp", "red_0"), ("gru", "red_0"), ("ctce", "red"), ("dtde", "red")])
def test_bundle_acts_as_run_network(runs, name, seat, tmp_path):
    works("export", runs[name], "--seat", seat, "-o", tmp_path / "mine")
    spec = load_scenario(RUNS[name][0].removeprefix("scenario=")).spec
    players = load_team(tmp_path / "mine", spec, "red")
    collector, seed = played(runs[name])
    assert set(players) == set(collector.rollouts)
    for k, (agent, rollout) in enumerate(collector.rollouts.items()):
        player, (steps, games) = players[agent], rollout.values.shape
        # The numbers that the collector drew.
        rng = Streams(seed, np.arange(games, dtype=np.int64), LEARNER_PURPOSE + k)
        state = player.initial_state(games)
        for t in range(steps):
            state = player.reset_state(state, rollout.starts[t])
            actions, state = player.act(SeatView(rollout.obs[t], None, 0), state, rng)
            np.testing.assert_array_equal(actions.reshape(rollout.actions[t].shape), rollout.actions[t])
        assert len(np.unique(rollout.actions)) > 3
        assert rollout.done.any()  # games ended on the way, so that memory was cleared, too


def test_bundle_holds_run_content_and_is_small(runs, tmp_path):
    folder = tmp_path / "deep" / "my-agent"
    result = works("export", runs["mlp"], "--seat", "red", "-o", folder)
    assert result.output.startswith(f"exported {folder}: ")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "card.json", "model.safetensors"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["my-agent"]
    (source,) = (runs["mlp"] / "checkpoints").glob("step_*/players/red_0")
    card, before = read_card(folder), read_card(source)
    assert (folder / MODEL_FILE).read_bytes() == (source / MODEL_FILE).read_bytes()
    assert card == before.model_copy(update={"name": "my-agent", "provenance": card.provenance})
    assert card.provenance.keys() == before.provenance.keys()
    assert card.provenance["env_steps"] == 1024
    assert (folder / MODEL_FILE).stat().st_size < MAX_MODEL_BYTES
    assert bundle_sha256(folder) == before.sha256
    assert f"`{card.sha256}`" in (folder / "README.md").read_text()


def test_team_of_two_networks_has_folder_per_seat(runs, tmp_path):
    folder = tmp_path / "pair"
    works("export", runs["dtde"], "--seat", "red", "-o", folder, "--name", "duo")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "red_0", "red_1"]
    cards = read_cards(folder)
    assert [card.name for card in cards.values()] == ["duo-red_0", "duo-red_1"]
    spec = load_scenario("2v2").spec
    red, blue = (load_team(folder, spec, team) for team in ("red", "blue"))
    assert [(seat, player.mirrored) for seat, player in red.items()] == [("red_0", False), ("red_1", False)]
    assert [(seat, player.mirrored) for seat, player in blue.items()] == [("blue_0", True), ("blue_1", True)]
    assert [player.sha256 for player in blue.values()] == [card.sha256 for card in cards.values()]
    assert play_games(spec, {**red, **blue}, 4, seed=1).finished.all()
    about = entry_in(folder, CupConfig("2v2", spec, 2, 1, Limits())).about
    assert about == "mlp for red_0, red_1 of 2v2, 1,024 training steps"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--seat", "green_0"), ", got green_0"),
        (("--seat", "blue"), ", got blue"),
        (("--seat", "red_0", "--checkpoint", "step_7"), "got step_7"),
        (("--seat", "red_0", "--name", "a b"), "name: expected 1 to 64"),
        (("--seat", "red_0", "--name", ""), "name: expected 1 to 64"),
    ],
)
def test_rejects_mistakes_and_writes_nothing(runs, args, message, tmp_path):
    assert message in complaint(call("export", runs["mlp"], *args, "-o", tmp_path / "x" / "mine"))
    assert list(tmp_path.iterdir()) == []


def test_never_touches_existing_folder(runs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "link"):
        refused = complaint(call("export", runs["mlp"], "--seat", "red_0", "-o", tmp_path / name))
        assert f"{tmp_path / name}: expected a new folder" in refused
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "mine"]
