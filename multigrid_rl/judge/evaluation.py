"""Playing fresh games with frozen policies, batched, and their tables: no training, no Ray."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config import ConfigError
from multigrid_rl.judge.lineups import EvalTarget, Lineup, Sides, run_target
from multigrid_rl.judge.replays import GameRecord, record
from multigrid_rl.metrics import BEHAVIOUR, mean_interval, wilson_interval
from multigrid_rl.players.match import Played, play_games
from multigrid_rl.runs.reader import run_config
from multigrid_rl.schema import RunConfig
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, GameSpec
from multigrid_rl.world.constants import BALL, BLUE, EVENTS, HEIGHT, KEY, RED

#: ``stochastic`` draws actions as in training, ``argmax`` takes the likeliest.
Mode = Literal["stochastic", "argmax"]
MODES: tuple[Mode, ...] = ("stochastic", "argmax")

#: Games are played in batches of so many: their actions stay small in memory, however many games there are.
BATCH = 4096
CODE = {"red": RED, "blue": BLUE}


@dataclass(frozen=True)
class Part:
    """Games of one mode and side.

    Attributes:
        mode: how the judged player acted; everybody else drew actions.
        lineup: who sat where.
        played: the games, in batches; game ``k`` of all is row ``k - b * BATCH`` of batch ``b``.
    """

    mode: Mode
    lineup: Lineup
    played: tuple[Played, ...]

    @property
    def table(self) -> EpisodeTable:
        """All its episodes (M,), in the order of the games' numbers."""
        return EpisodeTable.concatenate([played.table for played in self.played])

    @property
    def start(self) -> NDArray[np.uint8]:
        """Boards at the start (M, 128)."""
        return np.concatenate([played.start for played in self.played])


@dataclass(frozen=True)
class Evaluation:
    """All games of a judged player.

    Attributes:
        name: of the player.
        spec: the game.
        seed: with a game's number it decides everything random in it; modes and sides share seed and numbers.
        parts: one for each mode and side.
        seconds: that playing took, start-up not counted.
    """

    name: str
    spec: GameSpec
    seed: int
    parts: tuple[Part, ...]
    seconds: float


