"""What a search found, in files: results.json, trials.csv, winner.yaml and the page report.md."""

import json
import math
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from multigrid_rl.config.overrides import put
from multigrid_rl.config.recipes import GROUPS, expand_overrides
from multigrid_rl.files import csv_text, markdown_table
from multigrid_rl.search.folder import SearchFolder
from multigrid_rl.search.outcomes import Outcome, Winner, ranked, winner_of
from multigrid_rl.search.plans import as_parameters, distributions
from multigrid_rl.search.settings import ThreeStageSettings
from multigrid_rl.search.space import Space, in_words

WINNER, RESULTS, TRIALS, REPORT = "winner.yaml", "results.json", "trials.csv", "report.md"
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


def importance_of(space: Space, outcomes: Sequence[Outcome]) -> Importance:
    """Measure how far the best quarter of the trials differs from all of them, along each variable.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023, https://arxiv.org/abs/2304.10255), by Optuna. Only trials that a plan
    drew over the whole space count: those near a good configuration are alike by construction.
    """
    drawn = [
        (outcome.spec.point, outcome.score.number)
        for outcome in outcomes
        if outcome.score is not None and outcome.spec.stage in ("broad", "asha", "generation 0")
    ]
    if len(drawn) < FEWEST:
        return Importance({}, f"{len(drawn)} trials were drawn over the whole space: importance needs {FEWEST}")
    if len({number for _, number in drawn}) < 2:
        return Importance({}, f"all {len(drawn)} trials were equally good")
    import optuna  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, known = optuna.create_study(direction="maximize"), distributions(space)
    for point, number in drawn:
        study.add_trial(
            optuna.trial.create_trial(params=as_parameters(space, point), distributions=known, value=number)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return Importance(dict(shares), f"the best quarter of {len(drawn)} trials against all of them (PED-ANOVA)")


def write_result(folder: SearchFolder, result: SearchResult) -> None:
    """Write ``results.json``, ``trials.csv`` and, if there is a winner, ``winner.yaml``."""
    folder.write_text(RESULTS, json.dumps(as_data(folder, result), indent=1) + "\n")
    folder.write_text(TRIALS, as_csv(folder, result.outcomes))
    if result.winner is not None:
        folder.write_text(WINNER, as_recipe(folder, result.winner))


def as_data(folder: SearchFolder, result: SearchResult) -> dict[str, Any]:
    """Return a search's result as plain data; what cannot be a number in JSON is ``null``."""
    request, winner = folder.request, result.winner
    return {
        "format": 1,
        **request.as_data(),
        **folder.provenance,
        "complete": result.complete,
        "seconds": round(result.seconds, 1),
        "winner": winner
        and {
            "confirmed": winner.confirmed,
            "env_steps_to_held": winner.score.env_steps_to_held,
            "margin": _finite(winner.score.margin),
            "trials": list(winner.trials),
            "values": request.space.values(winner.point),
            "command": winning_command(folder, winner),
        },
        "importance": {"shares": result.importance.shares, "note": result.importance.note},
        "trials": [_row(folder, outcome) for outcome in result.outcomes],
    }


def _row(folder: SearchFolder, outcome: Outcome) -> dict[str, Any]:
    spec, score = outcome.spec, outcome.score
    return {
        "id": spec.id,
        "stage": spec.stage,
        "status": outcome.status,
        "held": outcome.held,
        "env_steps_to_held": score.env_steps_to_held if score else None,
        "margin": _finite(score.margin) if score else None,
        "env_steps": outcome.env_steps,
        "seconds": round(outcome.seconds, 1),
        "seed": spec.seed,
        "until": spec.until,
        "origin": spec.origin,
        "reason": outcome.reason,
        "values": folder.request.space.values(spec.point),
    }


def _finite(number: float) -> float | None:
    return round(number, 6) if math.isfinite(number) else None


def as_csv(folder: SearchFolder, outcomes: list[Outcome]) -> str:
    """Write one line a trial, one column a key."""
    rows = []
    for row in (_row(folder, outcome) for outcome in outcomes):
        rows.append({**row, **{key: in_words(value) for key, value in row.pop("values").items()}})
    return csv_text(rows)


def winning_command(folder: SearchFolder, winner: Winner) -> str:
    """Return the command that trains the winning configuration."""
    return shlex.join(["multigrid-rl", "train", *folder.request.space.overrides(winner.point)])


def as_recipe(folder: SearchFolder, winner: Winner) -> str:
    """Write the winning configuration in the form of a file of ``configs/recipe/``."""
    head = [
        "# @package _global_",
        f"# {verdict_of(folder, winner)}",
        f"# Found by: {folder.provenance['command']}",
        f"# Trains: {winning_command(folder, winner)}",
    ]
    content = recipe_of(folder.request.space.overrides(winner.point))
    return "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False, default_flow_style=False)


def recipe_of(overrides: list[str]) -> dict[str, Any]:
    """Turn overrides into a recipe: groups in its defaults list, keys in its tree, with a recipe that they build on.

    Raises ``ConfigError``: the recipe that they name cannot be read.
    """
    settings = expand_overrides(overrides).values
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
    settings = folder.request.settings
    if winner.trials[0].startswith("s3-") and isinstance(settings, ThreeStageSettings):
        how = f"on {runs} of {settings.confirm.seeds} seeds that no earlier stage had seen"
    elif isinstance(settings, ThreeStageSettings):
        how = "in one short run, not confirmed over seeds"
    elif winner.trials[0].startswith("g"):
        how = "as the last of several configurations that its policy learned with; alone it is not known to"
    else:
        how = "in one run, not confirmed over seeds"
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
    lines = [
        f"# A search: {request.name} on {space.config.scenario.name}",
        "",
        f"Command: `{origin['command']}`",
        "",
        f"Shared by all trials: `{' '.join(space.base)}`; space `{space.name}`, seed {request.seed}.",
        f"{machine['cores']} cores ({machine['system']}), {result.seconds:,.0f} seconds; "
        f"{'carried out to its end' if result.complete else 'interrupted'}. "
        f"{len(result.outcomes)} trials, {held} held all gates, {len(result.failed)} failed.",
        f"Commit {origin['commit']}. Versions: {versions}.",
        "",
    ]
    if result.winner is None:
        lines += ["## No winner", "", "Every trial failed."]
    else:
        runs = {outcome.spec.id: outcome for outcome in result.outcomes}
        rows = [[name, *cells(runs[name])] for name in result.winner.trials]
        lines += ["## The winner", "", verdict_of(folder, result.winner), ""]
        lines += [*markdown_table(["trial", *columns], rows), "", "```", winning_command(folder, result.winner), "```"]
    lines += ["", "## What mattered", "", f"{note[0].upper()}{note[1:]}."]
    if result.importance.shares:
        shares = [[f"`{key}`", f"{share:.1%}"] for key, share in result.importance.shares.items()]
        lines += ["", *markdown_table(["variable", "share"], shares)]
    lines += [line for name in pictures for line in ("", f"![{name}]({name})")]
    margins = "margins are the smallest of a trial's gates over its last window, in units of the gate's bound"
    lines += ["", "## All trials", "", f"Best first; {margins}."]
    rows = []
    for outcome in [*ranked(result.outcomes), *result.failed]:
        status = outcome.status if outcome.reason is None else f"failed: {outcome.reason}"
        rows.append([outcome.spec.id, status, *cells(outcome), *space.in_short(outcome.spec.point)])
    names = [variable.name for variable in space.variables]
    lines += ["", *markdown_table(["trial", "status", *columns, *names], rows, left=(0, 1))]
    return "\n".join(lines) + "\n"
