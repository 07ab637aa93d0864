"""The page of a training run: its content, and titles that state the conclusion."""

from typing import Any

from multigrid_rl.gates import Gate
from multigrid_rl.runs.reader import Series
from multigrid_rl.show.charts import Chart, Line, unit_of
from multigrid_rl.show.page import render
from multigrid_rl.show.replay import Pack
from multigrid_rl.show.run_data import RunReport, opponent_words, origin
from multigrid_rl.show.words import BEHAVIOURS, duration, listed, metric_title, percent, short, spelled
from multigrid_rl.text import one_line
from multigrid_rl.walkers.films import OwnEpisodes
from multigrid_rl.world.metrics import BEHAVIOUR

#: Parts of an iteration: name in ``timing/``, words, and its own parts.
_STAGES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("sample", "Playing", {
        "engine": "the game itself", "players": "opponents' decisions", "forward": "own networks",
        "tokens": "observations into the batch", "draw": "drawing actions", "gae": "advantages",
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
    "learner/{}/lr": "Step size of Adam",
    "learner/{}/entropy_coef": "Weight of the entropy bonus",
}


def run_page(report: RunReport) -> str:
    """Return the whole page. Pure: the same report gives the same page."""
    run, own, seats = report.run, report.own, _own_seats(report)
    curves = [_gate_chart(report, gate) for gate in report.gates if gate["metric"] in run.series]
    if report.package is not None or not curves:
        curves += _plain_curves(report)
    each = [f"#of {seat}" for seat in own.own if len(own.own) > 1] if own else []
    behaviour, never = _behaviour(report, seats) if seats else ([], [])
    return render(
        "run.html",
        kind=f"Training run \u00b7 {run.config['scenario']['name']} \u00b7 seed {run.config['seed']}",
        title=verdict_title(report),
        lead=verdict_lead(report),
        run=run,
        steps=report.env_steps,
        package=report.package,
        last={"policy_updates": 0, "episodes": 0, **report.last},
        seconds=float(report.last.get("seconds") or 0.0),
        gates=report.gates,
        gates_title=gates_title(report.gates, ended=run.verdict is not None),
        gates_lead=" ".join({gate["hold"]: _hold_words(gate) for gate in report.gates}.values()),
        changed=report.changed,
        usual=report.usual,
        curves=curves,
        curves_title=_curves_title(report),
        curves_lead=_curves_lead(report),
        reference=report.reference,
        own=own,
        own_title=own and _own_title(own.rows[0]),
        own_lead=own
        and f"Games of seed {own.seed}, which training never saw, with the exported policy on "
        f"{', '.join(own.own)}. Intervals hold with 95% confidence.",
        own_heads=own
        and ["Actions", "#Won", "#Drawn", "#Lost", "#Length", "#Team return" if each else "#Return", *each],
        episodes=report.episodes,
        episodes_title=report.episodes and _episodes_title(report.episodes),
        episodes_lead=report.episodes
        and f"Episodes of seed {report.episodes.seed}, which training never saw, with the exported policy on "
        f"{', '.join(report.episodes.agents)}. Intervals hold with 95% confidence.",
        own_missing=one_line(report.own_missing),
        behaviour=behaviour,
        behaviour_title=behaviour_title(report, seats),
        never=never,
        stages=_stages(report.totals, report.package),
        stages_title=_stages_title(report.totals),
        learner=_learner(report),
        origin=origin(report),
        opponents=[opponent_words(row) for row in run.provenance.get("opponents") or []],
        data=Pack.of(own.games).data() if own else None,
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
    if run.verdict is None:
        sentences.append("The run is still going, or it was killed: this is how it stands at its last report.")
    elif run.verdict["ended"] == "until" and report.held is None and report.gates:
        sentences.append("It spent its whole budget; " + _missed(report.gates))
    elif report.held is not None and not all(gate["held"] for gate in report.gates):
        missed = listed(gate["metric"] for gate in report.gates if not gate["held"])
        sentences.append(f"It went on afterwards, and at its end {missed} did not hold any more.")
    return " ".join(part for part in sentences if part)


def _missed(gates: list[dict[str, Any]]) -> str:
    rows = []
    for gate in gates:
        if gate["held"] or gate["value"] is None:
            continue
        beyond = f"{short(abs(gate['value'] - gate['bound']))} too {'high' if gate['comparison'] == '<=' else 'low'}"
        near = f"met at its end, but not for {gate['window']:,} steps" if gate["met"] else beyond
        rows.append(f"{gate['metric']} ended {near}")
    return "; ".join(rows) + "." if rows else "a gate had no value at its end."


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


def _hold_words(gate: dict[str, Any]) -> str:
    how = {"every": "at every report", "mean": "by the mean over"}.get(gate["hold"])
    how = how or f"at {percent(gate['share'])} of the reports"
    return (
        f"Held means: met {how}{'' if gate['hold'] == 'mean' else ' of'} the last {gate['window']:,} environment steps."
    )


# --- curves


def _curves_title(report: RunReport) -> str:
    rows = [report.compared[gate["metric"]] for gate in report.gates if gate["metric"] in report.compared]
    if not report.gates:
        return "Return and length of what it played"
    if not rows:
        return "How the gates were reached"
    worse = [metric_title(row.metric).lower() for row in rows if row.end == "worse"]
    seeds = "the recipe's seeds" if report.changed != [] else "the recipe's other seeds"
    return f"It ends worse than {seeds} in {listed(worse)}" if worse else f"It ends as well as {seeds}, or better"


def _curves_lead(report: RunReport) -> str:
    if report.reference is None and report.package is not None and not report.gates:
        return "Means over the episodes of training that ended since the report before."
    if report.reference is None:
        return "This run followed no recipe that has reference curves, so there is nothing to lay below it."
    return (
        f"Below it lies the recipe {report.reference.name} over {len(report.reference.runs)} seeds: the middle 80% of "
        "them and their median, dotted where seeds had ended and their last value is held on."
    )


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
    )


def gate_caption(report: RunReport, gate: dict[str, Any]) -> str:
    """Return the sentence below a gate's curve."""
    first = gate["first_held"]
    value = "without a value" if gate["value"] is None else f"at {short(gate['value'])}"
    text = f"Ends {value}, {'met' if gate['met'] else 'not met'}"
    text += f"; held first at {first['env_steps']:,} steps" if first else "; never held"
    row = report.compared.get(gate["metric"])
    if row is None:
        return text + "."
    if first and row.median_held:
        later = first["env_steps"] / row.median_held - 1
        relation = "as soon as" if abs(later) < 0.005 else f"{abs(later):.0%} {'later' if later > 0 else 'sooner'} than"
        text += f", {relation} the recipe's median seed"
    elif row.median_held:
        text += f" (the recipe's median seed: {row.median_held:,.0f} steps)"
    place = {"better": "better than", "worse": "worse than"}.get(row.end, row.end)
    return f"{text}. Its end is {place} the middle 80% of the recipe's seeds."


def _plain_curves(report: RunReport) -> list[Chart]:
    """Return curves of returns, of at most four agents, and lengths, where no gate shows them."""
    series, charts = report.run.series, []
    gated = {gate["metric"] for gate in report.gates}
    returns = [name for name in series if name.startswith("return_mean/") and name not in gated][:4]
    for title, names in (("Return", returns), (metric_title("episode_len_mean"), ["episode_len_mean"])):
        lines = tuple(Line(name.partition("/")[2], series[name]) for name in names if name in series)
        if lines and gated.isdisjoint(names):
            charts.append(_plain_chart(report, title, _unit(report, names[0]), lines))
    return charts


def _unit(report: RunReport, metric: str) -> str:
    """Return a metric's unit; other packages have episodes, not games."""
    unit = unit_of(metric)
    return unit if report.package is None else unit.replace("game", "episode")


def _plain_chart(report: RunReport, title: str, unit: str, lines: tuple[Line, ...]) -> Chart:
    ends = [short(float(line.series.values[-1])) for line in lines]
    names = [f" ({line.label})" if len(lines) > 1 else "" for line in lines]
    values = listed(end + name for end, name in zip(ends, names, strict=True))
    return Chart(title, f"Ends at {values}.", unit, lines, report.run.env_steps)


def _own_title(drawn: dict[str, Any]) -> str:
    low, high = (percent(end, 1) for end in drawn["win_interval"])
    games = f"{drawn['episodes']:,} fresh game{'s'[: drawn['episodes'] != 1]}"
    return f"In {games} it wins {percent(drawn['win'])} ({low} to {high})"


def _episodes_title(own: OwnEpisodes) -> str:
    drawn = own.rows[0]
    low, high = (short(end) for end in drawn["return_interval"])
    count = f"{spelled(drawn['episodes'])} fresh episode{'s'[: drawn['episodes'] != 1]}"
    return f"In {count} it returns {short(drawn['return_mean'])} ({low} to {high})"


# --- behaviour


def _own_seats(report: RunReport) -> list[str]:
    """Return the seats of the team on the page: red if it learned; none for environments without wins."""
    if report.package in ("gymnasium", "unity"):
        return []
    seats = [name.removeprefix("win/") for name in report.run.series if name.startswith("win/")]
    team = "red" if any(seat.startswith("red") for seat in seats) else seats[0].rpartition("_")[0] if seats else ""
    return [seat for seat in seats if seat.startswith(team)] or seats


def _team(seats: list[str]) -> str:
    return seats[0].rpartition("_")[0] or seats[0]


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
    who = seats[0] if len(seats) == 1 else _team(seats)
    return f"At the end {who} wins {percent(share)} of the games{how}"


def _behaviour(report: RunReport, seats: list[str]) -> tuple[list[Chart], list[str]]:
    """Return shares of wins and each kind of event, and the kinds that never happened."""
    series, never = report.run.series, []
    all_seats = [name.removeprefix("win/") for name in series if name.startswith("win/")]
    outcomes = {f"win/{seats[0]}": "won", f"draw/{seats[0]}": "drawn", f"defeat/{seats[0]}": "lost"}
    charts = [_share_chart(report, f"Results of {_team(seats)}", outcomes, "")]
    # Opponents that take turns: in one chart at most as many as there are line styles.
    against = {name: name.split("/", 2)[2] for name in series if name.startswith(f"win_against/{seats[0]}/")}
    for k in range(0, len(against), 4):
        part = dict(list(against.items())[k : k + 4])
        charts.append(_share_chart(report, f"Games won by {_team(seats)}, by opponent", part, "against "))
    for name in BEHAVIOUR:
        curves = [(seat, series.get(f"behaviour/{seat}/{name}")) for seat in all_seats]
        lines = tuple(Line(seat, curve) for seat, curve in curves if curve is not None)
        if any(line.series.values.any() for line in lines):
            unit = "factors paid per game" if name == "ball_pay" else "times per game"
            charts.append(_plain_chart(report, BEHAVIOURS[name], unit, lines))
        elif lines:
            never.append(BEHAVIOURS[name].lower())
    return charts, never


def _share_chart(report: RunReport, title: str, metrics: dict[str, str], word: str) -> Chart:
    """Return a chart of shares: metric -> its line's label, shares with ``word`` before it."""
    series = report.run.series
    lines = tuple(Line(label, series[name]) for name, label in metrics.items() if name in series)
    shares = ", ".join(f"{percent(float(line.series.values[-1]))} {word}{line.label}" for line in lines)
    return Chart(title, f"At the end {shares}.", "share of the games", lines, report.run.env_steps, share=True)


# --- the learner and time


def _learner(report: RunReport) -> list[Chart]:
    """Return charts of losses and other metrics of the learner."""
    series: dict[str, Series] = report.run.series
    modules = list(dict.fromkeys(name.split("/")[1] for name in series if name.startswith("learner/")))
    gated = {gate["metric"] for gate in report.gates}
    charts = []
    for pattern, title in _LEARNER.items():
        names = {module: pattern.format(module) for module in modules}
        lines = tuple(Line(module, series[name]) for module, name in names.items() if name in series)
        if lines and not gated.issuperset(names.values()):
            unit = unit_of(pattern.format(modules[0]))
            charts.append(_plain_chart(report, title, "" if unit == "1" else unit, lines))
    return charts


def _stages(totals: dict[str, float], package: str | None) -> list[tuple[str, float, float, bool]]:
    """Return rows of timing: words, seconds, share, and whether it is a part of the row above."""
    own = {} if package is None else {"engine": "the environments", "players": ""}
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
