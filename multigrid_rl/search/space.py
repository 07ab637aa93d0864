"""Named spaces: which overrides of ``train`` a search varies, how each is drawn, and what fits together.

Everything random works on *coordinates* in [0, 1): evenly distributed coordinates are what "random" means here.
Sampling, shrinking around a good configuration, perturbing, importance and plots use them; only training sees values.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from multigrid_rl.config.compose import ConfigError, RunConfig, compose, data_root
from multigrid_rl.config.network import network_entry
from multigrid_rl.search.outcomes import Point
from multigrid_rl.text import expected, unknown

#: The largest coordinate: 1 itself belongs to no level.
LAST: Final = math.nextafter(1.0, 0.0)
#: How a variable can be drawn, by the names of Ray Tune; as in Optuna, both bounds are included.
DRAWS: Final = ("uniform", "loguniform", "randint", "lograndint", "choice")
#: From what is drawn to the value, and for which draws (rl-zoo3 has such variables, too): a discount is even in the
#: logarithm of its horizon 1 / (1 - gamma), a batch in its exponent.
TRANSFORMS: Final = {"one_minus": ("uniform", "loguniform"), "power_of_two": ("randint",)}
#: A search sets these itself: a trial has one core, samples in its own process, and its length is the plan's.
OWN_KEYS: Final = ("seed", "run_dir", "train.until", "train.stop_when_held", "cluster.num_env_runners")
#: What a search cannot vary: results of different tasks have no order.
_NEVER = (*OWN_KEYS, "scenario", "experiment", "scheme", "checkpoints")
_MINIBATCH = "train.minibatch_size"

Value = float | int | str | bool | list[Any] | dict[str, Any] | None


@dataclass(frozen=True)
class Variable:
    """One variable of a space."""

    key: str  # override of train that it sets, for example train.lr
    draw: str  # of DRAWS
    bounds: tuple[float, float] = (0.0, 1.0)  # of what is drawn, before the transform; of no meaning for a choice
    choices: tuple[Value, ...] = ()  # empty for a number
    transform: str | None = None  # of TRANSFORMS
    also: tuple[str, ...] = ()  # further keys that get the same value

    @property
    def name(self) -> str:
        """The last word of its key: what tables and plots call it."""
        return self.key.rpartition(".")[2]

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that it sets."""
        return (self.key, *self.also)

    @property
    def levels(self) -> int | None:
        """How many values it can have; ``None`` where they count as continuous."""
        if self.draw == "choice":
            return len(self.choices)
        return int(self.bounds[1] - self.bounds[0]) + 1 if self.draw == "randint" else None

    def level(self, coordinate: float) -> int:
        """Return which of its levels a coordinate belongs to."""
        levels = self.levels or 1
        return min(int(coordinate * levels), levels - 1)

    def value(self, coordinate: float) -> Value:
        """Return the value at a coordinate in [0, 1); larger coordinates have larger values."""
        if self.draw == "choice":
            return self.choices[self.level(coordinate)]
        low, high = self.bounds
        if self.draw == "randint":
            number = int(low) + self.level(coordinate)
            return 2**number if self.transform == "power_of_two" else number
        if self.transform == "one_minus":
            low, high = high, low
        if self.draw == "uniform":
            drawn = low + coordinate * (high - low)
        else:
            drawn = math.exp(math.log(low) + coordinate * (math.log(high) - math.log(low)))
        if self.draw == "lograndint":
            return round(drawn)
        value = 1 - drawn if self.transform == "one_minus" else drawn
        # What is printed, written and trained is the same; a discount of 0.996999 needs its digits after the nines.
        return float(f"{value:.{8 if 0.9 <= abs(value) < 1 else 6}g}")

    @classmethod
    def parse(cls, key: str, value: Any) -> "Variable":
        """Read one variable, for example ``{loguniform: [1e-4, 3e-3], also: [train.lr_final]}``.

        Raises ``ConfigError``: a mistake, in one line.
        """
        rest = dict(value) if isinstance(value, dict) else {}
        also, transform = rest.pop("also", []), rest.pop("transform", None)
        if len(rest) != 1 or not rest.keys() <= set(DRAWS):
            raise ConfigError(f"{key}: expected exactly one of {', '.join(DRAWS)}, got {value}")
        ((draw, content),) = rest.items()
        if not isinstance(also, list) or not all(isinstance(name, str) for name in also):
            raise ConfigError(f"{key}.also: expected a list of keys, got {also}")
        if transform is not None and draw not in TRANSFORMS.get(str(transform), ()):
            allowed = ", ".join(f"{name} of {' or '.join(draws)}" for name, draws in TRANSFORMS.items())
            raise ConfigError(f"{key}.transform: expected {allowed}, got {transform} of {draw}")
        if draw != "choice":
            return cls(key, draw, _bounds(key, draw, transform, content), (), transform, tuple(also))
        if not isinstance(content, list) or len(content) < 2 or any(content.count(each) > 1 for each in content):
            raise ConfigError(f"{key}.choice: expected a list of at least two different values, got {content}")
        return cls(key, draw, choices=tuple(content), also=tuple(also))


