"""Recipes and scenarios outside of ``configs/``: a recipe's file, such as a search's winner, stands for its overrides.

Both are passed on. So that nobody need read one before it is tried, a file may set values, and neither run code, nor
read this machine's environment, nor say where files go: who typed ``trust_recipe=true`` has read it.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from multigrid_rl.files import data_root, read_plain_yaml
from multigrid_rl.scenario import CODE, ConfigError
from multigrid_rl.text import expected

#: Override by which a file may say everything that its user could type.
TRUST = "trust_recipe"
#: What else only a trusted file may say: it names code to import, folders (a run's state is unpickled) and machines.
BARRED = (
    "train.shaping", "run_dir", "checkpoints", "data", "init", "cluster", "address", "scenario.env_path", "env_path",
    "tracking", "train.adversarial.reward", "train.dagger.expert", "expert",
)  # fmt: skip

#: Values that import code where they are written as ``module:name``.
IMPORTING = ("model", "model.name", "train.objective", "scenario.env_id", "env_id")
#: Values in which players, or metrics of gates, are named, in whatever form.
_SEATING = ("scenario.seats", "scenario.league.anchors", "scenario.gates", "curriculum")

#: How the file of a recipe ends.
FILES = (".yaml", ".yml")
#: Entry points by which an installed package names a package of its own as a folder with scenarios.
SCENARIOS_PLUGGED_IN = "multigrid_rl.scenarios"
_GROUP = "override /"
#: Mixtures of players have their own way of being written in an override.
_SEATS = "scenario.seats."
_MAX_LEAVES = 1000


def recipe_overrides(recipe: str, *, trusted: bool) -> list[str]:
    """Return the overrides that a recipe stands for, groups first.

    Args:
        recipe: name of one in ``configs/experiment/``, or path of a file.
        trusted: the file may say everything, as those in ``configs/`` may.

    Raises:
        ConfigError: it cannot be read, is no recipe, or says what only a trusted one may.
    """
    configs = data_root() / "configs"
    path = Path(recipe) if recipe.endswith(FILES) else configs / "experiment" / f"{recipe}.yaml"
    try:
        content = read_plain_yaml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(expected("experiment", "a recipe", f"{path}: {error}")) from error
    lines = content.pop("defaults", []) if isinstance(content, dict) else None
    known = isinstance(lines, list) and all(
        isinstance(line, dict) and len(line) == 1 and next(iter(line)).startswith(_GROUP) for line in lines
    )
    if not known or not all(isinstance(key, str) for key in content):
        raise ConfigError(expected("experiment", f"a recipe: a defaults list of '{_GROUP}group: name', and keys", path))
    groups = [f"{key.removeprefix(_GROUP)}={value}" for line in lines or [] for key, value in line.items()]
    try:
        leaves = list(islice(_leaves(content), _MAX_LEAVES + 1))
    except (TypeError, ValueError, RecursionError) as error:  # a date, or what nests too deep
        raise ConfigError(expected("experiment", "a recipe", f"{path}: {error}")) from error
    if len(leaves) > _MAX_LEAVES:
        raise ConfigError(expected("experiment", f"a recipe of at most {_MAX_LEAVES} values", f"{path} with more"))
    found = groups + [f"{key}={value}" for key, value in leaves]
    if not trusted and not path.resolve().is_relative_to(configs.resolve()):
        check_harmless("experiment", path, found)
    return found


def read_scenario(file: str, *, trusted: bool) -> dict[str, Any]:
    """Return what a scenario's file outside of ``configs/`` says.

    Raises:
        ConfigError: it cannot be read, or says what only a trusted one may.
    """
    try:
        content = read_plain_yaml(Path(file))
        if not isinstance(content, dict):
            raise ValueError(type(content).__name__)
        if not trusted:
            check_harmless("scenario", Path(file), [f"{key}={value}" for key, value in _leaves(content, "scenario.")])
    except ConfigError:
        raise
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(expected("scenario", "a file like those in configs/scenario", f"{file}: {error}")) from error
    return content


def folders_plugged_in() -> Iterator[str]:
    """Yield the folders of packages that installed ones name as theirs with scenarios; nothing is imported."""
    for point in entry_points(group=SCENARIOS_PLUGGED_IN):
        with suppress(ImportError):  # a package above it is not there
            found = find_spec(point.module)
            yield from (found and found.submodule_search_locations) or ()


def check_harmless(what: str, path: Path, overrides: list[str]) -> None:
    """Raise ``ConfigError`` for overrides out of a file that could do more than set values."""
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        barred = key.startswith(tuple(f"{name}." for name in BARRED)) or key in BARRED
        barred |= key in IMPORTING and ":" in value
        barred |= key.startswith(_SEATING) and (CODE.search(override) is not None or _names_agent(value))
        if (barred and value != "null") or "${" in override:
            wanted = "a file that neither interpolates, nor imports code, nor names folders and machines"
            got = f"{override[:80]!r} in {path}; {TRUST}=true if you have read it"
            raise ConfigError(expected(what, wanted, got))


def _names_agent(value: str) -> bool:
    """Whether a value names a folder with a program in it, which would be run."""
    return any(Path(word, "agent.yaml").exists() for word in re.split(r"[\s,:{}\[\]\"]+", value) if word)


def _leaves(node: dict[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if isinstance(value, dict) and place == _SEATS:
            yield f"{place}{name}", ",".join(f"{player}:{weight}" for player, weight in value.items())
        elif isinstance(value, dict) and value:
            yield from _leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", override_value(value)


def override_value(value: Any) -> str:
    """Return a value as it is written in an override."""
    return os.fspath(value) if isinstance(value, str | os.PathLike) else _word(value)


def _word(value: Any) -> str:
    # As JSON, but for keys: Hydra's are bare.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_word(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_word, value)) + "]"
    return json.dumps(value)
