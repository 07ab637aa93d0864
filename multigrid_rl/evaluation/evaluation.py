"""Playing fresh games with frozen policies, batched, and their tables: no training, no Ray."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.evaluation.lineups import EvalTarget, Lineup, Sides, against, run_target
from multigrid_rl.evaluation.replays import GameRecord, record
from multigrid_rl.metrics import BEHAVIOUR, mean_interval, wilson_interval
from multigrid_rl.players.match import Played, play_games
from multigrid_rl.runs.reader import run_config
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, GameSpec
from multigrid_rl.world.constants import BALL, BLUE, EVENTS, HEIGHT, KEY, RED

#: ``stochastic`` draws actions as in training, ``argmax`` takes the likeliest.
Mode = Literal["stochastic", "argmax"]
MODES: tuple[Mode, ...] = ("stochastic", "argmax")

#: Games are played in batches of so many: their actions stay small in memory, however many games there are.
BATCH = 4096


@dataclass(frozen=True)
class Part:
    """Games of one mode and side."""

    mode: Mode  # how the judged player acted; all others sampled actions
    lineup: Lineup  # which player was on which seat
    played: tuple[Played, ...]  # in batches; game ``k`` of all is row ``k - b * BATCH`` of batch ``b``

    @property
    def table(self) -> EpisodeTable:
        """All its episodes (M rows), in the order of the games' numbers."""
        return EpisodeTable.concatenate([played.table for played in self.played])


@dataclass(frozen=True)
class Evaluation:
    """All games of a judged player."""

    name: str  # of the player
    spec: GameSpec
    seed: int  # with a game's number it decides everything random in it; modes and sides share seed and numbers
    parts: tuple[Part, ...]  # one for each mode and side
    seconds: float  # that playing took, start-up not counted


