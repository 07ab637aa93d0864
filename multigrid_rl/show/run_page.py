"""A training run as one page."""

from __future__ import annotations

from typing import Any

from multigrid_rl.judge.runs import one_line
from multigrid_rl.show.html import Child, Raw, join, section, table, tag, td, th
from multigrid_rl.show.page import Heading, page, replay_box
from multigrid_rl.show.replay import Pack
from multigrid_rl.show.run_curves import behaviour_section, curves_section, learner_section
from multigrid_rl.show.run_data import OwnGames, RunReport
from multigrid_rl.show.run_text import gate_title, time_title, verdict_lead, verdict_title
from multigrid_rl.show.words import bound, duration, metric_title, percent, plural, short

_MODES = {"stochastic": "actions drawn, as in training", "argmax": "always the likeliest action"}
#: Parts of an iteration: name in ``timing/``, words, and its own parts.
_STAGES: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "sample", "Playing", (
            ("engine", "the game itself"), ("players", "opponents' decisions"), ("forward", "own networks"),
            ("tokens", "observations into the batch"), ("draw", "drawing actions"), ("gae", "advantages"),
        ),
    ),
    (
        "learn", "Learning", (
            ("network", "forward and backward passes"), ("optimizer", "clipping and Adam"), ("loss", "the loss"),
            ("minibatch", "cutting minibatches"),
        ),
    ),
    ("sync", "Sending weights", ()),
    ("metrics", "Metrics and gates", ()),
    ("checkpoint", "Checkpoints", ()),
    ("other", "Everything else", ()),
)  # fmt: skip


def run_page(report: RunReport) -> str:
    """The whole page. Pure: the same report gives the same page."""
    parts: list[tuple[str, str, Raw]] = []

    def add(key: str, name: str, content: Raw | None) -> None:
        if content is not None:
            parts.append((key, name, content))

    add("gates", "Gates", _gates(report))
    add("curves", "Curves", curves_section(report))
    add("games", "Games", _games(report))
    add("behaviour", "Behaviour", behaviour_section(report))
    add("time", "Time", _time(report))
    add("learner", "Learner", learner_section(report))
    add("origin", "What it was", _origin(report))
    heading = Heading(
        f"Training run \u00b7 {report.run.config['scenario']['name']} \u00b7 seed {report.run.config['seed']}",
        verdict_title(report),
        verdict_lead(report),
        tuple((key, name) for key, name, _ in parts),
    )
    data = None
    if report.own is not None:
        pack = Pack()
        pack.games = [pack.pack(game) for game in report.own.games]
        data = pack.data()
    return page(heading, _tiles(report), *(content for _, _, content in parts), data=data)


def _tiles(report: RunReport) -> Raw:
    last = report.last
    seconds = float(last.get("seconds") or 0.0)
    rows = [
        ("Steps", f"{report.run.env_steps:,}"),
        ("Updates", f"{int(last.get('policy_updates') or 0):,}"),
        ("Games", f"{int(last.get('episodes') or 0):,}"),
        ("Time", duration(seconds)),
        ("Steps a second", f"{report.run.env_steps / seconds:,.0f}" if seconds else "none"),
    ]
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="tiles")


def _gates(report: RunReport) -> Raw | None:
    if not report.gates:
        return None
    head = (
        th("Gate"), th("Bound"), th("At the end", number=True), th("State"), th("First reached", number=True),
        th("Held at step", number=True), th("Updates", number=True), th("Time", number=True),
    )  # fmt: skip
    rows = [_gate_row(gate) for gate in report.gates]
    hold = {gate["hold"]: gate for gate in report.gates}
    lead = " ".join(_hold_words(gate) for gate in hold.values())
    title = gate_title(report.gates, told=report.run.verdict is not None)
    return section("gates", title, table(head, rows, caption="Gates and when they were held"), lead=lead)


def _gate_row(gate: dict[str, Any]) -> Raw:
    reached, held = gate["first_reached"], gate["first_held"]
    kind = "held" if gate["held"] else "met" if gate["met"] else "not"
    state = {"held": "\u2713 held", "met": "\u2713 met", "not": "\u2717 not met"}[kind]
    return tag(
        "tr",
        th(join(metric_title(gate["metric"]), " ", tag("code", gate["metric"])), scope="row"),
        td(bound(gate["comparison"], gate["bound"]), class_="nowrap"),
        td("none" if gate["value"] is None else short(gate["value"]), number=True),
        td(tag("span", state, class_=f"state {kind}")),
        td(f"{reached['env_steps']:,}" if reached else "never", number=True),
        td(f"{held['env_steps']:,}" if held else "never", number=True),
        td(f"{held['policy_updates']:,}" if held else "", number=True),
        td(duration(held["seconds"]) if held else "", number=True),
    )


def _hold_words(gate: dict[str, Any]) -> str:
    window = f"{gate['window']:,} environment steps"
    return {
        "every": f"Held means: met at every report of the last {window}.",
        "mean": f"Held means: met by the mean over the last {window}.",
        "share": f"Held means: met at {percent(gate['share'])} of the reports of the last {window}.",
    }[gate["hold"]]


# --- the policy's own games


