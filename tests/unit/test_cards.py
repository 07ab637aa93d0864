"""Frozen players on disk: what was written is what plays, and everything else is refused in one line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from multigrid_rl.config import load_scenario
from multigrid_rl.models.registry import build
from multigrid_rl.players.cards import (
    CARD_FILE,
    MAX_CARD_BYTES,
    MAX_MODEL_BYTES,
    MODEL_FILE,
    PlayerError,
    read_card,
    read_network,
    sha256_of,
    token_categories,
    write_player,
)
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue
from multigrid_rl.players.factories import MatchFactory
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import play_episodes
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.streams import Streams

SPEC = load_scenario("1v1").spec
MLP = {"name": "mlp", "hidden": [8], "activation": "tanh"}


def network(seed: int = 1):
    """A network whose actions depend clearly on what it sees."""
    net = build(MLP, token_categories(SPEC), len(ACTIONS), seed)
    with torch.no_grad():
        net.policy[-1].weight.mul_(200.0)
    return net


def card(**changes) -> dict:
    plain = {
        "name": "tester",
        "architecture": MLP,
        "observation": {"view_size": SPEC.view_size, "categories": token_categories(SPEC)},
        "actions": len(ACTIONS),
        "scenario": "1v1",
        "seats": ["blue_0"],
        "provenance": {"seed": 1},
    }
    return {**plain, **changes}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A sound player in ``tmp_path/tester``."""
    write_player(tmp_path / "tester", network().state_dict(), card())
    return tmp_path / "tester"


