"""A search as a page of text: what was asked, who won, and every trial, held or not."""

from __future__ import annotations

import math

from multigrid_rl.search.folder import SearchFolder
from multigrid_rl.search.plans import Outcome, ranked
from multigrid_rl.search.results import Found, verdict_of, winning_command
from multigrid_rl.search.transforms import Value, in_words

REPORT = "report.md"


def as_markdown(folder: SearchFolder, found: Found, pictures: list[str]) -> str:
    """The page; ``pictures`` are file names beside it."""
    parts = [_head(folder, found), _winner(folder, found), _matters(found, pictures), _trials(folder, found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(folder: SearchFolder, found: Found) -> str:
    asked, origin = folder.asked, folder.provenance
    machine = origin["machine"]
    held = sum(bool(outcome.score and outcome.score.held) for outcome in found.outcomes)
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    ended = "carried out to its end" if found.complete else "interrupted"
    return "\n".join(
        [
            f"# A search: {asked.name} on {asked.space.config.scenario.name}",
            "",
            f"Command: `{origin['command']}`",
            "",
            f"Shared by all trials: `{' '.join(asked.space.base)}`; space `{asked.space.name}`, seed {asked.seed}.",
            f"{machine['cores']} cores ({machine['system']}), {found.seconds:,.0f} seconds; {ended}. "
            f"{len(found.outcomes)} trials, {held} held all gates, {len(found.failed)} failed.",
            f"Commit {origin['commit']}. Versions: {versions}.",
        ]
    )


def _winner(folder: SearchFolder, found: Found) -> str:
    winner = found.winner
    if winner is None:
        return "## No winner\n\nEvery trial failed."
    runs = {outcome.spec.id: outcome for outcome in found.outcomes}
    rows = []
    for name in winner.trials:
        outcome = runs[name]
        rows.append(
            f"| {name} | {outcome.spec.seed} | {_steps(outcome)} | {_margin(outcome)} | {outcome.env_steps:,} | "
            f"{outcome.seconds:.0f} |"
        )
    return "\n".join(
        [
            "## The winner",
            "",
            verdict_of(folder, winner),
            "",
            "| trial | seed | steps to held | smallest margin | steps played | seconds |",
            "|---|--:|--:|--:|--:|--:|",
            *rows,
            "",
            "```",
            winning_command(folder, winner),
            "```",
        ]
    )


def _matters(found: Found, pictures: list[str]) -> str:
    note = found.importance.note
    shares = [f"| `{key}` | {share:.1%} |" for key, share in found.importance.shares.items()]
    table = ["", "| variable | share |", "|---|--:|", *shares] if shares else []
    shown = [line for name in pictures for line in ("", f"![{name}]({name})")]
    return "\n".join(["## What mattered", "", f"{note[0].upper()}{note[1:]}.", *table, *shown])


def _trials(folder: SearchFolder, found: Found) -> str:
    variables = folder.asked.space.variables
    names = " | ".join(variable.name for variable in variables)
    lines = [
        "## All trials",
        "",
        "Best first; margins are the smallest of a trial's gates over its last window, in units of the gate's bound.",
        "",
        f"| trial | status | seed | steps to held | smallest margin | steps played | seconds | {names} |",
        "|---|---|" + "--:|" * (5 + len(variables)),
    ]
    for outcome in [*ranked(found.outcomes), *found.failed]:
        values = folder.asked.space.values(outcome.spec.point)
        shown = " | ".join(_value(values[variable.key]) for variable in variables)
        status = outcome.status if outcome.reason is None else f"failed: {outcome.reason.replace('|', '/')}"
        lines.append(
            f"| {outcome.spec.id} | {status} | {outcome.spec.seed} | {_steps(outcome)} | {_margin(outcome)} | "
            f"{outcome.env_steps:,} | {outcome.seconds:.0f} | {shown} |"
        )
    return "\n".join(lines)


def _steps(outcome: Outcome) -> str:
    steps = outcome.score.env_steps_to_held if outcome.score else None
    return "-" if steps is None else f"{steps:,}"


def _margin(outcome: Outcome) -> str:
    margin = outcome.score.margin if outcome.score else -math.inf
    return f"{margin:.3f}" if math.isfinite(margin) else "-"


def _value(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else in_words(value)
