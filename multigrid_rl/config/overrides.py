"""Overrides, ``key=value``: parses their values in Hydra's grammar, checks their keys and assigns them."""

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from multigrid_rl.tables import SHORT_KEYS
from multigrid_rl.text import ConfigError, expected, listed, one_line
from multigrid_rl.trust import CODE

#: Keys with any keys below them: arguments of an environment, and seats and events of a bonus.
ENV_ARGS, BONUS = "scenario.env_args", "train.bonus"
#: Short forms of keys, without their section; ``env_id`` has one, too.
SHORT = {
    "address": "cluster.address", "env_args": ENV_ARGS, "env_path": "scenario.env_path", "port": "scenario.port",
    **SHORT_KEYS,
}  # fmt: skip
#: Keys of paths and names, which Hydra does not parse: they may contain characters of its grammar.
_TEXTS = (
    "run_dir", "checkpoints", "data", "init", "address", "cluster.address", "search.space", "scenario.env_path",
    "env_path", "tracking",
)  # fmt: skip
#: Keys of players and mixtures of players: seats, and anchors of a league.
_SEATS, _ANCHORS = "scenario.seats.", "scenario.league.anchors"
#: The weight of a player in a mixture.
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
#: Names of our keys in RLlib, Stable-Baselines3 and other libraries.
_FOREIGN_KEYS = {
    "train": ("algo", "algorithm", "alg"),
    "experiment": ("config", "config_name", "config_file", "recipe"),
    "env_id": ("env", "env_name", "gym_id"),
    "scenario.seats.blue_0": ("opponent", "opponents"),
    "run_dir": ("output_dir", "log_dir", "logdir", "save_dir", "exp_name"),
    "seeds": ("n_seeds", "num_seeds"),
    "cluster.gpus_per_learner": ("device", "cuda", "num_gpus", "gpus", "use_gpu", "num_gpus_per_learner"),
    "train.num_steps": ("n_steps", "rollout_fragment_length", "train_batch_size_per_learner", "train_batch_size"),
    "train.num_envs": ("n_envs", "num_envs_per_env_runner", "num_envs_per_worker"),
    "train.minibatch_size": ("batch_size", "sgd_minibatch_size", "mini_batch_size", "num_minibatches"),
    "train.epochs": ("n_epochs", "num_epochs", "num_sgd_iter", "update_epochs"),
    "train.until": ("total_timesteps", "timesteps_total", "max_steps", "stop_timesteps"),
    "train.lr": ("learning_rate", "step_size"),
    "train.lr_final": ("anneal_lr",),
    "train.standardise": ("norm_adv", "normalize_advantage"),
    "train.gamma": ("discount", "discount_factor"),
    "train.lam": ("gae_lambda", "lambda_", "lambda"),
    "train.clip": ("clip_range", "clip_param", "clip_eps", "clip_coef"),
    "train.entropy_coef": ("ent_coef", "entropy_coeff"),
    "train.vf_coef": ("vf_loss_coeff", "value_coef"),
    "train.value_loss": ("clip_vloss", "clip_range_vf"),
    "train.vf_clip": ("vf_clip_param",),
    "train.kl_coef": ("kl_coeff",),
    "train.grad_clip": ("max_grad_norm",),
    "cluster.num_env_runners": ("num_workers", "num_rollout_workers"),
    "model.hidden": ("net_arch", "fcnet_hiddens", "hidden_sizes"),
    "model.activation": ("activation_fn", "fcnet_activation"),
}


def parse(overrides: Iterable[str]) -> dict[str, Any]:
    """Return key -> value of ``key=value`` overrides; the last one of a repeated key wins.

    Raises ``ConfigError``: a word without ``=``, or a value that Hydra does not understand.
    """
    return dict(_parse_override(override) for override in overrides)


def _parse_override(override: str) -> tuple[str, Any]:
    # Imported here: Hydra takes a fifth of a second, and most verbs do not need it.
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415
    from hydra.errors import HydraException  # noqa: PLC0415

    key, sign, text = str(override).partition("=")  # callers from Python may pass any object
    key = key.lstrip("+")
    if not sign:
        raise ConfigError(f"{override}: expected key=value, {_suggest_choice(key)}")
    if is_text(key):
        return key, as_typed(key, text)
    if text.startswith(("[", "{")):
        with suppress(ValueError, RecursionError):  # JSON, as written() writes: Hydra takes minutes for 50,000 numbers
            return key, json.loads(text)
    try:
        parsed = OverridesParser.create().parse_override(f"key={text}")
    except HydraException as error:
        hint = ", expected quotes around it" * ("token recognition" in str(error))
        raise ConfigError(f"{override}: {one_line(error)}{hint}") from error
    if parsed.is_sweep_override():
        several = "; for several runs seeds=0,1,2 or seeds=0..9" if key == "seed" else ", or a list: [a, b]"
        raise ConfigError(expected(key, f"one value{several}", text))
    return key, parsed.value()


