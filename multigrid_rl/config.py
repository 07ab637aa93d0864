"""The only reader of ``configs/``: Hydra composes, pydantic validates, errors are one line."""

from __future__ import annotations

import difflib
import re
from datetime import datetime
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from multigrid_rl.recipes import unfolded
from multigrid_rl.schema import (
    LEARN,
    MAX_LAYERS,
    MAX_UNITS,
    ConfigError,
    RunConfig,
    ScenarioConfig,
    available_cpus,
    data_root,
)

__all__ = [
    "GROUPS",
    "LEARN",
    "MAX_LAYERS",
    "MAX_UNITS",
    "ConfigError",
    "RunConfig",
    "ScenarioConfig",
    "available_cpus",
    "compose",
    "data_root",
    "default_run_dir",
    "experiment_names",
    "load_scenario",
    "read_overrides",
    "resumed",
    "scenario_id",
    "scenario_names",
    "to_yaml",
]

GROUPS = ("scenario", "train", "model", "cluster", "experiment")
_TEXT_KEYS = ("run_dir", "checkpoints", "address", "cluster.address", "search.space")
#: What may change when a run goes on, beside the cluster.
RESUMABLE = (
    "train.until", "train.stop_when_held", "train.checkpoint_every", "train.keep_checkpoints", "train.torch_threads",
)  # fmt: skip
_SEATS = "scenario.seats."
_BONUS = "train.bonus"
#: Arguments of an environment are its own: any key may be one.
_ENV_ARGS = "scenario.env_args"

Schema = TypeVar("Schema", bound=BaseModel)


def _choices(group: str) -> list[str]:
    return sorted(path.stem for path in (data_root() / "configs" / group).glob("*.yaml"))


def scenario_names() -> list[str]:
    """Ids of all scenarios of the red/blue-door game, sorted."""
    return [name for name in _choices("scenario") if _is_game(data_root() / "configs" / "scenario" / f"{name}.yaml")]


@lru_cache(maxsize=64)
def _is_game(file: Path) -> bool:
    return yaml.safe_load(file.read_text(encoding="utf-8")).get("game") is not None


def experiment_names() -> list[str]:
    """Names of all recipes, sorted."""
    return _choices("experiment")


def scenario_id(name: str) -> str:
    """Our id of a scenario, from the id itself or from an original environment name.

    Raises:
        ConfigError: unknown scenario.
    """
    names = _choices("scenario")
    if name in names:
        return name
    aliases = {alias: stem for stem in names for alias in _read_yaml("scenario", stem).get("aliases", [])}
    if name in aliases:
        return aliases[name]
    raise ConfigError(f"scenario={name}: unknown{_suggest(name, names)}; allowed is {', '.join(names)}")


def load_scenario(name: str) -> ScenarioConfig:
    """Read one scenario by id or original environment name.

    Raises:
        ConfigError: unknown scenario, or its file is not valid.
    """
    stem = scenario_id(name)
    return _validated(ScenarioConfig, {**_read_yaml("scenario", stem), "name": stem}, "scenario")


