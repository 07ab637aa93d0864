"""The page of a training run: its content, and titles that state the conclusion."""

from typing import Any

from multigrid_rl.gates import Gate
from multigrid_rl.show.figures import Chart, Line
from multigrid_rl.show.page import render
from multigrid_rl.show.replay import replays
from multigrid_rl.show.run_data import RunReport, opponent_words, origin
from multigrid_rl.show.standings import shown_standings
from multigrid_rl.show.words import (
    BEHAVIOURS,
    OUTCOMES,
    duration,
    listed,
    metric_title,
    percent,
    plural,
    short,
    spelled,
    unit_of,
    when_held,
)
from multigrid_rl.text import one_line
from multigrid_rl.world.events import BEHAVIOUR

#: Parts of an iteration: name in ``timing/``, words, and its own parts.
_STAGES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("sample", "Playing", {
        "play": "whole steps in one call", "engine": "the game itself", "players": "opponents' decisions",
        "forward": "own networks", "tokens": "observations into the batch", "draw": "drawing actions",
        "gae": "advantages",
    }),
    ("learn", "Learning", {
        "network": "forward and backward passes", "optimizer": "clipping and Adam", "loss": "the loss",
        "minibatch": "cutting minibatches",
    }),
    ("sync", "Sending weights", {}),
    ("metrics", "Metrics and gates", {}),
    ("checkpoint", "Checkpoints", {}),
    ("other", "Everything else", {}),
)  # fmt: skip
#: Metrics of the learner, by pattern, and their titles; a run has those of its objective.
_LEARNER = {
    "learner/{}/cloning_loss": "Cloning loss",
    "learner/{}/held_out_loss": "Cloning loss on episodes that are held out",
    "learner/{}/discriminator_loss": "Loss of the discriminator",
    "learner/{}/discriminator_accuracy": "Steps that the discriminator tells apart",
    "learner/{}/learnt_reward": "Reward that the discriminator pays",
    "explained_variance/{}": "Explained variance",
    "entropy/{}": "Entropy",
    "approx_kl/{}": "KL divergence of an update",
    "clip_fraction/{}": "Share of steps beyond the clip",
    "learner/{}/policy_loss": "Policy loss",
    "learner/{}/vf_loss": "Value loss",
    "learner/{}/grad_norm": "Gradient norm before clipping",
    "learner/{}/lr": "Learning rate",
    "learner/{}/entropy_coef": "Weight of the entropy bonus",
}


def run_page(report: RunReport, *, live: bool = False) -> str:
    """Return the whole page, ``live`` of a run that goes on. Pure: the same report gives the same page."""
    run, seats = report.run, _own_seats(report)
    board = report.package is None
    curves = [_gate_chart(report, gate) for gate in report.gates if gate["metric"] in run.series]
    if not board or not curves:
        curves += _plain_curves(report)
    behaviour, never = _behaviour(report, seats) if seats else ([], [])
    return render(
        "run.html",
        live=live,
        kind=f"Training run \u00b7 {run.config['scenario']['name']} \u00b7 seed {run.config['seed']}",
        title=verdict_title(report),
        lead=verdict_lead(report),
        report=report,
        last={"policy_updates": 0, "episodes": 0, **report.last},
        gates_title=gates_title(report.gates, ended=run.verdict is not None),
        holds=list({gate["hold"]: gate for gate in report.gates}.values()),
        curves=curves,
        curves_title=_curves_title(report),
        played_title=_played_title(report),
        not_played=one_line(report.not_played),
        **shown_standings(run),
        behaviour=behaviour,
        behaviour_title=behaviour_title(report, seats),
        never=never,
        stages=_stages(report),
        stages_title=_stages_title(report.totals),
        learner=_learner(report),
        origin=origin(report),
        opponents=[opponent_words(row) for row in run.provenance.get("opponents") or []],
        **replays(report.played.games if report.rivals and report.played else []),
    )


# --- gates


def verdict_title(report: RunReport) -> str:
    """Return the page's title: which gates were held, and when."""
    run, gates = report.run, report.gates
    steps = f"{report.env_steps:,} steps"
    if report.held is not None:
        return f"Held {_all_of(len(gates))} after {report.held.env_steps:,} steps"
    returns = [series for name, series in run.series.items() if name.startswith("return_mean/")]
    if not gates and report.package is not None and len(returns) == 1:
        return f"Played {steps} and ended at a return of {short(float(returns[0].values[-1]))}"
    if not gates:
        return f"Played {steps}; there are no gates to hold"
    held = f"{_some_of(sum(bool(gate['held']) for gate in gates), len(gates))} held"
    if run.verdict is None:
        return f"No verdict: {held} after {steps}"
    if run.verdict["ended"] == "interrupted":
        return f"Interrupted after {steps}, with {held}"
    return f"{held.capitalize()} within {steps}"


def _some_of(count: int, number: int) -> str:
    if number == 1:
        return "the gate" if count else "the gate not"
    return f"{spelled(count) if count else 'none'} of {spelled(number)} gates"


def _all_of(number: int) -> str:
    return {1: "its gate", 2: "both gates"}.get(number, f"all {spelled(number)} gates")


