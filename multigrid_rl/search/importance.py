"""Which variables decide whether a trial is among the best: PED-ANOVA (Watanabe, Bansal and Hutter 2023), by Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from multigrid_rl.search.asha import as_parameters, distributions
from multigrid_rl.search.plans import Outcome
from multigrid_rl.search.transforms import Variable

#: Fewer trials than this say nothing about a dozen variables.
FEWEST = 20
#: The best share of the trials, against all of them.
BEST = 0.25


@dataclass(frozen=True)
class Importance:
    """Shares of each variable that add up to 1, by key; or why they are not known.

    Attributes:
        shares: by key, largest first; empty if they are not known.
        note: from which trials, or why not.
    """

    shares: dict[str, float]
    note: str


def importance_of(variables: Sequence[Variable], outcomes: Sequence[Outcome]) -> Importance:
    """How far the best quarter of the trials differs from all of them, along each variable.

    Only trials that a plan drew over the whole space count: those near a good configuration are alike by construction.
    """
    drawn = [o for o in outcomes if o.score is not None and o.spec.stage in ("broad", "asha", "generation 0")]
    if len(drawn) < FEWEST:
        return Importance({}, f"{len(drawn)} trials were drawn over the whole space: importance needs {FEWEST}")
    if len({o.score for o in drawn}) < 2:
        return Importance({}, f"all {len(drawn)} trials were equally good")
    import optuna  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    space = distributions(variables)
    for outcome in drawn:
        value = outcome.score.number if outcome.score else 0.0
        parameters = as_parameters(variables, outcome.spec.point)
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=space, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return Importance(dict(shares), f"the best quarter of {len(drawn)} trials against all of them (PED-ANOVA)")