def _games(report: RunReport) -> Raw | None:
    own = report.own
    if own is None:
        if not report.own_missing:
            return None
        told = f"The policy could not be played: {one_line(ValueError(report.own_missing))}"
        return section("games", "No games to show", tag("p", told, class_="note"))
    drawn = own.rows[0]
    title = (
        f"In {plural(drawn['episodes'], 'fresh game')} it wins {percent(drawn['win'])} "
        f"({percent(drawn['win_interval'][0], 1)} to {percent(drawn['win_interval'][1], 1)})"
    )
    lead = (
        f"Games of seed {own.seed}, which training never saw, with the exported policy on {', '.join(own.own)}. "
        "Intervals hold with 95% confidence."
    )
    return section("games", title, _games_table(own), tag("h3", "Best, median and worst game"), replay_box(), lead=lead)


def _games_table(own: OwnGames) -> Raw:
    head = (
        th("Actions"), th("Won", number=True), th("Drawn", number=True), th("Lost", number=True),
        th("Length", number=True), th("Return" if len(own.own) == 1 else "Team return", number=True),
        *(th(f"of {seat}", number=True) for seat in own.own if len(own.own) > 1),
    )  # fmt: skip
    rows = []
    for row in own.rows:
        shares = [_share(row, name) for name in ("win", "draw", "loss")]
        means = [_mean(row, name) for name in ("length", "return")]
        seats = [td(short(row["seats"][seat]), number=True) for seat in own.own if len(own.own) > 1]
        rows.append(tag("tr", th(_MODES[row["mode"]], scope="row"), shares, means, seats))
    return table(head, rows, caption=f"Fresh games of the exported policy, {own.rows[0]['episodes']} in each row")


def _share(row: dict[str, Any], name: str) -> Raw:
    low, high = row[f"{name}_interval"]
    return td(join(tag("b", percent(row[name], 1)), _range(percent(low, 1), percent(high, 1))), number=True)


def _mean(row: dict[str, Any], name: str) -> Raw:
    low, high = row[f"{name}_interval"]
    return td(join(tag("b", short(row[f"{name}_mean"])), _range(short(low), short(high))), number=True)


def _range(low: str, high: str) -> Raw:
    return tag("span", f"{low} to {high}", class_="range")


# --- time and origin


def _time(report: RunReport) -> Raw | None:
    totals = report.totals
    seconds = sum(totals.get(name, 0.0) for name, _, _ in _STAGES)
    if not seconds:
        return None
    rows = []
    for name, words, parts in _STAGES:
        if name not in totals:
            continue
        rows.append(_time_row(words, totals[name], seconds))
        known = [(part, told) for part, told in parts if part in totals]
        rows += [_time_row(told, totals[part], seconds, part=True) for part, told in known]
    head = (th("Part"), th("Seconds", number=True), th("Share", number=True), th(""))
    made = table(head, rows, caption="Where the time of training went")
    return section("time", time_title(totals, seconds), made, lead="Set-up is not counted.")


def _time_row(words: str, spent: float, seconds: float, *, part: bool = False) -> Raw:
    share = spent / seconds
    filled = tag("rect", width=f"{100 * share:.2f}%", height="100%")
    bar = tag("svg", filled, width="100%", height=10, aria_hidden="true")
    return tag(
        "tr",
        th(words, scope="row"),
        td(f"{spent:.2f}", number=True),
        td(percent(share), number=True),
        td(bar, class_="bar-cell"),
        class_="part" if part else None,
    )


def _origin(report: RunReport) -> Raw:
    config, story = report.run.config, report.run.provenance
    versions = story.get("versions") or {}
    model, train = config.get("model") or {}, config.get("train") or {}
    rows: list[tuple[str, Child]] = [
        ("Scenario", config["scenario"]["name"]),
        ("Recipe", config.get("experiment") or "none"),
        ("Scheme", config.get("scheme")),
        ("Opponents", _opponents(story.get("opponents") or [])),
        ("Network", f"{model.get('name')} {model.get('hidden')}" if model else None),
        ("Budget", f"{train['until']:,} steps" if isinstance(train.get("until"), int) else None),
        ("Seed", config["seed"]),
        ("Command", tag("code", str(story["command"])) if story.get("command") else None),
        ("Started", story.get("started")),
        ("Commit", tag("code", str(story["commit"])) if story.get("commit") else None),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or None),
        ("Folder", tag("code", str(report.run.path))),
    ]
    told = [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows if value not in (None, "")]
    return section("origin", "What it was", tag("dl", told, class_="origin"))


def _opponents(rows: list[dict[str, Any]]) -> Raw | str:
    if not rows:
        return "nobody"
    items = []
    for row in rows:
        known = next((s for s in row.get("strength") or [] if s.get("opponent") == "random"), None)
        beats = f", wins {percent(known['win'])} against random" if known else ""
        weight = f" in {percent(row['weight'])} of the games" if row.get("weight", 1.0) < 1.0 else ""
        sha = join(", sha256 ", tag("code", str(row["sha256"])[:12])) if row.get("sha256") else None
        items.append(tag("li", f"{row.get('name')} on {row.get('seat')}{weight}{beats}", sha))
    return tag("ul", items, class_="plain")
