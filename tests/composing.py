"""Configurations and what is wrong with them, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from multigrid_rl import tables
from multigrid_rl.config.compose import compose
from multigrid_rl.config.recipes import group_values, recipe_values, scenario_names
from multigrid_rl.config.scenario import BOARD
from multigrid_rl.files import data_root
from multigrid_rl.text import ConfigError

CONFIGS = data_root() / "configs"
#: Folders of configs/ that other verbs than train read, as they stand: nothing of a run's composition.
OF_OTHER_VERBS = {"grade", "search"}


def available(group: str, name: str) -> bool:
    """Whether a file of ``configs/`` asks for no add-on that was left out of this checkout."""
    if group == "experiment":
        values = recipe_values(name)
        asked = {"scenario": values["scenario"], "train": values.get("train", "ppo")}
        return all(available(*pair) for pair in asked.items())
    content = group_values(group, name)
    if group == "train":
        return tables.has(tables.TRAINERS, content.get("trainer", "ppo"))
    pools = [pool for pool in tables.POOLS if content.get(pool) is not None]
    kind = content.get("package") or BOARD
    return tables.has(tables.ENVIRONMENTS, kind) and all(tables.has(tables.POOLS, pool) for pool in pools)


#: All of the red/blue-door game, and those that this checkout can play.
ALL_SCENARIOS = scenario_names()
SCENARIOS = [name for name in ALL_SCENARIOS if available("scenario", name)]


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
