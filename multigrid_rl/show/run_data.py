"""Everything that a run's page tells, read from its folder and from fresh games of its policy."""

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multigrid_rl.config import ConfigError
from multigrid_rl.gates import GateKeeper, Moment
from multigrid_rl.judge.evaluation import evaluate, kept_games, seat_returns, summary
from multigrid_rl.judge.lineups import run_target
from multigrid_rl.judge.replays import GameRecord
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.factories import env_factory, gates_of
from multigrid_rl.runs.reader import Run, check_env, read_rows, read_run
from multigrid_rl.runs.reference import Comparison, Reference, changes, compare, load_reference
from multigrid_rl.schema import RunConfig, TrainConfig
from multigrid_rl.show.films import EPISODES, OwnEpisodes, play_own_episodes
from multigrid_rl.show.words import percent
from multigrid_rl.sizes import reward_facts, schedules
from multigrid_rl.text import expected, one_line
from multigrid_rl.types import RunError

#: Seed of the policy's own games: training starts from small numbers, and no game of these is among its own.
GAMES_SEED = 50_000
#: Games for each mode unless told otherwise.
GAMES = 200
_GATE_KEYS = (
    "metric", "comparison", "bound", "hold", "share", "window", "value", "met", "held", "first_reached", "first_held",
)  # fmt: skip


@dataclass(frozen=True)
class OwnGames:
    """Fresh games of the exported policy."""

    seed: int
    rows: list[dict[str, Any]]  # one for each mode: "mode", "seats" (mean return of each), and evaluation.summary's
    own: tuple[str, ...]  # seats that the policy fills
    games: list[GameRecord]  # best, median and worst of each mode


@dataclass(frozen=True)
class RunReport:
    """What a run's page shows."""

    run: Run
    gates: list[dict[str, Any]]  # as in a verdict; of a run without one as they stand at its last report
    held: Moment | None  # when all gates were held together; None: never
    totals: dict[str, float]  # seconds of each ``timing/*_s`` metric over the whole run: "sample" and so on
    last: dict[str, Any]  # the last row of metrics.jsonl
    reference: Reference | None  # the recipe's curves
    compared: dict[str, Comparison]  # the run against them, by metric
    changed: list[tuple[str, str, str]] | None  # key, here, in the recipe (without one: the default); None: unknown
    own: OwnGames | None  # fresh games of its policy
    episodes: OwnEpisodes | None  # the same, where it plays an environment of another package
    own_missing: str  # why there is neither; empty if there is, or if nobody wanted any

    @property
    def usual(self) -> str:
        """What it is compared with."""
        recipe = self.run.config.get("experiment") if self.reference is None else self.reference.name
        return f"the recipe {recipe}" if recipe else "the defaults"

    @property
    def env_steps(self) -> int:
        """Environment steps that it has played; behind its last report there may be some."""
        return int(self.last["env_steps"])

    @property
    def package(self) -> str | None:
        """Whose environments it plays; ``None``: the red/blue-door game."""
        scenario = self.run.config["scenario"]
        return None if scenario.get("game") is not None else str(scenario.get("package"))


def read_report(folder: Path, *, games: int | None = None, reference: Path | None = None) -> RunReport:
    """Read a run folder and play fresh games of its policy.

    Args:
        folder: of the run.
        games: how many in each mode; by default :data:`GAMES`, of other packages :data:`films.EPISODES`; 0: none.
        reference: file of the recipe's curves.

    Raises:
        ConfigError: not a run folder, a damaged file, no reports yet, a reference that cannot be used.
    """
    run = read_run(folder)
    rows = read_rows(folder / "metrics.jsonl")
    gates, held = _judged(run, rows)
    curves = load_reference(reference) if reference is not None else None
    own, episodes, missing = None, None, ""
    if games != 0:
        try:
            if run.config["scenario"].get("game") is None:
                episodes = play_own_episodes(folder, games or EPISODES, seed=GAMES_SEED)
            else:
                own = play_own_games(folder, games or GAMES)
        except (ConfigError, PlayerError, RunError) as error:
            missing = str(error)
    compared: dict[str, Comparison] = {}
    with suppress(ConfigError):  # the run ended before the reference begins: nothing to compare yet
        compared = {row.metric: row for row in compare(run, curves)} if curves is not None else {}
    totals: dict[str, float] = {}
    for name, value in (item for row in rows for item in row.items()):
        if value is not None and (found := re.fullmatch("timing/(.*)_s", name)):
            totals[found[1]] = totals.get(found[1], 0.0) + value
    changed = changes(run.config, run.config.get("experiment") if curves is None else curves.name)
    return RunReport(run, gates, held, totals, rows[-1], curves, compared, changed, own, episodes, missing)


