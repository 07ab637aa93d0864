"""Pages and figures are entries of tables: what asks for one gets what stands there."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from commands import works
from multigrid_rl import api, tables
from report_runs import TEAMS, games_of
from run_folders import write_run


@pytest.fixture
def outside(monkeypatch):
    """Enters functions of another package's module into tables."""
    module = ModuleType("somebodys_pictures")
    module.__spec__ = ModuleSpec(module.__name__, None)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def entered(table, name, function):
        module.made = function
        monkeypatch.setitem(table, name, f"{module.__name__}:made")

    return entered


@pytest.mark.parametrize("table", [tables.PAGES, tables.FIGURES], ids=["pages", "figures"])
def test_every_entry_is_a_function(table):
    assert all(callable(tables.find(table, name)) for name in table)


def test_page_of_game_may_be_of_somebody_else(outside):
    game = games_of(TEAMS, 1)[0]
    assert "<title>game 0" in api.Replay(game).page
    outside(tables.PAGES, "game", lambda record: f"own page of {record.label}")
    assert api.Replay(game).page == "own page of game 0"


def test_comparison_may_be_drawn_by_somebody_else(outside, tmp_path):
    outside(tables.FIGURES, "comparison", lambda ours, theirs, rng, path: path.write_bytes(b"drawn"))
    runs = [write_run(tmp_path / name / "run") for name in "ab"]
    works("compare", *(run.parent for run in runs), "-o", tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes() == b"drawn"
