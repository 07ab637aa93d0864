"""What is typed, and what it stands for: scenarios and recipes by name or by file, and their overrides spelt out.

A file outside of ``configs/``, such as a search's winner, is passed on. So that nobody need read one before it is
tried, it may set values, and neither run code, nor read this machine's environment, nor say where files go: who typed
``trust_recipe=true`` has read it.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from multigrid_rl.files import data_root, read_plain_yaml
from multigrid_rl.scenario import CODE, ConfigError, ScenarioConfig
from multigrid_rl.text import expected, unknown

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

GROUPS = ("scenario", "train", "model", "cluster", "experiment")
#: How the file of a recipe ends.
FILES = (".yaml", ".yml")
#: Environment variable: folders with scenarios of one's own, which are then known by their names.
SCENARIOS_FROM = "MULTIGRID_RL_SCENARIOS"
#: Entry points by which an installed package names a package of its own as a folder with scenarios.
SCENARIOS_PLUGGED_IN = "multigrid_rl.scenarios"
_GROUP = "override /"
#: What only networks of ours read: of a recipe they are left out for one of the user's own, which ignores them.
_OF_OURS = tuple(f"model.{key}" for key in ("activation", "norm", "normalise", "scale_values", "log_std"))
#: Mixtures of players have their own way of being written in an override.
_SEATS = "scenario.seats."
_MAX_LEAVES = 1000
#: Arguments of an environment are its own: any key may be one.
ENV_ARGS = "scenario.env_args"
#: Keys that a user may write without the part that they belong to, beside ``env_id``.
_SHORT = {
    "address": "cluster.address", "env_args": ENV_ARGS, "env_path": "scenario.env_path", "port": "scenario.port",
    "expert": "train.dagger.expert",
}  # fmt: skip


class Spelt(NamedTuple):
    """What overrides stand for."""

    values: dict[str, str]  # key -> value of everything that is said, those of a recipe with it
    recipe: str | None  # the recipe of ours that it begins with
    trusted: bool  # files outside of configs/ may say everything


def spelt_out(overrides: list[str]) -> Spelt:
    """Return what ``key=value`` overrides stand for, with the recipe that they name or that their scenario has.

    Raises ``ConfigError``.
    """
    check_form(overrides)
    given = _split(overrides)
    trust = given.pop(TRUST, "false")
    if trust not in ("true", "false"):
        raise ConfigError(expected(TRUST, "true or false", trust))
    trusted = trust == "true"
    said = _our_names(given)
    own = said.get("model.name", "")
    for key in _OF_OURS:
        if key in said and CODE.fullmatch(own):
            raise ConfigError(expected(key, f"nothing with model={own}, whose code decides that", said[key]))
    recipe = given.get("experiment", _own_recipe(said))
    if recipe in ("none", "null"):
        return Spelt(said, None, trusted)
    its = _our_names(_split(recipe_overrides(recipe, trusted=trusted)))
    scenario = said.get("scenario", its.get("scenario"))
    if its.get("scenario", scenario) != scenario:
        wanted = f"{its['scenario']} with experiment={recipe}, or experiment=none"
        raise ConfigError(expected("scenario", wanted, scenario))
    # What the recipe says comes first: the rest wins.
    rest = {key: value for key, value in its.items() if key not in said}
    if CODE.fullmatch({**rest, **said}.get("model.name", "")):
        rest = {key: value for key, value in rest.items() if key not in _OF_OURS}
    return Spelt({**rest, **said}, None if recipe.endswith(FILES) else recipe, trusted)


def check_form(overrides: list[str]) -> None:
    """Raise ``ConfigError`` for what is no ``key=value``."""
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override}: expected key=value, for example train.lr=3e-4")


def _split(overrides: Iterable[str]) -> dict[str, str]:
    return dict(override.split("=", 1) for override in overrides)


def _our_names(given: dict[str, str]) -> dict[str, str]:
    """Return ``given`` with our names for what has several; the recipe is left out."""
    result: dict[str, str] = {}
    for key, value in given.items():
        if key == "scenario":
            result |= {key: scenario_id(value), **_scheme_of_alias(value, given)}
        elif key == "env_id":
            package = "multigrid" if value.startswith("MultiGrid-") else "gymnasium"
            result |= {"scenario.env_id": value, "scenario": result.get("scenario", package)}
        elif key == "model" and CODE.fullmatch(value):
            result |= {"model": "mlp", "model.name": value}
        else:
            check_choice(key, value)
            if key != "experiment":
                result[_SHORT.get(key, key)] = value
    return result


def check_choice(key: str, value: str) -> None:
    """Raise ``ConfigError`` where ``key`` is a group of ``configs/`` without such a file."""
    none = key == "experiment" and (value in ("none", "null") or value.endswith(FILES))
    if key in GROUPS and not none and value not in names_in(key):
        raise ConfigError(unknown(key, value, names_in(key)))


def _own_recipe(given: dict[str, str]) -> str:
    # A scenario's own recipe is the file of its name; a scheme, or another objective, may have one of its own.
    scenario, train = given.get("scenario", "1v1"), given.get("train", "ppo")
    wanted = (f"{scenario}-{given.get('scheme', '')}", scenario) if train == "ppo" else (f"{scenario}-{train}",)
    known = names_in("experiment")
    return next((name for name in wanted if name in known), "none")


def _scheme_of_alias(name: str, given: dict[str, str]) -> dict[str, str]:
    # The original environments carry a scheme in their names; for a team of one all schemes are the same.
    found = re.search(r"-(DTDE|CTDE|CTCE)-", name)
    if found is None or "scheme" in given:
        return {}
    learning = list(ScenarioConfig.model_validate(whole_scenario(scenario_id(name))).learning.values())
    return {"scheme": found[1].lower()} if any(learning.count(team) > 1 for team in learning) else {}


def names_in(group: str) -> list[str]:
    """Return the names of all files in a folder of ``configs/``, sorted."""
    return sorted(path.stem for path in (data_root() / "configs" / group).glob("*.yaml"))


def read_ours(group: str, name: str) -> dict[str, Any]:
    """Return what a file in a folder of ``configs/`` says."""
    text = (data_root() / "configs" / group / f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def scenario_names() -> list[str]:
    """Return the ids of all scenarios of the red/blue-door game, sorted."""
    return [name for name in names_in("scenario") if _is_game(data_root() / "configs" / "scenario" / f"{name}.yaml")]


@lru_cache(maxsize=64)
def _is_game(file: Path) -> bool:
    return yaml.safe_load(file.read_text(encoding="utf-8")).get("game") is not None


def scenario_id(name: str) -> str:
    """Return our id of a scenario: of an id or an original environment name; the path of a file is its own.

    A name that is not ours may be one of a file in a folder of ``SCENARIOS_FROM``, or of an installed package. Raises
    ``ConfigError``.
    """
    names = names_in("scenario")
    if name in names:
        return name
    if name.endswith(FILES):
        if Path(name).stem in names or not re.fullmatch(r"[A-Za-z0-9][\w-]{0,63}", Path(name).stem):
            raise ConfigError(expected("scenario", "a file with a name of its own, of letters, digits and -", name))
        return name
    aliases = {alias: stem for stem in names for alias in read_ours("scenario", stem).get("aliases", [])}
    if name in aliases:
        return aliases[name]
    folders = [*filter(None, os.environ.get(SCENARIOS_FROM, "").split(os.pathsep)), *folders_plugged_in()]
    outside = {file.stem: str(file) for folder in folders for file in sorted(Path(folder).glob("*.yaml"))}
    if name in outside:
        return outside[name]
    raise ConfigError(unknown("scenario", name, [*names, *outside, "a file such as ./mine.yaml"]))


def whole_scenario(found: str, *, trusted: bool = False) -> dict[str, Any]:
    """Return a scenario with its name, by what :func:`scenario_id` found. Raises ``ConfigError``."""
    if found.endswith(FILES):
        return {**read_scenario(found, trusted=trusted), "name": Path(found).stem}
    return {**read_ours("scenario", found), "name": found}


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
