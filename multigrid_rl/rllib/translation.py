"""RLlib's settings as keys of ours: the same, or in another form."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ray

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.rllib.build import KL_COEF
from multigrid_rl.text import ConfigError, expected, shown

#: Values by key of ours.
Values = dict[str, Any]
#: RLlib's names of settings that are a key of ours with the same meaning.
SAME = {
    "gamma": "train.gamma",
    "lambda_": "train.lam",
    "vf_loss_coeff": "train.vf_coef",
    "rollout_fragment_length": "train.num_steps",
    "sample_timeout_s": "cluster.sample_timeout_s",
    "num_consecutive_env_runner_failures_tolerance": "cluster.max_consecutive_failures",
    "num_env_runners": "cluster.num_env_runners",
    "num_learners": "cluster.num_learners",
    "num_gpus_per_learner": "cluster.gpus_per_learner",
    "seed": "seed",
}


def converted(settings: Mapping[str, Any], run: RunConfig, filled: Mapping[str, Any]) -> Values:
    """Return settings of RLlib, before: ``filled``, by key of ours. Raises ``ConfigError``: nothing of ours follows."""
    # The first is named: the old API stack also sets keys that follow from it.
    for name, value in sorted(settings.items(), key=lambda each: not each[0].startswith("enable_")):
        if name not in SAME and name not in CONVERTED:
            default = shown(str(filled[name])) if name in filled else "no such setting"
            wanted = f"{default}, as nothing of ours follows it (docs/rllib.md: what does)"
            raise ConfigError(expected(name.strip("_").removesuffix("_str"), wanted, shown(str(value))))
    values: Values = {}
    # In the order of dependence: env runners, then games, then the batch that these play.
    for name, value in sorted(settings.items(), key=lambda setting: ORDER.get(setting[0], len(ORDER))):
        native = value.item() if isinstance(value, np.generic) else value
        values |= {SAME[name]: native} if name in SAME else CONVERTED[name](native, _unchecked(run, values))
    steps = settings.get(name := "rollout_fragment_length", values.get("train.num_steps"))
    if values.get("train.num_steps") != steps:
        raise ConfigError(expected(name, f"{values['train.num_steps']}, which follows from the batch", steps))
    if "cluster.num_env_runners" in values and ray.is_initialized():
        # They play in the session, whose CPUs `check_machine` counts, however many this machine has.
        values["cluster.address"] = run.cluster.address or "auto"
    return values


def _unchecked(run: RunConfig, values: Values) -> RunConfig:
    """Return a run with some sizes of its sections by dotted key, before all values are checked together."""
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section and isinstance(value, int | float):
            run = run.model_copy(update={section: getattr(run, section).model_copy(update={name: value})})
    return run


def _schedule(key: str, stem: str, value: Any) -> Values:
    """Turn a number, or points, into a schedule over environment steps; its other keys begin with ``stem``."""
    value = [[0, 0.0]] if value == 0 and key == "train.lr" else value
    points = isinstance(value, list | tuple)
    return {f"{stem}_final": None, f"{stem}_schedule": value if points else None} | ({} if points else {key: value})


def _batch(value: Any, run: RunConfig) -> dict[str, Any]:
    games = run.train.num_envs
    if not isinstance(value, int) or value % games:
        wanted = f"a multiple of train.num_envs={games}, as a batch is num_envs * num_steps"
        raise ConfigError(expected("train_batch_size", wanted, value))
    return {"train.num_steps": value // games}


def _times(value: Any, number: int) -> Any:
    """Return a multiple; other values stay unchanged, and are refused later."""
    return value * number if isinstance(value, int) else value


def _penalty(value: Any, run: RunConfig) -> Values:
    """Turn the penalty on, with the weight that is set, or off."""
    weight = KL_COEF if run.train.kl_coef is None else run.train.kl_coef
    return {"train.kl_coef": weight if value else None}


def _of_modules(value: Mapping[str, Mapping[str, Any]], run: RunConfig) -> Values:
    """Turn overrides of single modules into values of single networks. Raises ``ConfigError``."""
    modules: dict[str, Values] = {}
    for module, overrides in value.items():
        if wrong := [name for name in overrides if name not in _OF_MODULES]:
            key = f"algorithm_config_overrides_per_module.{module}"
            raise ConfigError(expected(key, f"one of {', '.join(_OF_MODULES)}", shown(str(wrong[0]))))
        modules[module] = {key.removeprefix("train."): value for key, value in converted(overrides, run, {}).items()}
    return {"train.modules": modules}


#: RLlib's names of settings that are keys of ours in another form: (value, the run) -> values by key.
CONVERTED: dict[str, Callable[[Any, RunConfig], dict[str, Any]]] = {
    "lr": lambda value, _: _schedule("train.lr", "train.lr", value),
    "entropy_coeff": lambda value, _: _schedule("train.entropy_coef", "train.entropy", value),
    "clip_param": lambda value, _: {"train.clip": value, "train.clip_final": None},
    "grad_clip": lambda value, _: {"train.grad_clip": 1e6 if value is None else value},
    "vf_clip_param": lambda value, _: {"train.vf_clip": None if value == math.inf else value},
    "kl_coeff": lambda value, _: {"train.kl_coef": value},
    "kl_target": lambda value, run: {"train.kl_target": value, **_penalty(True, run)},
    "use_kl_loss": _penalty,
    "algorithm_config_overrides_per_module": _of_modules,
    # The pool of env runners replaces those that are lost; RLlib's own restarts stay off.
    "restart_failed_env_runners": lambda value, _: {} if value else {"cluster.max_consecutive_failures": 1},
    "num_epochs": lambda value, run: {"train.epochs" if run.train.pi_iters is None else "train.pi_iters": value},
    "minibatch_size": lambda value, run: {
        "train.minibatch_size": _times(value, run.train.num_steps if run.model.recurrent else 1)
    },
    "train_batch_size": _batch,
    "_train_batch_size_per_learner": lambda value, run: _batch(_times(value, max(run.cluster.num_learners, 1)), run),
    "num_envs_per_env_runner": lambda value, run: {"train.num_envs": _times(value, max(run.cluster.runners, 1))},
}


#: Settings that are converted before others.
ORDER = {
    name: k for k, name in enumerate([*SAME, "num_envs_per_env_runner", "train_batch_size", "kl_coeff", "kl_target"])
}
#: Settings that a module may override.
_OF_MODULES = (
    "lr", "gamma", "lambda_", "entropy_coeff", "clip_param", "vf_loss_coeff", "grad_clip", "use_kl_loss", "kl_coeff",
    "kl_target",
)  # fmt: skip
