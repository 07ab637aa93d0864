"""Playing fresh games with frozen policies, batched: no training, no Ray."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.judge.lineups import Judged, Lineup, Sides, judged_run
from multigrid_rl.judge.replays import GameRecord, record
from multigrid_rl.metrics import BEHAVIOUR, mean_interval, wilson_interval
from multigrid_rl.players.games import Played, play_games
from multigrid_rl.runs.reader import run_config
from multigrid_rl.schema import RunConfig
from multigrid_rl.types import EpisodeTable, GameSpec
from multigrid_rl.world.constants import BLUE, EVENTS, RED

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
    judged: Judged, *, episodes: int, seed: int, modes: tuple[Mode, ...] = MODES, sides: Sides = "own"
) -> Evaluation:
    """Play ``episodes`` games in each mode, shared out among the sides.

    Raises:
        ConfigError, PlayerError: a side that is not there, a player that cannot be used.
        ValueError: fewer games than sides.
    """
    teams = judged.teams(sides)
    if episodes < len(teams):
        raise ValueError(f"--episodes {episodes}: allowed is at least {len(teams)}, one for each side")
    shares = [episodes - (len(teams) - 1) * (episodes // len(teams)), episodes // len(teams)]
    lineups = [
        (mode, games, judged.lineup(team, greedy=mode == "argmax"))
        for mode in modes
        for team, games in zip(teams, shares, strict=False)
    ]
    for _, _, lineup in lineups:  # kernels are compiled or loaded here: that is start-up
        play_games(judged.spec, lineup.players(judged.spec), 1, seed=seed)
    began = time.perf_counter()
    parts = tuple(Part(mode, lineup, _batches(judged.spec, lineup, games, seed)) for mode, games, lineup in lineups)
    return Evaluation(judged.name, judged.spec, seed, parts, time.perf_counter() - began)


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
    judged = judged_run(run, checkpoint=checkpoint)
    evaluation = evaluate(judged, episodes=episodes, seed=seed, modes=(mode,))
    return run_config(run), evaluation.parts[0].table
