"""The one record of a search: an Optuna study in its folder. Optuna proposes, stops what lags, and tells what mattered.

Tune's own ``OptunaSearch`` knows a trial by a random name of Tune's, so that no trial can go on in a later session, and
it can neither confirm a configuration on other seeds nor start from a checkpoint: hence ``ask`` and ``tell`` here.
"""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from multigrid_rl.search.outcomes import Outcome, Score, Status, TrialSpec, ranked
from multigrid_rl.search.space import Space
from multigrid_rl.text import ConfigError

STUDY, COORDINATES, IMPORTANCE = "study.log", "parallel.png", "importance.png"
_SPEC, _OUTCOME = "spec", "outcome"
_STATES: dict[Status, TrialState] = {
    "finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL,
}  # fmt: skip
#: Fewer trials than this are too few to estimate the importance of a dozen variables.
FEWEST = 20


class Record:
    """What a search has begun and what came of it.

    Args:
        path: of the study's file; made where there is none.
        space: whose variables are the study's parameters.
        seed: of all draws.
        pruner: that decides which trials lag behind.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, path: Path, space: Space, seed: int, pruner: BasePruner | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._seed = space, seed
        make: Any = optuna.load_study if path.exists() else optuna.create_study
        settings = {} if path.exists() else {"direction": "maximize"}
        try:
            storage = JournalStorage(JournalFileBackend(str(path)))
            self.study: optuna.Study = make(
                study_name="search", storage=storage, pruner=pruner or NopPruner(), **settings
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: damaged, expected the record that search wrote") from error

    def _rows(self) -> dict[str, FrozenTrial]:
        # A kill between Optuna's proposal and its name leaves a row without one: it is drawn again.
        rows = self.study.get_trials(deepcopy=False)
        return {row.user_attrs[_SPEC]["id"]: row for row in rows if _SPEC in row.user_attrs}

    def begin(self, spec: TrialSpec) -> TrialSpec:
        """Write a trial down for good before it starts, once; returns it with its values.

        Raises:
            ConfigError: it is recorded already, as another one.
            OSError: the record cannot be written.
        """
        facts = {key: value for key, value in asdict(spec).items() if key != "params"}
        row = self._rows().get(spec.id)
        if row is None and spec.params is None:
            self.study.sampler = self._sampler(spec)
            trial = self.study.ask(self._space.distributions)
            trial.set_user_attr(_SPEC, facts)
            return replace(spec, params=trial.params)
        if row is None:
            attributes, known = {_SPEC: facts}, self._space.distributions
            self.study.add_trial(
                create_trial(state=TrialState.RUNNING, params=spec.params, distributions=known, user_attrs=attributes)
            )
            return spec
        if row.user_attrs[_SPEC] != facts or spec.params not in (None, row.params):
            raise ConfigError(f"trial {spec.id}: expected the values that this version draws, got a record of others")
        return replace(spec, params=row.params)

    def _sampler(self, spec: TrialSpec) -> optuna.samplers.BaseSampler:
        # A stream for each trial: what is drawn hangs on the seed, its name and what has ended, not on the session.
        seed = int(np.random.default_rng([self._seed, *spec.id.encode()]).integers(2**31))
        if not spec.guided:
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # "multivariate" is marked experimental; without it TPE treats variables that work together one by one.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True)

    def lags(self, name: str, env_steps: int, number: float) -> bool:
        """Report how a trial goes; returns whether it is to stop."""
        row = self._rows()[name]
        # The only way to a trial that an earlier session asked for.
        trial = optuna.trial.Trial(self.study, row._trial_id)
        if env_steps not in row.intermediate_values:
            trial.report(number, env_steps)
        return trial.should_prune()

    def end(self, outcome: Outcome) -> None:
        """Write an outcome down for good, before anything is made of it. Raises ``OSError``."""
        row, score = self._rows()[outcome.spec.id], outcome.score
        facts: dict[str, Any] = {key: getattr(outcome, key) for key in ("env_steps", "seconds", "reason")}
        if score is not None:
            facts |= {"held": score.env_steps_to_held, "margin": score.margin if math.isfinite(score.margin) else None}
        trial = optuna.trial.Trial(self.study, row._trial_id)
        trial.set_user_attr(_OUTCOME, facts)
        value = score.number if score is not None and outcome.status == "finished" else None
        if outcome.status == "stopped" and not row.intermediate_values and score is not None:
            trial.report(score.number, outcome.env_steps)  # stopped by a file alone
        self.study.tell(row.number, value, _STATES[outcome.status])

    def outcomes(self) -> list[Outcome]:
        """Return what came of all trials that have ended, in the order in which they began."""
        statuses = {state: status for status, state in _STATES.items()}
        result = []
        for row in self._rows().values():
            if row.state in statuses:
                facts = dict(row.user_attrs[_OUTCOME])
                margin = facts.pop("margin", None)
                score = Score(facts.pop("held"), -math.inf if margin is None else margin) if "held" in facts else None
                spec = TrialSpec(**row.user_attrs[_SPEC], params=row.params)
                result.append(Outcome(spec, statuses[row.state], score, **facts))
        return result


def truncated(path: Path) -> None:
    """Cut off the line that a kill left incomplete, and the lock that it left; nobody else writes here now."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


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

    drawn = []
    if len(ranked(outcomes)) > 1:
        study = _study_of(space, outcomes, {variable.key: variable.label for variable in space.variables})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # matplotlib's pictures of Optuna are marked experimental
            axes: Any = optuna.visualization.matplotlib.plot_parallel_coordinate(study, target_name="score")
        axes.figure.set_size_inches(1.6 * len(space.variables) + 4, 6)
        axes.set_title(f"{len(study.trials)} trials; scores above 1 held all gates")
        drawn.append((COORDINATES, axes.figure))
    if importance.shares:
        names = {variable.key: variable.label for variable in space.variables}
        figure, bars = plt.subplots(figsize=(8.0, 0.42 * len(names) + 1.6))
        rows = list(importance.shares.items())[::-1]  # largest on top
        bars.barh([names[key] for key, _ in rows], [share for _, share in rows])
        bars.set_xlabel("share of the difference between the best trials and all")
        bars.set_title(importance.note)
        drawn.append((IMPORTANCE, figure))
    for name, figure in drawn:
        figure.savefig(folder / name, dpi=120, bbox_inches="tight")
        plt.close(figure)
    return [name for name, _ in drawn]
