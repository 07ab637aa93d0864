"""Frozen players on disk: what was written is what plays, and everything else is refused in one line."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from bundles import MLP, ONE, bundle, edit, everything, network, refusal, unchanged, vouch
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, read_card, read_network, sha256_of
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import MatchFactory
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.types import SeatView

FOUR = replace(ONE, blue=2, red=2)


def refused(folder: Path) -> str:
    return refusal(lambda: Catalogue(folder.parent).seat(str(folder), ONE, "red_0"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """A sound player in ``tmp_path/tester``."""
    return bundle(tmp_path / "tester")


def replace_model(path: Path, data: bytes) -> None:
    """Put another model there, with a card that vouches for it."""
    (path / MODEL_FILE).write_bytes(data)
    vouch(path)


def replace_weights(path: Path, change: Callable[[dict], object]) -> None:
    weights = {name: value.clone() for name, value in network().state_dict().items()}
    change(weights)
    replace_model(path, safetensors.torch.save(weights))


# --- sound players


def test_written_player_plays_same_actions(folder):
    loaded = Catalogue(folder.parent).seat(str(folder), ONE, "red_0").player
    written, read, another = (
        play_games(ONE, {"red_0": player, "blue_0": BUILT_IN["random"](ONE)}, 30, seed=3).full_table()
        for player in (FrozenPlayer("w", network(), ""), loaded, FrozenPlayer("o", network(seed=2), ""))
    )
    np.testing.assert_equal(written, read)
    assert another.returns.tolist() != written.returns.tolist()


def test_weights_survive_bit_for_bit(folder, tmp_path):
    loaded = read_network(folder, read_card(folder)).state_dict()
    assert {name: value.numpy().tobytes() for name, value in loaded.items()} == {
        name: value.numpy().tobytes() for name, value in network().state_dict().items()
    }
    assert everything(bundle(tmp_path / "again", name="tester")) == everything(folder)


def test_greedy_player_takes_likeliest_action():
    net, tokens = network(), np.random.default_rng(1).integers(0, 4, (9, ONE.num_tokens)).astype(np.uint8)
    player = FrozenPlayer("g", net, "", greedy=True)
    for seed in range(3):
        rng = Streams(seed, np.arange(9, dtype=np.int64))
        actions, _ = player.act(SeatView(tokens, None, 0), player.initial_state(9), rng)
        assert actions.tolist() == net(torch.from_numpy(tokens))[0].argmax(1).tolist()


def test_player_is_never_overwritten(folder):
    with unchanged(folder), pytest.raises(FileExistsError):
        bundle(folder, seed=2)


# --- damaged models


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_rejects_one_changed_byte_with_both_hashes(place, folder):
    data = bytearray((folder / MODEL_FILE).read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    (folder / MODEL_FILE).write_bytes(data)
    text = refused(folder)
    for part in (str(folder / MODEL_FILE), "sha256", sha256_of(bytes(data))[:16], read_card(folder).sha256[:16]):
        assert part in text


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:-1], lambda data: data + b"\0"])
def test_rejects_model_of_another_size(change, folder):
    data = (folder / MODEL_FILE).read_bytes()
    (folder / MODEL_FILE).write_bytes(change(data))
    text = refused(folder)
    assert f"expected the {len(data)} bytes of its card, got {len(change(data))} bytes" in text
    assert ("truncated" in text) == (len(change(data)) < len(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w["bias"].__setitem__(3, float("nan")), "bias: expected finite numbers"),
        (lambda w: w["bias"].__setitem__(3, float("-inf")), "bias: expected finite numbers"),
        (lambda w: w.update(bias=torch.zeros(17)), "bias: expected shape (16,) of the card's network, got (17,)"),
        (lambda w: w.update(bias=torch.zeros(4, 4)), "bias: expected shape (16,) of the card's network, got (4, 4)"),
        (lambda w: w.pop("bias"), "bias: expected shape (16,) of the card's network, got None"),
        (lambda w: w.update(extra=torch.zeros(2)), "extra: expected shape None of the card's network, got (2,)"),
        (lambda w: w.update(bias=torch.zeros(16, dtype=torch.int64)), "bias: expected F32, got I64"),
        (lambda w: w.update(bias=torch.zeros(16, dtype=torch.bool)), "bias: expected F32, got BOOL"),
        (lambda w: w.update(bias=torch.zeros(16).to(torch.float8_e4m3fn)), "bias"),
        (lambda w: w.clear(), "of the card's network, got None"),
    ],
    ids=["nan", "infinite", "length", "rank", "missing", "extra", "integers", "flags", "float8", "none"],
)
def test_rejects_tensors_of_another_network(change, message, folder):
    replace_weights(folder, change)
    text = refused(folder)
    assert text.startswith(f"{folder / MODEL_FILE}: tensor ")
    assert message in text


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("save", [pickle.dumps, lambda bomb: pickle.dumps({"bias": bomb}, 0), "torch"])
def test_rejects_pickle_and_does_not_execute_it(save, folder, tmp_path):
    mark = tmp_path / "executed"
    if save == "torch":
        torch.save({"bias": Bomb(mark)}, tmp_path / "archive")
        replace_model(folder, (tmp_path / "archive").read_bytes())
    else:
        replace_model(folder, save(Bomb(mark)))
    assert f"{folder / MODEL_FILE}: expected a safetensors file" in refused(folder)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # the pickle is armed: nobody unpickled it before


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\x08" + bytes(7) + b"{nojson}", b'{"a": 1}'])
def test_rejects_bytes_that_are_not_safetensors(data, folder):
    replace_model(folder, data)
    assert "expected a safetensors file" in refused(folder)


# --- damaged cards


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"card"', b'{"name": "x"}', b"\x00", b"\xff\xfe\x80"])
def test_rejects_malformed_card(data, folder):
    (folder / CARD_FILE).write_bytes(data)
    assert refused(folder).startswith(f"{folder / CARD_FILE}: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(colour="red"), "colour: Extra inputs are not permitted"),
        (lambda c: c["observation"].update(colour="red"), "observation.colour: Extra inputs are not permitted"),
        (lambda c: c.pop("sha256"), "sha256: Field required"),
        (lambda c: c.update(format=2), "format: "),
        (lambda c: c.update(actions="many"), "actions."),
        (lambda c: c.update(actions={"low": [1.0], "high": [1.0]}), "actions: expected low below high"),
        (lambda c: c.update(actions={"low": [0.0, 0.0], "high": [1.0]}), "actions: expected low below high"),
        (lambda c: c.update(actions={"low": [float("nan")], "high": [1.0]}), "actions."),
        (lambda c: c["observation"].update(size=3), "observation: expected exactly one of categories and size"),
        (lambda c: c.update(provenance={"env_steps": "many"}), "provenance.env_steps: expected an integer, got many"),
        (lambda c: c.update(architecture={}), "architecture.name: expected text, got None"),
        (lambda c: c.update(architecture={**MLP, "name": "tree"}), "architecture.name: expected mlp, "),
        (lambda c: c.update(architecture={**MLP, "hidden": []}), "architecture.hidden: expected"),
        (lambda c: c.update(architecture={**MLP, "activation": "gelu"}), "architecture.activation: expected"),
        (lambda c: c.update(architecture={**MLP, "activation": ["tanh"]}), "architecture.activation: expected"),
    ],
)
def test_rejects_card_by_key(change, message, folder):
    content = json.loads((folder / CARD_FILE).read_text())
    change(content)
    (folder / CARD_FILE).write_text(json.dumps(content))
    text = refused(folder)
    assert text.startswith(f"{folder / CARD_FILE}: ")
    assert message in text


@pytest.mark.parametrize("missing", [MODEL_FILE, CARD_FILE])
def test_names_missing_file(missing, folder):
    (folder / missing).unlink()
    with pytest.raises(PlayerError, match=rf"{missing}: cannot be read: No such file or directory$"):
        Catalogue(folder.parent).seat(str(folder), ONE, "red_0")


# --- seats, games, names


@pytest.mark.parametrize(
    ("seat", "spec", "changes", "message"),
    [
        ("red_1", FOUR, {}, "seats: expected red_1 or blue_1, got red_0"),
        ("blue_1", FOUR, {}, "seats: expected blue_1 or red_1, got red_0"),
        ("red_0", replace(ONE, view_size=7), {}, "expected views of 7x7 cells, 51 tokens, got views of 5x5 cells, 27 "),
        ("red_0", ONE, {"env": {"package": "gymnasium", "env_id": "CartPole-v1"}}, "env: .*, got CartPole-v1$"),
        ("red_0", ONE, {"actions": 5}, "actions: expected 7, got 5$"),
        ("red_0", ONE, {"observation": {"size": 3}}, "observation: expected views .*, got a vector of 3 numbers$"),
    ],
)
def test_rejects_player_of_another_seat_or_game(seat, spec, changes, message, folder):
    edit(folder, **changes)
    with pytest.raises(PlayerError, match=f"^player tester does not fit seat {seat}: .*{message}"):
        Catalogue(folder.parent).seat(str(folder), spec, seat)


def test_player_sees_opposite_seat_from_own_side(folder):
    catalogue = Catalogue(folder.parent)
    assert catalogue.seat(str(folder), ONE, "red_0").player.mirrored is False
    assert catalogue.seat(str(folder), ONE, "blue_0").player.mirrored is True


def test_rejects_card_hash_differing_from_catalogue(folder):
    entry = f"players:\n  tester: {{scenario: 1v1, seats: [red_0], sha256: {'a' * 64}}}\n"
    (folder.parent / CATALOGUE_FILE).write_text(entry)
    found = read_card(folder).sha256[:16]
    with pytest.raises(PlayerError, match=rf"^player tester: sha256: expected {'a' * 16}\.\.\. .*, got {found}"):
        Catalogue(folder.parent).seat("tester", ONE, "red_0")


@pytest.mark.parametrize(
    "text",
    ["players: [", "players: [a, b]", "players:\n  tester:\n", "players:\n  tester: {sha256: 12}\n", "just words"],
)
def test_rejects_malformed_catalogue(text, folder):
    (folder.parent / CATALOGUE_FILE).write_text(text)
    with pytest.raises(PlayerError, match=CATALOGUE_FILE) as caught:
        Catalogue(folder.parent).seat("tester", ONE, "red_0")
    assert "\n" not in str(caught.value)


def test_factory_rejects_player_differing_from_announced(folder):
    def factory(sha: str) -> MatchFactory:
        return MatchFactory(ONE, {"blue_0": {str(folder): 1.0}}, folder.parent, {str(folder): sha}, seed=1)

    announced = read_card(folder).sha256
    assert factory(announced).build(2, 0).specs.learning == ("red_0",)
    replace_weights(folder, lambda weights: weights["bias"].add_(1))
    with pytest.raises(PlayerError, match=rf"^scenario\.seats\.blue_0=.*: sha256: expected {announced}, got "):
        factory(announced).load()
