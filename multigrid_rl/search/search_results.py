"""Results of a search as files: trials.csv, winner.yaml and the page report.md."""

import math
import shlex
from dataclasses import dataclass
from itertools import chain
from typing import Any

import yaml

from multigrid_rl.config.overrides import put, written
from multigrid_rl.config.recipes import GROUPS, expand_overrides
from multigrid_rl.files import csv_text, markdown_table, write_atomic
from multigrid_rl.search.plans import Outcome, Score, ThreeStageSettings, Winner, ranked, winner_of
from multigrid_rl.search.search_folder import SearchFolder
from multigrid_rl.text import program

REPORT, TRIALS, WINNER = "report.md", "trials.csv", "winner.yaml"
FILES = (REPORT, TRIALS, WINNER)


@dataclass(frozen=True)
class SearchResult:
    """The result of a search when it ends or is interrupted."""

    outcomes: list[Outcome]  # of all trials that ended
    winner: Winner | None  # the best configuration so far; None if every trial failed
    complete: bool  # whether the plan is finished
    seconds: float  # wall time of all sessions together

    @property
    def failed(self) -> list[Outcome]:
        """Trials that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def result_of(folder: SearchFolder, *, complete: bool, seconds: float) -> SearchResult:
    """Return the result of a search from its recorded outcomes."""
    outcomes, settings = folder.outcomes(), folder.request.settings
    seeds = settings.confirm.seeds if isinstance(settings, ThreeStageSettings) else 0
    return SearchResult(outcomes, winner_of(outcomes, seeds), complete, seconds)


def write_result(folder: SearchFolder, result: SearchResult) -> None:
    """Write the page, the table and, if there is a winner, its recipe."""
    write_atomic(folder.path / REPORT, as_markdown(folder, result).encode())
    write_atomic(folder.path / TRIALS, csv_text([row_of(folder, outcome) for outcome in result.outcomes]).encode())
    if result.winner is not None:
        write_atomic(folder.path / WINNER, as_recipe(folder, result.winner).encode())


def row_of(folder: SearchFolder, outcome: Outcome) -> dict[str, str]:
    """Return a trial's row of the tables; missing values are empty."""
    spec, score, space = outcome.spec, outcome.score or Score(None, math.nan), folder.request.space
    values = space.values(spec.params or {})
    facts = {
        "trial": spec.id, "origin": spec.origin, "seed": spec.seed, "status": outcome.status, "held": score.held,
        "env_steps_to_held": score.env_steps_to_held,
        "margin": round(score.margin, 6) if math.isfinite(score.margin) else None,
        "env_steps": outcome.env_steps, "seconds": round(outcome.seconds), "reason": outcome.reason,
    }  # fmt: skip
    row = {key: "" if fact is None else str(fact) for key, fact in facts.items()}
    return row | {key: written(value) for key, value in values.items()}


def winning_command(folder: SearchFolder, winner: Winner) -> str:
    """Return the command that trains the winning configuration."""
    return shlex.join(["multigrid-rl", "train", *folder.request.space.overrides(winner.params)])


def as_recipe(folder: SearchFolder, winner: Winner) -> str:
    """Return the winning configuration as text for a file of ``configs/recipe/``."""
    head = [
        "# @package _global_",
        f"# {verdict_of(folder, winner)}",
        f"# Found by: {folder.provenance['command']}",
        f"# Trains: {winning_command(folder, winner)}",
    ]
    content = recipe_of(folder.request.space.overrides(winner.params))
    return "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False, default_flow_style=False)


def recipe_of(overrides: list[str]) -> dict[str, Any]:
    """Convert overrides into a recipe: groups in its defaults list, keys in its tree; their recipe is expanded.

    Raises ``ConfigError``: the recipe of the overrides cannot be read.
    """
    settings, _ = expand_overrides(overrides)
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in GROUPS:
            put(tree, key, value)
    return {"defaults": [{f"override /{key}": settings[key]} for key in settings if key in GROUPS], **tree}


