"""Opponents that travel: a packed factory plays the same games without its folder, and checks what arrived."""

import copy
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import data_root
from multigrid_rl.players import catalogue
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, read_card, read_files
from multigrid_rl.players.catalogue import CATALOGUE_FILE, Catalogue
from multigrid_rl.players.factories import MatchFactory

SHIPPED = data_root() / "checkpoints"
TEAM = "scenario.seats.blue_0={0} scenario.seats.blue_1={0}"


@pytest.fixture
def root(tmp_path) -> Path:
    """A copy of the project's players that may be damaged."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "checkpoints"))


def factory_of(root: Path, *overrides: str) -> MatchFactory:
    factory = env_factory(compose([f"checkpoints={root}", *overrides]))
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
def test_packed_factory_plays_same_games_without_folder(overrides, root):
    plain = factory_of(root, *overrides)
    expected, packed = played(plain), sent(plain.packed())
    players = {seat: [(row.name, row.sha256, row.strength) for row in rows] for seat, rows in plain.load().items()}
    shutil.rmtree(root)
    np.testing.assert_equal(expected, played(packed))
    assert {s: [(r.name, r.sha256, r.strength) for r in rows] for s, rows in packed.load().items()} == players


def test_folder_player_is_packed_too(root, tmp_path, monkeypatch):
    shutil.move(root / "blue-adept", tmp_path / "handed-in")
    monkeypatch.chdir(tmp_path)
    plain = factory_of(root, "scenario=1v1", "scenario.seats.blue_0=./handed-in")
    expected, packed = played(plain), sent(plain.packed())
    shutil.rmtree(tmp_path / "handed-in")
    with pytest.raises(PlayerError, match=r"got \./handed-in: no such folder"):
        sent(plain).build(1, 0)
    np.testing.assert_equal(expected, played(packed))


def test_players_are_read_once_for_all_environments(root, monkeypatch):
    seen, read = [], catalogue.read_network
    monkeypatch.setattr(catalogue, "read_network", lambda source, card: seen.append(source) or read(source, card))
    plain = factory_of(root, "scenario=1v1")
    plain.load()
    for factory in (plain, copy.deepcopy(plain)):
        factory.build(2, 0)
        factory.build(1, 5)
    assert len(seen) == 1
    sent(plain).load()  # another process checks for itself
    assert len(seen) == 2


def test_rejects_packing_file_changed_since_loading(root):
    plain = factory_of(root, "scenario=1v1")
    plain.load()
    shutil.rmtree(root / "blue-rookie")
    shutil.copytree(root / "blue-adept", root / "blue-rookie")
    with pytest.raises(PlayerError, match="blue-rookie"):
        plain.packed()


@pytest.mark.slow
def test_other_process_builds_packed_factory_without_folder(root, tmp_path):
    packed = factory_of(root, "scenario=1v1").packed()
    shutil.rmtree(root)
    (tmp_path / "factory").write_bytes(pickle.dumps(packed))
    code = (
        "import pickle, sys; from pathlib import Path\n"
        "rows = pickle.loads(Path(sys.argv[1]).read_bytes()).load()['blue_0']\n"
        "print(*(row.sha256 for row in rows))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "factory"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == [read_card(SHIPPED / "blue-rookie").sha256]


def test_packed_size_counts_each_player_once(root):
    names = ("blue-rookie", "blue-adept")
    files = sum((root / name / file).stat().st_size for name in names for file in (CARD_FILE, MODEL_FILE))
    mixed = factory_of(root, "scenario=1v1", "scenario.seats.blue_0=blue-rookie:1,blue-adept:1")
    assert files < len(pickle.dumps(mixed.packed())) < files + 5_000
    assert len(pickle.dumps(mixed)) < 5_000
    team = factory_of(root, "scenario=2v2", *TEAM.format("2v2-rookie").split()).packed()
    once = sum((root / "2v2-rookie" / file).stat().st_size for file in (CARD_FILE, MODEL_FILE))
    assert len(pickle.dumps(team)) < once + 5_000


def test_packing_is_idempotent_without_reading(root):
    packed = factory_of(root, "scenario=1v1").packed()
    shutil.rmtree(root)
    assert pickle.dumps(packed.packed()) == pickle.dumps(packed)


def test_rejects_substituted_player_with_packed_hash(root):
    packed = factory_of(root, "scenario=1v1").packed()
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
def test_rejects_what_arrived_damaged_as_from_folder(change, message, root):
    packed = factory_of(root, "scenario=1v1").packed()
    torn = with_files(packed, "blue-rookie", **change(read_files(SHIPPED / "blue-rookie")))
    with pytest.raises(PlayerError, match=rf"^scenario\.seats\.blue_0=blue-rookie: [^\n]*{message}[^\n]*$"):
        torn.load()


@pytest.mark.parametrize("broken", [CARD_FILE, MODEL_FILE])
def test_rejects_packing_unreadable_files(broken, root):
    factory = factory_of(root, "scenario=1v1")
    (root / "blue-rookie" / broken).unlink()
    with pytest.raises(PlayerError, match=rf"{re.escape(broken)}: cannot be read: No such file"):
        factory.packed()


def test_packed_catalogue_lists_only_requested_players(root):
    packed = Catalogue(root).packed(["blue-rookie", "random"])
    shutil.rmtree(root)
    assert packed.names()[-1] == "blue-rookie"
    assert packed.strength("random") == Catalogue(SHIPPED).strength("random")
    assert packed.strength("blue-rookie") == Catalogue(SHIPPED).strength("blue-rookie")
    assert not (root / CATALOGUE_FILE).exists()


def test_package_environments_have_nothing_to_pack():
    factory = env_factory(compose(["env_id=CartPole-v1"]))
    assert factory.packed() is factory
