"""Recipes outside of ``configs/experiment/``, such as a search's winner: a file stands for its overrides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from multigrid_rl.schema import ConfigError

_FILES = (".yaml", ".yml")
_GROUP = "override /"
#: Mixtures of players have their own way of being written in an override.
_SEATS = "scenario.seats."


def unfolded(overrides: list[str]) -> list[str]:
    """Overrides with the file of ``experiment=path/to/recipe.yaml``, if there is one, replaced by what it says.

    The other overrides win over the file's.

    Raises:
        ConfigError: the file cannot be read, is no recipe, or is one for another scenario than an override
            names.
    """
    given = dict(override.split("=", 1) for override in overrides)
    path = given.get("experiment", "")
    if not path.endswith(_FILES):
        return overrides
    recipe = recipe_overrides(Path(path))
    rest = [override for override in overrides if not override.startswith("experiment=")]
    own = dict(override.split("=", 1) for override in recipe).get("scenario")
    if own and given.get("scenario", own) != own:
        raise ConfigError(
            f"scenario={given['scenario']}: experiment={path} is a recipe for {own}; allowed is scenario={own}"
        )
    return ["experiment=none", *(part for part in recipe if part.partition("=")[0] not in given), *rest]


def recipe_overrides(path: Path) -> list[str]:
    """The overrides that a recipe file stands for, groups first.

    Raises:
        ConfigError: it cannot be read, or is no recipe.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"experiment={path}: {' '.join(str(error).split())}; allowed is a recipe") from error
    lines = content.pop("defaults", []) if isinstance(content, dict) else None
    known = isinstance(lines, list) and all(
        isinstance(line, dict) and len(line) == 1 and next(iter(line)).startswith(_GROUP) for line in lines
    )
    if not known or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"experiment={path}: allowed is a recipe: a defaults list of '{_GROUP}group: name', and keys")
    groups = [f"{key.removeprefix(_GROUP)}={value}" for line in lines or [] for key, value in line.items()]
    return groups + [f"{key}={value}" for key, value in _leaves(content)]


def _leaves(node: dict[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if isinstance(value, dict) and place == _SEATS:
            yield f"{place}{name}", ",".join(f"{player}:{weight}" for player, weight in value.items())
        elif isinstance(value, dict) and value:
            yield from _leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value if isinstance(value, str) else _word(value)


def _word(value: Any) -> str:
    # As JSON, but for keys: Hydra's are bare.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_word(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_word, value)) + "]"
    return json.dumps(value)
