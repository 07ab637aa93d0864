"""Optuna's TPE through Tune's adapter, as a plan: it proposes while trials run, from what has ended so far."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search.optuna import OptunaSearch

from multigrid_rl.search.plans import Outcome, Spec
from multigrid_rl.search.settings import AshaSettings
from multigrid_rl.search.space import Point, Space
from multigrid_rl.search.transforms import CHOICE, LAST, Variable

#: Names of what trials report: the score's number and environment steps.
METRIC, TIME = "score", "env_steps"


def distributions(variables: Sequence[Variable]) -> dict[str, Any]:
    """Optuna's distributions of variables: numbers by coordinate, what has levels by level."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: PLC0415

    result: dict[str, Any] = {}
    for variable in variables:
        levels = variable.levels
        if levels is None:
            result[variable.key] = FloatDistribution(0.0, LAST)
        elif variable.kind == CHOICE:
            result[variable.key] = CategoricalDistribution(list(range(levels)))
        else:
            result[variable.key] = IntDistribution(0, levels - 1)
    return result


def as_parameters(variables: Sequence[Variable], point: Point) -> dict[str, float | int]:
    """A point as Optuna knows it."""
    return {
        v.key: point[v.key] if v.levels is None else min(int(point[v.key] * v.levels), v.levels - 1) for v in variables
    }


def as_point(variables: Sequence[Variable], parameters: Mapping[str, float]) -> Point:
    """Optuna's parameters as a point; levels in their middle."""
    return {
        v.key: float(parameters[v.key]) if v.levels is None else (parameters[v.key] + 0.5) / v.levels for v in variables
    }


def asha_scheduler(settings: AshaSettings) -> AsyncHyperBandScheduler:
    """Asynchronous successive halving over environment steps."""
    return AsyncHyperBandScheduler(
        time_attr=TIME,
        metric=METRIC,
        mode="max",
        max_t=settings.until,
        grace_period=settings.grace,
        reduction_factor=settings.reduction,
    )


class OptunaPlan:
    """Proposes a number of trials. Outcomes of an interrupted search are told to Optuna before it proposes.

    Args:
        space: what varies.
        settings: how many trials, how long.
        seed: of the sampler. With several trials at a time TPE's proposals depend, too, on which of them ended first.
        known: outcomes that there are already.
        begun: trials that were started and have not ended; they go on before anything new is tried.
    """

    def __init__(
        self,
        space: Space,
        settings: AshaSettings,
        seed: int,
        known: Sequence[Outcome] = (),
        begun: Sequence[Spec] = (),
    ) -> None:
        import optuna  # noqa: PLC0415

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._settings, self._seed = space, settings, seed
        with warnings.catch_warnings():
            # "multivariate" is marked experimental; without it TPE treats variables that work together one by one.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Goes on with other draws than those that were made before.
            sampler = optuna.samplers.TPESampler(
                seed=seed + len(known) + len(begun),
                n_startup_trials=settings.startup,
                multivariate=True,
                constant_liar=True,
            )
        self._optuna = OptunaSearch(distributions(space.variables), metric=METRIC, mode="max", sampler=sampler)
        for outcome in known:
            self._tell(outcome)
        self._begun = list(begun)
        #: Proposed by an earlier sitting's Optuna: this one hears of them when they have ended.
        self._unheard = {spec.id for spec in begun}
        self._running: set[str] = set()
        self._numbers = _free_numbers({outcome.spec.id for outcome in known} | self._unheard, settings.trials)

    def _tell(self, outcome: Outcome) -> None:
        self._optuna.add_evaluated_point(
            as_parameters(self._space.variables, outcome.spec.point),
            outcome.score.number if outcome.score else -1.0,
            error=outcome.score is None,
        )

    def propose(self) -> Spec | None:
        """What was under way, then what Optuna would try next."""
        if self._begun:
            spec = self._begun.pop(0)
            self._running.add(spec.id)
            return spec
        if not self._numbers:
            return None
        name = f"a{self._numbers.pop(0):03d}"
        self._running.add(name)
        point = as_point(self._space.variables, self._optuna.suggest(name) or {})
        return Spec(name, "asha", point, self._seed, self._settings.until)

    def complete(self, outcome: Outcome) -> None:
        """Tell Optuna."""
        self._running.discard(outcome.spec.id)
        if outcome.spec.id in self._unheard:
            self._tell(outcome)
            return
        result = {METRIC: outcome.score.number} if outcome.score else None
        self._optuna.on_trial_complete(outcome.spec.id, result, error=outcome.score is None)

    @property
    def finished(self) -> bool:
        """Whether all trials were proposed and have ended."""
        return not self._begun and not self._numbers and not self._running


def _free_numbers(taken: set[str], trials: int) -> list[int]:
    return [k for k in range(trials) if f"a{k:03d}" not in taken]