def _suggest_choice(word: str) -> str:
    """Return a hint which key a word without one was probably meant for."""
    from multigrid_rl.config.recipes import FILES, GROUPS, names_in  # noqa: PLC0415 - recipes imports this module

    groups = ("scenario", "experiment") if word.endswith(FILES) else [name for name in GROUPS if word in names_in(name)]
    choices = [f"{group}={word}" for group in groups]
    return f"did you mean {' or '.join(choices)}?" if choices else "for example train.lr=3e-4"


def is_text(key: str) -> bool:
    """Return whether the value of a key is a path, a name or players, which Hydra does not parse."""
    return key in (*_TEXTS, _ANCHORS) or key.startswith(_SEATS)


def as_typed(key: str, value: Any) -> Any:
    """Return a path or a name, or players with their weights. Raises ``ConfigError``: an invalid mixture."""
    if not isinstance(value, str) or value == "null":
        return None if value == "null" else value
    return value if key in _TEXTS else _players(key, value)


def _players(key: str, value: str) -> Any:
    """Read a player's name, folder or class, or a mixture written as ``blue-rookie:3,random:1``."""
    is_single = ":" not in value or CODE.fullmatch(value) or Path(value).is_dir()
    if is_single:
        return {value: 1.0} if key == _ANCHORS else value
    mixture: dict[str, float] = {}
    for part in value.strip("{} ").split(","):
        name, _, weight = (text.strip() for text in part.rpartition(":"))
        if not name or name in mixture or not _NUMBER.fullmatch(weight) or float(weight) == 0:
            raise ConfigError(expected(key, "different players with weights above 0: blue-rookie:3,random:1", value))
        mixture[name] = float(weight)
    return mixture


def leaves(node: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of a mapping; an empty mapping and a mixture of players count as values."""
    for name, value in node.items():
        key = f"{place}{name}"
        if isinstance(value, dict) and value and place != _SEATS and key != _ANCHORS:
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


def value_at(values: Any, key: str) -> Iterator[Any]:
    """Yield the value of a dotted key, if it exists."""
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return
        values = values[part]
    yield values


def assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key. A mapping is merged into the old one; for players and bonuses it replaces the old one.

    Raises ``ConfigError``: ``values`` has no such key.
    """
    any_key = key.startswith((ENV_ARGS, BONUS))
    if key.startswith(_SEATS):  # only the environment knows its seats
        any_key = bool(values.get("scenario", {}).get("env_id"))
    if not any_key:
        check_key(key, value, values)
    put(values, key, value)


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key like :func:`assign`, without checking that it exists."""
    *parents, last = key.split(".")
    if key.startswith(_SEATS):  # seat names of an environment may contain dots
        *parents, last = *_SEATS.split(".")[:-1], key.removeprefix(_SEATS)
    node = values
    for part in parents:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value if key.startswith((_SEATS, _ANCHORS, BONUS)) else merge(node.get(last), value)


def merge(base: Any, override: Any) -> Any:
    """Return ``override``, or for two mappings their union, in which ``override`` wins."""
    if not isinstance(base, dict) or not isinstance(override, dict):
        return deepcopy(override)
    return {**base, **{key: merge(base.get(key), value) for key, value in override.items()}}


def check_key(key: str, value: Any, known: Any) -> None:
    """Raise ``ConfigError`` for a key that is not in ``known``; the message suggests a similar key."""
    place, node = "", known
    for part in key.split("."):
        if not isinstance(node, dict):
            raise ConfigError(expected(place, "a value and no keys below it", f"{key}={written(value)}"))
        if not node and place:  # an empty mapping takes any key, such as scenario.seats of an environment
            return
        if part not in node:
            raise ConfigError(_unknown_key(key, part, node, place))
        place, node = (f"{place}.{part}" if place else part), node[part]


def our_keys_for(name: str) -> list[str]:
    """Return our keys for a name of RLlib, Stable-Baselines3 or another library."""
    return [ours for ours, theirs in _FOREIGN_KEYS.items() if name in theirs]


def _unknown_key(key: str, part: str, node: dict[str, Any], place: str) -> str:
    """Return the message that lists the valid keys of ``node``; suggests the full path of a short key (``lr=``)."""
    places: dict[str, list[str]] = {}
    for name in _dotted_keys(node, f"{place}." if place else ""):
        places.setdefault(name.rpartition(".")[2], []).append(name)
    close, here = difflib.get_close_matches(part, places, n=1), places.get(part, [])
    elsewhere = [] if here and place else our_keys_for(part)
    candidates = [*here, *elsewhere] or (places[close[0]] if close else [])
    hint = f" (did you mean {' or '.join(candidates)}?)" if candidates else ""
    return expected(key, f"one of the keys {listed(part, list(map(str, node)))}", part + hint)


def _dotted_keys(node: dict[str, Any], place: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield f"{place}{name}"
        if isinstance(value, dict):
            yield from _dotted_keys(value, f"{place}{name}.")


def written(value: Any) -> str:
    """Return a value in the syntax of an override: JSON with unquoted keys and text."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_quote(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_quote, value)) + "]"
    if hasattr(value, "tolist"):  # an array or number of numpy
        return written(value.tolist())
    return json.dumps(value)


def _quote(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else written(value)
