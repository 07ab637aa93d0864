"""A run's page in words: titles that say the conclusion, and the sentences below curves."""

from __future__ import annotations

from typing import Any

from multigrid_rl.show.run_data import RunReport
from multigrid_rl.show.words import count, duration, listed, percent, short


def verdict_title(report: RunReport) -> str:
    """The page's title: what became of the gates, and when."""
    run, gates = report.run, report.gates
    steps = f"{run.env_steps:,} steps"
    held = sum(bool(gate["held"]) for gate in gates)
    if report.held is not None:
        return f"Held {_all_of(len(gates))} after {report.held.env_steps:,} steps"
    if not gates:
        return f"Played {steps}; there are no gates to hold"
    some = f"{_some_of(held, len(gates))} held"
    if run.verdict is None:
        return f"No verdict: {some} after {steps}"
    if run.verdict["ended"] == "interrupted":
        return f"Interrupted after {steps}, with {some}"
    return f"{some.capitalize()} within {steps}"


def _some_of(some: int, number: int) -> str:
    if number == 1:
        return "the gate" if some else "the gate not"
    return f"{count(some) if some else 'none'} of {count(number)} gates"


def _all_of(number: int) -> str:
    return {1: "its gate", 2: "both gates"}.get(number, f"all {count(number)} gates")


def verdict_lead(report: RunReport) -> str:
    """How it ended, below the title."""
    run = report.run
    said = [str(run.config["scenario"].get("description", ""))]
    if run.verdict is None:
        said.append("The run is still going, or it was killed: this is how it stands at its last report.")
    elif run.verdict["ended"] == "until" and report.held is None and report.gates:
        said.append("It spent its whole budget; " + _missed(report.gates))
    elif report.held is not None and not all(gate["held"] for gate in report.gates):
        lost = listed(gate["metric"] for gate in report.gates if not gate["held"])
        said.append(f"It went on afterwards, and at its end {lost} did not hold any more.")
    return " ".join(part for part in said if part)


def _missed(gates: list[dict[str, Any]]) -> str:
    rows = []
    for gate in gates:
        if gate["held"] or gate["value"] is None:
            continue
        beyond = abs(gate["value"] - gate["bound"])
        near = f"met at its end, but not for {gate['window']:,} steps" if gate["met"] else f"{short(beyond)} short"
        rows.append(f"{gate['metric']} ended {near}")
    return "; ".join(rows) + "." if rows else "a gate had no value at its end."


def gate_title(gates: list[dict[str, Any]], *, told: bool) -> str:
    """Title of the table of gates; ``told``: there is a verdict."""
    met = sum(bool(gate["met"]) for gate in gates)
    held = sum(bool(gate["held"]) for gate in gates)
    number = len(gates)
    when = "at the end" if told else "so far"
    if held == number:
        return "The gate is held" if number == 1 else f"{_all_of(number).capitalize()} are held {when}"
    if number == 1:
        return f"The gate is {'met, but not held' if met else 'not met'} {when}"
    return f"{_some_of(held, number).capitalize()} held, {count(met) if met else 'none'} met {when}"


def gate_told(report: RunReport, gate: dict[str, Any]) -> str:
    """The sentence below a gate's curve."""
    first = gate["first_held"]
    value = "without a value" if gate["value"] is None else f"at {short(gate['value'])}"
    told = f"Ends {value}, {'met' if gate['met'] else 'not met'}"
    told += f"; held first at {first['env_steps']:,} steps" if first else "; never held"
    row = report.compared.get(gate["metric"])
    if row is None:
        return told + "."
    if first and row.median_held:
        later = first["env_steps"] / row.median_held - 1
        relation = "as soon as" if abs(later) < 0.005 else f"{abs(later):.0%} {'later' if later > 0 else 'sooner'} than"
        told += f", {relation} the recipe's median seed"
    elif row.median_held:
        told += f" (the recipe's median seed: {row.median_held:,.0f} steps)"
    place = {"inside": "inside", "better": "better than", "worse": "worse than", "above": "above", "below": "below"}
    return f"{told}. Its end is {place[row.end]} the middle 80% of the recipe's seeds."


def behaviour_title(report: RunReport, team: str, seats: list[str]) -> str:
    """How the learning team wins at the last report."""
    series = report.run.series
    won = series.get(f"win/{seats[0]}") if seats else None
    if won is None:
        return "What the agents did"
    share = float(won.values[-1])
    last = {
        name: sum(float(s.values[-1]) for seat in seats if (s := series.get(f"behaviour/{seat}/{name}")) is not None)
        for name in ("door_open", "eliminated_opponents")
    }
    how = ""
    if share > 0.05 and max(last.values()) > 0:
        how = ", mostly " + ("by elimination" if last["eliminated_opponents"] > last["door_open"] else "by its door")
    who = seats[0] if len(seats) == 1 else team
    return f"At the end {who} wins {percent(share)} of the games{how}"


def time_title(totals: dict[str, float], seconds: float) -> str:
    """Where most of the time went."""
    named = {"sample": "Playing", "learn": "Learning"}
    most = max(named, key=lambda name: totals.get(name, 0.0))
    share = totals.get(most, 0.0) / seconds if seconds else 0.0
    return f"{named[most]} took {percent(share)} of {duration(seconds)}"
