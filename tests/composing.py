"""Configurations and what is wrong with them, for tests."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from multigrid_rl import tables
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.recipes import group_values, names_in, recipe_values, scenario_names
from multigrid_rl.config.scenario import BOARD, env_factory
from multigrid_rl.files import data_root
from multigrid_rl.gates import Gate
from multigrid_rl.runs.reports import gates_of
from multigrid_rl.text import OneLineError
from multigrid_rl.training.screen import recipe_of

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
    registered = {name: entry["entry_point"] for name, entry in tables.GYMNASIUM.items()}
    if content.get("env_id") in registered and not tables.has(registered, content["env_id"]):
        return False
    return tables.has(tables.ENVIRONMENTS, kind) and all(tables.has(tables.POOLS, pool) for pool in pools)


#: Recipes that this checkout can train.
RECIPES = [name for name in names_in("experiment") if available("experiment", name)]
#: All of the red/blue-door game, and those that this checkout can play.
ALL_SCENARIOS = scenario_names()
SCENARIOS = [name for name in ALL_SCENARIOS if available("scenario", name)]
#: One of those for each game: several differ in who is played against alone.
GAMES = sorted({load_scenario(name).spec: name for name in reversed(SCENARIOS)}.values())


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def files(group: str) -> list:
    """Every yaml of a group that needs no add-on that was left out, for ``parametrize``."""
    found = sorted((CONFIGS / group).glob("*.yaml"))
    return [pytest.param(path, id=path.stem) for path in found if available(group, path.stem)]


def refusal(do: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The message with which something is refused; one line, as that of every mistake must be."""
    with pytest.raises((OneLineError, ValueError)) as caught:
        do(*given, **named)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def error_of(*overrides: str) -> str:
    """The message that refuses these overrides."""
    return refusal(compose, list(overrides))


def unsaid(overrides: str, *parts: str) -> list[str]:
    """The words, or patterns, that the message for these overrides lacks."""
    text = error_of(*overrides.split())
    return [part for part in parts if part not in text and not re.search(part, text)]


def gates(*overrides: str) -> list[Gate]:
    """The gates of a run."""
    config = compose(list(overrides))
    return gates_of(config, env_factory(config).specs)


def with_gate(overrides: str, metric: str) -> list[str]:
    """Metrics of the gates of a run that has this one alone."""
    own = f"scenario.gates=[{{metric: '{metric}', at_least: 0.5}}]"
    return [gate.metric for gate in gates(*overrides.split(), own)]


def refused_gate(overrides: str, metric: str, why: str | None) -> None:
    """Assert that a gate on what such a run never reports is refused, and why."""
    text = f"^scenario.gates: metric: expected .*{why or ''}.*, got {metric.partition('/')[0]}"
    assert re.search(text, refusal(with_gate, overrides, metric))


def assert_keeps_sizes(scenario: str, train: str, own: dict[str, float], *needs: str) -> None:
    """Assert that an environment keeps its sizes, network and discount under an objective.

    Args:
        own: what the objective's file sets itself, in place of the environment's.
        needs: overrides that the objective cannot be without: recorded play, which is not squashed.
    """
    usual, config = compose([f"scenario={scenario}"]), compose([f"scenario={scenario}", f"train={train}", *needs])
    sizes = {**{key: getattr(usual.train, key) for key in ("num_envs", "num_steps", "gamma")}, **own}
    assert {key: getattr(config.train, key) for key in sizes} == sizes
    assert config.model == usual.model.model_copy(update={"bound": None} if needs else {})
    assert (config.experiment, config.train.name) == (scenario, train)
    assert recipe_of(config) == f"experiment={scenario}, train/{train}"
