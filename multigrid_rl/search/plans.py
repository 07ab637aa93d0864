"""What a search tries next: three-stage, pbt and asha. Pure: plans know outcomes, and neither Ray nor files.

A plan that works in rounds is a generator: it yields the trials of a round and receives their outcomes. So nothing
hangs on which trial ended first, and the same seed gives the same search.
"""

import math
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.search.outcomes import Outcome, Point, TrialSpec, ranked
from multigrid_rl.search.settings import AshaSettings, PbtSettings, Settings, ThreeStageSettings
from multigrid_rl.search.space import LAST, Space

#: What may change while a policy learns: nothing that weights, games or batches have the shape of.
MAY_CHANGE = (
    *("train.lr", "train.lr_final", "train.entropy_coef", "train.entropy_final", "train.clip", "train.vf_coef"),
    *("train.gamma", "train.lam", "train.grad_clip", "train.epochs", "train.minibatch_size"),
)

Rounds = Generator[list[TrialSpec], list[Outcome], None]


class RoundsPlan:
    """A plan out of a generator of rounds."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._take(next(rounds, None))

    def _take(self, specs: list[TrialSpec] | None) -> None:
        self.finished = specs is None
        self._open = list(specs or [])
        self._outcomes: dict[str, Outcome | None] = {spec.id: None for spec in self._open}

    def propose(self) -> TrialSpec | None:
        """Return the next trial of this round."""
        return self._open.pop(0) if self._open else None

    def complete(self, outcome: Outcome) -> None:
        """Take an outcome; the last one of a round brings the next round."""
        self._outcomes[outcome.spec.id] = outcome
        # In the order in which they were planned: which of two trials ended first is chance.
        outcomes = [each for each in self._outcomes.values() if each is not None]
        if len(outcomes) == len(self._outcomes):
            try:
                self._take(self._rounds.send(outcomes))
            except StopIteration:
                self._take(None)


def stream(seed: int, *place: int) -> np.random.Generator:
    """Return the random stream of one draw: it depends on nothing but the seed and the place of the draw."""
    return np.random.default_rng([seed, *place])


def three_stage(space: Space, settings: ThreeStageSettings, seed: int) -> Rounds:
    """Plan broad random draws, draws near the best, and long runs of the best over seeds."""
    broad, refine, confirm = settings.broad, settings.refine, settings.confirm
    outcomes = yield [
        TrialSpec(f"s1-{k:03d}", "broad", space.sample(stream(seed, 1, k)), seed, broad.until)
        for k in range(broad.trials)
    ]
    best = [outcome.spec for outcome in ranked(outcomes)[: refine.best]]
    if best and refine.trials:
        second = []
        for k in range(refine.trials):
            centre = best[k % len(best)]
            point = space.near(centre.point, refine.width, stream(seed, 2, k))
            second.append(TrialSpec(f"s2-{k:03d}", "refine", point, seed, refine.until, origin=centre.id))
        outcomes = outcomes + (yield second)
    candidates = [outcome.spec for outcome in ranked(outcomes)]
    for attempt in range(confirm.attempts):
        alive = candidates[attempt * confirm.candidates : (attempt + 1) * confirm.candidates]
        for number in range(1, confirm.seeds + 1):
            if not alive:
                break
            # All seeds count: who misses one need not show the others.
            done = yield [
                TrialSpec(f"s3-{c.id}-seed{number}", "confirm", c.point, seed + number, confirm.until, origin=c.id)
                for c in alive
            ]
            alive = [candidate for candidate, outcome in zip(alive, done, strict=True) if outcome.held]
        if alive:
            return


def population(space: Space, settings: PbtSettings, seed: int) -> Rounds:
    """Plan generations of a population until one of its members has held its gates (Jaderberg et al. 2017).

    Every member's generation is a trial of its own with a run folder of its own, which starts from a checkpoint: its
    own, or that of the member it copies. https://arxiv.org/abs/1711.09846
    """
    members = [
        TrialSpec(f"g00-m{m:02d}", "generation 0", space.sample(stream(seed, 0, m)), seed + m, settings.interval)
        for m in range(settings.population)
    ]
    for generation in range(1, settings.generations + 1):
        outcomes = yield members
        over = generation == settings.generations or not ranked(outcomes)
        if over or any(outcome.held for outcome in outcomes):
            return
        members = []
        for m, (source, point) in enumerate(_exploited(space, settings, outcomes, stream(seed, generation))):
            name, until = f"g{generation:02d}-m{m:02d}", source.until + settings.interval
            stage = f"generation {generation}"
            members.append(TrialSpec(name, stage, point, source.seed, until, origin=source.id, warm_start=True))


def _exploited(
    space: Space, settings: PbtSettings, outcomes: list[Outcome], rng: np.random.Generator
) -> list[tuple[TrialSpec, Point]]:
    """Select by truncation: for each place, the policy to continue and its values."""
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
            chosen.append((source, perturbed(space, source.point, settings, rng)))
        else:
            chosen.append((spec, spec.point))
    return chosen


def perturbed(space: Space, point: Point, settings: PbtSettings, rng: np.random.Generator) -> Point:
    """Move coordinates by up to ``width`` in either direction, at least half of it; draw some anew."""
    moved = {}
    for variable in space.variables:
        fresh, toss, direction = float(rng.random()), rng.random(), rng.random()
        if toss < settings.resample:
            moved[variable.key] = fresh
        elif variable.draw == "choice":
            moved[variable.key] = point[variable.key]
        else:
            step = settings.width * (0.5 + 0.5 * fresh) * (1 if direction < 0.5 else -1)
            # At an edge a clipped value would stay there; a reflected one is always a change.
            inside = abs(point[variable.key] + step)
            moved[variable.key] = min(2 * LAST - inside if inside > LAST else inside, LAST)
    return moved


def distributions(space: Space) -> dict[str, Any]:
    """Return Optuna's distributions of a space: numbers by coordinate, what has levels by level."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: PLC0415

    result: dict[str, Any] = {}
    for v in space.variables:
        if v.levels is None:
            result[v.key] = FloatDistribution(0.0, LAST)
        else:
            result[v.key] = CategoricalDistribution(range(v.levels)) if v.choices else IntDistribution(0, v.levels - 1)
    return result