def verdict_lead(report: RunReport) -> str:
    """Return how the run ended, for below the title."""
    run = report.run
    sentences = [str(run.config["scenario"].get("description", ""))]
    missed = [gate for gate in report.gates if not gate["held"]]
    if run.verdict is None:
        sentences.append("The run is still going, or it was killed: this page shows its last report.")
    elif run.verdict["ended"] == "until" and report.held is None and report.gates:
        sentences.append(f"The budget ran out: {'; '.join(map(_missed, missed))}.")
    elif report.held is not None and missed:
        names = listed(gate["metric"] for gate in missed)
        sentences.append(f"Training continued, and at its end {names} no longer held.")
    return " ".join(part for part in sentences if part)


def _missed(gate: dict[str, Any]) -> str:
    if gate["value"] is None:
        return f"{gate['metric']} had no value at the end"
    if gate["met"]:
        return f"{gate['metric']} met its bound at the end, but not yet over {gate['window']:,} steps"
    distance = short(abs(gate["value"] - gate["bound"]))
    return f"{gate['metric']} ended {distance} too {'high' if gate['comparison'] == '<=' else 'low'}"


def gates_title(gates: list[dict[str, Any]], *, ended: bool) -> str:
    """Return the title of the table of gates; ``ended``: there is a verdict."""
    met, held = (sum(bool(gate[key]) for gate in gates) for key in ("met", "held"))
    number = len(gates)
    when = "at the end" if ended else "so far"
    if held == number:
        return "The gate is held" if number == 1 else f"{_all_of(number).capitalize()} are held {when}"
    if number == 1:
        return f"The gate is {'met, but not held' if met else 'not met'} {when}"
    return f"{_some_of(held, number).capitalize()} held, {spelled(met) if met else 'none'} met {when}"


# --- curves


def _curves_title(report: RunReport) -> str:
    rows = [report.compared[gate["metric"]] for gate in report.gates if gate["metric"] in report.compared]
    if not report.gates:
        return f"Return and length of its {'games' if report.rivals else 'episodes'}"
    if not rows:
        return "How the gates were reached"
    worse = [metric_title(row.metric).lower() for row in rows if row.end == "worse"]
    seeds = "the recipe's seeds" if report.changed != [] else "the recipe's other seeds"
    return f"It ends worse than {seeds} in {listed(worse)}" if worse else f"It ends as well as {seeds}, or better"


def _gate_chart(report: RunReport, row: dict[str, Any]) -> Chart:
    metric, first, reference = row["metric"], row["first_held"], report.reference
    return Chart(
        title=metric_title(metric),
        caption=gate_caption(report, row),
        unit=_unit(report, metric),
        lines=(Line("this run", report.run.series[metric]),),
        x_max=report.run.env_steps,
        gate=Gate(metric, row["comparison"], row["bound"], row["hold"], row["share"], row["window"]),
        held=(max(first["env_steps"] - row["window"], 0), first["env_steps"]) if first else None,
        under=(reference, metric) if reference is not None and metric in reference.metrics else None,
        steps=report.steps,
    )


def gate_caption(report: RunReport, gate: dict[str, Any]) -> str:
    """Return the sentence below a gate's curve."""
    first, row = gate["first_held"], report.compared.get(gate["metric"])
    value = "without a value" if gate["value"] is None else f"at {short(gate['value'])}"
    text = f"Ends {value}, {'met' if gate['met'] else 'not met'}"
    if row is None:
        return f"{text}; {'held first at {:,} steps'.format(first['env_steps']) if first else 'never held'}."
    place = {"better": "better than", "worse": "worse than"}.get(row.end, row.end)
    when = f"first {when_held(first['env_steps'], row.median_held)}" if first else when_held(None, row.median_held)
    return f"{text}; {when}. Its end is {place} the middle 80% of the recipe's seeds."


def _plain_curves(report: RunReport) -> list[Chart]:
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
    """Return a metric's unit; where nobody else can sit there are episodes, not games."""
    unit = unit_of(metric)
    return unit if report.rivals else unit.replace("game", "episode")


def _chart(
    report: RunReport, title: str, unit: str, metrics: dict[str, str], *, share: bool = False, word: str = ""
) -> Chart:
    """Return a chart of those metrics (name -> label of its line) that the run has; ``word`` precedes labels."""
    series = report.run.series
    lines = tuple(Line(label, series[name]) for name, label in metrics.items() if name in series)
    ends = [float(line.series.values[-1]) for line in lines]
    if share:
        values = ", ".join(f"{percent(end)} {word}{line.label}" for end, line in zip(ends, lines, strict=True))
        return Chart(title, f"At the end {values}.", unit, lines, report.run.env_steps, share=True, steps=report.steps)
    names = [f" ({line.label})" if len(lines) > 1 else "" for line in lines]
    values = listed(short(end) + name for end, name in zip(ends, names, strict=True))
    return Chart(title, f"Ends at {values}.", unit, lines, report.run.env_steps, steps=report.steps)