def verdict_of(folder: SearchFolder, winner: Winner) -> str:
    """Describe the winner's result in one sentence."""
    steps, runs = winner.score.env_steps_to_held, len(winner.trials)
    if steps is None:
        return f"Did not hold all gates in {runs} run(s); smallest margin {winner.score.margin:.3g} of a bound."
    condition, settings = "in one run, not confirmed over seeds", folder.request.settings
    if winner.trials[0].startswith("s3-") and isinstance(settings, ThreeStageSettings):
        condition = f"on {runs} of {settings.confirm.seeds} seeds that no earlier stage had seen"
    elif winner.trials[0].startswith("g"):
        condition = "as the last of several configurations that its policy learned with; alone it is not known to"
    return f"Held all gates {condition}; {steps:,} environment steps at most."


def as_markdown(folder: SearchFolder, result: SearchResult) -> str:
    """Return the page: the request, the winner, and every trial."""
    request, origin, rows = folder.request, folder.provenance, {o.spec.id: row_of(folder, o) for o in result.outcomes}
    heads = [key for key in dict.fromkeys(chain(*rows.values())) if key not in ("held", "reason")]
    winner = "## No winner\n\nEvery trial failed."
    if result.winner is not None:
        table = _table(heads, [rows[name] for name in result.winner.trials])
        command = winning_command(folder, result.winner)
        winner = f"## The winner\n\n{verdict_of(folder, result.winner)}\n\n{table}\n\n```\n{command}\n```"
    order = [rows[outcome.spec.id] for outcome in [*ranked(result.outcomes), *result.failed]]
    failures = [f"* {outcome.spec.id} failed: {outcome.reason}" for outcome in result.failed]
    return f"""# A search: {request.name} on {request.space.config.scenario.name}

Command: `{origin["command"]}`

Shared by all trials: `{" ".join(request.space.base)}`; space `{request.space.name}`, seed {request.seed}.
{origin["machine"]["cores"]} cores, {result.seconds:,.0f} seconds; \
{"carried out to its end" if result.complete else "interrupted"}. {len(result.outcomes)} trials, \
{sum(outcome.held for outcome in result.outcomes)} held all gates, {len(result.failed)} failed.
Commit {origin["commit"]}; versions are in provenance.json.

{winner}

## All trials

Best first; a margin is the smallest of a trial's gates over its last window, in units of the gate's bound.

{_table(heads, order)}

{chr(10).join(failures)}
"""


def outcome_line(folder: SearchFolder, outcome: Outcome) -> str:
    """Describe the outcome of a trial in one line."""
    spec, score = outcome.spec, outcome.score
    if score is None:
        return f"{spec.id:<14} FAILED after {outcome.seconds:.0f} s: {outcome.reason}"
    verdict = f"HELD at {score.env_steps_to_held:>9,} steps" if score.held else f"not held, margin {score.margin:>9.3f}"
    stopped = " (stopped)" if outcome.status == "stopped" else ""
    space = folder.request.space
    values = space.values(spec.params or {})
    drawn = ", ".join(f"{v.name} {values[v.key] if v.choices else f'{values[v.key]:.4g}'}" for v in space.variables)
    return f"{spec.id:<14} {verdict} | {outcome.env_steps:>9,} steps, {outcome.seconds:>4.0f} s{stopped} | {drawn}"


def closing_lines(folder: SearchFolder, result: SearchResult) -> list[str]:
    """Return the closing lines: the winner, and the files."""
    lines = [f"failed:   {outcome.spec.id}: {outcome.reason}" for outcome in result.failed]
    if not result.complete:
        lines.append(f"interrupted: go on with {program()} search --resume {shlex.quote(str(folder.path))}")
    lines.append(f"searched: {len(result.outcomes)} trials in {result.seconds:,.0f} s")
    if result.winner is not None:
        lines.append(f"winner:   {', '.join(result.winner.trials)}. {verdict_of(folder, result.winner)}")
        lines.append(f"train it: {winning_command(folder, result.winner)}")
    files = ", ".join(name for name in FILES if (folder.path / name).exists())
    return [*lines, f"written:  {folder.path}: {files}"]


def _table(heads: list[str], rows: list[dict[str, str]]) -> str:
    lines = markdown_table(heads, [[row.get(key, "") for key in heads] for row in rows], left=(0, 1, 3))
    return "\n".join(lines) if rows else "No trial has ended."
