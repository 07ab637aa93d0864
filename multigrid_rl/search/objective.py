"""What makes one trial better than another. Pure: one total order, and a number that keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

#: More environment steps than any trial plays: what the number of a score is scaled by.
_MOST_STEPS = 2.0**34


@total_ordering
@dataclass(frozen=True, eq=False)
class Score:
    """How good a trial was: gates held first, then fewer steps until they were, then how far inside the bounds.

    Attributes:
        env_steps_to_held: environment steps until all gates had been held; ``None``: never.
        margin: the smallest of the gates' distances to their bounds, in units of the bound; positive where all are met,
            minus infinity where nothing was reported.
    """

    env_steps_to_held: int | None
    margin: float

    @property
    def held(self) -> bool:
        """Whether all gates were held."""
        return self.env_steps_to_held is not None

    @property
    def _key(self) -> tuple[bool, float, float]:
        steps = self.env_steps_to_held
        return self.held, 0.0 if steps is None else -float(steps), self.margin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Score) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: Score) -> bool:
        return self._key < other._key

    @property
    def number(self) -> float:
        """A number that grows with the score, for searchers and schedulers that know only numbers.

        From -1 to 1 for a trial that did not hold its gates, above 1 for one that did. Steps keep their order exactly;
        margins nearer than a ten-thousandth of a bound may fall together.
        """
        margin = _squashed(self.margin)
        if self.env_steps_to_held is None:
            return margin
        return 2.0 + (0.25 * margin - min(self.env_steps_to_held, _MOST_STEPS - 1)) / _MOST_STEPS


def _squashed(margin: float) -> float:
    return math.copysign(1.0, margin) if math.isinf(margin) else margin / (1.0 + abs(margin))


def margin_of(gates: Sequence[Mapping[str, Any]]) -> float:
    """The smallest margin of a verdict's gates, each over its window's mean and in units of its bound.

    Minus infinity where a gate's metric was never reported; infinity without gates.
    """
    return min((_margin(gate) for gate in gates), default=math.inf)


def _margin(gate: Mapping[str, Any]) -> float:
    value = gate["window_mean"] if gate["window_mean"] is not None else gate["value"]
    if value is None:
        return -math.inf
    distance = gate["bound"] - value if gate["comparison"] == "<=" else value - gate["bound"]
    # A bound of 0 has no size of its own; there one unit of the metric is the scale.
    return float(distance) / (abs(gate["bound"]) or 1.0)


def score_of(verdict: Mapping[str, Any]) -> Score:
    """The score of a run, from its verdict or from what its gate keeper says meanwhile."""
    return Score(verdict["env_steps_to_held"], margin_of(verdict["gates"]))


def worst(scores: Sequence[Score]) -> Score:
    """The worst of several: a configuration is as good as its worst seed.

    Raises:
        ValueError: none were given.
    """
    return min(scores)
