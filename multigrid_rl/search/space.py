"""Named spaces: which overrides of ``train`` a search varies, over which ranges, and what fits together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from multigrid_rl.config import ConfigError, RunConfig, compose, data_root
from multigrid_rl.search.transforms import CHOICE, LAST, Value, Variable, in_words, parse_variable

#: Coordinates of a configuration, by key of the variable.
Point = dict[str, float]

_MINIBATCH = "train.minibatch_size"
_WITH_MEMORY = ("gru", "lstm")
#: A search sets these itself: a trial has one core, samples in its own process, and its length is the plan's.
OWN_KEYS = ("seed", "run_dir", "train.until", "train.stop_when_held", "cluster.num_env_runners")
#: What a search cannot vary: results of different tasks have no order.
_NEVER = (*OWN_KEYS, "scenario", "experiment", "scheme", "checkpoints")


@dataclass(frozen=True)
class Space:
    """A space of configurations around fixed overrides.

    Attributes:
        name: what it is called.
        variables: what varies.
        base: overrides that all its configurations share.
        config: what ``base`` alone composes to.
    """

    name: str
    variables: tuple[Variable, ...]
    base: tuple[str, ...]
    config: RunConfig

    def sample(self, rng: np.random.Generator) -> Point:
        """An evenly drawn configuration."""
        return {variable.key: float(rng.random()) for variable in self.variables}

    def near(self, centre: Point, width: float, rng: np.random.Generator) -> Point:
        """A configuration of the space shrunken around ``centre``.

        Args:
            centre: coordinates of a good configuration.
            width: half of the shrunken range of each number, in coordinates; the probability that a choice is drawn
                anew.
            rng: draws.
        """
        drawn = {}
        for variable in self.variables:
            middle = centre[variable.key]
            fresh, toss = float(rng.random()), float(rng.random())
            if variable.kind == CHOICE:
                drawn[variable.key] = fresh if toss < width else middle
                continue
            low, high = max(middle - width, 0.0), min(middle + width, LAST)
            drawn[variable.key] = low + fresh * (high - low)
        return drawn

    def values(self, point: Point) -> dict[str, Value]:
        """What every key is at ``point``, after the rules that tie keys together."""
        chosen = {key: v.value(point[v.key]) for v in self.variables for key in v.keys}
        if any(override.startswith("model.hidden=") for override in self.base):
            # A network with memory has one hidden layer: of those that the user asked for, it gets the last.
            chosen.setdefault("model.hidden", list(self.config.model.hidden))
        return fitted(chosen, self.config)

    def overrides(self, point: Point) -> list[str]:
        """The overrides of ``train`` at ``point``."""
        return [*self.base, *(f"{key}={in_words(value)}" for key, value in self.values(point).items())]

    def check(self) -> None:
        """Compose configurations that hold every choice and both ends of every number.

        Raises:
            ConfigError: ``train`` would refuse one of them.
        """
        turns = max(len(variable.choices) for variable in self.variables)
        for turn in range(max(turns, 2)):
            point = {}
            for v in self.variables:
                number = LAST if turn % 2 else 0.0
                point[v.key] = (turn % len(v.choices) + 0.5) / len(v.choices) if v.choices else number
            try:
                compose(self.overrides(point))
            except ConfigError as error:
                raise ConfigError(f"space={self.name}: {error}") from error


def fitted(chosen: dict[str, Value], config: RunConfig) -> dict[str, Value]:
    """``chosen`` values as they fit together, so that no trial fails by a rule that binds several keys.

    Minibatches are no larger than a batch, and whole sequences of ``num_steps`` for a network with memory, which also
    has one hidden layer; only an ``mlp`` has another activation than tanh.
    """
    result = dict(chosen)
    envs, steps = (int(str(chosen.get(f"train.{k}", getattr(config.train, k)))) for k in ("num_envs", "num_steps"))
    network = chosen.get("model", chosen.get("model.name", config.model.name))
    wanted = int(str(chosen.get(_MINIBATCH, config.train.minibatch_size)))
    minibatch = min(wanted, envs * steps)
    if network in _WITH_MEMORY:
        minibatch = max(minibatch // steps, 1) * steps
        hidden = chosen.get("model.hidden")
        if isinstance(hidden, list):
            result["model.hidden"] = hidden[-1:]
    if minibatch != wanted:
        result[_MINIBATCH] = minibatch
    if network != "mlp" and "model.activation" in chosen:
        result["model.activation"] = "tanh"
    return result


def space_folder() -> Path:
    """Where the named spaces are."""
    return data_root() / "configs" / "search" / "spaces"


def space_names() -> list[str]:
    """Names of all spaces, sorted."""
    return sorted(path.stem for path in space_folder().glob("*.yaml"))


def load_space(name: str) -> tuple[str, dict[str, Any]]:
    """Name and content of a named space or of a yaml file.

    Raises:
        ConfigError: an unknown name, or a file that cannot be read.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else space_folder() / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"search.space={name}: unknown; allowed is {', '.join(space_names())}, or a yaml file")
    return path.stem, read_yaml(path)


def space_of(name: str, content: dict[str, Any], base: list[str]) -> Space:
    """A space around the overrides ``base``; what they set does not vary, as a user's own overrides win for ``train``.

    Raises:
        ConfigError: a mistake in it, or a configuration that ``train`` would refuse.
    """
    given = {override.partition("=")[0] for override in base}
    variables = []
    for key, row in content.items():
        variable = parse_variable(key, row)
        _check_keys(variable)
        if not given.intersection(variable.keys):
            variables.append(variable)
    _check_names(name, variables)
    space = Space(name, tuple(variables), tuple(base), compose(base))
    space.check()
    return space


def _check_keys(variable: Variable) -> None:
    barred = [key for key in variable.keys if key in _NEVER or key.startswith(("scenario.", "cluster"))]
    if barred:
        raise ConfigError(f"{barred[0]}: cannot be varied; allowed is a key of train or model that no plan sets")


def _check_names(name: str, variables: list[Variable]) -> None:
    if not variables:
        raise ConfigError(f"space={name}: nothing is left to vary; allowed is at least one free variable")
    keys = [key for variable in variables for key in variable.keys]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise ConfigError(f"space={name}: {twice[0]} is set twice; allowed is once")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}; allowed is a yaml mapping") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: allowed is a yaml mapping of keys")
    return content
