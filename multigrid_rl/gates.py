"""Gates: a metric, a bound, and a rule when it is held. Pure: takes reports, returns a verdict."""

import math
from collections import deque
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from multigrid_rl.text import expected

Hold = Literal["every", "mean", "share"]

#: A report counts only if it is over at least this many finished episodes, unless a scenario sets
#: another number: ``scenario.report_episodes``.
MIN_EPISODES = 100


@dataclass(frozen=True)
class Gate:
    """``metric <= bound`` or ``metric >= bound``, held over the last ``window`` environment steps.

    Hold variants, each judged at a report and only once the run has reports that reach ``window`` steps back:
        every: every report of the window meets the bound.
        mean: the mean over the window's reports meets the bound.
        share: at least a share of ``share`` of the window's reports meets the bound.
    """

    metric: str
    comparison: Literal["<=", ">="]
    bound: float
    hold: Hold = "every"
    share: float = 0.95
    window: int = 100_000

    def is_met(self, value: float) -> bool:
        """Return whether a value meets the bound; NaN never does."""
        return value <= self.bound if self.comparison == "<=" else value >= self.bound

    def margin(self, value: float) -> float:
        """Return the distance to the bound in units of the bound (1 for a bound of 0), positive if it is met."""
        return (self.bound - value if self.comparison == "<=" else value - self.bound) / (abs(self.bound) or 1.0)

    def __str__(self) -> str:
        """For example ``entropy/red_0 <= 0.3``."""
        return f"{self.metric} {self.comparison} {self.bound:g}"


def value_text(value: float, bound: float) -> str:
    """Return a value with three decimals, or with as many as show on which side of a bound it lies."""
    texts = [f"{value:.{digits}f}" for digits in range(3, 12)]
    return next((text for text in texts if value == bound or float(text) != bound), texts[-1])


@dataclass(frozen=True)
class Moment:
    """A time in a run: environment steps, updates and seconds."""

    env_steps: int
    policy_updates: int
    seconds: float


@dataclass
class GateState:
    """One gate's history."""

    gate: Gate
    value: float = math.nan
    streak_from: int | None = None
    first_reached: Moment | None = None
    first_held: Moment | None = None
    held: bool = False
    recent: deque[tuple[int, float]] = field(default_factory=deque)

    def update(self, now: Moment, value: float, first_report: int) -> None:
        """Add one report's value; ``first_report``: environment steps of the run's first report."""
        gate = self.gate
        self.value = value
        self.recent.append((now.env_steps, value))
        while self.recent[0][0] <= now.env_steps - gate.window:
            self.recent.popleft()
        if gate.is_met(value):
            self.first_reached = self.first_reached or now
            self.streak_from = now.env_steps if self.streak_from is None else self.streak_from
        else:
            self.streak_from = None
        self.held = self._judge(now.env_steps, first_report)
        if self.held:
            self.first_held = self.first_held or now

    def _judge(self, now: int, first_report: int) -> bool:
        gate = self.gate
        if gate.hold == "every":
            return self.streak_from is not None and now - self.streak_from >= gate.window
        if now - first_report < gate.window:
            return False
        if gate.hold == "mean":
            return gate.is_met(self.mean())
        return sum(gate.is_met(value) for _, value in self.recent) / len(self.recent) >= gate.share

    def held_steps(self, now: int) -> int:
        """Return the environment steps since which every report met the gate."""
        return 0 if self.streak_from is None else now - self.streak_from

    def mean(self) -> float:
        """Return the mean over the window's reports; NaN without reports, not finite if one of them is not."""
        return sum(value for _, value in self.recent) / len(self.recent) if self.recent else math.nan

    def row(self) -> dict[str, Any]:
        """Return the gate's part of a verdict."""
        mean = self.mean()
        return {
            **asdict(self.gate),
            "value": self.value if math.isfinite(self.value) else None,
            "window_mean": mean if math.isfinite(mean) else None,
            "met": self.gate.is_met(self.value),
            "held": self.held,
            "first_reached": asdict(self.first_reached) if self.first_reached else None,
            "first_held": asdict(self.first_held) if self.first_held else None,
        }


class GateKeeper:
    """All gates of a run. One object drives the live table, the stop rule and the verdict."""

    def __init__(self, gates: list[Gate], min_episodes: int = MIN_EPISODES) -> None:
        self.min_episodes = min_episodes
        self.states = [GateState(gate) for gate in gates]
        self.first_report: int | None = None
        self.first_reached: Moment | None = None
        self.first_held: Moment | None = None
        self.last: Moment | None = None

    def report(self, now: Moment, episodes: int, values: dict[str, float]) -> bool:
        """Add one report; returns whether it counted.

        Args:
            now: environment steps, updates and seconds so far; steps must grow from report to report.
            episodes: finished episodes behind the values; a report of fewer than ``min_episodes`` is ignored.

        Raises:
            KeyError: a gate's metric is missing.
            ValueError: environment steps did not grow.
        """
        if self.last is not None and now.env_steps <= self.last.env_steps:
            raise ValueError(expected("env_steps", f"more than the last report's {self.last.env_steps}", now.env_steps))
        if episodes < self.min_episodes:
            return False
        gate_values = [values[state.gate.metric] for state in self.states]  # before anything changes
        self.first_report = now.env_steps if self.first_report is None else self.first_report
        self.last = now
        for state, value in zip(self.states, gate_values, strict=True):
            state.update(now, value, self.first_report)
        if self.states and all(s.gate.is_met(s.value) for s in self.states):
            self.first_reached = self.first_reached or now
        if self.held:
            self.first_held = self.first_held or now
        return True

    @property
    def held(self) -> bool:
        """Whether there are gates and all of them are held at the last report."""
        return bool(self.states) and all(state.held for state in self.states)

    def margin(self) -> float:
        """Return the smallest margin of all gates by window means: positive if all are met; NaN if one is unknown."""
        margins = [state.gate.margin(state.mean()) for state in self.states]
        return math.nan if not margins or any(map(math.isnan, margins)) else min(margins)

    def get_state(self) -> dict[str, Any]:
        """Return the histories of all gates, for :meth:`set_state` of a keeper with equal gates."""
        return deepcopy(self.__dict__)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from these histories. Raises ``ValueError`` for histories of other gates."""
        got, gates = ([each.gate for each in states] for states in (state["states"], self.states))
        if got != gates:
            texts = (", ".join(f"{gate} ({gate.hold}, window {gate.window})" for gate in each) for each in (gates, got))
            raise ValueError(expected("history of the gates", *texts))
        self.__dict__.update(deepcopy({**state, "min_episodes": self.min_episodes}))

    def verdict(self) -> dict[str, Any]:
        """Return the verdict as plain data. ``held``: whether all gates were ever held at one report."""
        moments = {"reached": self.first_reached, "held": self.first_held}
        return {
            "held": self.first_held is not None,
            "held_at_end": self.held,
            **{
                f"{count}_to_{what}": getattr(moment, count, None)
                for what, moment in moments.items()
                for count in ("env_steps", "policy_updates", "seconds")
            },
            "gates": [state.row() for state in self.states],
        }
