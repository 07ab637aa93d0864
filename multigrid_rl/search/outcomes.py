"""What a trial is, what came of it, and what makes one better than another. Pure: neither Ray nor files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from multigrid_rl.gates import Gate

#: Optuna's parameters of a configuration, by key of the variable.
Params = dict[str, float | int | str]
#: A trial ends by itself, because it lags behind, or by an error.
Status = Literal["finished", "stopped", "failed"]
#: More environment steps than any trial plays: what the number of a score is scaled by.
_MOST_STEPS = 2.0**34


@dataclass(frozen=True)
class Score:
    """How good a trial was: gates held first, then fewer steps until they were, then how far inside the bounds."""

    env_steps_to_held: int | None  # until all gates had been held; None: never
    #: The smallest of the gates' distances to their bounds, in units of the bound; positive where all are met, minus
    #: infinity where nothing was reported.
    margin: float

    @property
    def held(self) -> bool:
        """Whether all gates were held."""
        return self.env_steps_to_held is not None

    @property
    def number(self) -> float:
        """The objective to maximise, of plans, samplers and pruners alike.

        From -1 to 1 for a trial that did not hold its gates, above 1 for one that did. Steps keep their order exactly;
        margins nearer than a ten-thousandth of a bound may fall together.
        """
        margin = math.copysign(1.0, self.margin) if math.isinf(self.margin) else self.margin / (1 + abs(self.margin))
        if self.env_steps_to_held is None:
            return margin
        return 2.0 + (0.25 * margin - min(self.env_steps_to_held, _MOST_STEPS - 1)) / _MOST_STEPS


def score_of(verdict: Mapping[str, Any]) -> Score:
    """Score a run by its verdict, or by its gate keeper while it runs.

    The margin is infinite without gates, and minus infinity where a gate's metric was never reported.
    """
    margins = [math.inf]
    for row in verdict["gates"]:
        gate, value = Gate(row["metric"], row["comparison"], row["bound"]), row["window_mean"]
        value = row["value"] if value is None else value
        margins.append(-math.inf if value is None else gate.margin(value))
    return Score(verdict["env_steps_to_held"], min(margins))


@dataclass(frozen=True)
class TrialSpec:
    """A trial to be run."""

    id: str  # its name, and that of its folder
    stage: str  # the part of the plan that it belongs to
    params: Params | None  # None: Optuna draws them when it begins
    seed: int
    until: int  # environment steps at which its run ends at the latest
    origin: str | None = None  # the trial whose configuration it confirms, or whose policy it continues
    warm_start: bool = False  # whether it starts from the last checkpoint of its origin
    guided: bool = False  # whether TPE draws it by what has ended; else it is drawn at random


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    spec: TrialSpec
    status: Status
    score: Score | None  # None if it failed
    env_steps: int = 0  # that were played
    seconds: float = 0.0
    reason: str | None = None  # why it failed, in one line

    @property
    def held(self) -> bool:
        """Whether it held all gates."""
        return self.score is not None and self.score.held


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Sort the outcomes that have a score, best first; of equals, the earlier."""
    scored = [(outcome.score.number, outcome) for outcome in outcomes if outcome.score is not None]
    return [outcome for _, outcome in sorted(scored, key=lambda pair: pair[0], reverse=True)]


@dataclass(frozen=True)
class Winner:
    """What a search recommends."""

    params: Params
    trials: tuple[str, ...]  # that it was judged by, best first
    score: Score  # the worst of them
    confirmed: bool  # whether it held its gates in all trials that the plan asks of a winner


def winner_of(outcomes: Sequence[Outcome], seeds: int) -> Winner | None:
    """Choose the best configuration: over all its seeds where a plan confirms (``seeds`` > 0), else the best trial.

    A configuration that was confirmed on all seeds comes before all that were not; among equals the worst seed decides.
    ``None`` if no trial has a score.
    """
    runs: dict[str | None, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.spec.stage == "confirm":
            runs.setdefault(outcome.spec.origin, []).append(outcome)
    complete = [rows for rows in runs.values() if all(row.score is not None for row in rows)]
    if not complete:  # the best single trial; it is confirmed where a plan asks for no further seeds
        return next((_judged([best], confirmed=seeds == 0) for best in ranked(outcomes)), None)
    winners = [_judged(rows, confirmed=len(rows) >= seeds) for rows in complete]
    return max(winners, key=lambda winner: (winner.confirmed, len(winner.trials), winner.score.number))


def _judged(rows: list[Outcome], *, confirmed: bool) -> Winner:
    order = ranked(rows)
    worst = order[-1].score or Score(None, -math.inf)
    return Winner(rows[0].spec.params or {}, tuple(row.spec.id for row in order), worst, confirmed and worst.held)
