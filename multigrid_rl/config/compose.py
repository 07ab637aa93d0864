"""Composes runs from ``configs/``: Hydra composes, pydantic validates, errors are one line."""

import difflib
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from datetime import datetime
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from multigrid_rl.config.recipes import (
    ENV_ARGS,
    FILES,
    GROUPS,
    check_choice,
    check_form,
    expand_overrides,
    read_config_file,
    scenario_id,
    scenario_names,
    whole_scenario,
)
from multigrid_rl.config.scenario import CODE, ConfigError, ScenarioConfig
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.files import data_root
from multigrid_rl.text import expected, first_error, one_line

#: Of other modules, for all who read configurations.
__all__ = [
    "ConfigError", "RunConfig", "ScenarioConfig", "data_root", "scenario_id", "scenario_names",
]  # fmt: skip

_TEXT_KEYS = (
    "run_dir", "checkpoints", "data", "init", "address", "cluster.address", "search.space", "scenario.env_path",
)  # fmt: skip
#: What may change when a run goes on, beside the cluster.
RESUMABLE = (
    "train.until", "train.stop_when_held", "train.checkpoint_every", "train.keep_checkpoints", "train.torch_threads",
    "train.threads",
)  # fmt: skip
_SEATS = "scenario.seats."
_ANCHORS = "scenario.league.anchors"
_BONUS = "train.bonus"
#: What RLlib and Stable-Baselines3 call our keys.
_ELSEWHERE = {
    "train.num_steps": ("n_steps", "rollout_fragment_length"),
    "train.num_envs": ("n_envs", "num_envs_per_env_runner", "num_envs_per_worker"),
    "train.minibatch_size": ("batch_size", "sgd_minibatch_size", "mini_batch_size"),
    "train.epochs": ("n_epochs", "num_epochs", "num_sgd_iter"),
    "train.until": ("total_timesteps", "timesteps_total", "max_steps", "stop_timesteps"),
    "train.lr": ("learning_rate", "step_size"),
    "train.gamma": ("discount", "discount_factor"),
    "train.lam": ("gae_lambda", "lambda_", "lambda"),
    "train.clip": ("clip_range", "clip_param", "clip_eps"),
    "train.entropy_coef": ("ent_coef", "entropy_coeff"),
    "train.vf_coef": ("vf_loss_coeff", "value_coef"),
    "train.grad_clip": ("max_grad_norm",),
    "cluster.num_env_runners": ("num_workers", "num_rollout_workers"),
    "model.hidden": ("net_arch", "fcnet_hiddens", "hidden_sizes"),
    "model.activation": ("activation_fn", "fcnet_activation"),
}

Schema = TypeVar("Schema", bound=BaseModel)


def load_scenario(name: str) -> ScenarioConfig:
    """Read one scenario by id, file or original environment name. Raises ``ConfigError``."""
    return _validated(ScenarioConfig, whole_scenario(scenario_id(name)), "scenario")


def compose(overrides: list[str]) -> RunConfig:
    """Compose and validate a run from ``key=value`` overrides. Raises ``ConfigError``."""
    expanded = expand_overrides(overrides)
    return _validated(RunConfig, {**_compose(expanded.values, trusted=expanded.trusted), "experiment": expanded.recipe})