def refusal(path: Path, seat: str = "blue_0", spec=SPEC) -> str:
    """Why the player in ``path`` cannot sit; one line."""
    with pytest.raises(PlayerError) as caught:
        Catalogue(path.parent).seat(str(path), spec, seat)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def edit_card(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads((path / CARD_FILE).read_text())
    change(content)
    (path / CARD_FILE).write_text(json.dumps(content))


def replace_model(path: Path, data: bytes) -> None:
    """Put another model there, with a card that vouches for it."""
    (path / MODEL_FILE).write_bytes(data)
    edit_card(path, lambda content: content.update(bytes=len(data), sha256=sha256_of(data)))


def replace_weights(path: Path, change: Callable[[dict], object]) -> None:
    weights = {name: value.clone() for name, value in network().state_dict().items()}
    change(weights)
    replace_model(path, safetensors.torch.save(weights))


# --- sound players


def test_what_was_written_plays_the_same_actions(folder):
    written = play_episodes(
        SPEC, {"blue_0": FrozenPlayer("w", network(), ""), "red_0": BUILT_IN["random"](SPEC)}, 30, seed=3
    )
    loaded = Catalogue(folder.parent).seat(str(folder), SPEC, "blue_0").player
    read = play_episodes(SPEC, {"blue_0": loaded, "red_0": BUILT_IN["random"](SPEC)}, 30, seed=3)
    other = FrozenPlayer("o", network(2), "")
    another = play_episodes(SPEC, {"blue_0": other, "red_0": BUILT_IN["random"](SPEC)}, 30, seed=3)
    for one, two in zip(written, read, strict=True):
        np.testing.assert_array_equal(one, two)
    assert another.returns.tolist() != written.returns.tolist()


def test_every_bit_of_the_weights_survives(folder):
    loaded = read_network(folder, read_card(folder)).state_dict()
    assert {name: value.numpy().tobytes() for name, value in loaded.items()} == {
        name: value.numpy().tobytes() for name, value in network().state_dict().items()
    }


def test_a_greedy_player_takes_the_likeliest_action_whatever_the_random_numbers():
    net, tokens = network(), np.random.default_rng(1).integers(0, 4, (9, SPEC.num_tokens)).astype(np.uint8)
    view = type("View", (), {"tokens": tokens})()
    player = FrozenPlayer("g", net, "", greedy=True)
    for seed in range(3):
        rng = Streams(seed, np.arange(9, dtype=np.int64))
        actions, _ = player.act(view, player.initial_state(9), rng)
        assert actions.tolist() == net(torch.from_numpy(tokens))[0].argmax(1).tolist()


def test_a_card_tells_size_and_hash_of_its_model(folder):
    data = (folder / MODEL_FILE).read_bytes()
    found = read_card(folder)
    assert (found.bytes, found.sha256) == (len(data), sha256_of(data))


def test_writing_the_same_player_twice_gives_the_same_bytes(folder, tmp_path):
    write_player(tmp_path / "again", network().state_dict(), card())
    for name in (MODEL_FILE, CARD_FILE):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_player_is_never_overwritten(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FileExistsError):
        write_player(folder, network(2).state_dict(), card())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --- damaged models


@pytest.mark.parametrize("place", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_one_changed_byte_anywhere_is_refused(place, folder):
    data = bytearray((folder / MODEL_FILE).read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    (folder / MODEL_FILE).write_bytes(data)
    text = refusal(folder)
    assert str(folder / MODEL_FILE) in text
    assert "sha256" in text
    assert sha256_of(bytes(data))[:16] in text
    assert read_card(folder).sha256[:16] in text


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_a_truncated_or_empty_model_is_refused(kept, folder):
    data = (folder / MODEL_FILE).read_bytes()
    size = int(kept * len(data))
    (folder / MODEL_FILE).write_bytes(data[:size])
    text = refusal(folder)
    assert f"{size} bytes" in text
    assert f"the card says {len(data)}" in text
    assert "truncated" in text


def test_a_model_with_bytes_appended_is_refused(folder):
    data = (folder / MODEL_FILE).read_bytes()
    (folder / MODEL_FILE).write_bytes(data + b"\0")
    assert f"{len(data) + 1} bytes; the card says {len(data)}" in refusal(folder)


def test_an_oversize_model_is_refused_even_if_its_card_vouches_for_it(folder):
    replace_model(folder, bytes(MAX_MODEL_BYTES + 1))
    assert f"allowed is at most {MAX_MODEL_BYTES}" in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_no_finite_number_is_refused(value, folder):
    replace_weights(folder, lambda weights: weights["bias"].__setitem__(3, value))
    assert f"{folder / MODEL_FILE}: tensor bias holds values that are not finite numbers" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.update(bias=torch.zeros(17)), "tensor bias has shape (17,); the card's network needs (16,)"),
        (lambda w: w.update(bias=torch.zeros(4, 4)), "tensor bias has shape (4, 4); the card's network needs (16,)"),
        (lambda w: w.pop("bias"), "tensor bias has shape None; the card's network needs (16,)"),
        (lambda w: w.update(extra=torch.zeros(2)), "tensor extra has shape (2,); the card's network needs None"),
        (lambda w: w.update(bias=torch.zeros(16, dtype=torch.int64)), "tensor bias"),
        (lambda w: w.update(bias=torch.zeros(16, dtype=torch.bool)), "tensor bias"),
        (lambda w: w.update(bias=torch.zeros(16).to(torch.float8_e4m3fn)), "tensor bias"),
        (lambda w: w.clear(), "the card's network needs"),
    ],
    ids=["length", "rank", "missing", "extra", "integers", "flags", "float8", "none"],
)
def test_tensors_that_are_not_the_networks_are_refused(change, said, folder):
    replace_weights(folder, change)
    text = refusal(folder)
    assert str(folder / MODEL_FILE) in text
    assert said in text


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("save", [pickle.dumps, lambda bomb: pickle.dumps({"bias": bomb}, 0)])
def test_a_pickle_renamed_to_safetensors_is_refused_and_not_executed(save, folder, tmp_path):
    mark = tmp_path / "executed"
    data = save(Bomb(mark))
    replace_model(folder, data)
    assert f"{folder / MODEL_FILE}: not a safetensors file" in refusal(folder)
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists()  # the pickle is armed: nobody unpickled it before


def test_a_torch_save_archive_with_a_pickle_in_it_is_refused_and_not_executed(folder, tmp_path):
    mark = tmp_path / "executed"
    torch.save({"bias": Bomb(mark)}, tmp_path / "archive")
    replace_model(folder, (tmp_path / "archive").read_bytes())
    assert "not a safetensors file" in refusal(folder)
    assert not mark.exists()


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\x08" + bytes(7) + b"{nojson}", b'{"a": 1}'])
def test_bytes_that_are_no_safetensors_file_are_refused(data, folder):
    replace_model(folder, data)
    assert "not a safetensors file" in refusal(folder)


# --- damaged cards


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"card"', '{"name": "x"}', "\x00"])
def test_a_malformed_card_is_refused(text, folder):
    (folder / CARD_FILE).write_text(text)
    assert refusal(folder).startswith(f"{folder / CARD_FILE}: ")


def test_a_card_that_is_no_text_is_refused(folder):
    (folder / CARD_FILE).write_bytes(b"\xff\xfe\x80")
    assert refusal(folder).startswith(f"{folder / CARD_FILE}: ")


