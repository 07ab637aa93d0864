"""Doors: another way to name a player, and another page, are an entry of a table and its object."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from multigrid_rl import tables
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue, Naming, runs_code
from multigrid_rl.players.scripted import Hunter

SPEC = load_scenario("1v1").spec


class Guest:
    """A player that somebody else's table knows."""

    title, folder = "the guest", None

    def packed(self):
        return self

    def seat(self, spec, seat):
        return Hunter(spec)


def _find(name: str) -> Guest | Path | None:
    if name == "friend/rookie":
        return data_root() / "checkpoints" / "blue-rookie"
    return Guest() if name == "friend/guest" else None


@pytest.fixture
def friends(monkeypatch):
    """Give players a name of another form, by a module of another package."""
    module = ModuleType("not_ours")
    module.__spec__ = ModuleSpec("not_ours", None)
    module.NAMING = Naming("friend/NAME", _find, runs_code=True, known=lambda: ["friend/guest"])
    monkeypatch.setitem(sys.modules, "not_ours", module)
    monkeypatch.setitem(tables.NAMINGS, "friend", "not_ours:NAMING")


def test_entry_names_players_wherever_one_is_named(friends):
    catalogue = Catalogue()
    assert catalogue.title_of("friend/guest") == ("the guest", "1v1")
    assert isinstance(catalogue.packed(["friend/guest"]).seat("friend/guest", SPEC, "red_0").player, Hunter)
    card = catalogue.card_of("friend/rookie")
    assert catalogue.seat("friend/rookie", SPEC, "blue_0").sha256 == card.sha256
    assert runs_code("friend/guest")
    config = compose(["scenario=1v1", "scenario.seats.blue_0=friend/guest"])
    assert env_factory(config).load()["blue_0"][0].name == "friend/guest"
    with pytest.raises(PlayerError, match=r" or friend/NAME, got x"):
        catalogue.folder("x")


def test_players_are_found_where_add_ons_were_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "find_spec", lambda name: name if name.endswith("players") else None)
    (tmp_path / "agent.yaml").write_text("command: [true]\n")
    catalogue = Catalogue()
    assert catalogue.seat("blue-rookie", SPEC, "blue_0").sha256
    assert catalogue.card_of("some_module:Class") is None
    assert not runs_code(str(tmp_path))
    with pytest.raises(PlayerError, match=r"a folder with a frozen player or module:Class, got snorer"):
        catalogue.folder("snorer")
