"""Frozen players on disk: what was written is what plays, and everything else is refused in one line."""

import copy
import json
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from bundles import MLP, ONE, bundle, edit, network, refusal, unchanged, vouch
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import data_root
from multigrid_rl.players import catalogue
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, read_card, read_files, sha256_of
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import MatchFactory
from multigrid_rl.players.frozen import FrozenPlayer

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
        (lambda c: c.pop("sha256"), "sha256: expected a value, got none"),
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


# --- opponents that travel: a packed factory plays the same games without its folder, and checks what arrived


SHIPPED = data_root() / "checkpoints"
TEAM = "scenario.seats.blue_0={0} scenario.seats.blue_1={0}"


@pytest.fixture
def shipped(tmp_path) -> Path:
    """A copy of the project's players that may be damaged."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "checkpoints"))


def factory_of(shipped: Path, *overrides: str) -> MatchFactory:
    factory = env_factory(compose([f"checkpoints={shipped}", *overrides]))
    assert isinstance(factory, MatchFactory)
    return factory


def played(factory, games: int = 6, steps: int = 25) -> list[np.ndarray]:
    """All that learning units see and are paid when everybody who learns does the same things."""
    env = factory.build(games, 3)
    rng, kept = np.random.default_rng(1), []
    for _ in range(steps):
        step = env.step({agent.name: rng.integers(0, 7, (games, len(agent.seats))) for agent in env.specs.agents})
        kept += [array.copy() for part in (step.observations, step.rewards) for array in part.values()]
    return kept


def sent(factory: MatchFactory) -> MatchFactory:
    """As it arrives in another process."""
    arrived: MatchFactory = pickle.loads(pickle.dumps(factory))
    return arrived


def with_files(factory: MatchFactory, name: str, **changes: bytes) -> MatchFactory:
    """The factory with other bytes in it than were packed."""
    other = sent(factory)
    other.catalogue.given[name] = other.catalogue.given[name]._replace(**changes)
    return other


@pytest.mark.parametrize(
    "overrides",
    [
        ["scenario=1v1"],
        ["scenario=1v1", "scenario.seats.blue_0=blue-rookie:3,random:1,blue-adept:1"],
        ["scenario=1v1", "scenario.seats.blue_0=key-runner"],
        ["scenario=1v1", "scenario.seats.blue_0=learn", "scenario.seats.red_0=blue-rookie"],
        ["scenario=2v2", *TEAM.format("2v2-rookie").split()],
        ["scenario=coop"],
    ],
    ids=["frozen", "mixture", "scripted", "mirrored", "team", "empty"],
)
def test_packed_factory_plays_same_games_without_folder(overrides, shipped):
    plain = factory_of(shipped, *overrides)
    expected, packed = played(plain), sent(plain.packed())
    players = {seat: [(row.name, row.sha256, row.strength) for row in rows] for seat, rows in plain.load().items()}
    shutil.rmtree(shipped)
    np.testing.assert_equal(expected, played(packed))
    assert {s: [(r.name, r.sha256, r.strength) for r in rows] for s, rows in packed.load().items()} == players


def test_folder_player_is_packed_too(shipped, tmp_path, monkeypatch):
    shutil.move(shipped / "blue-adept", tmp_path / "handed-in")
    monkeypatch.chdir(tmp_path)
    plain = factory_of(shipped, "scenario=1v1", "scenario.seats.blue_0=./handed-in")
    expected, packed = played(plain), sent(plain.packed())
    shutil.rmtree(tmp_path / "handed-in")
    with pytest.raises(PlayerError, match=r"got \./handed-in: no such folder"):
        sent(plain).build(1, 0)
    np.testing.assert_equal(expected, played(packed))


def test_players_are_read_once_for_all_environments(shipped, monkeypatch):
    seen, read = [], catalogue.read_network
    monkeypatch.setattr(catalogue, "read_network", lambda source, card: seen.append(source) or read(source, card))
    plain = factory_of(shipped, "scenario=1v1")
    plain.load()
    for factory in (plain, copy.deepcopy(plain)):
        factory.build(2, 0)
        factory.build(1, 5)
    assert len(seen) == 1
    sent(plain).load()  # another process checks for itself
    assert len(seen) == 2


def test_rejects_packing_file_changed_since_loading(shipped):
    plain = factory_of(shipped, "scenario=1v1")
    plain.load()
    shutil.rmtree(shipped / "blue-rookie")
    shutil.copytree(shipped / "blue-adept", shipped / "blue-rookie")
    with pytest.raises(PlayerError, match="blue-rookie"):
        plain.packed()


def test_packed_size_counts_each_player_once(shipped):
    names = ("blue-rookie", "blue-adept")
    files = sum((shipped / name / file).stat().st_size for name in names for file in (CARD_FILE, MODEL_FILE))
    mixed = factory_of(shipped, "scenario=1v1", "scenario.seats.blue_0=blue-rookie:1,blue-adept:1")
    assert files < len(pickle.dumps(mixed.packed())) < files + 5_000
    assert len(pickle.dumps(mixed)) < 5_000
    team = factory_of(shipped, "scenario=2v2", *TEAM.format("2v2-rookie").split()).packed()
    once = sum((shipped / "2v2-rookie" / file).stat().st_size for file in (CARD_FILE, MODEL_FILE))
    assert len(pickle.dumps(team)) < once + 5_000


def test_packing_is_idempotent_without_reading(shipped):
    packed = factory_of(shipped, "scenario=1v1").packed()
    shutil.rmtree(shipped)
    assert pickle.dumps(packed.packed()) == pickle.dumps(packed)


def test_rejects_substituted_player_with_packed_hash(shipped):
    packed = factory_of(shipped, "scenario=1v1").packed()
    other = read_files(SHIPPED / "blue-adept")
    listed, found = read_card(SHIPPED / "blue-rookie").sha256, read_card(SHIPPED / "blue-adept").sha256
    swapped = with_files(packed, "blue-rookie", card=other.card, model=other.model)
    with pytest.raises(PlayerError, match=rf"sha256: expected {listed[:16]}\.\.\. of the catalogue, got {found[:16]}"):
        swapped.load()
    swapped.catalogue.entries.clear()  # a player of a folder stands in no catalogue
    with pytest.raises(PlayerError, match=rf"blue_0=blue-rookie: sha256: expected {listed}, got {found}$"):
        swapped.load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sent: {"model": sent.model[:-1] + b"?"}, r"sha256: expected \w+\.\.\. of its card, got "),
        (lambda sent: {"model": sent.model[:1000]}, r"expected the \d+ bytes of its card, got 1000 bytes"),
        (lambda sent: {"card": sent.card.replace(b"{", b'{"colour": 3,', 1)}, r"card\.json: colour: Extra inputs"),
    ],
    ids=["another byte", "a part", "another card"],
)
def test_rejects_what_arrived_damaged_as_from_folder(change, message, shipped):
    packed = factory_of(shipped, "scenario=1v1").packed()
    torn = with_files(packed, "blue-rookie", **change(read_files(SHIPPED / "blue-rookie")))
    with pytest.raises(PlayerError, match=rf"^scenario\.seats\.blue_0=blue-rookie: [^\n]*{message}[^\n]*$"):
        torn.load()


@pytest.mark.parametrize("broken", [CARD_FILE, MODEL_FILE])
def test_rejects_packing_unreadable_files(broken, shipped):
    factory = factory_of(shipped, "scenario=1v1")
    (shipped / "blue-rookie" / broken).unlink()
    with pytest.raises(PlayerError, match=rf"{re.escape(broken)}: cannot be read: No such file"):
        factory.packed()


def test_packed_catalogue_lists_only_requested_players(shipped):
    packed = Catalogue(shipped).packed(["blue-rookie", "random"])
    shutil.rmtree(shipped)
    assert packed.names()[-1] == "blue-rookie"
    assert packed.strength("random") == Catalogue(SHIPPED).strength("random")
    assert packed.strength("blue-rookie") == Catalogue(SHIPPED).strength("blue-rookie")
    assert not (shipped / CATALOGUE_FILE).exists()


def test_package_environments_have_nothing_to_pack():
    factory = env_factory(compose(["env_id=CartPole-v1"]))
    assert factory.packed() is factory
