"""What mattered in a search, and pictures of it, by Optuna."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.trial import create_trial

from multigrid_rl.search.outcomes import Outcome, ranked
from multigrid_rl.search.space import Space

COORDINATES, IMPORTANCE = "parallel.png", "importance.png"
#: Fewer trials than this are too few to estimate the importance of a dozen variables.
FEWEST = 20


class Importance(NamedTuple):
    """Shares of each variable that add up to 1; or why they are not known."""

    shares: dict[str, float]  # by key, largest first; empty if they are not known
    note: str  # from which trials, or why not


def _study_of(space: Space, outcomes: Sequence[Outcome], labels: dict[str, str]) -> optuna.Study:
    """Return a study of the outcomes that have a score, in memory, with its parameters named by ``labels``."""
    study = optuna.create_study(direction="maximize")
    known = {labels[key]: distribution for key, distribution in space.distributions.items()}
    for outcome in outcomes:
        if outcome.score is not None and outcome.spec.params is not None:
            params = {labels[key]: value for key, value in outcome.spec.params.items()}
            study.add_trial(create_trial(params=params, distributions=known, value=outcome.score.number))
    return study


def importance_of(space: Space, outcomes: Sequence[Outcome]) -> Importance:
    """Measure how far the best quarter of the trials differs from all of them, along each variable.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023, https://arxiv.org/abs/2304.10255), by Optuna. Only trials that a plan
    drew over the whole space count: those near a good configuration are alike by construction.
    """
    drawn = [row for row in ranked(outcomes) if row.spec.stage in ("broad", "asha", "generation 0")]
    if len(drawn) < FEWEST:
        return Importance({}, f"{len(drawn)} trials were drawn over the whole space: importance needs {FEWEST}")
    if len({row.score.number for row in drawn if row.score}) < 2:
        return Importance({}, f"all {len(drawn)} trials were equally good")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        study = _study_of(space, drawn, {key: key for key in space.distributions})
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return Importance(dict(shares), f"the best quarter of {len(drawn)} trials against all of them (PED-ANOVA)")


def write_pictures(folder: Path, space: Space, outcomes: Sequence[Outcome], importance: Importance) -> list[str]:
    """Draw what there is to draw into ``folder``; returns the names of the files."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    drawn, labels = {}, {variable.key: variable.label for variable in space.variables}
    if len(ranked(outcomes)) > 1:
        study = _study_of(space, outcomes, labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # matplotlib's pictures of Optuna are marked experimental
            axes: Any = optuna.visualization.matplotlib.plot_parallel_coordinate(study, target_name="score")
        axes.figure.set_size_inches(1.6 * len(space.variables) + 4, 6)
        axes.set_title(f"{len(study.trials)} trials; scores above 1 held all gates")
        drawn[COORDINATES] = axes.figure
    if importance.shares:
        drawn[IMPORTANCE], bars = plt.subplots(figsize=(8.0, 0.42 * len(labels) + 1.6))
        keys = list(importance.shares)[::-1]  # largest on top
        bars.barh([labels[key] for key in keys], [importance.shares[key] for key in keys])
        bars.set_xlabel("share of the difference between the best trials and all")
        bars.set_title(importance.note)
    for name, figure in drawn.items():
        figure.savefig(folder / name, dpi=120, bbox_inches="tight")
        plt.close(figure)
    return list(drawn)
