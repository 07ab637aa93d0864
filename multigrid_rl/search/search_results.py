"""What a search found, in files: trials.csv, winner.yaml, pictures and the page report.md."""

import math
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import yaml
from matplotlib import pyplot as plt
from optuna.trial import create_trial

from multigrid_rl.config.overrides import put, written
from multigrid_rl.config.recipes import GROUPS, expand_overrides
from multigrid_rl.files import csv_text, markdown_table
from multigrid_rl.search.plans import Outcome, Winner, ranked, winner_of
from multigrid_rl.search.search_folder import SearchFolder
from multigrid_rl.search.search_settings import ThreeStageSettings
from multigrid_rl.search.space import Space

REPORT, TRIALS, WINNER = "report.md", "trials.csv", "winner.yaml"
COORDINATES, IMPORTANCE = "parallel.png", "importance.png"
FILES = (REPORT, TRIALS, WINNER, COORDINATES, IMPORTANCE)
#: Fewer trials than this are too few to estimate the importance of a dozen variables.
FEWEST = 20


class Importance(NamedTuple):
    """Shares of each variable that add up to 1; or why they are not known."""

    shares: dict[str, float]  # by key, largest first; empty if they are not known
    note: str  # from which trials, or why not


@dataclass(frozen=True)
class SearchResult:
    """What a search knows when it ends or is interrupted."""

    outcomes: list[Outcome]  # of all trials that have ended
    winner: Winner | None  # the best configuration so far; None if every trial failed
    importance: Importance
    complete: bool  # whether the plan was carried out to its end
    seconds: float  # that searching took, all sessions together

    @property
    def failed(self) -> list[Outcome]:
        """Trials that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def result_of(folder: SearchFolder, *, complete: bool, seconds: float) -> SearchResult:
    """Judge the recorded outcomes of a search."""
    outcomes, settings = folder.outcomes(), folder.request.settings
    seeds = settings.confirm.seeds if isinstance(settings, ThreeStageSettings) else 0
    importance = importance_of(folder.request.space, outcomes)
    return SearchResult(outcomes, winner_of(outcomes, seeds), importance, complete, seconds)


def write_result(folder: SearchFolder, result: SearchResult) -> None:
    """Write the page, the table, the pictures that there is enough for and, if there is a winner, its recipe."""
    pictures = write_pictures(folder.path, folder.request.space, result.outcomes, result.importance)
    folder.write_text(REPORT, as_markdown(folder, result, pictures))
    folder.write_text(TRIALS, as_csv(folder, result.outcomes))
    if result.winner is not None:
        folder.write_text(WINNER, as_recipe(folder, result.winner))


def as_csv(folder: SearchFolder, outcomes: list[Outcome]) -> str:
    """Write one line a trial, one column a key."""
    rows = []
    for outcome in outcomes:
        spec, score = asdict(outcome.spec), outcome.score
        values = folder.request.space.values(spec.pop("params"))
        margin = score.margin if score is not None and math.isfinite(score.margin) else None
        rows.append(
            spec
            | {"status": outcome.status, "held": outcome.held, "env_steps": outcome.env_steps}
            | {"env_steps_to_held": score and score.env_steps_to_held, "margin": margin}
            | {"seconds": round(outcome.seconds, 1), "reason": outcome.reason}
            | {key: written(value) for key, value in values.items()}
        )
    return csv_text(rows)


def winning_command(folder: SearchFolder, winner: Winner) -> str:
    """Return the command that trains the winning configuration."""
    return shlex.join(["multigrid-rl", "train", *folder.request.space.overrides(winner.params)])


def as_recipe(folder: SearchFolder, winner: Winner) -> str:
    """Write the winning configuration in the form of a file of ``configs/recipe/``."""
    head = [
        "# @package _global_",
        f"# {verdict_of(folder, winner)}",
        f"# Found by: {folder.provenance['command']}",
        f"# Trains: {winning_command(folder, winner)}",
    ]
    content = recipe_of(folder.request.space.overrides(winner.params))
    return "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False, default_flow_style=False)


def recipe_of(overrides: list[str]) -> dict[str, Any]:
    """Turn overrides into a recipe: groups in its defaults list, keys in its tree, with a recipe that they build on.

    Raises ``ConfigError``: the recipe that they name cannot be read.
    """
    settings, _ = expand_overrides(overrides)
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in GROUPS:
            put(tree, key, value)
    return {"defaults": [{f"override /{key}": settings[key]} for key in settings if key in GROUPS], **tree}


def verdict_of(folder: SearchFolder, winner: Winner) -> str:
    """Describe in one sentence what is known of the winner."""
    steps, runs = winner.score.env_steps_to_held, len(winner.trials)
    if steps is None:
        return f"Did not hold all gates in {runs} run(s); smallest margin {winner.score.margin:.3g} of a bound."
    how, settings = "in one run, not confirmed over seeds", folder.request.settings
    if winner.trials[0].startswith("s3-") and isinstance(settings, ThreeStageSettings):
        how = f"on {runs} of {settings.confirm.seeds} seeds that no earlier stage had seen"
    elif winner.trials[0].startswith("g"):
        how = "as the last of several configurations that its policy learned with; alone it is not known to"
    return f"Held all gates {how}; {steps:,} environment steps at most."


def cells(outcome: Outcome) -> list[str]:
    """Write what tables show of a trial: seed, steps to held, smallest margin, steps played, seconds."""
    score, margin = outcome.score, "-"
    held_at = f"{score.env_steps_to_held:,}" if score and score.env_steps_to_held is not None else "-"
    if score and math.isfinite(score.margin):
        margin = f"{score.margin:.3f}"
    return [str(outcome.spec.seed), held_at, margin, f"{outcome.env_steps:,}", f"{outcome.seconds:.0f}"]


def as_markdown(folder: SearchFolder, result: SearchResult, pictures: list[str]) -> str:
    """Write the page: what was asked, who won, and every trial, held or not; ``pictures`` are file names beside it."""
    request, origin = folder.request, folder.provenance
    machine, space, note = origin["machine"], request.space, result.importance.note
    held = sum(outcome.held for outcome in result.outcomes)
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    columns = ["seed", "steps to held", "smallest margin", "steps played", "seconds"]
    winner = "## No winner\n\nEvery trial failed."
    if result.winner is not None:
        runs = {outcome.spec.id: outcome for outcome in result.outcomes}
        table = markdown_table(["trial", *columns], [[name, *cells(runs[name])] for name in result.winner.trials])
        winner = "\n".join(["## The winner", "", verdict_of(folder, result.winner), "", *table])
        winner += f"\n\n```\n{winning_command(folder, result.winner)}\n```"
    shares = [[f"`{key}`", f"{share:.1%}"] for key, share in result.importance.shares.items()]
    mattered = ["", *markdown_table(["variable", "share"], shares)] if shares else []
    mattered += [line for name in pictures for line in ("", f"![{name}]({name})")]
    matters = "\n".join([f"{note[0].upper()}{note[1:]}.", *mattered])
    rows = []
    for outcome in [*ranked(result.outcomes), *result.failed]:
        status = outcome.status if outcome.reason is None else f"failed: {outcome.reason}"
        rows.append([outcome.spec.id, status, *cells(outcome), *space.in_short(outcome.spec.params or {})])
    names = [variable.name for variable in space.variables]
    trials = "\n".join(markdown_table(["trial", "status", *columns, *names], rows, left=(0, 1)))
    return f"""# A search: {request.name} on {space.config.scenario.name}

Command: `{origin["command"]}`

Shared by all trials: `{" ".join(space.base)}`; space `{space.name}`, seed {request.seed}.
{machine["cores"]} cores ({machine["system"]}), {result.seconds:,.0f} seconds; \
{"carried out to its end" if result.complete else "interrupted"}. \
{len(result.outcomes)} trials, {held} held all gates, {len(result.failed)} failed.
Commit {origin["commit"]}. Versions: {versions}.

{winner}

## What mattered

{matters}

## All trials

Best first; margins are the smallest of a trial's gates over its last window, in units of the gate's bound.

{trials}
"""


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
        return Importance(
            {}, f"{len(drawn)} trials were drawn over the whole space: importance is estimated from {FEWEST} on"
        )
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
    plt.switch_backend("agg")
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