def test_an_oversize_card_is_refused(folder):
    (folder / CARD_FILE).write_text(" " * (MAX_CARD_BYTES + 1))
    assert f"{MAX_CARD_BYTES + 1} bytes; allowed is at most {MAX_CARD_BYTES}" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "said"),
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
        (lambda c: c.update(architecture={**MLP, "name": "tree"}), "architecture.name: expected mlp, "),
        (lambda c: c.update(architecture={}), "architecture: Value error, name=None: allowed is text"),
        (lambda c: c.update(architecture={**MLP, "hidden": []}), "architecture.hidden: expected"),
        (lambda c: c.update(architecture={**MLP, "activation": "gelu"}), "architecture.activation: expected"),
        (lambda c: c.update(architecture={**MLP, "activation": ["tanh"]}), "architecture.activation: expected"),
    ],
)
def test_a_card_that_says_something_wrong_is_refused_by_key(change, said, folder):
    edit_card(folder, change)
    text = refusal(folder)
    assert str(folder / CARD_FILE) in text
    assert said in text


def test_a_card_that_asks_for_a_larger_network_than_the_file_holds_is_refused(folder):
    edit_card(folder, lambda content: content["architecture"].update(hidden=[16]))
    assert "the card's network needs" in refusal(folder)


# --- seats, games, names


def test_a_player_on_a_seat_it_was_not_trained_for_is_refused(folder):
    four = replace(SPEC, blue=2, red=2)
    for seat in ("blue_1", "red_1"):
        wanted = f"player tester does not fit seat {seat}: it sits on blue_0 or the same seats of the other team"
        assert refusal(folder, seat, four) == wanted


def test_a_player_sees_the_same_seat_of_the_other_team_from_its_own_side(folder):
    catalogue = Catalogue(folder.parent)
    assert catalogue.seat(str(folder), SPEC, "blue_0").player.mirrored is False
    assert catalogue.seat(str(folder), SPEC, "red_0").player.mirrored is True


def test_a_player_of_a_game_with_another_view_is_refused(folder):
    text = refusal(folder, spec=replace(SPEC, view_size=7))
    assert text.startswith("player tester does not fit seat blue_0")
    assert "views of size 5 (27 tokens), this game shows size 7 (51 tokens)" in text


@pytest.mark.parametrize("missing", [MODEL_FILE, CARD_FILE])
def test_a_missing_file_is_named(missing, folder):
    (folder / missing).unlink()
    assert refusal(folder) == f"{folder / missing}: cannot be read: No such file or directory"


def test_a_missing_folder_is_named(tmp_path):
    assert refusal(tmp_path / "nobody").startswith(f"{tmp_path / 'nobody' / CARD_FILE}: cannot be read")


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(
        PlayerError, match=r"^player nobody: unknown; allowed is random, idle, key-runner, hunter, or a"
    ):
        Catalogue(tmp_path).seat("nobody", SPEC, "blue_0")


def test_a_card_whose_hash_is_not_the_catalogues_is_refused(folder):
    entry = f"players:\n  tester: {{scenario: 1v1, seats: [blue_0], sha256: {'a' * 64}}}\n"
    (folder.parent / CATALOGUE_FILE).write_text(entry)
    with pytest.raises(PlayerError) as caught:
        Catalogue(folder.parent).seat("tester", SPEC, "blue_0")
    listed, found = "a" * 16, read_card(folder).sha256[:16]
    assert str(caught.value) == f"player tester: the catalogue lists sha256 {listed}..., its card {found}..."


@pytest.mark.parametrize(
    "text",
    ["players: [", "players: [a, b]", "players:\n  tester:\n", "players:\n  tester: {sha256: 12}\n", "just words"],
)
def test_a_malformed_catalogue_is_refused_in_one_line(text, folder):
    (folder.parent / CATALOGUE_FILE).write_text(text)
    with pytest.raises(PlayerError) as caught:
        Catalogue(folder.parent).seat("tester", SPEC, "blue_0")
    assert CATALOGUE_FILE in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_factory_refuses_another_player_than_the_one_announced(folder):
    def factory(sha: str) -> MatchFactory:
        return MatchFactory(SPEC, {"blue_0": {str(folder): 1.0}}, folder.parent, {str(folder): sha}, seed=1)

    announced = read_card(folder).sha256
    assert factory(announced).build(2, 0).specs.learning == ("red_0",)
    replace_weights(folder, lambda weights: weights["bias"].add_(1))
    with pytest.raises(PlayerError, match=rf"^scenario\.seats\.blue_0=.*: sha256 .*; allowed is {announced}$"):
        factory(announced).load()