def _bounds(key: str, draw: str, transform: str | None, content: Any) -> tuple[float, float]:
    least, most, integral = -math.inf, math.inf, draw in ("randint", "lograndint")
    wanted = f"two {'whole ' if integral else ''}numbers"
    if transform == "power_of_two":
        least, most, wanted = 0, 30, f"{wanted} from 0 to 30"
    elif draw in ("loguniform", "lograndint"):
        least, wanted = math.nextafter(0, 1), f"{wanted} above 0"
    try:  # yaml reads 1e-4 without a point as a word
        low, high = (float(bound) for bound in content if not isinstance(bound, bool))
    except (TypeError, ValueError):
        low = high = math.nan
    if not (least <= low < high <= most and math.isfinite(high - low)) or (integral and (low % 1 or high % 1)):
        raise ConfigError(expected(f"{key}.{draw}", f"{wanted}, the smaller first", content))
    return low, high


@dataclass(frozen=True)
class Space:
    """A space of configurations around fixed overrides; made by :meth:`build`."""

    name: str
    content: dict[str, Any]  # as the yaml has it
    variables: tuple[Variable, ...]  # what varies
    base: tuple[str, ...]  # overrides that all its configurations share
    config: RunConfig  # what they alone compose to

    @classmethod
    def build(cls, name: str, content: dict[str, Any], base: list[str]) -> "Space":
        """Make a space around the overrides ``base``; what they set does not vary, as they win for ``train``, too.

        Raises ``ConfigError``: a mistake in it, or a configuration that ``train`` would refuse.
        """
        set_keys = {override.partition("=")[0] for override in base}
        parsed = [Variable.parse(key, row) for key, row in content.items()]
        for key in (key for variable in parsed for key in variable.keys):
            if key in _NEVER or key.startswith(("scenario.", "cluster")):
                raise ConfigError(f"{key}: cannot be varied; expected a key of train or model that no plan sets")
        variables = tuple(variable for variable in parsed if not set_keys.intersection(variable.keys))
        keys = [key for variable in variables for key in variable.keys]
        if not keys:
            raise ConfigError(f"space={name}: expected at least one free variable, got none that is not set already")
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigError(f"space={name}: expected each key once, got {twice} twice")
        space = cls(name, content, variables, tuple(base), compose(base))
        space.check()
        return space

    def sample(self, rng: np.random.Generator) -> Point:
        """Draw a configuration evenly."""
        return {variable.key: float(rng.random()) for variable in self.variables}

    def near(self, centre: Point, width: float, rng: np.random.Generator) -> Point:
        """Draw a configuration of the space shrunken around ``centre``.

        ``width`` is half of the range of each number, in coordinates, and the probability that a choice is drawn anew.
        """
        drawn = {}
        for variable in self.variables:
            middle, fresh, toss = centre[variable.key], float(rng.random()), rng.random()
            low, high = max(middle - width, 0.0), min(middle + width, LAST)
            if variable.draw == "choice":
                drawn[variable.key] = fresh if toss < width else middle
            else:
                drawn[variable.key] = low + fresh * (high - low)
        return drawn

    def values(self, point: Point) -> dict[str, Value]:
        """Return what every key is at ``point``, after the rules that tie keys together."""
        chosen = {key: v.value(point[v.key]) for v in self.variables for key in v.keys}
        if any(override.startswith("model.hidden=") for override in self.base):
            # A network with memory has one hidden layer: of those that the user asked for, it gets the last.
            chosen.setdefault("model.hidden", list(self.config.model.hidden))
        return fitted(chosen, self.config)

    def overrides(self, point: Point) -> list[str]:
        """Return the overrides of ``train`` at ``point``."""
        return [*self.base, *(f"{key}={in_words(value)}" for key, value in self.values(point).items())]

    def in_short(self, point: Point) -> list[str]:
        """Return the variables' values at ``point``, rounded for reading; trials.csv has them in full."""
        values = self.values(point)
        row = [values[variable.key] for variable in self.variables]
        return [f"{value:.4g}" if isinstance(value, float) else in_words(value) for value in row]

    def check(self) -> None:
        """Compose configurations that hold every choice and both ends of every number. Raises ``ConfigError``."""
        for turn in range(max(2, *(len(variable.choices) for variable in self.variables))):
            point = {}
            for v in self.variables:
                number = LAST if turn % 2 else 0.0
                point[v.key] = (turn % len(v.choices) + 0.5) / len(v.choices) if v.choices else number
            try:
                compose(self.overrides(point))
            except ConfigError as error:
                raise ConfigError(f"space={self.name}: {error}") from error