def evaluate(
    target: EvalTarget, *, episodes: int, seed: int, modes: tuple[Mode, ...] = MODES, sides: Sides = "own"
) -> Evaluation:
    """Play ``episodes`` games in each mode, shared out among the sides.

    Raises:
        ConfigError, PlayerError: a side that is not there, fewer games than sides, a player that cannot be used.
    """
    teams = target.teams(sides)
    if episodes < len(teams):
        raise ConfigError(expected("--episodes", f"at least {len(teams)}, one for each side", episodes))
    shares = [episodes - (len(teams) - 1) * (episodes // len(teams)), episodes // len(teams)]
    lineups = [
        (mode, games, target.lineup(team, greedy=mode == "argmax"))
        for mode in modes
        for team, games in zip(teams, shares, strict=False)
    ]
    for _, _, lineup in lineups:  # kernels are compiled or loaded here: that is start-up
        play_games(target.spec, lineup.players(target.spec), 1, seed=seed)
    began = time.perf_counter()
    parts = tuple(Part(mode, lineup, _batches(target.spec, lineup, games, seed)) for mode, games, lineup in lineups)
    return Evaluation(target.name, target.spec, seed, parts, time.perf_counter() - began)


def _batches(spec: GameSpec, lineup: Lineup, games: int, seed: int) -> tuple[Played, ...]:
    firsts = range(0, games, BATCH)
    return tuple(
        play_games(spec, lineup.players(spec), min(BATCH, games - first), seed=seed, first_game=first)
        for first in firsts
    )


def summary(parts: list[Part], spec: GameSpec) -> dict[str, Any]:
    """Shares and means of some parts together, each with its 95 % interval; parts of different sides may be mixed.

    Returns are those of the judged player's own seats, summed. Intervals of shares are Wilson's.
    """
    tables = [(part.table, part.lineup) for part in parts]
    lengths = np.concatenate([table.length for table, _ in tables]).astype(np.float64)
    returns = np.concatenate([table.returns[:, _own(lineup, spec)].sum(axis=1) for table, lineup in tables])
    won = np.concatenate([results_of(table, lineup.team) for table, lineup in tables])
    counts = {name: int((won == value).sum()) for name, value in (("win", 1), ("draw", 0), ("loss", -1))}
    episodes = len(won)
    row: dict[str, Any] = {"episodes": episodes}
    for name, count in counts.items():
        row[name] = count / episodes
        row[f"{name}_interval"] = list(wilson_interval(count, episodes))
    for name, values in (("return", returns), ("length", lengths)):
        mean, low, high = mean_interval(values)
        row |= {f"{name}_mean": mean, f"{name}_interval": [low, high]}
    row["against"] = _against(tables, spec)
    row["events"] = {
        name: float(np.concatenate([_events(t, lineup, spec, event) for t, lineup in tables]).mean())
        for name, event in BEHAVIOUR.items()
    }
    return row


def _against(tables: list[tuple[EpisodeTable, Lineup]], spec: GameSpec) -> dict[str, dict[str, Any]]:
    """Results against each player of a pool: of the games in which it sat on a seat of the other team."""
    results: dict[str, list[NDArray[np.int8]]] = {}
    for table, lineup in tables:
        outcome = results_of(table, lineup.team)
        for name, games in lineup.games_against(table, spec).items():
            results.setdefault(name, []).append(outcome[games])
    rows: dict[str, dict[str, Any]] = {}
    for name, parts in results.items():
        won = np.concatenate(parts)
        counts = {key: int((won == value).sum()) for key, value in (("win", 1), ("draw", 0), ("loss", -1))}
        rows[name] = {"episodes": len(won), **{key: count / max(len(won), 1) for key, count in counts.items()}}
        if len(won):
            rows[name]["win_interval"] = list(wilson_interval(counts["win"], len(won)))
    return rows


def seat_returns(part: Part, spec: GameSpec) -> dict[str, float]:
    """Mean return of each own seat."""
    means = part.table.returns.mean(axis=0)
    return {seat: float(means[spec.seats.index(seat)]) for seat in part.lineup.own}


def kept_games(evaluation: Evaluation) -> list[GameRecord]:
    """Best, median and worst game of each part, by the own return, then by length."""
    games = []
    for part in evaluation.parts:
        table = part.table
        own = table.returns[:, _own(part.lineup, evaluation.spec)].sum(axis=1)
        # A good game is short, a bad one was lost soon: the longest of equal return stand in the middle.
        speed = np.where(own > 0, -table.length, table.length)
        ranked = np.lexsort((speed, own))
        for label, place in (("best", -1), ("median", len(ranked) // 2), ("worst", 0)):
            where = f"{part.mode}, {part.lineup.team}"
            games.append(_record(evaluation, part, int(ranked[place]), f"{label} ({where})"))
    return games


def _record(evaluation: Evaluation, part: Part, game: int, label: str) -> GameRecord:
    played, names = part.played[game // BATCH], part.lineup.names()
    return record(evaluation.spec, played, game % BATCH, seed=evaluation.seed, players=names, label=label)


def _own(lineup: Lineup, spec: GameSpec) -> list[int]:
    return [spec.seats.index(seat) for seat in lineup.own]


def results_of(table: EpisodeTable, team: str) -> NDArray[np.int8]:
    """1 for a win of ``team``, 0 for a draw, -1 for a loss (M,), from the win flag."""
    return np.where(table.winner < 0, 0, np.where(table.winner == CODE[team], 1, -1)).astype(np.int8)


def _events(table: EpisodeTable, lineup: Lineup, spec: GameSpec, event: str) -> NDArray[np.float64]:
    return np.asarray(table.events[:, _own(lineup, spec), EVENTS.index(event)].sum(axis=1))


def replay_policy(
    run: Path, *, episodes: int, seed: int, mode: Mode, checkpoint: str | None = None
) -> tuple[RunConfig, EpisodeTable]:
    """Play ``episodes`` fresh games with a run's exported policies against the opponents it trained against.

    Returns the run's configuration and the finished games.

    Raises:
        ConfigError, PlayerError: no run, no such checkpoint, a damaged player.
    """
    target = run_target(run, checkpoint=checkpoint)
    evaluation = evaluate(target, episodes=episodes, seed=seed, modes=(mode,))
    return run_config(run), evaluation.parts[0].table


RESULTS = {1: "win", 0: "draw", -1: "loss"}


def episode_columns(evaluation: Evaluation) -> dict[str, list[Any] | NDArray[Any]]:
    """Columns of the table of all episodes, parts one after the other, games in the order of their numbers.

    ``seed`` and ``game`` decide the game, ``layout`` says where its keys lay, ``result`` is that of the judged player
    by the win flag; then who sat on each seat, and each seat's return and events.
    """
    columns: dict[str, list[Any] | NDArray[Any]] = {}
    parts = [_columns(part, evaluation.spec, evaluation.seed) for part in evaluation.parts]
    for name in parts[0]:
        columns[name] = np.concatenate([part[name] for part in parts])
    return columns


def _columns(part: Part, spec: GameSpec, seed: int) -> dict[str, NDArray[Any]]:
    table, games = part.table, part.table.episodes
    teams = {code: team for team, code in CODE.items()}
    columns: dict[str, NDArray[Any]] = {
        "mode": np.full(games, part.mode),
        "side": np.full(games, part.lineup.team),
        "seed": np.full(games, seed),
        "game": np.arange(games),
        "layout": np.array([layout(cells) for cells in part.start]),
        "length": table.length,
        "winner": np.array([teams.get(int(code), "nobody") for code in table.winner]),
        "result": np.array([RESULTS[int(r)] for r in results_of(table, part.lineup.team)]),
    }
    for seat, name in part.lineup.names().items():
        columns[f"player/{seat}"] = np.full(games, name)
    for a, seat in enumerate(spec.seats):
        columns[f"return/{seat}"] = table.returns[:, a].round(9)  # the same on every machine, to the last digit
        for e, event in enumerate(EVENTS):
            columns[f"{event}/{seat}"] = table.events[:, a, e].round(6)  # events are single precision
    return columns


def layout(cells: NDArray[np.uint8]) -> str:
    """Where keys and balls of one board (128,) lie, as ``red key 7 4, blue key 8 3``: cells are x and y."""
    told = []
    for team, colour in enumerate(("red", "blue")):
        for what, code in (("key", KEY + 2 * team), ("ball", BALL + team)):
            told += [f"{colour} {what} {c // HEIGHT} {c % HEIGHT}" for c in np.flatnonzero(cells == code).tolist()]
    return ", ".join(told)


def write_episodes(columns: dict[str, list[Any] | NDArray[Any]], folder: Path, *, parquet: bool) -> list[Path]:
    """Write ``episodes.csv``, and ``episodes.parquet`` if asked for, into ``folder``; returns the files."""
    # Imported here: pyarrow takes a third of a second.
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import csv  # noqa: PLC0415
    from pyarrow import parquet as pq  # noqa: PLC0415

    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    files = [folder / "episodes.csv"]
    csv.write_csv(table, files[0], csv.WriteOptions(quoting_style="needed"))
    if parquet:
        files.append(folder / "episodes.parquet")
        pq.write_table(table, files[1], compression="zstd")
    return files