def play_own_games(folder: Path, games: int, *, seed: int = GAMES_SEED) -> OwnGames:
    """Play ``games`` fresh games in each mode with a run's exported policy, against the opponents that it met.

    Raises:
        ConfigError, PlayerError: no checkpoint, no game of ours, an opponent that is gone or has changed.
    """
    found = evaluate(run_target(folder), episodes=games, seed=seed)
    rows = [
        {"mode": part.mode, "seats": seat_returns(part, found.spec), **summary([part], found.spec)}
        for part in found.parts
    ]
    own = found.parts[0].lineup.own
    # The lineup calls them by their files' paths; on the page they are the run.
    kept = [
        game.model_copy(update={"players": {**game.players, **dict.fromkeys(own, "this run")}})
        for game in kept_games(found)
    ]
    return OwnGames(seed, rows, own, kept)


def _judged(run: Run, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Moment | None]:
    """Return the gates and when all were held: from the verdict, or from the reports of a run that has none yet."""
    told = _provisional(run, rows) if run.verdict is None else run.verdict
    moment = ("env_steps_to_held", "policy_updates_to_held", "seconds_to_held")
    lost = [key for key in moment if key not in told]
    lost += [f"gates.{key}" for key in _GATE_KEYS for gate in told["gates"] if key not in gate]
    if lost:
        raise ConfigError(expected(run.path / "verdict.json", f"{lost[0]}, as the run wrote it", "none"))
    held = None if told[moment[0]] is None else Moment(*(told[key] for key in moment))
    return told["gates"], held


def _provisional(run: Run, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict as training would give it at the last report."""
    try:
        config = RunConfig.model_validate(run.config)
        check_env(run.path, config.scenario.env_id, config.scenario.env_args)
        gates = gates_of(config, env_factory(config).specs)
    except ValueError:
        gates = []  # a configuration of another version, or of a larger machine: the curves still tell much
    keeper = GateKeeper(gates, 1)  # what has a number of episodes is a report
    for number, row in enumerate(rows, 1):
        values = {gate.metric: math.nan if (v := row.get(gate.metric)) is None else v for gate in gates}
        try:
            now = Moment(row["env_steps"], row["policy_updates"], row["seconds"])
            keeper.report(now, int(row.get("report_episodes") or 0), values)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{run.path / 'metrics.jsonl'}: line {number}: {one_line(error)}") from error
    return keeper.verdict()


# --- what it was


def origin(report: RunReport) -> list[tuple[str, Any]]:
    """Return what a run was, in rows: name, value."""
    config, story = report.run.config, report.run.provenance
    model, train = config.get("model") or {}, config.get("train") or {}
    acting: list[tuple[str, str]] = []  # what is added to the reward, and what changes while a run goes on
    with suppress(ValueError):  # of another version
        its = TrainConfig.model_validate(train)
        acting = [(name, f"{values}, {course}") for name, values, course in schedules(its, changing=True)]
        acting = [(name.capitalize(), said) for name, said in [*reward_facts(its), *acting]]
    rows = [
        ("Scenario", config["scenario"]["name"]),
        ("Recipe", config.get("experiment") or "none"),
        ("Scheme", config.get("scheme")),
        ("Network", f"{model.get('name')} {model.get('hidden')}" if model else None),
        ("Budget", f"{train['until']:,} steps" if isinstance(train.get("until"), int) else None),
        *acting,
        ("Seed", config["seed"]),
        ("Command", story.get("command")),
        ("Started", story.get("started")),
        ("Commit", story.get("commit")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in (story.get("versions") or {}).items())),
        ("Folder", report.run.path),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]


def opponent_words(row: dict[str, Any]) -> tuple[str, str]:
    """Return an opponent of a run in words, and the start of its sha256."""
    known = next((s for s in row.get("strength") or [] if s.get("opponent") == "random"), None)
    beats = f", wins {percent(known['win'])} against random" if known else ""
    weight = f" in {percent(row['weight'])} of the games" if row.get("weight", 1.0) < 1.0 else ""
    return f"{row.get('name')} on {row.get('seat')}{weight}{beats}", str(row.get("sha256") or "")[:12]