def _compose(settings: dict[str, str], *, trusted: bool) -> dict[str, Any]:
    # Imported here: Hydra takes a third of a second, and most verbs do not need it.
    from hydra.core.config_store import ConfigStore  # noqa: PLC0415
    from hydra.errors import HydraException  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    folder = data_root() / "configs"
    written = sorted((str(file), file.stat().st_mtime_ns) for file in folder.rglob("*.yaml"))
    file = settings.get("scenario", "")
    if file.endswith(FILES):
        # `scenario_id` rules out names of files in configs/, so Hydra finds the stored one.
        own = whole_scenario(file, trusted=trusted)
        ConfigStore.instance().store(own["name"], {key: own[key] for key in own if key != "name"}, "scenario")
        settings = {**settings, "scenario": own["name"]}
        written.append((json.dumps(own, default=str), 0))
    overrides = [f"{key}={value}" for key, value in settings.items()]
    groups = [override for override in overrides if override.partition("=")[0] in GROUPS]
    rest = [override for override in overrides if override not in groups]
    try:
        chosen, known, config = _read_files(tuple(groups), tuple(written))
        for override in rest:
            if not override.startswith((_BONUS, ENV_ARGS)):
                _check_key(override, known)
        grammar = [part for override in rest if not _is_text(override) for part in _grammar(override)]
        values = _overridden(config, grammar)
    except (HydraException, OmegaConfBaseException) as error:
        override = getattr(error, "override", None) or " ".join(overrides)
        raise ConfigError(f"{override}: {one_line(error)}") from error
    for group in ("scenario", "train"):
        values[group] = {**values[group], "name": chosen[group]}
    for key, value in settings.items():
        if key.startswith(_SEATS):
            values["scenario"]["seats"][key.removeprefix(_SEATS)] = _players(key, value)
        elif key == _ANCHORS:
            players = _players(key, value)
            values["scenario"]["league"]["anchors"] = players if isinstance(players, dict) else {players: 1.0}
        elif key in _TEXT_KEYS:
            part, _, name = key.rpartition(".")
            (values[part] if part else values)[name] = None if value == "null" else value
    values["curriculum"] = [_stage(stage, values["scenario"]) for stage in values["curriculum"] or []]
    return values


@lru_cache(maxsize=64)
def _read_files(groups: tuple[str, ...], written: tuple[tuple[str, int], ...]) -> tuple[dict[str, str], Any, Any]:  # noqa: ARG001
    """Return what is chosen of every group, all keys, and Hydra's own object; kept until a file changes.

    Hydra takes a tenth of a second for it.
    """
    from hydra import compose as hydra_compose  # noqa: PLC0415
    from hydra import initialize_config_dir  # noqa: PLC0415
    from omegaconf import OmegaConf, open_dict  # noqa: PLC0415

    with initialize_config_dir(version_base=None, config_dir=str(data_root() / "configs")):
        config = hydra_compose("config", list(groups), return_hydra_config=True)
    chosen = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    return chosen, OmegaConf.to_container(config), config


def _overridden(config: Any, overrides: list[str]) -> dict[str, Any]:
    """Return ``config`` with overrides applied: the last step of Hydra's own ``compose``, without the others."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl  # noqa: PLC0415 - as in _compose
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415

    parsed = OverridesParser.create().parse_overrides(overrides)
    for override in parsed:
        if override.is_sweep_override():
            key, _, value = str(override.input_line).partition("=")
            raise ConfigError(expected(key, "one value, or a list: [a, b]", value))
    changed = deepcopy(config)
    ConfigLoaderImpl._apply_overrides_to_config(parsed, changed)
    return cast("dict[str, Any]", OmegaConf.to_container(changed, resolve=True))


def _stage(stage: Any, own: dict[str, Any]) -> Any:
    """Return a stage of a curriculum with its whole scenario: the one it names, or the run's own; seats change."""
    if not isinstance(stage, dict) or not isinstance(stage.get("seats", {}), dict):
        raise ConfigError(expected("curriculum", "a list of stages {scenario: 1v1, seats: {...}, steps: N}", stage))
    name = stage.get("scenario")
    whole = own if name is None else whole_scenario(scenario_id(str(name)))
    seats = {**(whole.get("seats") or {}), **stage.get("seats", {})}
    rest = {key: value for key, value in stage.items() if key != "seats"}
    return {**rest, "scenario": {**whole, "seats": seats}}


def resumed(values: dict[str, Any], overrides: list[str]) -> RunConfig:
    """Return the configuration of a run that goes on: its own, but for budget, checkpoints and where it is computed.

    Raises ``ConfigError``: an override of what a run keeps, or values that this version does not understand.
    """
    # A whole part first: overrides of its values win wherever they stand, as they do for a new run.
    for typed, value in sorted(read_overrides(overrides).items(), key=lambda item: item[0] != "cluster"):
        key = "cluster.address" if typed == "address" else typed
        part, _, name = key.partition(".")
        if key not in RESUMABLE and part != "cluster":
            wanted = f"changes of {', '.join(RESUMABLE)}, cluster or cluster.* alone"
            raise ConfigError(expected("--resume", wanted, f"{key}={value}: everything else makes a new run"))
        check_choice(key, str(value))
        if key == "cluster":
            values["cluster"] = read_config_file("cluster", value)
            continue
        _check_key(f"{key}={value}", {part: read_config_file(part, {"train": "ppo", "cluster": "local"}[part])})
        values.setdefault(part, {})[name] = value
    return _validated(RunConfig, values)


