"""What tests of competitions share: a sound bundle, and known players to compare with."""

from pathlib import Path

import pytest

from bundles import ONE, bundle
from multigrid_rl.competition.copies import Originals
from multigrid_rl.files import data_root
from multigrid_rl.players.catalogue import Catalogue


@pytest.fixture
def folder(tmp_path) -> Path:
    """A sound bundle."""
    return bundle(tmp_path / "mine")


@pytest.fixture(scope="session")
def originals() -> Originals:
    """All players of the catalogue in the game of one against one."""
    return Originals(ONE, Catalogue(data_root() / "checkpoints"))