def _read_yaml(group: str, stem: str) -> dict[str, Any]:
    text = (data_root() / "configs" / group / f"{stem}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def compose(overrides: list[str]) -> RunConfig:
    """Compose and validate a run from ``key=value`` overrides.

    Raises:
        ConfigError: an unknown or malformed key, or a value that is not allowed.
    """
    values = _compose(_with_scenario_id(overrides))
    return _validated(RunConfig, values)


def _with_scenario_id(overrides: list[str]) -> list[str]:
    _check_form(overrides)
    given = dict(override.split("=", 1) for override in unfolded(overrides))
    result = [part for key, value in given.items() for part in _spelt_out(key, value, given)]
    if "experiment" not in given:
        return result + _own_recipe(result)
    _check_recipe_fits(given, result)
    return result


def _spelt_out(key: str, value: str, given: dict[str, str]) -> list[str]:
    if key == "scenario":
        return [f"scenario={scenario_id(value)}", *_scheme_of_alias(value, given)]
    if key == "address":
        return [f"cluster.address={value}"]
    if key == "env_id":
        package = "multigrid" if value.startswith("MultiGrid-") else "gymnasium"
        return [f"scenario.env_id={value}", *([] if "scenario" in given else [f"scenario={package}"])]
    if key == "env_args":
        return [f"scenario.env_args={value}"]
    if key == "experiment" and value in ("none", "null"):
        return []
    _check_choice(key, value)
    return [f"{key}={value}"]


def _scheme_of_alias(name: str, given: dict[str, str]) -> list[str]:
    # The original environments carry a scheme in their names; for a team of one all schemes are the same.
    found = re.search(r"-(DTDE|CTDE|CTCE)-", name)
    if found is None or "scheme" in given:
        return []
    learning = list(load_scenario(name).learning.values())
    return [f"scheme={found[1].lower()}"] if any(learning.count(team) > 1 for team in learning) else []


def _check_recipe_fits(given: dict[str, str], overrides: list[str]) -> None:
    scenario = next((o.partition("=")[2] for o in overrides if o.startswith("scenario=")), None)
    recipe = given["experiment"]
    if scenario is None or recipe in ("none", "null"):
        return
    lines = _read_yaml("experiment", recipe).get("defaults", [])
    own = next((line["override /scenario"] for line in lines if "override /scenario" in line), scenario)
    if own != scenario:
        raise ConfigError(
            f"scenario={given['scenario']}: experiment={recipe} is a recipe for {own}; allowed is scenario={own}, or "
            "experiment=none"
        )


def _own_recipe(overrides: list[str]) -> list[str]:
    # A scenario's own recipe is the file of its name; a scheme, or another objective, may have one of its own.
    given = dict(override.split("=", 1) for override in overrides)
    scenario, train = given.get("scenario", "1v1"), given.get("train", "ppo")
    known = experiment_names()
    wanted = (f"{scenario}-{given.get('scheme', '')}", scenario) if train == "ppo" else (f"{scenario}-{train}",)
    names = [name for name in wanted if name in known]
    return [f"experiment={names[0]}"] if names else []


def _check_choice(key: str, value: str) -> None:
    if key in GROUPS:
        allowed = _choices(key)
        if value not in allowed:
            raise ConfigError(f"{key}={value}: unknown{_suggest(value, allowed)}; allowed is {', '.join(allowed)}")


def _compose(overrides: list[str]) -> dict[str, Any]:
    # Imported here: Hydra takes a third of a second, and most verbs do not need it.
    from hydra import compose as hydra_compose  # noqa: PLC0415
    from hydra import initialize_config_dir  # noqa: PLC0415
    from hydra.errors import HydraException  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    folder = data_root() / "configs"
    with initialize_config_dir(version_base=None, config_dir=str(folder)):
        groups = [override for override in overrides if override.partition("=")[0] in GROUPS]
        try:
            chosen, known = _files_say(tuple(groups), _written(folder))
            for override in overrides:
                if override not in groups and not override.startswith((_BONUS, _ENV_ARGS)):
                    _check_key(override, known)
            grammar = [part for override in overrides if not _is_text(override) for part in _grammar(override)]
            composed = OmegaConf.to_container(hydra_compose("config", grammar), resolve=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(f"{' '.join(overrides)}: {' '.join(str(error).split())}") from error
    values = cast("dict[str, Any]", composed)
    values["scenario"] = {**values["scenario"], "name": chosen["scenario"]}
    values["experiment"] = chosen.get("experiment")
    for override in filter(_is_text, overrides):
        key, _, value = override.partition("=")
        if key.startswith(_SEATS):
            values["scenario"]["seats"][key.removeprefix(_SEATS)] = _players(key, value)
        else:
            part, _, name = key.rpartition(".")
            (values[part] if part else values)[name] = None if value == "null" else value
    values["curriculum"] = [_stage(stage, values["scenario"]) for stage in values["curriculum"] or []]
    return values


@lru_cache(maxsize=64)
def _files_say(groups: tuple[str, ...], written: tuple[tuple[str, int], ...]) -> tuple[dict[str, str], Any]:  # noqa: ARG001
    """What is chosen of every group, and all keys; kept until a file changes, since Hydra takes long to say it."""
    from hydra import compose as hydra_compose  # noqa: PLC0415
    from omegaconf import OmegaConf, open_dict  # noqa: PLC0415

    config = hydra_compose("config", list(groups), return_hydra_config=True)
    chosen = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    return chosen, OmegaConf.to_container(config)


def _written(folder: Path) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in folder.rglob("*.yaml")))


def _stage(stage: Any, own: dict[str, Any]) -> Any:
    """A stage of a curriculum with its whole scenario: the one that it names, or else the run's own; seats change."""
    if not isinstance(stage, dict) or not isinstance(stage.get("seats", {}), dict):
        raise ConfigError(
            f"curriculum={stage}: allowed is a list of stages {{scenario: 1v1, seats: {{...}}, steps: N}}"
        )
    name = stage.get("scenario")
    stem = own["name"] if name is None else scenario_id(str(name))
    whole = own if name is None else {**_read_yaml("scenario", stem), "name": stem}
    seats = {**(whole.get("seats") or {}), **stage.get("seats", {})}
    rest = {key: value for key, value in stage.items() if key != "seats"}
    return {**rest, "scenario": {**whole, "seats": seats}}