def read_overrides(overrides: list[str]) -> dict[str, Any]:
    """Return key -> value of ``key=value`` overrides by Hydra's grammar; paths and names as they were typed.

    Raises ``ConfigError``: one that Hydra does not understand.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415 - as in _compose
    from hydra.errors import HydraException  # noqa: PLC0415

    check_form(overrides)
    values: dict[str, Any] = {}
    for override in overrides:
        key, _, text = override.partition("=")
        try:
            as_typed = _is_text(override) and text != "null"
            values[key] = text if as_typed else OverridesParser.create().parse_override(override).value()
        except HydraException as error:
            raise ConfigError(f"{override}: {one_line(error)}") from error
    return values


def _players(key: str, value: str) -> str | dict[str, float]:
    """Read a player's name, folder or class, or a mixture written as ``blue-rookie:3,random:1``."""
    if ":" not in value.removeprefix("hf:") or CODE.fullmatch(value) or Path(value).is_dir():
        return value
    mixture: dict[str, float] = {}
    for part in value.strip("{} ").split(","):
        name, _, weight = (text.strip() for text in part.rpartition(":"))
        if not name or name in mixture or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", weight) or float(weight) == 0:
            raise ConfigError(expected(key, "different players with weights above 0: blue-rookie:3,random:1", value))
        mixture[name] = float(weight)
    return mixture


def _grammar(override: str) -> list[str]:
    # Bonuses are a mapping that may be empty: one weight of it is always set, whether or not it was there, and a whole
    # mapping takes the place of the recipe's instead of being merged into it.
    if override.startswith(ENV_ARGS):
        return [f"++{override}"]
    if not override.startswith(_BONUS):
        return [override]
    key, _, value = override.partition("=")
    whole = value.startswith("{")
    return [*([f"++{key}={{}}", f"~{key}"] if whole else []), f"++{override}"]


def _is_text(override: str) -> bool:
    # Paths and names are taken as they were typed: they may hold characters that mean something to Hydra.
    key = override.partition("=")[0]
    return key in (*_TEXT_KEYS, _ANCHORS) or key.startswith(_SEATS)


def _check_key(override: str, known: Any) -> None:
    key, _, value = override.lstrip("+~").partition("=")
    place, node = "", known
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            if not isinstance(node, dict):
                raise ConfigError(expected(place, "a value and no keys below it", f"{key}={value}"))
            raise ConfigError(_unknown_key(key, part, node, known))
        place, node = (f"{place}.{part}" if place else part), node[part]


def _unknown_key(key: str, part: str, node: dict[str, Any], known: dict[str, Any]) -> str:
    """Return the message that lists the valid keys; suggests the full path of a short key (``lr=``)."""
    places: dict[str, list[str]] = {}
    for name in _dotted(known if key == part else node):
        places.setdefault(name.rpartition(".")[2], []).append(name)
    close = difflib.get_close_matches(part, places, n=1)
    meant = [ours for ours, theirs in _ELSEWHERE.items() if part in theirs] or (places[close[0]] if close else [])
    near = f" (did you mean {' or '.join(meant)}?)" if meant else ""
    return expected(key, f"one of the keys {', '.join(map(str, node))}", part + near)


def _dotted(node: dict[str, Any], place: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield f"{place}{name}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{place}{name}.")


def _validated(schema: type[Schema], values: dict[str, Any], place: str = "") -> Schema:
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(first_error(error, place, quoting=True)) from error


def default_run_dir(config: RunConfig, now: datetime) -> Path:
    """Return ``runs/<scenario>/<time>-seed<seed>`` in the working directory, with a number if there is one already."""
    name = f"{now:%Y%m%d-%H%M%S}-seed{config.seed}"
    names = chain([name], (f"{name}-{k}" for k in count(2)))
    return next(path for path in map((Path("runs") / config.scenario.name).joinpath, names) if not path.exists())


def to_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as yaml."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return text
