"""Composes runs from ``configs/`` and overrides; pydantic validates them, and errors are one line."""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from multigrid_rl.config.network import WITHOUT_VALUES, ModelConfig
from multigrid_rl.config.overrides import SHORT, assign, check_key, is_text, our_keys_for, parse, written
from multigrid_rl.config.recipes import (
    RESUMABLE,
    check_choice,
    expand_overrides,
    group_values,
    read_config_file,
    scenario_id,
    scenario_values,
)
from multigrid_rl.config.scenario import ScenarioConfig, validated
from multigrid_rl.config.schema import RunConfig, TrainConfig, trainer_of
from multigrid_rl.files import free_path
from multigrid_rl.tables import SHORT_KEYS
from multigrid_rl.text import ConfigError, expected, one_line, shown, suggestion
from multigrid_rl.trust import CODE


def load_scenario(name: str | os.PathLike[str]) -> ScenarioConfig:
    """Read one scenario by id, file or original environment name. Raises ``ConfigError``."""
    return validated(ScenarioConfig, scenario_values(scenario_id(written(name))), "scenario")


def compose(overrides: list[str]) -> RunConfig:
    """Compose and validate a run from ``key=value`` overrides. Raises ``ConfigError``."""
    values, recipe = expand_overrides(overrides)
    given = parse(overrides)
    try:
        return _refusing_unread(validated(RunConfig, {**_compose(values), "experiment": recipe}), given)
    except ConfigError as error:
        key = str(error).partition(":")[0]
        if recipe is None or key not in values or key in {"scenario", *(SHORT.get(name, name) for name in given)}:
            raise
        raise ConfigError(f"{error} (set by experiment={recipe}; experiment=none uses no recipe)") from error


