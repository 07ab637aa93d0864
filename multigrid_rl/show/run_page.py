"""The page of a training run: its verdict in one line, then tables and curves."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multigrid_rl.gates import Gate, value_text
from multigrid_rl.metrics import STAGES, glossary
from multigrid_rl.show.figures import Chart, Line
from multigrid_rl.show.page import render
from multigrid_rl.show.replay import replays
from multigrid_rl.show.run_data import RunReport, opponent_words, origin, read_report, standings
from multigrid_rl.show.words import OUTCOMES, metric_title, readable_name, unit_of
from multigrid_rl.text import one_line
from multigrid_rl.world.events import BEHAVIOUR


def run_page(report: RunReport, *, live: bool = False) -> str:
    """Return the complete page, ``live`` of a run in progress. Pure: the same report gives the same page."""
    run, seats = report.run, _page_seats(report)
    board = report.package is None
    curves = [_gate_chart(report, gate) for gate in report.gates if gate["metric"] in run.series]
    if not board or not curves:
        curves += _ungated_curves(report)
    return render(
        "run.html",
        live=live,
        kind=f"Training run \u00b7 {run.config['scenario']['name']} \u00b7 seed {run.config['seed']}",
        title=verdict_title(report),
        lead=str(run.config["scenario"].get("description", "")),
        report=report,
        last={"policy_updates": 0, "episodes": 0, **report.last},
        curves=curves,
        not_played=one_line(report.not_played),
        standings=standings(run),
        behaviour=_behaviour(report, seats) if seats else [],
        stages=_stages(report),
        learner=_learner(report),
        origin=origin(report),
        opponents=[opponent_words(run, row) for row in run.provenance.get("opponents") or []],
        **replays(report.played.games if report.rivals and report.played else []),
    )


def newest_report(folder: Path) -> Iterator[str]:
    """Yield the lines of a run's newest report. Raises ``ConfigError``: see ``run_data.read_report``."""
    found = read_report(folder, games=0)
    yield verdict_title(found)
    for gate in found.gates:
        value = "none" if gate["value"] is None else value_text(gate["value"], gate["bound"])
        state = "held" if gate["held"] else "met" if gate["met"] else "not met"
        yield f"  {gate['metric']:<28}{gate['comparison']} {gate['bound']:<8g}{value:>8}  {state}"


# --- gates


def verdict_title(report: RunReport) -> str:
    """Return the page's title: the number of held gates, and the step."""
    run, gates, steps = report.run, report.gates, f"{report.env_steps:,} steps"
    if report.held is not None:
        return f"Held all gates ({len(gates)}) after {report.held.env_steps:,} steps"
    if not gates:
        return f"Played {steps} without gates"
    held = f"{sum(bool(gate['held']) for gate in gates)} of {len(gates)} gates held after {steps}"
    if run.verdict is None:
        return f"No verdict yet: {held}"
    return f"Interrupted: {held}" if run.verdict["ended"] == "interrupted" else held


# --- curves


def _gate_chart(report: RunReport, row: dict[str, Any]) -> Chart:
    metric, first, reference = row["metric"], row["first_held"], report.reference
    return _chart(report, metric_title(metric), _unit(report, metric), {metric: "this run"})._replace(
        gate=Gate(metric, row["comparison"], row["bound"], row["hold"], row["share"], row["window"]),
        held=(max(first["env_steps"] - row["window"], 0), first["env_steps"]) if first else None,
        under=(reference, metric) if reference is not None and metric in reference.metrics else None,
    )


def _ungated_curves(report: RunReport) -> list[Chart]:
    """Return curves of returns, of at most four agents, and lengths, where no gate shows them."""
    gated = {gate["metric"] for gate in report.gates}
    returns = [name for name in report.run.series if name.startswith("return_mean/") and name not in gated][:4]
    groups = {"Return": returns, metric_title("episode_len_mean"): ["episode_len_mean"]}
    charts = [
        _chart(report, title, _unit(report, names[0]), {name: name.partition("/")[2] for name in names})
        for title, names in groups.items()
        if names and gated.isdisjoint(names)
    ]
    return [chart for chart in charts if chart.lines]


