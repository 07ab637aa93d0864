"""A run's player as a bundle: it does, action for action, what the run's own network would, and needs no Ray."""

from pathlib import Path

import numpy as np
import pytest

from commands import call, complaint, works
from multigrid_rl.competition.bundle import bundle_sha256, load_team, read_cards
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.players.cards import MAX_MODEL_BYTES, MODEL_FILE, PlayerError, read_card
from multigrid_rl.players.episodes import play_games
from multigrid_rl.rllib.algorithm import MultigridAlgorithm
from multigrid_rl.rllib.private import without_object_store
from multigrid_rl.streams import LEARNER_PURPOSE, Streams
from multigrid_rl.types import SeatView
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

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
    result = works("export", runs["mlp"], "--seat", "red_0", "-o", folder)
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


def test_single_seat_and_shared_network_are_plain_bundles(runs, tmp_path):
    works("export", runs["mlp"], "--seat", "red", "-o", tmp_path / "one")
    assert list(read_cards(tmp_path / "one")) == [""]
    works("export", runs["ctce"], "--seat", "red", "-o", tmp_path / "two")
    spec = load_scenario("2v2").spec
    for team, mirrored in (("red", False), ("blue", True)):
        (player,) = load_team(tmp_path / "two", spec, team).values()
        assert (player.members, player.mirrored) == (2, mirrored)


def test_single_seat_of_team_is_no_team(runs, tmp_path):
    works("export", runs["dtde"], "--seat", "red_1", "-o", tmp_path / "second")
    with pytest.raises(PlayerError, match=r"does not fit seat red_0"):
        load_team(tmp_path / "second", load_scenario("2v2").spec, "red")
    assert "does not fit seat red_0" in complaint(call("inspect", tmp_path / "second"))


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


def test_inspect_describes_fresh_bundle(runs, tmp_path):
    works("export", runs["mlp"], "--seat", "red_0", "-o", tmp_path / "mine")
    result = works("inspect", tmp_path / "mine", "--scenario", "1v1")
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    for line in ("trained for 1,024 environment steps", "seed 4", "strength not measured"):
        assert line in lines
    assert "network mlp, hidden [16, 16], activation tanh" in lines
    assert lines[-1] == "ok: plays 1v1 as red and as blue"