def _played_title(report: RunReport) -> str:
    if report.played is None:
        return ""
    row = report.played.rows[0]
    if "win" in row:
        low, high = (percent(end, 1) for end in row["win_interval"])
        return f"In {plural(row['episodes'], 'fresh game')} it wins {percent(row['win'])} ({low} to {high})"
    word = "game" if report.rivals else "episode"
    count = f"{spelled(row['episodes'])} fresh {word}{'s'[: row['episodes'] != 1]}"
    low, high = map(short, row["return_interval"])
    return f"In {count} it returns {short(row['return_mean'])}" + ("" if low == "-" else f" ({low} to {high})")


# --- behaviour


def _own_seats(report: RunReport) -> list[str]:
    """Return the seats of the team on the page: red if it learned; none where nobody ever won or lost."""
    series = report.run.series
    seats = [name.removeprefix("win/") for name in series if name.startswith("win/")]
    results = [series[f"{metric}/{seat}"].values for metric in ("win", "defeat") for seat in seats]
    if report.package is not None and not any(values.any() for values in results):
        return []
    teams = {seat: _team(report, seat) for seat in seats}
    team = "red" if "red" in teams.values() else next(iter(teams.values()), "")
    return [seat for seat in seats if teams[seat] == team]


def behaviour_title(report: RunReport, seats: list[str]) -> str:
    """Return how often, and how, the learning team wins at the last report."""
    series = report.run.series
    if not seats:
        return ""
    share = float(series[f"win/{seats[0]}"].values[-1])
    door, eliminated = (
        sum(float(s.values[-1]) for seat in seats if (s := series.get(f"behaviour/{seat}/{name}")) is not None)
        for name in ("door_open", "eliminated_opponents")
    )
    how = ""
    if share > 0.05 and max(door, eliminated) > 0:
        how = ", mostly " + ("by elimination" if eliminated > door else "by its door")
    who = seats[0] if len(seats) == 1 else _team(report, seats[0])
    return f"At the end {who} wins {percent(share)} of the games{how}"


def _team(report: RunReport, seat: str) -> str:
    teams = report.run.config["scenario"].get("teams") or {}
    usual = seat.rpartition("_")[0] if report.package is None else ""
    return next((team for team, seats in teams.items() if seat in seats), usual or seat)


def _behaviour(report: RunReport, seats: list[str]) -> tuple[list[Chart], list[str]]:
    """Return shares of wins and each kind of event, and the kinds that never happened."""
    series, never, games = report.run.series, [], "share of the games"
    outcomes = {f"{metric}/{seats[0]}": word for metric, word in OUTCOMES.items()}
    team = _team(report, seats[0])
    charts = [_chart(report, f"Results of {team}", games, outcomes, share=True)]
    # Opponents that take turns: in one chart at most as many as there are line styles.
    against = [(name, name.split("/", 2)[2]) for name in series if name.startswith(f"win_against/{seats[0]}/")]
    title = f"Games won by {team}, by opponent"
    for k in range(0, len(against), 4):
        charts.append(_chart(report, title, games, dict(against[k : k + 4]), share=True, word="against "))
    all_seats = [name.removeprefix("win/") for name in series if name.startswith("win/")]
    for name in BEHAVIOUR:
        unit = "factors paid per game" if name == "ball_pay" else "times per game"
        chart = _chart(report, BEHAVIOURS[name], unit, {f"behaviour/{seat}/{name}": seat for seat in all_seats})
        if any(line.series.values.any() for line in chart.lines):
            charts.append(chart)
        elif chart.lines:
            never.append(BEHAVIOURS[name].lower())
    return charts, never


# --- the learner and time


def _learner(report: RunReport) -> list[Chart]:
    """Return charts of losses and other metrics of the learner."""
    modules = list(dict.fromkeys(name.split("/")[1] for name in report.run.series if name.startswith("learner/")))
    gated = {gate["metric"] for gate in report.gates}
    charts = []
    for pattern, title in _LEARNER.items():
        names = {pattern.format(module): module for module in modules}
        unit = unit_of(pattern.format("module")).removeprefix("1")
        if not gated.issuperset(names) and (chart := _chart(report, title, unit, names)).lines:
            charts.append(chart)
    return charts


def _stages(report: RunReport) -> list[tuple[str, float, float, bool]]:
    """Return rows of timing: words, seconds, share, and whether it is a part of the row above."""
    totals, own = report.totals, {} if report.rivals else {"engine": "the environments", "players": ""}
    whole = sum(totals.get(name, 0.0) for name, _, _ in _STAGES)
    rows = []
    for name, words, parts in _STAGES if whole else ():
        if name in totals:
            rows.append((words, totals[name], totals[name] / whole, False))
            inner = [(own.get(part, label), totals[part]) for part, label in parts.items() if part in totals]
            rows += [(label, seconds, seconds / whole, True) for label, seconds in inner if label]
    return rows


def _stages_title(totals: dict[str, float]) -> str:
    whole = sum(totals.get(name, 0.0) for name, _, _ in _STAGES)
    spent, words = max((totals.get(name, 0.0), words) for name, words, _ in _STAGES[:2])
    return f"{words} took {percent(spent / whole)} of {duration(whole)}" if whole else ""
