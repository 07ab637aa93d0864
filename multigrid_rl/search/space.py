"""Named search spaces: the overrides of ``train`` to vary, their distributions, and rules between them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from multigrid_rl.config.compose import compose
from multigrid_rl.config.network import network_entry
from multigrid_rl.config.overrides import parse, written
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.files import data_root
from multigrid_rl.text import ConfigError, expected, unknown

#: Optuna's parameters of a configuration, by key of their variable.
Params = dict[str, float | int | str]
#: Distributions of a variable, with Ray Tune's names; as in Optuna, both bounds are included.
DRAWS: Final = ("uniform", "loguniform", "randint", "lograndint", "choice")
#: Transforms from parameters to values, with their distributions (rl-zoo3 has such variables, too): a discount is drawn
#: evenly in the logarithm of its horizon 1 / (1 - gamma), a batch size in its exponent.
TRANSFORMS: Final = {"one_minus": ("uniform", "loguniform"), "power_of_two": ("randint",)}
#: Keys that the search sets: a trial has one core, samples in its process, and has the length of the plan.
RESERVED_KEYS: Final = ("seed", "run_dir", "train.until", "train.stop_when_held", "cluster.num_env_runners")
#: Keys that a search cannot vary: results of different tasks are not comparable.
_NEVER = (*RESERVED_KEYS, "scenario", "experiment", "scheme", "checkpoints")
_MINIBATCH = "train.minibatch_size"

Value = float | int | str | bool | list[Any] | dict[str, Any] | None


@dataclass(frozen=True)
class Variable:
    """One variable of a space."""

    key: str  # key of the override, for example train.lr
    distribution: BaseDistribution  # Optuna's, of parameters before the transform; a choice draws text
    choices: tuple[Value, ...] = ()  # empty for a number
    transform: str | None = None  # a key of TRANSFORMS
    also: tuple[str, ...] = ()  # further keys with the same value

    @property
    def name(self) -> str:
        """The last word of its key, its name in tables."""
        return self.key.rpartition(".")[2]

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of the variable."""
        return (self.key, *self.also)

    def value(self, drawn: Any) -> Value:
        """Return the value for ``train`` from Optuna's parameter."""
        if isinstance(self.distribution, CategoricalDistribution):
            return self.choices[self.distribution.choices.index(drawn)]
        if isinstance(self.distribution, IntDistribution):
            return int(2**drawn if self.transform == "power_of_two" else drawn)
        value = 1 - drawn if self.transform == "one_minus" else drawn
        # Printed, written and trained values are equal; a discount of 0.996999 needs its digits after the nines.
        return float(f"{value:.{8 if 0.9 <= abs(value) < 1 else 6}g}")

    def at(self, share: float) -> float | int | str:
        """Return the parameter at a share of the range, from 0 to 1, on the scale of its distribution."""
        kind: Any = self.distribution
        if self.choices:
            return str(kind.choices[min(int(share * len(self.choices)), len(self.choices) - 1)])
        low, high = self._scaled(kind.low, kind.high)
        drawn = low + share * (high - low)
        drawn = min(max(math.exp(drawn) if kind.log else drawn, kind.low), kind.high)
        return round(drawn) if isinstance(kind, IntDistribution) else float(drawn)

    def share(self, drawn: Any) -> float:
        """Return a parameter's position in its range, from 0 to 1."""
        kind: Any = self.distribution
        place, low, high = self._scaled(drawn, kind.low, kind.high)
        return (place - low) / (high - low)

    def moved(self, drawn: Any, step: float) -> float | int | str:
        """Return a number moved by a share ``step`` of its range; a whole number moves by one at least."""
        # Reflect at the edges: a clipped value would stay there.
        inside = abs(self.share(drawn) + step)
        result, kind = self.at(2 - inside if inside > 1 else inside), self.distribution
        if isinstance(kind, IntDistribution) and result == drawn:
            upward = drawn < kind.high if step > 0 else drawn == kind.low
            return int(drawn + (1 if upward else -1))
        return result

    def _scaled(self, *drawn: float) -> list[float]:
        kind: Any = self.distribution
        return [math.log(each) if kind.log else float(each) for each in drawn]

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
        if draw == "choice":
            if not isinstance(content, list) or len(content) < 2 or any(content.count(each) > 1 for each in content):
                raise ConfigError(f"{key}.choice: expected a list of at least two different values, got {content}")
            words = CategoricalDistribution([written(each) for each in content])
            return cls(key, words, choices=tuple(content), also=tuple(also))
        low, high = _bounds(key, draw, transform, content)
        kind: Any = IntDistribution if draw.endswith("randint") else FloatDistribution
        return cls(key, kind(low, high, log=draw.startswith("log")), transform=transform, also=tuple(also))


