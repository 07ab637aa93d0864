"""The curves of a run's page: gates over the recipe's seeds, behaviour, and what the learner says of itself."""

from __future__ import annotations

from typing import Any

from multigrid_rl.gates import Gate
from multigrid_rl.judge.runs import Series
from multigrid_rl.metrics import BEHAVIOUR, METRICS, matches
from multigrid_rl.show.charts import Chart, Line, Under, plot
from multigrid_rl.show.html import Raw, join, section, tag
from multigrid_rl.show.run_data import RunReport
from multigrid_rl.show.run_text import behaviour_title, gate_told
from multigrid_rl.show.words import BEHAVIOURS, listed, metric_title, percent, short

_UNITS = {"ratio": "ratio, 1 is perfect", "share": "share of the games", "reward": "reward per game"}
#: What the learner says of itself: name below ``learner/<module>/`` or a metric of its own, and its title.
_LEARNER = (
    ("explained_variance/{}", "Explained variance"),
    ("entropy/{}", "Entropy"),
    ("learner/{}/policy_loss", "Policy loss"),
    ("learner/{}/vf_loss", "Value loss"),
    ("learner/{}/grad_norm", "Gradient norm before clipping"),
    ("learner/{}/lr", "Step size of Adam"),
    ("learner/{}/entropy_coef", "Weight of the entropy bonus"),
)


def curves_section(report: RunReport) -> Raw | None:
    """One plot for each gate, over the recipe's seeds where there are reference curves."""
    charts = [_gate_chart(report, gate) for gate in report.gates if gate["metric"] in report.run.series]
    if not charts:
        return None
    plots = tag("div", [plot(chart) for chart in charts], class_="plots")
    return section("curves", _curves_title(report), _key(report), plots, lead=_curves_lead(report))


def _curves_title(report: RunReport) -> str:
    rows = [report.compared[gate["metric"]] for gate in report.gates if gate["metric"] in report.compared]
    if not rows:
        return "How the gates were reached"
    worse = [metric_title(row.metric).lower() for row in rows if row.end == "worse"]
    if not worse:
        return "It ends as well as the recipe's other seeds, or better"
    return f"It ends worse than the recipe's other seeds in {listed(worse)}"


def _curves_lead(report: RunReport) -> str:
    if report.reference is None:
        return "This run followed no recipe that has reference curves, so there is nothing to lay below it."
    seeds = len(report.reference.runs)
    return (
        f"Below it lies the recipe {report.reference.name} over {seeds} seeds: the middle 80% of them and their "
        "median, dotted where seeds had ended and their last value is held on."
    )


def _key(report: RunReport) -> Raw:
    def sample(class_: str, words: str, *, filled: bool = False) -> Raw:
        shape = (
            tag("rect", width=26, height=12, class_=class_)
            if filled
            else tag("line", x1=0, x2=26, y1=6, y2=6, class_=class_)
        )
        return tag("li", tag("svg", shape, width=26, height=12, aria_hidden="true"), words)

    rows = [sample("line line-0", "this run"), sample("gate", "gate")]
    rows.append(sample("held", "the steps over which it was held first", filled=True))
    if report.reference is not None:
        rows.append(sample("median", "median seed of the recipe"))
        rows.append(sample("band", "10th to 90th percentile of the seeds", filled=True))
    return tag("ul", rows, class_="legend")


def _gate_chart(report: RunReport, row: dict[str, Any]) -> Chart:
    metric, first = row["metric"], row["first_held"]
    gate = Gate(metric, row["comparison"], row["bound"], row["hold"], row["share"], row["window"])
    held = (max(first["env_steps"] - gate.window, 0), first["env_steps"]) if first else None
    return Chart(
        title=metric_title(metric),
        told=gate_told(report, row),
        unit=unit_of(metric),
        lines=(Line("this run", report.run.series[metric]),),
        x_max=report.run.env_steps,
        gate=gate,
        held=held,
        under=_under(report, metric),
    )


