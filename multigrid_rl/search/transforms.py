"""Variables of a search: each is drawn evenly on the scale on which its effect is even, and told in its own units.

A variable's *coordinate* is a number in [0, 1): evenly distributed coordinates are what "random" means here. Sampling,
shrinking around a good configuration, perturbing and importance all work on coordinates; only training sees values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import yaml

from multigrid_rl.config import ConfigError

#: Significant digits of a drawn number: what is printed, written and trained is the same.
DIGITS = 6
#: The largest coordinate: 1 itself belongs to no level.
LAST: Final = math.nextafter(1.0, 0.0)

Value = float | int | str | bool | list[Any] | dict[str, Any] | None


class Scale(NamedTuple):
    """A monotonous scale and what its bounds may be."""

    forth: Callable[[float], float]  # value -> scale
    back: Callable[[float], float]  # scale -> value
    allowed: str
    fits: Callable[[float], bool]


def _same(value: float) -> float:
    return value


def _exp2(value: float) -> float:
    return math.pow(2.0, value)


def _one_minus_exp(value: float) -> float:
    return 1.0 - math.exp(value)


def _log_one_minus(value: float) -> float:
    return math.log(1.0 - value)


def _above_zero(bound: float) -> bool:
    return bound > 0


_ANY = Scale(_same, _same, "two numbers, the smaller first", math.isfinite)
_LOG = Scale(math.log, math.exp, "two numbers above 0, the smaller first", _above_zero)

#: How numbers can be drawn. Bounds stand as the yaml gives them: for one_minus_log_uniform they are 1 - value (a
#: discount's horizon is 1 / (1 - gamma) steps), for power_of_two exponents.
SCALES: Final[dict[str, Scale]] = {
    "uniform": _ANY,
    "log_uniform": _LOG,
    "one_minus_log_uniform": Scale(
        _log_one_minus, _one_minus_exp, "two numbers above 0 and below 1, the smaller first", lambda b: 0 < b < 1
    ),
    "whole_uniform": Scale(_same, _same, "two whole numbers, the smaller first", lambda b: b == int(b)),
    "whole_log_uniform": Scale(
        math.log, math.exp, "two whole numbers above 0, the smaller first", lambda b: b == int(b) and b > 0
    ),
    "power_of_two": Scale(
        math.log2, _exp2, "two whole exponents from 0 to 30, the smaller first", lambda b: b == int(b) and 0 <= b <= 30
    ),
}
CHOICE: Final = "choice"
KINDS: Final = (*SCALES, CHOICE)


@dataclass(frozen=True)
class Variable:
    """One variable of a space.

    Attributes:
        key: override of ``train`` that it sets, for example ``train.lr``.
        kind: a name of :data:`KINDS`.
        bounds: as the yaml gives them; of no meaning for a choice.
        choices: what a choice chooses from; empty for a number.
        also: further keys that get the same value.
    """

    key: str
    kind: str
    bounds: tuple[float, float] = (0.0, 1.0)
    choices: tuple[Value, ...] = ()
    also: tuple[str, ...] = ()

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
        """How many values it can have; ``None`` for a continuous one."""
        if self.kind == CHOICE:
            return len(self.choices)
        if self.kind in ("power_of_two", "whole_uniform"):
            low, high = self.bounds
            return int(high) - int(low) + 1
        return None

    def value(self, coordinate: float) -> Value:
        """The value at a coordinate in [0, 1)."""
        levels = self.levels
        if levels is not None:
            level = min(int(coordinate * levels), levels - 1)
            if self.kind == CHOICE:
                return self.choices[level]
            number = int(self.bounds[0]) + level
            return 2**number if self.kind == "power_of_two" else number
        start, end = self._ends
        value = SCALES[self.kind].back(start + coordinate * (end - start))
        return round(value) if self.kind == "whole_log_uniform" else _short(value)

    def coordinate(self, value: Value) -> float:
        """The coordinate of a value of this variable, in the middle of its level where it has levels.

        Raises:
            ConfigError: it cannot have that value.
        """
        levels = self.levels
        if levels is not None:
            known = [self.value((level + 0.5) / levels) for level in range(levels)]
            if value not in known:
                raise ConfigError(f"{self.key}={value}: allowed is one of {', '.join(map(str, known))}")
            return (known.index(value) + 0.5) / levels
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{self.key}={value}: allowed is a number")
        low, high = self.range
        if not low * (1 - 1e-5) <= value <= high * (1 + 1e-5):
            raise ConfigError(f"{self.key}={value}: allowed is {low:g} to {high:g}")
        start, end = self._ends
        return min(max((SCALES[self.kind].forth(float(value)) - start) / (end - start), 0.0), LAST)

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest value of a continuous variable."""
        low, high = self.bounds
        return (1 - high, 1 - low) if self.kind == "one_minus_log_uniform" else (low, high)

    @property
    def _ends(self) -> tuple[float, float]:
        # Where coordinate 0 and 1 lie on the scale: smallest value first, so that larger coordinates are larger values.
        low, high = self.range
        forth = SCALES[self.kind].forth
        return forth(low), forth(high)


def _short(value: float) -> float:
    # A discount of 0.996999 needs its digits after the nines.
    digits = DIGITS if abs(value) < 0.9 or abs(value) >= 1 else DIGITS + 2
    return float(f"{value:.{digits}g}")


def parse_variable(key: str, given: Any) -> Variable:
    """Read one variable, for example ``{log_uniform: [1e-4, 3e-3], also: [train.lr_final]}``.

    Raises:
        ConfigError: a mistake, in one line.
    """
    also = given.get("also", []) if isinstance(given, dict) else []
    kinds = [kind for kind in given if kind != "also"] if isinstance(given, dict) else []
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise ConfigError(f"{key}={given}: allowed is exactly one of {', '.join(KINDS)}")
    if not isinstance(also, list) or not all(isinstance(name, str) for name in also):
        raise ConfigError(f"{key}.also={also}: allowed is a list of keys")
    kind, content = kinds[0], given[kinds[0]]
    if kind == CHOICE:
        if not isinstance(content, list) or len(content) < 2 or any(content.count(each) > 1 for each in content):
            raise ConfigError(f"{key}.choice={content}: allowed is a list of at least two different values")
        return Variable(key, kind, choices=tuple(content), also=tuple(also))
    return Variable(key, kind, bounds=_bounds(key, kind, content), also=tuple(also))


def _bounds(key: str, kind: str, content: Any) -> tuple[float, float]:
    scale = SCALES[kind]
    numbers = [_number(bound) for bound in content] if isinstance(content, list) else []
    usable = [bound for bound in numbers if bound is not None and math.isfinite(bound) and scale.fits(bound)]
    if len(numbers) != 2 or len(usable) != 2 or usable[0] >= usable[1]:
        raise ConfigError(f"{key}.{kind}={content}: allowed is {scale.allowed}")
    return usable[0], usable[1]


def _number(value: Any) -> float | None:
    # yaml reads 1e-4 without a point as a word.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)


def in_words(value: Value) -> str:
    """A value as an override has it: one word that Hydra reads back to the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, dict)):
        return " ".join(yaml.safe_dump(value, default_flow_style=True, width=10_000).split())
    return repr(value) if isinstance(value, float) else str(value)
