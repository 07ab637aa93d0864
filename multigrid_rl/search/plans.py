"""What a search tries next. Pure: plans know outcomes, and neither Ray nor files.

A plan that works in rounds is a generator: it yields the trials of a round and receives their outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from multigrid_rl.search.objective import Score, worst
from multigrid_rl.search.settings import ThreeStageSettings
from multigrid_rl.search.space import Point, Space

Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Spec:
    """A trial to be run.

    Attributes:
        id: its name, and that of its folder.
        stage: the part of the plan that it belongs to.
        point: coordinates of its configuration.
        seed: of its run.
        until: environment steps at which its run ends at the latest.
        origin: the trial whose configuration it confirms, or whose policy it goes on with.
        goes_on: whether it starts from the last checkpoint of ``origin``.
    """

    id: str
    stage: str
    point: Point
    seed: int
    until: int
    origin: str | None = None
    goes_on: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        spec: the trial.
        status: ``finished`` by itself, ``stopped`` because it lagged behind, or ``failed``.
        score: how good it was; ``None`` if it failed.
        env_steps: environment steps played.
        seconds: from its start to its end.
        reason: why it failed, in one line.
    """

    spec: Spec
    status: Status
    score: Score | None
    env_steps: int = 0
    seconds: float = 0.0
    reason: str | None = None

    def as_data(self) -> dict[str, Any]:
        """As plain data; a margin of minus infinity, of a trial that never reported, is ``None``."""
        data = asdict(self)
        if self.score is not None and math.isinf(self.score.margin):
            data["score"]["margin"] = None
        return data

    @staticmethod
    def from_data(data: dict[str, Any]) -> Outcome:
        """From what :meth:`as_data` made."""
        told = data["score"]
        margin = -math.inf if told and told["margin"] is None else told and told["margin"]
        score = Score(told["env_steps_to_held"], margin) if told else None
        return Outcome(**{**data, "spec": Spec(**data["spec"]), "score": score})


class Plan(Protocol):
    """Proposes trials one by one."""

    def propose(self) -> Spec | None:
        """The next trial; ``None`` if there is none before others have ended, or at all."""

    def complete(self, outcome: Outcome) -> None:
        """Take what came of a proposed trial."""

    @property
    def finished(self) -> bool:
        """Whether nothing will be proposed any more."""


Rounds = Generator[list[Spec], list[Outcome], None]


@dataclass
class InRounds:
    """A plan out of a generator of rounds."""

    rounds: Rounds
    _open: list[Spec] = field(default_factory=list)
    _order: list[str] = field(default_factory=list)
    _done: dict[str, Outcome] = field(default_factory=dict)
    _over: bool = False

    def __post_init__(self) -> None:
        self._take(next(self.rounds, None))

    def _take(self, specs: list[Spec] | None) -> None:
        self._over = specs is None
        self._open = list(specs or [])
        self._order = [spec.id for spec in self._open]
        self._done = {}

    def propose(self) -> Spec | None:
        """The next trial of this round."""
        return self._open.pop(0) if self._open else None

    def complete(self, outcome: Outcome) -> None:
        """Take an outcome; the last one of a round brings the next round."""
        self._done[outcome.spec.id] = outcome
        if len(self._done) == len(self._order):
            # In the order in which they were planned: which of two trials ended first is chance.
            try:
                self._take(self.rounds.send([self._done[name] for name in self._order]))
            except StopIteration:
                self._take(None)

    @property
    def finished(self) -> bool:
        """Whether the last round is over."""
        return self._over


def stream(seed: int, *place: int) -> np.random.Generator:
    """The random stream of one draw: it depends on nothing but the seed and the place of the draw."""
    return np.random.default_rng([seed, *place])


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes that have a score, best first; of equals, the earlier."""
    scored = [outcome for outcome in outcomes if outcome.score is not None]
    return sorted(scored, key=lambda outcome: outcome.score or Score(None, 0.0), reverse=True)


def three_stage(space: Space, settings: ThreeStageSettings, seed: int) -> Rounds:
    """Broad random draws, draws near the best, long runs of the best over seeds."""
    broad, refine = settings.broad, settings.refine
    first = [
        Spec(f"s1-{k:03d}", "broad", space.sample(stream(seed, 1, k)), seed, broad.until) for k in range(broad.trials)
    ]
    outcomes = yield first
    best = ranked(outcomes)[: refine.best]
    if best and refine.trials:
        second = []
        for k in range(refine.trials):
            centre = best[k % len(best)].spec
            near = space.near(centre.point, refine.width, stream(seed, 2, k))
            second.append(Spec(f"s2-{k:03d}", "refine", near, seed, refine.until, origin=centre.id))
        outcomes = outcomes + (yield second)
    yield from _confirm(settings, seed, [outcome.spec for outcome in ranked(outcomes)])


def _confirm(settings: ThreeStageSettings, seed: int, candidates: list[Spec]) -> Rounds:
    confirm = settings.confirm
    for attempt in range(confirm.attempts):
        alive = candidates[attempt * confirm.candidates : (attempt + 1) * confirm.candidates]
        for number in range(1, confirm.seeds + 1):
            if not alive:
                break
            # All seeds count: who misses one need not show the others.
            done = yield [_confirming(each, seed + number, number, confirm.until) for each in alive]
            alive = [each for each, o in zip(alive, done, strict=True) if o.score is not None and o.score.held]
        if alive:
            return


def _confirming(candidate: Spec, seed: int, number: int, until: int) -> Spec:
    return Spec(f"s3-{candidate.id}-seed{number}", "confirm", candidate.point, seed, until, origin=candidate.id)


@dataclass(frozen=True)
class Winner:
    """What a search recommends.

    Attributes:
        point: coordinates of the configuration.
        trials: ids of the trials that it was judged by, best first.
        score: the worst of them.
        confirmed: whether it held its gates in all trials that the plan asks of a winner.
    """

    point: Point
    trials: tuple[str, ...]
    score: Score
    confirmed: bool


def winner_of(outcomes: Sequence[Outcome], seeds: int) -> Winner | None:
    """The best configuration: over all its seeds where a plan confirms (``seeds`` > 0), else the best trial.

    A configuration that was confirmed on all seeds comes before all that were not; among equals the worst seed decides.
    ``None`` if no trial has a score.
    """
    runs: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.spec.stage == "confirm":
            runs.setdefault(str(outcome.spec.origin), []).append(outcome)
    judged = [_judged(rows, seeds) for rows in runs.values() if all(row.score is not None for row in rows)]
    if judged:
        return max(judged, key=lambda winner: (winner.confirmed, len(winner.trials), winner.score))
    best = ranked(outcomes)[:1]
    if not best:
        return None
    score = best[0].score or Score(None, 0.0)
    return Winner(best[0].spec.point, (best[0].spec.id,), score, confirmed=seeds == 0 and score.held)


def _judged(rows: list[Outcome], seeds: int) -> Winner:
    scores = [row.score for row in rows if row.score is not None]
    confirmed = len(rows) >= seeds and all(score.held for score in scores)
    return Winner(rows[0].spec.point, tuple(row.spec.id for row in ranked(rows)), worst(scores), confirmed)