def _under(report: RunReport, metric: str) -> Under | None:
    reference = report.reference
    if reference is None or metric not in reference.metrics:
        return None
    running = sum(count == len(reference.runs) for count in reference.running)
    return Under(reference.env_steps, reference.metrics[metric], running)


def unit_of(metric: str) -> str:
    """What stands at a metric's axis."""
    pattern = next((pattern for pattern in METRICS if matches(metric, pattern)), None)
    unit = METRICS[pattern][1] if pattern else ""
    return "steps per game" if metric == "episode_len_mean" else _UNITS.get(unit, unit)


# --- behaviour


def behaviour_section(report: RunReport) -> Raw | None:
    """Shares of wins, and each kind of event, per game."""
    seats = [name.removeprefix("win/") for name in report.run.series if name.startswith("win/")]
    if not seats:
        return None
    team = "red" if any(seat.startswith("red") for seat in seats) else seats[0].rpartition("_")[0]
    own = [seat for seat in seats if seat.startswith(team)] or seats
    charts, never = [_outcome_chart(report, team, own[0])], []
    for name in BEHAVIOUR:
        chart = _behaviour_chart(report, name, seats)
        if chart is not None:
            charts.append(chart)
        elif any(f"behaviour/{seat}/{name}" in report.run.series for seat in seats):
            never.append(BEHAVIOURS[name].lower())
    plots = tag("div", [plot(chart) for chart in charts], class_="plots small")
    note = tag("p", f"Never in any report: {listed(never, 'or')}.", class_="note") if never else None
    return section("behaviour", behaviour_title(report, team, own), plots, note)


def _outcome_chart(report: RunReport, team: str, seat: str) -> Chart:
    rows = [("won", f"win/{seat}"), ("drawn", f"draw/{seat}"), ("lost", f"loss/{seat}")]
    lines = tuple(Line(words, report.run.series[name]) for words, name in rows if name in report.run.series)
    told = ", ".join(f"{percent(float(line.series.values[-1]))} {line.label}" for line in lines)
    return Chart(
        title=f"Results of {team}",
        told=f"At the end {told}.",
        unit="share of the games",
        lines=lines,
        x_max=report.run.env_steps,
        share=True,
    )


def _behaviour_chart(report: RunReport, name: str, seats: list[str]) -> Chart | None:
    """A line for each seat; ``None`` where nothing of the kind ever happened."""
    found = [(seat, report.run.series.get(f"behaviour/{seat}/{name}")) for seat in seats]
    lines = tuple(Line(seat, series) for seat, series in found if series is not None)
    if not any(line.series.values.any() for line in lines):
        return None
    unit = "factors paid per game" if name == "ball_pay" else "times per game"
    return _plain_chart(report, BEHAVIOURS[name], unit, lines)


def _plain_chart(report: RunReport, title: str, unit: str, lines: tuple[Line, ...]) -> Chart:
    ends = [f"{short(float(line.series.values[-1]))}" for line in lines]
    names = [f" ({line.label})" if len(lines) > 1 else "" for line in lines]
    told = listed(end + name for end, name in zip(ends, names, strict=True))
    return Chart(title=title, told=f"Ends at {told}.", unit=unit, lines=lines, x_max=report.run.env_steps)


# --- the learner


def learner_section(report: RunReport) -> Raw | None:
    """Losses and the like, folded away: they matter where something went wrong."""
    series: dict[str, Series] = report.run.series
    modules = [name.split("/")[1] for name in series if name.startswith("learner/") and name.endswith("/vf_loss")]
    gated = {gate["metric"] for gate in report.gates}
    charts = []
    for pattern, title in _LEARNER:
        names = [(module, pattern.format(module)) for module in modules]
        found = tuple(Line(module, series[name]) for module, name in names if name in series)
        if found and not all(name in gated for _, name in names):
            unit = unit_of(names[0][1])
            charts.append(_plain_chart(report, title, "" if unit == "1" else unit, found))
    if not charts:
        return None
    plots = tag("div", [plot(chart) for chart in charts], class_="plots small")
    folded = tag("details", tag("summary", f"Show {len(charts)} curves"), plots)
    return section("learner", "What the learner says of itself", join(folded))
