"""Content of a run's page, read from its folder and from fresh games of its policy."""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from multigrid_rl.config.scenario import env_factory, kind_named, packages
from multigrid_rl.config.schema import RunConfig, TrainConfig, trainer_of
from multigrid_rl.evaluation.evaluation import evaluate, labelled_games, seat_returns, summary
from multigrid_rl.evaluation.replays import ZooRecord
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.gates import GateKeeper, Moment
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.runs.players import check_env
from multigrid_rl.runs.reader import RunRecord, read_rows, read_run, read_standings
from multigrid_rl.runs.reports import gates_of
from multigrid_rl.show import EPISODES, GAMES
from multigrid_rl.show.films import GameDrawing
from multigrid_rl.show.reference import Reference, changes, load_reference
from multigrid_rl.show.video import PageFilm, page_film
from multigrid_rl.text import ConfigError, expected, one_line, percent
from multigrid_rl.training.screen import reward_facts, schedules
from multigrid_rl.types import RunError

#: Seed of the policy's fresh games: training uses small seeds, so none of them was a training game.
GAMES_SEED = 50_000
_GATE_KEYS = (
    "metric", "comparison", "bound", "hold", "share", "window", "value", "met", "held", "first_reached", "first_held",
)  # fmt: skip


@dataclass(frozen=True)
class FreshGames:
    """Fresh games of the exported policy."""

    seed: int
    agents: tuple[str, ...]  # seats that the policy fills
    rows: list[dict[str, Any]]  # one for each mode: "mode", "seats" (mean return of each), and evaluation.summary's
    games: list[Any] = field(default_factory=list)  # best, median and worst of each mode (of ``replays``)
    chosen: dict[str, GameDrawing] = field(default_factory=dict)  # "best", "median", "worst", for films


@dataclass(frozen=True)
class RunReport:
    """Content of a run's page."""

    run: RunRecord
    gates: list[dict[str, Any]]  # as in a verdict; of a run without one at its last report
    held: Moment | None  # when all gates were held together; None: never
    totals: dict[str, float]  # seconds of each ``timing/*_s`` metric over the run: "sample" and so on
    last: dict[str, Any]  # the last row of metrics.jsonl
    reference: Reference | None  # the recipe's curves
    changed: list[tuple[str, str, str]] | None  # key, here, in the recipe (without one: the default); None: unknown
    played: FreshGames | None  # fresh games or episodes of its policy
    not_played: str = ""  # the reason where there are none, but should be
    films: tuple[PageFilm, ...] = ()  # of the best, median and worst episode
    not_drawn: str = ""  # the reason where there are none, but could be

    @property
    def usual(self) -> str:
        """The configuration to which the run is compared."""
        recipe = self.run.config.get("experiment") if self.reference is None else self.reference.name
        return f"the recipe {recipe}" if recipe else "the defaults"

    @property
    def env_steps(self) -> int:
        """Environment steps so far, including those after its last report."""
        return int(self.last["env_steps"])

    @property
    def steps(self) -> str:
        """Kind of its steps, in a word: a clone counts recorded ones."""
        return str(trainer_of(self.run.config["train"].get("trainer", "ppo")).counts[1])

    @property
    def package(self) -> str | None:
        """Package of its environment; ``None``: the red/blue-door game."""
        scenario = self.run.config["scenario"]
        return None if scenario.get("game") is not None else str(scenario.get("package"))

    @property
    def rivals(self) -> bool:
        """Whether it plays games with seats for other players."""
        return self.package is None or (self.package in packages() and kind_named(self.package).rivals)


def read_report(
    folder: Path, *, games: int | None = None, reference: Path | None = None, films: bool = True
) -> RunReport:
    """Read a run folder and play fresh games of its policy.

    ``games``: how many in each mode; by default :data:`GAMES`, of other packages :data:`EPISODES`; 0: none. Raises
    ``ConfigError``: not a run folder, a damaged file, no reports yet, a reference that cannot be used.
    """
    run = read_run(folder)
    rows = read_rows(folder / "metrics.jsonl")
    gates, held = _gates_and_moment(run, rows)
    curves = load_reference(reference) if reference is not None else None
    timing_names = {name for row in rows for name in row if name.startswith("timing/") and name.endswith("_s")}
    totals = {name[len("timing/") : -len("_s")]: sum(row.get(name) or 0.0 for row in rows) for name in timing_names}
    changed = changes(run.config, run.config.get("experiment") if curves is None else curves.name)
    report = RunReport(run, gates, held, totals, rows[-1], curves, changed, played=None)
    return report if games == 0 else _with_games(report, games, films=films)


def _with_games(report: RunReport, games: int | None, *, films: bool) -> RunReport:
    """Return the report with fresh games or episodes of its policy, and films of those that can be drawn."""
    try:
        played = play_fresh_games(report.run.path, games or (GAMES if report.rivals else EPISODES), seed=GAMES_SEED)
    except (ConfigError, PlayerError, RunError) as error:
        return replace(report, not_played=str(error))
    report = replace(report, played=played)
    if played.chosen and not films:
        return replace(report, not_drawn="the report was written without films")
    try:
        return replace(report, films=tuple(page_film(drawing, label) for label, drawing in played.chosen.items()))
    except ConfigError as error:
        return replace(report, not_drawn=str(error))