def as_parameters(space: Space, point: Point) -> dict[str, float]:
    """Return a point as Optuna knows it."""
    return {v.key: v.level(point[v.key]) if v.levels else point[v.key] for v in space.variables}


class OptunaPlan:
    """Proposes what Optuna's TPE would try next, from what has ended so far; for ``asha``.

    Optuna gets the outcomes of an interrupted search before it proposes, and what was under way goes on before
    anything new is tried. With several trials at a time TPE's proposals depend, too, on which of them ended first.
    """

    def __init__(
        self,
        space: Space,
        settings: AshaSettings,
        seed: int,
        known: Sequence[Outcome] = (),
        begun: Sequence[TrialSpec] = (),
    ) -> None:
        import optuna  # noqa: PLC0415

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._settings, self._seed = space, settings, seed
        self._distributions = distributions(space)
        with warnings.catch_warnings():
            # "multivariate" is marked experimental; without it TPE treats variables that work together one by one.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # An interrupted search goes on with other draws than those that were made before.
            sampler = optuna.samplers.TPESampler(
                seed=seed + len(known) + len(begun),
                n_startup_trials=settings.startup,
                multivariate=True,
                constant_liar=True,
            )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._trials: dict[str, Any] = {}
        for outcome in known:
            self._ask(outcome.spec.id, outcome.spec.point)
            self.complete(outcome)
        for spec in begun:
            self._ask(spec.id, spec.point)
        taken = {outcome.spec.id for outcome in known} | {spec.id for spec in begun}
        self._begun = list(begun)
        self._free = [name for name in (f"a{k:03d}" for k in range(settings.trials)) if name not in taken]

    def _ask(self, name: str, point: Point | None = None) -> Point:
        if point is not None:
            self._study.enqueue_trial(as_parameters(self._space, point))
        trial = self._trials[name] = self._study.ask(self._distributions)
        # A level is at its middle coordinate.
        levels = {v.key: v.levels for v in self._space.variables}
        return {key: (p + 0.5) / n if (n := levels[key]) else p for key, p in trial.params.items()}

    def propose(self) -> TrialSpec | None:
        """Return what was under way, then what Optuna would try next."""
        if self._begun:
            return self._begun.pop(0)
        if not self._free:
            return None
        name = self._free.pop(0)
        return TrialSpec(name, "asha", self._ask(name), self._seed, self._settings.until)

    def complete(self, outcome: Outcome) -> None:
        """Report the outcome to Optuna."""
        from optuna.trial import TrialState  # noqa: PLC0415

        trial = self._trials.pop(outcome.spec.id)
        if outcome.score is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, outcome.score.number)

    @property
    def finished(self) -> bool:
        """Whether all trials were proposed and have ended."""
        return not self._begun and not self._free and not self._trials


Plan = RoundsPlan | OptunaPlan


def plan_of(
    settings: Settings, space: Space, seed: int, known: Sequence[Outcome] = (), begun: Sequence[TrialSpec] = ()
) -> Plan:
    """Make the plan of a kind of search: to go on after ``known`` outcomes, with trials that had ``begun``.

    Plans in rounds draw the same trials again and need neither.

    Raises:
        ConfigError: the space holds what this kind cannot vary.
    """
    if isinstance(settings, ThreeStageSettings):
        return RoundsPlan(three_stage(space, settings, seed))
    if isinstance(settings, AshaSettings):
        return OptunaPlan(space, settings, seed, known, begun)
    for key in (key for variable in space.variables for key in variable.keys):
        if key not in MAY_CHANGE:
            allowed = ", ".join(MAY_CHANGE)
            raise ConfigError(f"space={space.name}: expected what can change during a run ({allowed}), got {key}")
    return RoundsPlan(population(space, settings, seed))
