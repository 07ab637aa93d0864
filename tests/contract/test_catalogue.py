"""The shipped players, without playing: files, hashes, seats, strengths, and who is needed."""

import re

import pytest
import yaml

from composing import SCENARIOS, read
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.recipes import files_of
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, read_card, read_network, sha256_of
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue
from multigrid_rl.players.frozen import check_fits

ROOT = data_root() / "checkpoints"
LISTED = yaml.safe_load((ROOT / CATALOGUE_FILE).read_text(encoding="utf-8"))["players"] or {}
FROZEN = [name for name in LISTED if name not in BUILT_IN]
#: Who was trained in another environment, and has no opponents.
EXPERTS = [name for name in FROZEN if read_card(ROOT / name).env is not None]
OPPONENTS = [name for name in FROZEN if name not in EXPERTS]
MAX_BYTES = 1_000_000
MIN_EPISODES = 1000


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(ROOT)


def test_catalogue_lists_each_player_once(catalogue):
    names = catalogue.names()
    assert len(names) == len(set(names))
    assert set(names) == set(BUILT_IN) | set(LISTED)


def test_catalogue_entries_match_folders():
    folders = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
    assert folders == sorted(FROZEN)


def test_only_players_are_shipped():
    stray = [p for p in ROOT.rglob("*") if p.is_file() and p.name not in (MODEL_FILE, CARD_FILE, CATALOGUE_FILE)]
    assert stray == []


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_player_is_small_and_matches_entry_and_card(name):
    card, data = read_card(ROOT / name), (ROOT / name / MODEL_FILE).read_bytes()
    assert card.name == name
    assert LISTED[name] == {"scenario": card.scenario, "seats": card.seats, "sha256": card.sha256}
    assert sha256_of(data) == card.sha256
    assert len(data) < MAX_BYTES
    assert {"command", "seed", "commit", "versions", "env_steps"} <= set(card.provenance)
    assert card.provenance["env_steps"] > 0
    read_network(ROOT / name, card)  # raises unless architecture, shapes and values are sound
    assert card.seats
    for seat in card.seats if card.env is None else []:
        check_fits(card, load_scenario(card.scenario).spec, seat)


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_return_was_measured(name):
    returns = read_card(ROOT / name).returns
    assert set(returns) == {"stochastic", "argmax"}
    assert all(row.episodes >= 100 and row.low < row.mean < row.high for row in returns.values())


@pytest.mark.parametrize("name", OPPONENTS)
def test_frozen_player_has_measured_strength_and_baseline(name):
    card = read_card(ROOT / name)
    for rows in (card.strength, card.baseline):
        measured = [row for row in rows if row.opponent == "random" and row.scenario == card.scenario]
        assert measured
        assert all(row.episodes >= MIN_EPISODES for row in measured)
        assert all(row.win + row.draw + row.loss == pytest.approx(1, abs=2e-4) for row in measured)
    # A player worth shipping beats the player that it could have been without any training.
    assert card.strength[0].win > card.baseline[0].win


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_default_opponents_are_in_catalogue_and_fit(scenario, catalogue):
    loaded = load_scenario(scenario)
    for seat, name in [(seat, name) for seat, names in loaded.kind.opponents.items() for name in names]:
        assert name in catalogue.names()
        catalogue.seat(name, loaded.spec, seat)


def test_every_frozen_player_is_used_as_opponent():
    files = [*files_of("scenario").values(), *files_of("experiment").values()]
    used = set(re.findall(r"[\w-]+", str([read(path) for path in files])))
    assert set(OPPONENTS) - {"blue-sentinel", "blue-legend", "2v2-champion"} <= used  # the top of each ladder


def test_built_in_strengths_rest_on_enough_games(catalogue):
    rows = {name: catalogue.strength(name) for name in BUILT_IN}
    assert [name for name, listed in rows.items() if any(row.episodes < MIN_EPISODES for row in listed)] == []