def play_fresh_games(folder: Path, games: int, *, seed: int) -> FreshGames:
    """Play ``games`` fresh games in each mode with a run's exported policy, against its training opponents.

    Raises:
        ConfigError, PlayerError: no checkpoint, a damaged player, an opponent that is missing or has changed.
    """
    evaluation = evaluate(find_target(str(folder)), episodes=games, seed=seed, keep=True)
    parts, run_prefix, records = evaluation.parts, f"{folder}/", []
    # The lineup names players by the paths of their files; the page names the run.
    for game in labelled_games(evaluation):
        players = {seat: "this run" if name.startswith(run_prefix) else name for seat, name in game.players.items()}
        records.append(game.model_copy(update={"players": players}))
    seats, episodes = parts[0].lineup.judged_seats, [game for game in records if isinstance(game, ZooRecord)]
    drawings = {each.label.partition(" ")[0]: GameDrawing(each, seats) for each in episodes if "(stoch" in each.label}
    if drawings and drawings["best"].texts:  # a page steps through them
        drawings = {}
    rows = [{"mode": part.mode, "seats": seat_returns(part), **summary([part])} for part in parts]
    return FreshGames(seed, seats, rows, records, drawings)


def _gates_and_moment(run: RunRecord, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Moment | None]:
    """Return the gates and the moment at which all were held, from the verdict or, without one, from the reports."""
    verdict = _provisional_verdict(run, rows) if run.verdict is None else run.verdict
    moment = ("env_steps_to_held", "policy_updates_to_held", "seconds_to_held")
    missing = [key for key in moment if key not in verdict]
    missing += [f"gates.{key}" for key in _GATE_KEYS for gate in verdict["gates"] if key not in gate]
    if missing:
        raise ConfigError(expected(run.path / "verdict.json", f"{missing[0]}, as the run wrote it", "none"))
    held = None if verdict[moment[0]] is None else Moment(*(verdict[key] for key in moment))
    return verdict["gates"], held


def _provisional_verdict(run: RunRecord, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict of training at the last report, by the reports of a curriculum's last stage."""
    try:
        config = RunConfig.model_validate(run.config)
        check_env(run.path, config.scenario.env_id, config.scenario.env_args)
        gates = gates_of(config, env_factory(config).specs)
    except ValueError:
        gates = []  # a configuration of another version, or of a larger machine: the curves are still useful
    keeper = GateKeeper(gates, 1)  # rows with a number of episodes are reports
    last = len(run.config.get("curriculum") or ())
    for number, row in enumerate(rows, 1):
        values = {gate.metric: math.nan if (v := row.get(gate.metric)) is None else v for gate in gates}
        try:
            moment = Moment(row["env_steps"], row["policy_updates"], row["seconds"])
            episodes = int(row.get("report_episodes") or 0) if row.get("stage", last) == last else 0
            keeper.report(moment, episodes, values)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{run.path / 'metrics.jsonl'}: line {number}: {one_line(error)}") from error
    return keeper.verdict()


def standings(run: RunRecord) -> list[dict[str, Any]]:
    """Return the opponents of a run that has several, the lowest share of wins first; of other runs nothing.

    Each has ``player``, ``since`` (steps after which it joined; ``None``: the start), ``win`` (share of the games won
    against it, in a league a draw counts half; ``None``: no game yet) and ``share`` of the current games against it.

    Raises ``ConfigError``: a damaged file.
    """
    if not (found := read_standings(run.path)):
        names = [name for name in run.series if name.startswith("win_against/")]
        shares = {row["name"]: float(row.get("weight", 0.0)) for row in run.provenance.get("opponents") or []}
        wins = {name.split("/", 2)[2]: float(run.series[name].values[-1]) for name in names}
        found = [{"player": k, "since": None, "win": win, "share": shares.get(k, 0.0)} for k, win in wins.items()]
    return sorted(found, key=lambda row: 2.0 if row["win"] is None else row["win"]) if len(found) > 1 else []


# --- origin


def origin(report: RunReport) -> list[tuple[str, Any]]:
    """Return configuration and provenance of a run, in rows: name, value."""
    config, provenance = report.run.config, report.run.provenance
    model, train = config.get("model") or {}, config.get("train") or {}
    settings: list[tuple[str, str]] = []  # additions to the reward, and schedules
    with suppress(ValueError):  # of another version
        options = TrainConfig.model_validate(train)
        settings = [(name, f"{values}, {change}") for name, values, change in schedules(options, changing=True)]
        settings = [(name.capitalize(), text) for name, text in [*reward_facts(options), *settings]]
    rows = [
        ("Scenario", config["scenario"]["name"]),
        ("Environment", config["scenario"].get("env_id")),
        ("Recipe", config.get("experiment") or "none"),
        ("Scheme", config.get("scheme")),
        ("Network", f"{model.get('name')} {model.get('hidden')}" if model else None),
        ("Budget", f"{train['until']:,} steps" if isinstance(train.get("until"), int) else None),
        *settings,
        ("Seed", config["seed"]),
        ("Command", provenance.get("command")),
        ("Started", provenance.get("started")),
        ("Commit", provenance.get("commit")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in (provenance.get("versions") or {}).items())),
        ("Folder", report.run.path),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]


def opponent_words(run: RunRecord, row: dict[str, Any]) -> tuple[str, str]:
    """Return an opponent of a run in words, and the start of its sha256."""
    scenario = run.config["scenario"]["name"]
    found = [(s["win"], s.get("scenario", scenario)) for s in row.get("strength") or [] if s["opponent"] == "random"]
    win, place = min(found, key=lambda each: each[1] != scenario, default=(None, scenario))
    where = "" if place == scenario else f" in {place}"
    beats = "" if win is None else f", wins {percent(win)} against random{where}"
    weight = f" in {percent(row['weight'])} of the games" if row.get("weight", 1.0) < 1.0 else ""
    return f"{row.get('name')} on {row.get('seat')}{weight}{beats}", str(row.get("sha256") or "")[:12]
