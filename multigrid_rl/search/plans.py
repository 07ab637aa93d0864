"""Trials, their outcomes and scores, and the plans that choose the next trials: three-stage, asha and pbt.

A plan is a generator that yields the trials of a round, and receives their outcomes in the order in which it planned
them, so results do not depend on which trial ended first. A trial without values gets them from Optuna at its start.
This module uses neither Ray nor files.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from multigrid_rl.config.scenario import Part
from multigrid_rl.gates import Gate
from multigrid_rl.search.space import Params, Space
from multigrid_rl.text import expected

#: A trial ended by itself, was stopped by the pruner, or failed with an error.
Status = Literal["finished", "stopped", "failed"]
#: More environment steps than any trial plays: scale of the steps in ``Score.number``.
_MAX_STEPS = 2.0**34


class SearchPart(Part):
    """Settings of all kinds of search."""

    kind: str
    space: str
    #: Trials at a time; 0: as many as there are cores.
    max_concurrent: int = Field(default=0, ge=0)
    #: Environment steps between two reports of a trial. Fewer: quicker Ctrl-C and decisions, more traffic.
    report_every: int = Field(default=25_000, ge=1)


class Broad(Part):
    """Stage 1: random configurations on short runs."""

    trials: int = Field(ge=1)
    until: int = Field(ge=1)


class Refine(Part):
    """Stage 2: configurations that TPE proposes by the outcomes of stage 1."""

    trials: int = Field(ge=0)
    until: int = Field(ge=1)


class Confirm(Part):
    """Stage 3: the best configurations on long runs over new seeds."""

    candidates: int = Field(ge=1)
    attempts: int = Field(ge=1)
    seeds: int = Field(ge=1)
    until: int = Field(ge=1)


class ThreeStageSettings(SearchPart):
    """Broad, refine, confirm."""

    kind: Literal["three-stage"]
    broad: Broad
    refine: Refine
    confirm: Confirm


class AshaSettings(SearchPart):
    """Optuna's TPE (Bergstra et al. 2011) proposes trials; asynchronous successive halving stops slow ones.

    https://papers.nips.cc/paper/4443-algorithms-for-hyper-parameter-optimization, https://arxiv.org/abs/1810.05934
    """

    kind: Literal["asha"]
    trials: int = Field(ge=1)
    until: int = Field(ge=1)
    grace: int = Field(ge=1)
    reduction: int = Field(ge=2)
    startup: int = Field(ge=1)

    @model_validator(mode="after")
    def _grace_fits(self) -> "AshaSettings":
        if self.grace > self.until:
            raise ValueError(expected("grace", f"at most until={self.until}", self.grace))
        return self


class PbtSettings(SearchPart):
    """Population based training (Jaderberg et al. 2017) with truncation selection."""

    kind: Literal["pbt"]
    population: int = Field(ge=2)
    generations: int = Field(ge=1)
    interval: int = Field(ge=1)
    quantile: float = Field(gt=0, le=0.5)
    width: float = Field(gt=0, le=1)
    resample: float = Field(ge=0, le=1)


#: Settings by kind of search; the values are in ``configs/search/``.
KINDS: dict[str, type[SearchPart]] = {"three-stage": ThreeStageSettings, "asha": AshaSettings, "pbt": PbtSettings}


@dataclass(frozen=True)
class Score:
    """Quality of a trial: held gates first, then fewer steps until they were held, then a larger margin."""

    env_steps_to_held: int | None  # until all gates were held; None: never
    #: The smallest distance of a gate to its bound, in units of the bound; positive if all are met, minus infinity
    #: without reports.
    margin: float

    @property
    def held(self) -> bool:
        """Whether all gates were held."""
        return self.env_steps_to_held is not None

    @property
    def number(self) -> float:
        """The objective that plans, samplers and pruners maximise.

        From -1 to 1 for a trial that did not hold its gates, above 1 for one that did. The order of steps is exact;
        margins that differ by less than a ten-thousandth of a bound may be equal.
        """
        margin = math.copysign(1.0, self.margin) if math.isinf(self.margin) else self.margin / (1 + abs(self.margin))
        if self.env_steps_to_held is None:
            return margin
        return 2.0 + (0.25 * margin - min(self.env_steps_to_held, _MAX_STEPS - 1)) / _MAX_STEPS


def score_of(verdict: Mapping[str, Any]) -> Score:
    """Score a run by its verdict, or by its gate keeper while it runs.

    The margin is infinite without gates, and minus infinity if a gate's metric was never reported.
    """
    margins = [math.inf]
    for row in verdict["gates"]:
        gate, value = Gate(row["metric"], row["comparison"], row["bound"]), row["window_mean"]
        value = row["value"] if value is None else value
        margins.append(-math.inf if value is None else gate.margin(value))
    return Score(verdict["env_steps_to_held"], min(margins))


@dataclass(frozen=True)
class TrialSpec:
    """A trial to run."""

    id: str  # name of the trial and of its folder
    stage: str  # stage of the plan
    params: Params | None  # None: Optuna draws them at the start
    seed: int
    until: int  # most environment steps
    origin: str | None = None  # trial whose configuration it confirms, or whose policy it continues
    warm_start: bool = False  # whether it starts from the last checkpoint of its origin
    guided: bool = False  # whether TPE draws its values from earlier outcomes; else they are random


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    spec: TrialSpec
    status: Status
    score: Score | None  # None if it failed
    env_steps: int = 0  # environment steps played
    seconds: float = 0.0
    reason: str | None = None  # why it failed, in one line

    @property
    def held(self) -> bool:
        """Whether it held all gates."""
        return self.score is not None and self.score.held


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Sort the outcomes with a score, best first; equal ones stay in order."""
    scored = [(outcome.score.number, outcome) for outcome in outcomes if outcome.score is not None]
    return [outcome for _, outcome in sorted(scored, key=lambda pair: pair[0], reverse=True)]