def fitted(chosen: dict[str, Value], config: RunConfig) -> dict[str, Value]:
    """Fit ``chosen`` values together, so that no trial fails by a rule that binds several keys.

    Minibatches are no larger than a batch, and whole sequences of ``num_steps`` for a network with memory, which also
    has one hidden layer; only an ``mlp`` has another activation than tanh.
    """
    result = dict(chosen)
    envs, steps = (int(str(chosen.get(f"train.{k}", getattr(config.train, k)))) for k in ("num_envs", "num_steps"))
    network = chosen.get("model", chosen.get("model.name", config.model.name))
    wanted = int(str(chosen.get(_MINIBATCH, config.train.minibatch_size)))
    minibatch = min(wanted, envs * steps)
    entry = network_entry(network)
    if entry is not None and entry.memory:
        minibatch = max(minibatch // steps, 1) * steps
        hidden = chosen.get("model.hidden")
        if isinstance(hidden, list):
            result["model.hidden"] = hidden[-1:]
    if minibatch != wanted:
        result[_MINIBATCH] = minibatch
    if network != "mlp" and "model.activation" in chosen:
        result["model.activation"] = "tanh"
    return result


def in_words(value: Value) -> str:
    """Write a value as an override has it: one word that Hydra reads back to the same value."""
    if isinstance(value, (str, float)):
        return str(value)
    return " ".join(yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").split())


def space_names() -> list[str]:
    """List the names of all shipped spaces, sorted."""
    return sorted(path.stem for path in (data_root() / "configs" / "search" / "spaces").glob("*.yaml"))


def load_space(name: str, base: list[str]) -> Space:
    """Build a named space, or that of a yaml file, around the overrides ``base``. Raises ``ConfigError``."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else data_root() / f"configs/search/spaces/{name}.yaml"
    if not path.is_file():
        raise ConfigError(unknown("search.space", name, space_names(), "{} or a yaml file"))
    return Space.build(path.stem, read_yaml(path), base)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping. Raises ``ConfigError``: it cannot be read, or is none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(expected(path, "a yaml mapping", error)) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: expected a yaml mapping of keys")
    return content