def resumed(values: dict[str, Any], overrides: list[str]) -> RunConfig:
    """The configuration of a run that goes on: its own, but for budget, checkpoints and where it is computed.

    Raises:
        ConfigError: an override of what a run keeps, or values that this version does not understand.
    """
    # A whole part first: what is said of its values counts wherever it stands, as it does for a new run.
    for given, value in sorted(read_overrides(overrides).items(), key=lambda item: item[0] != "cluster"):
        key = "cluster.address" if given == "address" else given
        part, _, name = key.partition(".")
        if key not in RESUMABLE and part != "cluster":
            allowed = f"{', '.join(RESUMABLE)}, cluster and cluster.*; everything else makes a new run"
            raise ConfigError(f"{key}={value}: a run that goes on keeps its values; allowed is {allowed}")
        _check_choice(key, str(value))
        if key == "cluster":
            values["cluster"] = _read_yaml("cluster", value)
            continue
        _check_key(f"{key}={value}", {part: _read_yaml(part, {"train": "ppo", "cluster": "local"}[part])})
        values.setdefault(part, {})[name] = value
    return _validated(RunConfig, values)


def read_overrides(overrides: list[str]) -> dict[str, Any]:
    """Return key -> value of ``key=value`` overrides by Hydra's grammar; paths and names as they were typed.

    Raises:
        ConfigError: one that Hydra does not understand.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415 - as in _compose
    from hydra.errors import HydraException  # noqa: PLC0415

    _check_form(overrides)
    found: dict[str, Any] = {}
    for override in overrides:
        key, _, text = override.partition("=")
        try:
            as_typed = _is_text(override) and text != "null"
            found[key] = text if as_typed else OverridesParser.create().parse_override(override).value()
        except HydraException as error:
            raise ConfigError(f"{override}: {' '.join(str(error).split())}") from error
    return found


def _check_form(overrides: list[str]) -> None:
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override}: not an override; allowed is key=value, for example train.lr=3e-4")


def _players(key: str, value: str) -> str | dict[str, float]:
    """A player's name or folder, or a mixture written as ``blue-rookie:3,random:1``."""
    if ":" not in value or Path(value).is_dir():
        return value
    mixture: dict[str, float] = {}
    for part in value.strip("{} ").split(","):
        name, _, weight = (text.strip() for text in part.rpartition(":"))
        if not name or name in mixture or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", weight) or float(weight) == 0:
            allowed = "a player, or different players with weights above 0: blue-rookie:3,random:1"
            raise ConfigError(f"{key}={value}: {part.strip()!r} is no player and weight; allowed is {allowed}")
        mixture[name] = float(weight)
    return mixture


def _grammar(override: str) -> list[str]:
    # Bonuses are a mapping that may be empty: one weight of it is always set, whether or not it was there, and a whole
    # mapping takes the place of the recipe's instead of being merged into it.
    if override.startswith(_ENV_ARGS):
        return [f"++{override}"]
    if not override.startswith(_BONUS):
        return [override]
    key, _, value = override.partition("=")
    whole = value.startswith("{")
    return [*([f"++{key}={{}}", f"~{key}"] if whole else []), f"++{override}"]


def _is_text(override: str) -> bool:
    # Paths and names are taken as they were typed: they may hold characters that mean something to Hydra.
    key = override.partition("=")[0]
    return key in _TEXT_KEYS or key.startswith(_SEATS)


def _check_key(override: str, known: Any) -> None:
    key, _, value = override.partition("=")
    place, node = "", known
    for part in key.lstrip("+~").split("."):
        if not isinstance(node, dict) or part not in node:
            allowed = list(node) if isinstance(node, dict) else []
            where = f"keys of {place}" if place else "keys"
            listed = f"; {where} are {', '.join(map(str, allowed))}" if allowed else ""
            raise ConfigError(f"{key}={value}: unknown key {part!r}{_suggest(part, allowed)}{listed}")
        place, node = (f"{place}.{part}" if place else part), node[part]


def _suggest(word: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _validated(schema: type[Schema], values: dict[str, Any], prefix: str = "") -> Schema:
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, [*([prefix] if prefix else []), *first["loc"]]))
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        shown = f"={first['input']}" if not isinstance(first["input"], dict) else ""
        # A message about one key of a part names that key itself: cluster + num_env_runners=True: ...
        joint = "." if re.match(r"[\w.]+=", message) else ": "
        raise ConfigError(f"{key}{shown}{joint}{message}" if key else message) from error


def default_run_dir(config: RunConfig, now: datetime) -> Path:
    """``runs/<scenario>/<time>-seed<seed>`` below the working directory, with a number where there is one already."""
    name = f"{now:%Y%m%d-%H%M%S}-seed{config.seed}"
    names = chain([name], (f"{name}-{k}" for k in count(2)))
    return next(path for path in map((Path("runs") / config.scenario.name).joinpath, names) if not path.exists())


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration as yaml."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return text