@dataclass(frozen=True)
class Winner:
    """The configuration that a search recommends."""

    params: Params
    trials: tuple[str, ...]  # trials that judge it, best first
    score: Score  # the worst score of these trials
    confirmed: bool  # whether it held its gates in all trials that the plan requires of a winner


def winner_of(outcomes: Sequence[Outcome], seeds: int) -> Winner | None:
    """Choose the best configuration: over all its seeds if the plan confirms (``seeds`` > 0), else the best trial.

    Configurations that were confirmed on all seeds come first; then the score of the worst seed decides.
    ``None`` if no trial has a score.
    """
    runs: dict[str | None, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.spec.stage == "confirm":
            runs.setdefault(outcome.spec.origin, []).append(outcome)
    complete = [rows for rows in runs.values() if all(row.score is not None for row in rows)]
    if not complete:  # the best single trial; it is confirmed if the plan needs no further seeds
        return next((_winner([best], confirmed=seeds == 0) for best in ranked(outcomes)), None)
    winners = [_winner(rows, confirmed=len(rows) >= seeds) for rows in complete]
    return max(winners, key=lambda winner: (winner.confirmed, len(winner.trials), winner.score.number))


def _winner(rows: list[Outcome], *, confirmed: bool) -> Winner:
    order = ranked(rows)
    worst = order[-1].score or Score(None, -math.inf)
    return Winner(rows[0].spec.params or {}, tuple(row.spec.id for row in order), worst, confirmed and worst.held)


Rounds = Generator[list[TrialSpec], list[Outcome], None]


def plan_of(settings: SearchPart, space: Space, seed: int) -> Rounds:
    """Return the plan of a search."""
    if isinstance(settings, ThreeStageSettings):
        return three_stage(settings, seed)
    if isinstance(settings, AshaSettings):
        return asha(settings, seed)
    assert isinstance(settings, PbtSettings)
    return population(space, settings, seed)


def asha(settings: AshaSettings, seed: int) -> Rounds:
    """Plan one round: random trials first, then proposals of TPE; Optuna's pruner stops slow trials."""
    yield [
        TrialSpec(f"a{k:03d}", "asha", None, seed, settings.until, guided=k >= settings.startup)
        for k in range(settings.trials)
    ]


def three_stage(settings: ThreeStageSettings, seed: int) -> Rounds:
    """Plan random trials, proposals of TPE from their outcomes, and long runs of the best over several seeds."""
    broad, refine, confirm = settings.broad, settings.refine, settings.confirm
    outcomes = yield [TrialSpec(f"s1-{k:03d}", "broad", None, seed, broad.until) for k in range(broad.trials)]
    if ranked(outcomes) and refine.trials:
        outcomes = outcomes + (
            yield [
                TrialSpec(f"s2-{k:03d}", "refine", None, seed, refine.until, guided=True) for k in range(refine.trials)
            ]
        )
    candidates = [outcome.spec for outcome in ranked(outcomes)]
    for attempt in range(confirm.attempts):
        remaining = candidates[attempt * confirm.candidates : (attempt + 1) * confirm.candidates]
        for number in range(1, confirm.seeds + 1):
            if not remaining:
                break
            # All seeds must hold: a candidate that fails one does not run the others.
            confirmed = yield [
                TrialSpec(f"s3-{c.id}-seed{number}", "confirm", c.params, seed + number, confirm.until, origin=c.id)
                for c in remaining
            ]
            remaining = [candidate for candidate, outcome in zip(remaining, confirmed, strict=True) if outcome.held]
        if remaining:
            return


def population(space: Space, settings: PbtSettings, seed: int) -> Rounds:
    """Plan generations of a population until a member holds its gates (Jaderberg et al. 2017).

    Each generation of a member is a separate trial with a run folder, which starts from the last checkpoint of this
    member or of the member that it copies. https://arxiv.org/abs/1711.09846
    """
    members = [
        TrialSpec(f"g00-m{m:02d}", "generation 0", None, seed + m, settings.interval)
        for m in range(settings.population)
    ]
    for generation in range(1, settings.generations + 1):
        outcomes = yield members
        over = generation == settings.generations or not ranked(outcomes)
        if over or any(outcome.held for outcome in outcomes):
            return
        members = []
        rng = np.random.default_rng([seed, generation])
        for m, (source, params) in enumerate(_select(space, settings, outcomes, rng)):
            name, until = f"g{generation:02d}-m{m:02d}", source.until + settings.interval
            stage = f"generation {generation}"
            members.append(TrialSpec(name, stage, params, source.seed, until, origin=source.id, warm_start=True))


def _select(
    space: Space, settings: PbtSettings, outcomes: list[Outcome], rng: np.random.Generator
) -> list[tuple[TrialSpec, Params]]:
    """Select by truncation: for each member, the trial to continue and its new values."""
    order = ranked(outcomes)
    count = min(max(math.ceil(settings.quantile * len(outcomes)), 1), len(order))
    best = order[:count]
    failed = [outcome for outcome in outcomes if outcome.score is None]
    # Failed trials are replaced first, then the worst.
    worst = order[len(order) - max(count - len(failed), 0) :]
    replaced = {o.spec.id for o in [*failed, *worst]} - {o.spec.id for o in best}
    chosen = []
    for spec in (outcome.spec for outcome in outcomes):
        if spec.id in replaced:
            source = best[int(rng.integers(len(best)))].spec
            chosen.append((source, perturb(space, source.params or {}, settings, rng)))
        else:
            chosen.append((spec, spec.params or {}))
    return chosen


def perturb(space: Space, params: Params, settings: PbtSettings, rng: np.random.Generator) -> Params:
    """Move numbers by half to all of ``width``, a share of their range, in either direction; redraw some values."""
    moved = {}
    for variable in space.variables:
        old, fresh, toss, direction = params[variable.key], float(rng.random()), rng.random(), rng.random()
        if toss < settings.resample:
            moved[variable.key] = variable.at(fresh)
        elif variable.choices:
            moved[variable.key] = old
        else:
            step = settings.width * (0.5 + 0.5 * fresh) * (1 if direction < 0.5 else -1)
            moved[variable.key] = variable.moved(old, step)
    return moved