def _unit(report: RunReport, metric: str) -> str:
    """Return a metric's unit; environments without other players have episodes, not games."""
    unit = unit_of(metric)
    return unit if report.rivals else unit.replace("game", "episode")


def _chart(report: RunReport, title: str, unit: str, metrics: dict[str, str], *, share: bool = False) -> Chart:
    """Return a chart of the run's metrics among these (name -> label of its line)."""
    series = report.run.series
    lines = tuple(Line(label, series[name]) for name, label in metrics.items() if name in series)
    return Chart(title, unit, lines, report.run.env_steps, share=share, steps=report.steps)


# --- behaviour


def _page_seats(report: RunReport) -> list[str]:
    """Return the seats of the team on the page: red if it learned; none where no game was won or lost."""
    series = report.run.series
    seats = [name.removeprefix("win/") for name in series if name.startswith("win/")]
    results = [series[f"{metric}/{seat}"].values for metric in ("win", "defeat") for seat in seats]
    if report.package is not None and not any(values.any() for values in results):
        return []
    teams = {seat: _team(report, seat) for seat in seats}
    team = "red" if "red" in teams.values() else next(iter(teams.values()), "")
    return [seat for seat in seats if teams[seat] == team]


def _team(report: RunReport, seat: str) -> str:
    teams = report.run.config["scenario"].get("teams") or {}
    usual = seat.rpartition("_")[0] if report.package is None else ""
    return next((team for team, seats in teams.items() if seat in seats), usual or seat)


def _behaviour(report: RunReport, seats: list[str]) -> list[Chart]:
    """Return charts of results, and of each kind of event with a value."""
    series, games = report.run.series, "share of the games"
    outcomes = {f"{metric}/{seats[0]}": word for metric, word in OUTCOMES.items()}
    team = _team(report, seats[0])
    charts = [_chart(report, f"Results of {team}", games, outcomes, share=True)]
    # Opponents of a mixture: in one chart at most as many as there are line styles.
    opponents = [(name, name.split("/", 2)[2]) for name in series if name.startswith(f"win_against/{seats[0]}/")]
    title = f"Games won by {team}, by opponent"
    for k in range(0, len(opponents), 4):
        charts.append(_chart(report, title, games, dict(opponents[k : k + 4]), share=True))
    all_seats = [name.removeprefix("win/") for name in series if name.startswith("win/")]
    for name in BEHAVIOUR:
        unit = "factors paid per game" if name == "ball_pay" else "times per game"
        chart = _chart(report, readable_name(name), unit, {f"behaviour/{seat}/{name}": seat for seat in all_seats})
        if any(line.series.values.any() for line in chart.lines):
            charts.append(chart)
    return charts


# --- the learner and time


def _learner(report: RunReport) -> list[Chart]:
    """Return charts of losses and other metrics of the learner: all that the glossary has of a module."""
    modules = list(dict.fromkeys(name.split("/")[1] for name in report.run.series if name.startswith("learner/")))
    gated = {gate["metric"] for gate in report.gates}
    charts = []
    for pattern in glossary():
        first, _, rest = pattern.partition("/")
        names = {pattern.replace("<module>", module): module for module in modules if "<module>" in pattern}
        title = metric_title(first) if rest == "<module>" else readable_name(rest.rpartition("/")[2])
        unit = unit_of(pattern).removeprefix("1")
        if not gated.issuperset(names) and (chart := _chart(report, title, unit, names)).lines:
            charts.append(chart)
    return charts


def _stages(report: RunReport) -> list[tuple[str, float, float, bool]]:
    """Return rows of timing: words, seconds, share, and whether it is a part of the row above."""
    totals, rows = report.totals, []
    total_s = sum(totals.get(name, 0.0) for name in (*STAGES, "other"))
    for metric, (text, _) in glossary().items():
        seconds = totals.get(metric.removeprefix("timing/").removesuffix("_s"), 0.0)
        if metric.startswith("timing/") and total_s and seconds:
            part = text.removeprefix("of it: ")
            words = re.split(r"[,;:] | \(", part)[0]
            rows.append((words if part != text else words.capitalize(), seconds, seconds / total_s, part != text))
    return rows