def _refusing_unread(config: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """Return a run. Raises ``ConfigError`` for one of the ``given`` keys that it does not read, with the reason."""
    train, head = config.train, config.model.head
    trainer = trainer_of(train.trainer)
    unread = dict.fromkeys((*trainer.unread, *["epochs"] * trainer.replays), f"train={train.trainer}")
    for name, keys, valid in (
        ("pi_iters", ("epochs",), train.pi_iters is None),
        ("psi", ("lam",), train.psi not in (*WITHOUT_VALUES, "baselined_return")),  # Monte Carlo returns
        ("kl_coef", ("kl_target",), train.kl_coef is not None or train.modules),
        ("lr_schedule", ("lr", "lr_final"), train.lr_schedule is None),
        ("entropy_schedule", ("entropy_coef", "entropy_final", "entropy_decay"), train.entropy_schedule is None),
    ):
        unread |= {} if valid else dict.fromkeys(keys, f"train.{name}={written(getattr(train, name))}")
    of_model = {} if head in (None, "gaussian") else {"model.log_std": f"model.head={head}"}
    unread = of_model | {f"train.{key}": condition for key, condition in unread.items()}
    for key, value in given.items():
        condition = unread.get(".".join(key.split(".")[:2]))
        if condition and value is not None:
            raise ConfigError(expected(key, f"nothing with {condition}, which does not read it", written(value)))
    return config


def _compose(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values: those of the files, overridden by ``settings`` by dotted key."""
    values = read_config_file("", "config")
    chosen = {group: name for line in values.pop("defaults") if line != "_self_" for group, name in line.items()}
    chosen = {group: str(settings.get(group, name)) for group, name in chosen.items() if group != "experiment"}
    files = {group: group_values(group, name) for group, name in chosen.items() if group != "scenario"}
    left_out = ScenarioConfig.model_construct(description="").model_dump(mode="json")  # files have only some keys
    values = {"scenario": left_out | scenario_values(chosen["scenario"]), **files, **values}
    values["train"]["name"] = chosen["train"]
    trainer = str(settings.get("train.trainer", values["train"]["trainer"]))
    if trainer != values["train"]["trainer"]:  # no file has the keys of an installed trainer
        values["train"] = trainer_of(trainer).settings.model_construct().model_dump(mode="json") | values["train"]
    texts = {key: value for key, value in settings.items() if is_text(key)}
    for key, value in settings.items():
        if key not in chosen and key not in texts:
            assign(values, key, value)
    values = _interpolate(values)
    for key, value in texts.items():
        assign(values, key, value)
    if not isinstance(values["curriculum"] or [], list):
        raise ConfigError(expected("curriculum", "a list of stages", values["curriculum"]))
    values["curriculum"] = [_stage(stage, values["scenario"]) for stage in values["curriculum"] or []]
    return values


def _interpolate(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with ``${...}`` resolved, for example ``${oc.env:HOME}``. Raises ``ConfigError``."""
    if "${" not in written(values):
        return values
    # Imported here: most configurations do not need it.
    import omegaconf  # noqa: PLC0415

    try:
        resolved: Any = omegaconf.OmegaConf.to_container(omegaconf.OmegaConf.create(values), resolve=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    return dict(resolved)


def _stage(stage: Any, run_scenario: dict[str, Any]) -> Any:
    """Return a curriculum stage with all values of its scenario, by default the run's; the stage may replace seats."""
    if not isinstance(stage, dict) or not isinstance(stage.get("seats", {}), dict):
        raise ConfigError(expected("curriculum", "a list of stages {scenario: 1v1, seats: {...}, steps: N}", stage))
    name = stage.get("scenario")
    scenario = run_scenario if name is None else scenario_values(scenario_id(str(name)))
    seats = {**(scenario.get("seats") or {}), **stage.get("seats", {})}
    rest = {key: value for key, value in stage.items() if key != "seats"}
    return {**rest, "scenario": {**scenario, "seats": seats}}


def resumed(values: dict[str, Any], overrides: list[str]) -> RunConfig:
    """Return the configuration of a resumed run; overrides may change its budget, its checkpoints and its cluster.

    Raises ``ConfigError``: an override of another key, or values that this version does not understand.
    """
    # The group ``cluster`` first: overrides of its keys win in any order, as they do for a new run.
    for short_key, value in sorted(parse(overrides).items(), key=lambda item: item[0] != "cluster"):
        key = "cluster.address" if short_key == "address" else short_key
        part, _, name = key.partition(".")
        if key not in RESUMABLE and part != "cluster":
            wanted = f"changes of {', '.join(RESUMABLE)}, cluster or cluster.* alone"
            raise ConfigError(expected("--resume", wanted, f"{key}={value}: that takes a new run (init=RUN)"))
        if key == "cluster":
            check_choice(key, str(value))
            values["cluster"] = read_config_file("cluster", value)
        elif not name:  # the schema checks it
            values[key] = value
        else:
            check_key(key, value, {part: read_config_file(part, {"train": "ppo", "cluster": "local"}[part])})
            values.setdefault(part, {})[name] = value
    return validated(RunConfig, values)


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return a run's configuration with some values changed, by dotted key. Raises ``ConfigError``: invalid values."""
    all_values = config.model_dump(mode="json")
    for key, value in values.items():
        assign(all_values, key, value)
    return _refusing_unread(validated(RunConfig, all_values), values)


def first_words(scenario: str | None) -> list[str]:
    """Return overrides for a first argument: a scenario, or an override itself, as in ``train("scenario=2v2")``."""
    if scenario is None:
        return []
    return [scenario] if re.match(r"[\w.]+=", str(scenario)) else keyword_overrides({"scenario": scenario})


def keyword_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return overrides for keys, also by their last name (``lr``, ``hidden``); classes become ``module:name``.

    Raises ``ConfigError``: no such key, or an object without an importable name.
    """
    words = []
    for name, value in values.items():
        key, parts = whole_key(name), list(map(named, value)) if isinstance(value, list | tuple) else named(value)
        try:
            words.append(f"{key}={written(parts)}")
        except TypeError as error:
            raise ConfigError(expected(key, "numbers, texts, lists and mappings", shown(repr(parts)))) from error
    return words


def whole_key(name: str) -> str:
    """Return the full key with this last name; a dotted key stays. Raises ``ConfigError``: no such key."""
    if name in TrainConfig.model_fields:
        return f"train.{name}"
    known = {*RunConfig.model_fields, "address", "env_id", "env_args", "env_path", "port", *SHORT_KEYS}
    if name not in known and name in ModelConfig.model_fields:
        return f"model.{name}"
    if name not in known and "." not in name:
        all_names = {*known, *TrainConfig.model_fields, *ModelConfig.model_fields}
        candidates = [key.rpartition(".")[2] for key in our_keys_for(name)]
        hint = f" (did you mean {candidates[0]}?)" if candidates else suggestion(name, all_names)
        raise ConfigError(expected("train", "keys of configs/", f"{name}{hint}"))
    return name


def named(value: Any) -> Any:
    """Return a value as a configuration names it: a path as text, a class as ``module:name``; others unchanged.

    An object that writes a checkpoint (an algorithm of RLlib) or has one (a trial's result) becomes its folder.
    Raises ``ConfigError``: a nested class or function, or a result without a checkpoint.
    """
    saved = getattr(value, "checkpoint", value)
    if saved is None and value is not None:
        raise ConfigError(expected("checkpoint", "a result with one (checkpoint_at_end=True)", type(value).__name__))
    if hasattr(saved, "save_to_path"):
        folder = tempfile.mkdtemp(prefix="multigrid_rl-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return saved.save_to_path(folder)
    if hasattr(saved, "to_directory"):
        return saved.path
    if not callable(value):
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    name = f"{value.__module__}:{getattr(value, '__qualname__', '')}"
    if not CODE.fullmatch(name):
        raise ConfigError(expected("value", "a class or function of a module, not one inside of another", name))
    return name


def check_budget(train: TrainConfig) -> None:
    """Raise ``ConfigError`` for a budget below one batch: a run plays whole batches."""
    if train.until < train.batch_size:
        batch = f"train.num_envs={train.num_envs} x train.num_steps={train.num_steps}"
        raise ConfigError(expected("train.until", f"at least {train.batch_size}, one batch of {batch}", train.until))


def default_run_dir(config: RunConfig, now: datetime) -> Path:
    """Return ``runs/<scenario>/<time>-seed<seed>`` in the working directory, with a number if there is one already."""
    return free_path(Path("runs") / config.scenario.name, f"{now:%Y%m%d-%H%M%S}-seed{config.seed}")
