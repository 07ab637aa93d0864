"""Scenarios and recipes by name or by file, and the overrides that they expand to.

A file outside ``configs/`` may name code, which then runs with a warning. With ``--safe`` it may set values, but
neither run code, nor read environment variables, nor name folders for files: see ``trust.py``.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from multigrid_rl.config.overrides import SHORT, as_typed, is_text, leaves, merge, parse, written
from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.files import data_root, read_plain_yaml
from multigrid_rl.tables import ENV_IDS, NAMING_CODE, SECTIONS, installed
from multigrid_rl.text import ConfigError, expected, listed, suggestion, unknown
from multigrid_rl.trust import CODE, check_code, safe

#: Keys that may change when a run is resumed, in addition to those of the cluster.
RESUMABLE = (
    "train.until", "train.stop_when_held", "train.checkpoint_every", "train.keep_checkpoints", "train.torch_threads",
    "train.threads", "tracking",
)  # fmt: skip
#: Keys that no file may set where code is refused: code to import, folders (a run's state is unpickled) and machines.
TRUSTED_ONLY = (
    "train.shaping", "run_dir", "checkpoints", "data", "init", "cluster", "address", "scenario.env_path", "env_path",
    "tracking", *NAMING_CODE,
)  # fmt: skip

#: Keys whose values import code if they have the form ``module:name``.
IMPORTING = (
    "model", "model.name", "train.objective", "train.value_loss", "train.psi", "scenario.env_id", "env_id",
)  # fmt: skip
#: Keys whose values name players, or metrics of gates, in any form.
_SEATING_KEYS = ("scenario.seats", "scenario.league.anchors", "scenario.gates", "curriculum")

GROUPS = ("scenario", "train", "model", "cluster", "experiment")
#: Folders of recipes: for scenarios, for the shipped players, and for studies and pages of results.
RECIPES = ("recipe", "ladder", "study")
#: Suffixes of a recipe's file.
FILES = (".yaml", ".yml")
#: Environment variable: folders with the user's own scenarios, then available by name.
SCENARIOS_FROM = "MULTIGRID_RL_SCENARIOS"
#: Entry points by which an installed package declares one of its packages as a folder with scenarios.
SCENARIOS_PLUGGED_IN = "multigrid_rl.scenarios"
_GROUP = "override /"
#: Keys that only built-in networks read: dropped from a recipe for a user's network.
_BUILT_IN_ONLY = tuple(f"model.{key}" for key in ("activation", "norm", "normalise", "scale_values", "log_std"))
#: Keys that learning from recorded play does not support: dropped from a recipe that was found for other training.
_NOT_WITH_RECORDINGS = ("scheme", "model.bound")
#: Sections that a file of ``configs/train/`` for recorded play sets.
_IMITATION_KEYS = tuple(f"train.{section}." for section in SECTIONS)
_MAX_LEAVES = 1000


def expand_overrides(overrides: list[str]) -> tuple[dict[str, Any], str | None]:
    """Return the dotted keys and values that overrides expand to, and the recipe of the overrides or their scenario.

    Raises ``ConfigError``.
    """
    parsed = parse(overrides)
    settings = _canonical_names(parsed)
    network = str(settings.get("model.name", ""))
    if CODE.fullmatch(network) and (key := next(filter(settings.__contains__, _BUILT_IN_ONLY), None)):
        wanted = f"nothing with model={network}, whose code decides that"
        raise ConfigError(expected(key, wanted, written(settings[key])))
    recipe = written(parsed["experiment"]) if "experiment" in parsed else _scenario_recipe(settings)
    if recipe in ("none", "null"):
        return settings, None
    defaults = _canonical_names(recipe_values(recipe))
    target = defaults.get("scenario")
    scenario = settings.get("scenario", target)
    fits = target is None or scenario is None or target in _matching_scenarios(scenario)
    if "experiment" in parsed and not fits:
        raise ConfigError(expected("scenario", f"{target} with experiment={recipe}, or experiment=none", scenario))
    defaults = _adapt_recipe(settings.get("train", defaults.get("train", "ppo")), defaults, recorded="data" in settings)
    if CODE.fullmatch(str({**defaults, **settings}.get("model.name", ""))):
        defaults = {key: value for key, value in defaults.items() if key not in _BUILT_IN_ONLY}
    used = "experiment" in parsed or not defaults.keys() <= {"scenario", "train"}  # even if overrides change all values
    # Overrides win over the recipe.
    rest = {key: value for key, value in defaults.items() if key not in settings}
    return {**rest, **settings}, recipe if used else None


def _canonical_names(parsed: dict[str, Any]) -> dict[str, Any]:
    """Return ``parsed`` with canonical names of keys and values, without the recipe."""
    result: dict[str, Any] = {}
    for key, value in parsed.items():
        name = written(value)  # yaml reads a file name such as 1 or null as a number or nothing
        if key == "scenario":
            result |= {key: scenario_id(name), **_scheme_of_alias(name, parsed)}
        elif key == "env_id":
            package = ENV_IDS[max((beginning for beginning in ENV_IDS if name.startswith(beginning)), key=len)]
            result |= {"scenario.env_id": value, "scenario": result.get("scenario", package)}
        elif key == "model" and (CODE.fullmatch(name) or name in installed("networks").keys() - names_in(key)):
            result |= {"model": "mlp", "model.name": value}
        elif key == "train" and name in installed("trainers").keys() - names_in(key):  # no file has its keys
            result |= {"train": "ppo", "train.trainer": name}
        elif key in GROUPS:
            check_choice(key, name)
            if key != "experiment":
                result[key] = name
        else:
            result[SHORT.get(key, key)] = value
    return result


def check_choice(key: str, value: str) -> None:
    """Raise ``ConfigError`` where ``key``, a group of ``configs/``, has no such file."""
    file_or_none = key == "experiment" and (value in ("none", "null") or value.endswith(FILES))
    if not file_or_none and value not in names_in(key):
        plugged_in = installed({"train": "trainers", "model": "networks"}.get(key, key))
        raise ConfigError(unknown(key, value, [*names_in(key), *plugged_in]))


def _scenario_recipe(settings: dict[str, Any]) -> str:
    """Return the recipe for these settings that a scenario, or the scenario named like its package, names."""
    kinds = [*builds_on(settings.get("train", "ppo")), str(settings.get("scheme")), "default"]
    for candidate in _matching_scenarios(settings.get("scenario", "1v1")):
        named = settings.get("scenario.recipe", scenario_values(candidate).get("recipe"))
        named = named if isinstance(named, dict) else {"default": named}
        names = (settings.get(f"scenario.recipe.{kind}", named.get(kind)) for kind in kinds)
        if found := next(filter(None, names), None):
            return str(found)
    return "none"


def _matching_scenarios(scenario: str) -> list[str]:
    """Return the scenarios whose recipes fit: the scenario itself and, for an environment, the one of its package."""
    package = scenario_values(scenario).get("package")
    return [scenario, *([package] if package in names_in("scenario") else [])]


def builds_on(train: str) -> list[str]:
    """Return a file of ``configs/train/`` and its bases, by name, the nearest first."""
    bases = [name for name in read_config_file("train", train).get("defaults", []) if name != "_self_"]
    return [train, *(name for base in bases for name in builds_on(base))]


def _adapt_recipe(train: str, recipe: dict[str, Any], *, recorded: bool) -> dict[str, Any]:
    """Return a recipe's values for ``train``, without those that its file sets or does not support.

    Networks with memory cannot learn from recorded play, so with ``recorded`` the kind of network is dropped, too.
    """
    found_for = builds_on(recipe.get("train", "ppo"))
    files = [read_config_file("train", name) for name in builds_on(train) if name not in found_for]
    method_keys = [key for content in files for key, _ in leaves(content, "train.") if key != "train.defaults"]
    imitates = any(key.startswith(_IMITATION_KEYS) for key in method_keys)
    excluded = (*_NOT_WITH_RECORDINGS, *(("model",) if recorded else ())) if imitates else ()
    prefixes = tuple(f"{key}." for key in method_keys)
    return {key: value for key, value in recipe.items() if key not in excluded and not f"{key}.".startswith(prefixes)}


def _scheme_of_alias(name: str, settings: dict[str, Any]) -> dict[str, str]:
    # Names of the original environments contain a scheme; for a team of one all schemes are the same.
    match = re.search(r"-(DTDE|CTDE|CTCE)-", name)
    if match is None or "scheme" in settings:
        return {}
    learning = list(ScenarioConfig.model_validate(scenario_values(scenario_id(name))).kind.learning.values())
    return {"scheme": match[1].lower()} if any(learning.count(team) > 1 for team in learning) else {}


def files_of(group: str) -> dict[str, Path]:
    """Return the files of a group of ``configs/``, by name."""
    folders = RECIPES if group == "experiment" else (group,)
    found = [path for folder in folders for path in (data_root() / "configs" / folder).glob("*.yaml")]
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


def names_in(group: str) -> list[str]:
    """Return the names of all files of a group of ``configs/``, sorted."""
    return list(files_of(group))


def read_config_file(group: str, name: str) -> dict[str, Any]:
    """Return the content of a file in a folder of ``configs/``."""
    text = (data_root() / "configs" / group / f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def group_values(group: str, name: str) -> dict[str, Any]:
    """Return the values of a file in a folder of ``configs/``, merged over those of the files in its ``defaults``."""
    content = read_config_file(group, name)
    values: Any = {}
    for base in content.pop("defaults", []):
        if base != "_self_":
            values = merge(values, group_values(group, base))
    return {**merge(values, content)}


def scenario_names() -> list[str]:
    """Return the ids of all scenarios of the red/blue-door game, sorted."""
    return [name for name in names_in("scenario") if _is_game(data_root() / "configs" / "scenario" / f"{name}.yaml")]


@lru_cache(maxsize=64)
def _is_game(file: Path) -> bool:
    return yaml.safe_load(file.read_text(encoding="utf-8")).get("game") is not None


def scenario_id(name: str) -> str:
    """Return the id of a scenario for an id, an original environment name, or a path, which is returned unchanged.

    Other names are looked up in the folders of ``SCENARIOS_FROM`` and of installed packages. Raises
    ``ConfigError``.
    """
    names = names_in("scenario")
    if name in names:
        return name
    if name.endswith(FILES):
        if Path(name).stem in names or not re.fullmatch(r"[A-Za-z0-9][\w-]{0,63}", Path(name).stem):
            raise ConfigError(expected("scenario", "a file with a name of its own, of letters, digits and -", name))
        return name
    aliases = {alias: stem for stem in names for alias in read_config_file("scenario", stem).get("aliases", [])}
    if name in aliases:
        return aliases[name]
    folders = [*filter(None, os.environ.get(SCENARIOS_FROM, "").split(os.pathsep)), *plugin_folders()]
    user_files = {file.stem: str(file) for folder in folders for file in sorted(Path(folder).glob("*.yaml"))}
    if name in user_files:
        return user_files[name]
    known = f"{listed(name, [*names, *user_files])}, or a file such as ./mine.yaml"
    hint = suggestion(name, [*names, *user_files, *aliases])
    raise ConfigError(expected("scenario", f"one{hint} of {known}" if hint else known, name))


def scenario_values(name: str) -> dict[str, Any]:
    """Return the values of a scenario with its name, by the id from :func:`scenario_id`. Raises ``ConfigError``."""
    if name.endswith(FILES):
        return {**read_scenario(name), "name": Path(name).stem}
    return {**read_config_file("scenario", name), "name": name}


def recipe_values(recipe: str) -> dict[str, Any]:
    """Return the values of a recipe by dotted key, groups first.

    ``recipe``: a name in ``configs/``, or the path of a file. Raises ``ConfigError``: it cannot be read, is no recipe,
    or names code in safe mode.
    """
    configs = data_root() / "configs"
    shipped = files_of("experiment")
    path = shipped[recipe] if recipe in shipped else Path(recipe)
    try:
        content = read_plain_yaml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(expected("experiment", "a recipe", f"{path}: {error}")) from error
    lines = content.pop("defaults", []) if isinstance(content, dict) else None
    valid = isinstance(lines, list) and all(
        isinstance(line, dict) and len(line) == 1 and next(iter(line)).startswith(_GROUP) for line in lines
    )
    if not valid or not all(isinstance(key, str) for key in content):
        raise ConfigError(expected("experiment", f"a recipe: a defaults list of '{_GROUP}group: name', and keys", path))
    groups = {key.removeprefix(_GROUP): value for line in lines or [] for key, value in line.items()}
    try:
        found = list(islice(leaves(content), _MAX_LEAVES + 1))
        for _, value in found:
            written(value)  # raises for a date
    except (TypeError, ValueError, RecursionError) as error:  # RecursionError: nested too deep
        raise ConfigError(expected("experiment", "a recipe", f"{path}: {error}")) from error
    if len(found) > _MAX_LEAVES:
        raise ConfigError(expected("experiment", f"a recipe of at most {_MAX_LEAVES} values", f"{path} with more"))
    values = {**groups, **{key: as_typed(key, value) if is_text(key) else value for key, value in found}}
    if not path.resolve().is_relative_to(configs.resolve()):
        check_harmless("experiment", path, values)
    return values


def read_scenario(file: str) -> dict[str, Any]:
    """Return the content of a scenario's file outside ``configs/``.

    Raises ``ConfigError``: it cannot be read, or names code in safe mode.
    """
    try:
        content = read_plain_yaml(Path(file))
        if not isinstance(content, dict):
            raise ValueError(type(content).__name__)
        check_harmless("scenario", Path(file), dict(leaves(content, "scenario.")))
    except ConfigError:
        raise
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(expected("scenario", "a file like those in configs/scenario", f"{file}: {error}")) from error
    return content


def plugin_folders() -> Iterator[str]:
    """Yield the scenario folders that installed packages declare as entry points, without importing them."""
    for point in entry_points(group=SCENARIOS_PLUGGED_IN):
        with suppress(ImportError):  # a parent package is missing
            spec = find_spec(point.module)
            yield from (spec and spec.submodule_search_locations) or ()


def check_harmless(what: str, path: Path, values: dict[str, Any]) -> None:
    """Warn of values in a file that name code; in safe mode, raise ``ConfigError`` for them."""
    for written_key, value in values.items():
        key, text = written_key.lstrip("+~").partition("=")[0], written(value)
        override = f"{written_key}={text}"
        restricted = key.startswith(tuple(f"{name}." for name in TRUSTED_ONLY)) or key in TRUSTED_ONLY
        restricted |= key in IMPORTING and ":" in text
        if key.startswith(_SEATING_KEYS):  # an external agent, whose folder is named, has a program to run
            named = [part for part in re.split(r"[\s,:{}\[\]\"]+", text) if part]
            restricted |= bool(CODE.search(override)) or any(Path(part, "agent.yaml").exists() for part in named)
        if (restricted and value is not None) or "${" in override:
            if safe():
                wanted = "a file that neither interpolates, nor imports code, nor names folders and machines (--safe)"
                raise ConfigError(expected(what, wanted, f"{override[:80]!r} in {path}"))
            check_code(path, [] if "${" in override else CODE.findall(override), "")
