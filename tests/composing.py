"""Configurations and what is wrong with them, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from multigrid_rl.config.compose import compose
from multigrid_rl.config.recipes import scenario_names
from multigrid_rl.files import data_root
from multigrid_rl.text import ConfigError

CONFIGS = data_root() / "configs"
SCENARIOS = scenario_names()
#: Folders of configs/ that other verbs than train read, as they stand: nothing of a run's composition.
OF_OTHER_VERBS = {"grade", "search"}


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def files(group: str) -> list:
    """Every yaml of a group, for ``parametrize``."""
    found = sorted((CONFIGS / group).glob("*.yaml"))
    return [pytest.param(path, id=path.stem) for path in found]


def error_of(*overrides: str) -> str:
    """The message of the ConfigError; one line, as every mistake must be."""
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text
