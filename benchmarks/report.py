"""The pages of ``docs/results``: one for each study, and the summary."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Any


def page(told: dict[str, Any]) -> str:
    """Markdown of one study: how it was made, one row a seed, median and spread, and the policies' own games."""
    rows = told["rows"]
    provenance = rows[0]["provenance"]
    lines = [f"# {told['study']}", ""]
    if told["required"]:
        lines += [f"Required: {told['required']}.", ""]
    commits = sorted({row["provenance"]["commit"] or "unknown" for row in rows})
    lines += [
        f"Command of each row: `{told['command']}`",
        f"(all of them: `python -m benchmarks.results --only {told['study']}`,",
        f"{told['jobs']} run(s) at a time on a shared 2-core machine: steps are exact, seconds are not).",
        f"Opponents: {_opponents(provenance['opponents'])}. Commit {', '.join(commits)}.",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in provenance["versions"].items()) + ".",
        "",
        *_training(rows),
        "",
        *_policies(rows),
        "",
    ]
    return "\n".join(lines)


def _opponents(rows: list[dict[str, Any]]) -> str:
    told = []
    for row in rows:
        share = f"{row['weight']:.0%} " if row["weight"] < 1 else ""
        sha = f"sha256 {row['sha256'][:16]}" if row["sha256"] else "scripted"
        told.append(f"{row['seat']}: {share}{row['name']} ({sha})")
    return ", ".join(told) or "none"


def _training(rows: list[dict[str, Any]]) -> list[str]:
    gates = rows[0]["gates"]
    heads = [f"{gate['metric']} {gate['comparison']} {gate['bound']:g}" for gate in gates]
    lines = [
        "| seed | held | env steps to held | updates | seconds | steps played | " + " | ".join(heads) + " |",
        "|--:|---|--:|--:|--:|--:|" + "--:|" * len(gates),
    ]
    for row in rows:
        held = row["held"]
        cells = [str(row["seed"]), "yes" if held else "no"]
        cells += [f"{row['env_steps_to_held']:,}", str(row["policy_updates_to_held"])] if held else ["-", "-"]
        cells += [f"{row['seconds_to_held'] if held else row['seconds']:.0f}", f"{row['env_steps']:,}"]
        cells += ["-" if gate["window_mean"] is None else f"{gate['window_mean']:.3f}" for gate in row["gates"]]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"Gate columns are means over the last 100,000 steps of the run. {held_sentence(rows)}"]
    return lines


def held_sentence(rows: list[dict[str, Any]]) -> str:
    """How many seeds held all gates, and after how many steps (runs that did not hold count as "more than all")."""
    if not rows[0]["gates"]:
        return "This scenario has no gates."
    steps = sorted(row["env_steps_to_held"] for row in rows if row["held"])
    told = f"Held on {len(steps)} of {len(rows)} seeds."
    if 2 * len(steps) > len(rows):
        padded = steps + [float("inf")] * (len(rows) - len(steps))
        told += f" Environment steps to held: median {statistics.median(padded):,.0f}, {steps[0]:,} to {steps[-1]:,}."
    return told


def _policies(rows: list[dict[str, Any]]) -> list[str]:
    modes = list(rows[0]["policy"])
    seats = list(rows[0]["policy"][modes[0]]["returns"])
    lines = [
        f"The exported policies over {rows[0]['policy'][modes[0]]['episodes']} fresh games each:",
        "",
        "| seed | actions | length | "
        + " | ".join(f"return {seat}" for seat in seats)
        + " | team | win | draw | loss |",
        "|--:|---|--:|" + "--:|" * (len(seats) + 4),
    ]
    for row in rows:
        for mode in modes:
            its = row["policy"][mode]
            cells = [str(row["seed"]), mode, f"{its['length']:.1f}", *(f"{v:.3f}" for v in its["returns"].values())]
            cells += [f"{its['team_return']:.3f}", *(f"{its[k]:.1%}" for k in ("win", "draw", "loss"))]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


#: Pages of speed, by name: what they tell and the command that makes them.
SPEED = {
    "bench-training": ("training against RLlib's own PPO and Stable-Baselines3, memory, where the time goes", "bench"),
    "bench-growth": ("what more games, env runners, agents, width and nodes cost", "bench-growth"),
    "bench-control": ("MuJoCo's bodies, Box2D and CartPole against Gymnasium and EnvPool", "bench-control"),
    "bench-world": ("the game engine over games, views, agents and threads", "bench-world"),
    "capacity": ("bytes of a step, where the learner saturates, and a plan for 1,000 cores", "capacity"),
    "policy-gradients": (
        "what weighs log pi(a|s), how often a batch is learned from, why PPO clips",
        "study NAME=policy-gradients",
    ),
    "control": ("the scenarios of control with their recipes, over seeds", "study NAME=control"),
    "soak": ("env runners killed at random: recovery, memory, processes left behind", "soak"),
}


def summary(rows: list[str], speed: Collection[str] = ()) -> str:
    """Markdown over all studies, by their :func:`row`; ``speed`` names the pages of :data:`SPEED` that are there."""
    lines = [
        "# Results",
        "",
        "Made by `make results`; each page has the command, versions, a row for each seed and the exported policies'",
        "games.",
        "Length, return and win are medians over seeds of means over 1000 fresh games with drawn actions.",
        "",
        "| study | required | seeds held | median env steps to held | length | team return | win "
        "| argmax: length, return, win |",
        "|---|---|---|--:|--:|--:|--:|---|",
        *rows,
    ]
    pages = [f"* [{name}]({name}.md): {what} (`make {verb}`)" for name, (what, verb) in SPEED.items() if name in speed]
    return "\n".join([*lines, "", *(["## Speed and studies", "", *pages, ""] if pages else [])])


def row_start(study: str) -> str:
    """Return how a study's line of the summary begins."""
    return f"| [{study}]({study}.md) |"


def row(told: dict[str, Any]) -> str:
    """Write a study's line of the summary."""
    rows = told["rows"]
    held = [row["env_steps_to_held"] if row["held"] else float("inf") for row in rows]
    middle = statistics.median(held)
    gated = bool(rows[0]["gates"])
    drawn, likely = ([row["policy"][mode] for row in rows] for mode in ("stochastic", "argmax"))
    cells = [
        told["required"] or "-",
        f"{sum(row['held'] for row in rows)}/{len(rows)}" if gated else f"no gates, {len(rows)} seeds",
        f"{middle:,.0f}" if middle < float("inf") else "-",
        _middle(drawn, "length", ".1f"),
        _middle(drawn, "team_return", ".2f"),
        _middle(drawn, "win", ".1%"),
        f"{_middle(likely, 'length', '.1f')}, {_middle(likely, 'team_return', '.2f')}, {_middle(likely, 'win', '.1%')}",
    ]
    return f"{row_start(told['study'])} {' | '.join(cells)} |"


def _middle(rows: list[dict[str, Any]], key: str, form: str) -> str:
    return format(statistics.median(row[key] for row in rows), form)