def evaluate(
    target: EvalTarget, *, episodes: int, seed: int, modes: tuple[Mode, ...] = MODES, sides: Sides = "own"
) -> Evaluation:
    """Play ``episodes`` games in each mode, shared out among the sides.

    Raises:
        ConfigError, PlayerError: no such side, fewer games than sides, a player that cannot be used.
    """
    spec, teams = target.spec, target.teams(sides)
    if episodes < len(teams):
        raise ConfigError(expected("--episodes", f"at least {len(teams)}, one for each side", episodes))
    shares = [episodes - (len(teams) - 1) * (episodes // len(teams)), episodes // len(teams)]
    lineups = [
        (mode, games, target.lineup(team, greedy=mode == "argmax"))
        for mode in modes
        for team, games in zip(teams, shares, strict=False)
    ]
    for _, _, lineup in lineups:  # kernels are compiled or loaded here: that is start-up
        play_games(spec, lineup.players(spec), 1, seed=seed)
    began = time.perf_counter()
    parts = []
    for mode, games, lineup in lineups:
        played = tuple(
            play_games(spec, lineup.players(spec), min(BATCH, games - first), seed=seed, first_game=first)
            for first in range(0, games, BATCH)
        )
        parts.append(Part(mode, lineup, played))
    return Evaluation(target.name, spec, seed, tuple(parts), time.perf_counter() - began)


def held_out(run: Path, episodes: int, seed: int) -> dict[str, dict[str, Any]]:
    """Play a run's policy against each held-out player of its scenario; returns their shares by name.

    Raises:
        ConfigError, PlayerError: no run, or a player that cannot be used.
    """
    target, rows = run_target(run), {}
    for name in run_config(run).scenario.held_out:
        evaluation = evaluate(against(target, name), episodes=episodes, seed=seed, modes=("stochastic",))
        rows[name] = _outcomes([results_of(part.table, part.lineup.team) for part in evaluation.parts])
    return rows


def summary(parts: list[Part], spec: GameSpec) -> dict[str, Any]:
    """Return shares and means of some parts together with 95 % intervals; parts of different sides may be mixed.

    Returns are those of the judged player's own seats, summed. Intervals of shares are Wilson's.
    """
    tables = [(part.table, part.lineup) for part in parts]
    lengths = np.concatenate([table.length for table, _ in tables]).astype(np.float64)
    returns = np.concatenate([table.returns[:, _own(lineup, spec)].sum(axis=1) for table, lineup in tables])
    row = _outcomes([results_of(table, lineup.team) for table, lineup in tables]) | means(returns, lengths)
    # Against each player of a pool: the games in which it sat on a seat of the other team.
    against: dict[str, list[NDArray[np.int8]]] = {}
    for table, lineup in tables:
        for name, games in lineup.games_against(table, spec).items():
            against.setdefault(name, []).append(results_of(table, lineup.team)[games])
    row["against"] = {name: _outcomes(results) for name, results in against.items()}
    row["events"] = {}
    for name in BEHAVIOUR:
        column = EVENTS.index(name)
        counts = [table.events[:, _own(lineup, spec), column].sum(axis=1) for table, lineup in tables]
        row["events"][name] = float(np.concatenate(counts).mean())
    return row


def _outcomes(results: list[NDArray[np.int8]]) -> dict[str, Any]:
    outcomes = np.concatenate(results)
    row: dict[str, Any] = {"episodes": len(outcomes)}
    for name, value in (("win", 1), ("draw", 0), ("loss", -1)):
        count = int((outcomes == value).sum())
        row[name] = count / max(len(outcomes), 1)
        if len(outcomes):
            row[f"{name}_interval"] = list(wilson_interval(count, len(outcomes)))
    return row


def means(returns: NDArray[np.float64], lengths: NDArray[np.float64]) -> dict[str, Any]:
    """Return the means of returns (M,) and lengths (M,) of episodes with their 95 % intervals."""
    row: dict[str, Any] = {}
    for name, values in (("return", returns), ("length", lengths)):
        mean, low, high = mean_interval(values)
        row |= {f"{name}_mean": mean, f"{name}_interval": [low, high]}
    return row


def seat_returns(part: Part, spec: GameSpec) -> dict[str, float]:
    """Return the mean return of each own seat."""
    means = part.table.returns.mean(axis=0)
    return {seat: float(means[spec.seats.index(seat)]) for seat in part.lineup.own}


def kept_games(evaluation: Evaluation) -> list[GameRecord]:
    """Return best, median and worst game of each part, by the own return, then by length."""
    games = []
    for part in evaluation.parts:
        table = part.table
        own = table.returns[:, _own(part.lineup, evaluation.spec)].sum(axis=1)
        # A good game is won fast, a bad one lost fast: of equal returns the longest games come in the middle.
        speed = np.where(own > 0, -table.length, table.length)
        ranked = np.lexsort((speed, own))
        for label, place in (("best", -1), ("median", len(ranked) // 2), ("worst", 0)):
            batch, row = divmod(int(ranked[place]), BATCH)
            title = f"{label} ({part.mode}, {part.lineup.team})"
            names, played = part.lineup.names(), part.played[batch]
            games.append(record(evaluation.spec, played, row, seed=evaluation.seed, players=names, label=title))
    return games


def _own(lineup: Lineup, spec: GameSpec) -> list[int]:
    return [spec.seats.index(seat) for seat in lineup.own]


def results_of(table: EpisodeTable, team: str) -> NDArray[np.int8]:
    """Return 1 for a win of ``team``, 0 for a draw, -1 for a loss (M,), from the win flag."""
    own = RED if team == "red" else BLUE
    return np.where(table.winner < 0, 0, np.where(table.winner == own, 1, -1)).astype(np.int8)


def episode_columns(evaluation: Evaluation) -> dict[str, NDArray[Any]]:
    """Lay out the table of all episodes, parts one after the other, games in the order of their numbers.

    ``seed`` and ``game`` decide the game, ``layout`` lists its keys and balls, ``result`` is that of the judged player
    by the win flag; then each seat's player, return and events.
    """
    parts = [_columns(part, evaluation) for part in evaluation.parts]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(part: Part, evaluation: Evaluation) -> dict[str, NDArray[Any]]:
    table, games = part.table, part.table.episodes
    columns: dict[str, NDArray[Any]] = {
        "mode": np.full(games, part.mode),
        "side": np.full(games, part.lineup.team),
        "seed": np.full(games, evaluation.seed),
        "game": np.arange(games),
        "layout": np.array([layout(cells) for played in part.played for cells in played.start]),
        "length": table.length,
        "winner": np.array(["red", "blue", "nobody"])[table.winner],  # nobody is -1, the last
        "result": np.array(["draw", "win", "loss"])[results_of(table, part.lineup.team)],  # a loss is -1
    }
    for seat, name in part.lineup.names().items():
        columns[f"player/{seat}"] = np.full(games, name)
    for a, seat in enumerate(evaluation.spec.seats):
        columns[f"return/{seat}"] = table.returns[:, a].round(9)  # the same on every machine, to the last digit
        for e, event in enumerate(EVENTS):
            columns[f"{event}/{seat}"] = table.events[:, a, e].round(6)  # events are single precision
    return columns


def layout(cells: NDArray[np.uint8]) -> str:
    """Return where keys and balls of one board (128,) lie, as ``red key 7 4, blue key 8 3``: cells are x and y."""
    objects = []
    for team, colour in enumerate(("red", "blue")):
        for kind, code in (("key", KEY + 2 * team), ("ball", BALL + team)):
            objects += [f"{colour} {kind} {c // HEIGHT} {c % HEIGHT}" for c in np.flatnonzero(cells == code).tolist()]
    return ", ".join(objects)


def write_episodes(columns: dict[str, NDArray[Any]], folder: Path, *, parquet: bool) -> list[Path]:
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