def _bounds(key: str, draw: str, transform: str | None, content: Any) -> tuple[float, float]:
    least, most, integral = -math.inf, math.inf, draw.endswith("randint")
    wanted = f"two {'whole ' if integral else ''}numbers"
    if transform == "power_of_two":
        least, most, wanted = 0, 30, f"{wanted} from 0 to 30"
    elif draw in ("loguniform", "lograndint"):
        least, wanted = math.nextafter(0, 1), f"{wanted} above 0"
    try:  # yaml reads 1e-4 without a point as text
        low, high = (float(bound) for bound in content if not isinstance(bound, bool))
    except (TypeError, ValueError):
        low = high = math.nan
    if not (least <= low < high <= most and math.isfinite(high - low)) or (integral and (low % 1 or high % 1)):
        raise ConfigError(expected(f"{key}.{draw}", f"{wanted}, the smaller first", content))
    return (int(low), int(high)) if integral else (low, high)


@dataclass(frozen=True)
class Space:
    """A space of configurations around fixed overrides; made by :meth:`build`."""

    name: str
    content: dict[str, Any]  # content of the yaml file
    variables: tuple[Variable, ...]
    base: tuple[str, ...]  # overrides of all its configurations
    config: RunConfig  # the configuration of ``base`` alone

    @classmethod
    def build(cls, name: str, content: dict[str, Any], base: list[str]) -> "Space":
        """Make a space around the overrides ``base``; variables whose keys they set are dropped.

        Raises ``ConfigError``: a mistake in the space, or a configuration that ``train`` would refuse.
        """
        settings = parse(base)
        set_keys = {*settings, *(["model"] if "model.name" in settings else [])}
        mappings = tuple(f"{key}." for key, value in settings.items() if isinstance(value, dict))
        parsed = [Variable.parse(key, row) for key, row in content.items()]
        for key in (key for variable in parsed for key in variable.keys):
            if key in _NEVER or key.startswith(("scenario.", "cluster")):
                raise ConfigError(f"{key}: cannot be varied; expected a key of train or model that no plan sets")
        variables = tuple(v for v in parsed if not any(key in set_keys or key.startswith(mappings) for key in v.keys))
        if not (keys := [key for variable in variables for key in variable.keys]):
            raise ConfigError(f"space={name}: expected at least one free variable, got none that is not set already")
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigError(f"space={name}: expected each key once, got {twice} twice")
        space = cls(name, content, variables, tuple(base), compose(base))
        space.check()
        return space

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distributions, by key."""
        return {variable.key: variable.distribution for variable in self.variables}

    def values(self, params: Params) -> dict[str, Value]:
        """Return the value of every key for Optuna's parameters, after the rules between keys."""
        chosen = {key: v.value(params[v.key]) for v in self.variables for key in v.keys}
        if any(override.startswith("model.hidden=") for override in self.base):
            # A network with memory has one hidden layer: it gets the last one of the user's.
            chosen.setdefault("model.hidden", list(self.config.model.hidden))
        return fit_values(chosen, self.config)

    def overrides(self, params: Params) -> list[str]:
        """Return the overrides of ``train`` for Optuna's parameters."""
        return [*self.base, *(f"{key}={written(value)}" for key, value in self.values(params).items())]

    def check(self) -> None:
        """Compose configurations with every choice and both bounds of every number. Raises ``ConfigError``."""
        for turn in range(max(2, *(len(variable.choices) for variable in self.variables))):
            params = {
                v.key: v.at((turn % len(v.choices) + 0.5) / len(v.choices) if v.choices else turn % 2)
                for v in self.variables
            }
            try:
                compose(self.overrides(params))
            except ConfigError as error:
                raise ConfigError(f"space={self.name}: {error}") from error


def fit_values(chosen: dict[str, Value], config: RunConfig) -> dict[str, Value]:
    """Adjust ``chosen`` values, so that no trial fails by a rule between keys.

    Minibatches are no larger than a batch, and whole sequences of ``num_steps`` for a network with memory, which also
    has one hidden layer; only an ``mlp`` has another activation than tanh.
    """
    result = dict(chosen)
    envs, steps = (int(str(chosen.get(f"train.{k}", getattr(config.train, k)))) for k in ("num_envs", "num_steps"))
    network = chosen.get("model", chosen.get("model.name", config.model.name))
    requested = chosen.get(_MINIBATCH, config.train.minibatch_size)
    wanted = envs * steps if requested is None else int(str(requested))
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


def load_space(name: str, base: list[str]) -> Space:
    """Build a space by its name or yaml file around the overrides ``base``. Raises ``ConfigError``."""
    folder = data_root() / "configs" / "search" / "spaces"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ConfigError(unknown("search.space", name, known, "{} or a yaml file"))
    return Space.build(path.stem, read_yaml(path), base)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a yaml mapping. Raises ``ConfigError``: it cannot be read, or is no mapping."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(expected(path, "a yaml mapping", error)) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: expected a yaml mapping of keys")
    return content
