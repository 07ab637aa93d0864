"""Fresh episodes of a judged player in batches, and their tables, without training and Ray."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.evaluation.replays import EpisodeRecord, record
from multigrid_rl.evaluation.seed_statistics import interval_of, mean_interval, wilson_interval
from multigrid_rl.evaluation.targets import SIDE_BY_SIDE, Lineup, Sides, Target, against, run_target
from multigrid_rl.files import json_text, write_atomic
from multigrid_rl.metrics import games_against, groups
from multigrid_rl.players.cards import Returns
from multigrid_rl.players.episodes import EpisodeBatch
from multigrid_rl.runs.reader import run_config
from multigrid_rl.text import ConfigError, check_integer, percent, unknown
from multigrid_rl.types import EpisodeTable
from multigrid_rl.world.events import BEHAVIOUR

#: ``stochastic`` draws actions as in training, ``argmax`` takes the likeliest.
Mode = Literal["stochastic", "argmax"]
MODES: tuple[Mode, ...] = ("stochastic", "argmax")

#: Labels of the stored games of each part, from the best to the worst.
GAME_LABELS = ("best", "median", "worst")

#: Games against each held-out player of a scenario after a run, and their seed.
HELD_OUT_GAMES, HELD_OUT_SEED = 1000, 40_000

#: Games in a batch: limits the memory for actions.
BATCH = 4096


@dataclass(frozen=True)
class PlayedPart:
    """Episodes of one mode and side."""

    mode: Mode  # how the judged player acted; all others sampled actions
    lineup: Lineup  # the player of each seat
    played: tuple[EpisodeBatch, ...]  # in batches; game ``k`` of all is row ``k - b * BATCH`` of batch ``b``

    @property
    def table(self) -> EpisodeTable:
        """All its episodes (M rows), games in the order of their numbers."""
        return EpisodeTable.concatenate([played.table for played in self.played])

    @property
    def judged_columns(self) -> list[int]:
        """Columns of the judged player's seats."""
        return [self.lineup.specs.seats.index(seat) for seat in self.lineup.judged_seats]

    @property
    def returns(self) -> NDArray[np.float64]:
        """Returns (M,) of the judged player's seats, summed."""
        return np.asarray(self.table.returns[:, self.judged_columns].sum(axis=1))

    @property
    def results(self) -> NDArray[np.int8]:
        """1 for a win of the judged player's team, 0 for a draw, -1 for a loss (M,), from the win flag."""
        team, winner = self.lineup.specs.team_names.index(self.lineup.team), self.table.winner
        return np.where(winner < 0, 0, np.where(winner == team, 1, -1)).astype(np.int8)


@dataclass(frozen=True)
class Evaluation:
    """All episodes of a judged player."""

    target: Target
    seed: int  # with a game's number it decides everything random in it; modes and sides share seed and numbers
    parts: tuple[PlayedPart, ...]  # one for each mode and side
    seconds: float  # of playing, without the start-up of games


def evaluate(
    target: Target,
    *,
    episodes: int,
    seed: int,
    modes: tuple[Mode, ...] = MODES,
    sides: Sides | None = None,
    keep: bool = False,
) -> Evaluation:
    """Play ``episodes`` whole episodes in each mode, shared out among the sides, by default the target's.

    ``keep``: store episodes of Gymnasium, too, for :func:`labelled_games`: each is its environment's first.

    Raises ``ConfigError``, ``PlayerError``: no such mode or side, fewer episodes than sides, a player that cannot be
    used; ``RunError``: an endless episode.
    """
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(unknown("mode", str(mode), MODES))
    check_integer("seed", seed, 0)
    teams = target.teams(sides)
    check_integer("episodes", episodes, len(teams), ", one for each side" * (len(teams) > 1))
    shares = [episodes - (len(teams) - 1) * (episodes // len(teams)), episodes // len(teams)]
    lineups: list[tuple[Mode, int, Lineup]] = [
        (mode, games, target.lineup(team, greedy=mode == "argmax"))
        for mode in modes
        for team, games in zip(teams, shares, strict=False)
    ]
    for _, _, lineup in lineups if target.rivals else ():  # start-up: kernels are compiled or loaded here
        lineup.play(1, seed=seed)
    began = time.perf_counter()
    parts = []
    keep = keep and isinstance(target.factory, GymnasiumFactory)
    for mode, games, lineup in lineups:
        most = BATCH if target.rivals else SIDE_BY_SIDE if keep else games
        batches = (
            lineup.play(min(most, games - first), seed=seed, first=first, keep=keep) for first in range(0, games, most)
        )
        parts.append(PlayedPart(mode, lineup, tuple(batches)))
    return Evaluation(target, seed, tuple(parts), time.perf_counter() - began)


def held_out(run: Path, which: Literal["validate", "test"], episodes: int, seed: int) -> dict[str, dict[str, Any]]:
    """Play a run's policy against each held-out player of its scenario; returns outcome shares by name.

    Raises ``ConfigError``, ``PlayerError``: no run, or a player that cannot be used.
    """
    target, rows = run_target(run), {}
    for name in run_config(run).scenario.held_out.get(which, ()):
        evaluation = evaluate(against(target, name), episodes=episodes, seed=seed, modes=("stochastic",))
        rows[name] = _outcomes([part.results for part in evaluation.parts])
    return rows


def write_held_out(run: Path) -> str:
    """Play a run against its held-out validation players, write ``held_out.json``, and return a summary line."""
    rows = held_out(run, "validate", HELD_OUT_GAMES, HELD_OUT_SEED)
    write_atomic(run / "held_out.json", (json_text(rows, indent=2) + "\n").encode())
    texts = {name: [percent(share, 1) for share in (row["win"], *row["win_interval"])] for name, row in rows.items()}
    shares = ", ".join("{} {} ({} to {})".format(name, *words) for name, words in texts.items())
    mean = percent(sum(row["win"] for row in rows.values()) / len(rows), 1)
    return f"held out: wins {mean} on average of {HELD_OUT_GAMES} games against each held-out player: {shares}"


def returns_of(target: Target, episodes: int, seed: int) -> dict[str, Returns]:
    """Measure the returns of fresh episodes by mode, on all sides that it plays, for a player's card."""
    returns: dict[str, Returns] = {}
    for mode, row in report(evaluate(target, episodes=episodes, seed=seed))["modes"].items():
        low, high = row["return_interval"]
        returns[mode] = Returns(episodes=row["episodes"], mean=row["return_mean"], low=low, high=high, seed=seed)
    return returns


def report(evaluation: Evaluation) -> dict[str, Any]:
    """Return the content of ``summary.json``: everything except single episodes."""
    parts = evaluation.parts
    return {
        "format": 1,
        "player": evaluation.target.name,
        "seed": evaluation.seed,
        "seconds": round(evaluation.seconds, 3),
        "parts": [
            {
                "mode": part.mode,
                "side": part.lineup.team,
                "players": part.lineup.names,
                "sha256": part.lineup.sha256,
                **summary([part]),
                "return_by_seat": seat_returns(part),
            }
            for part in parts
        ],
        "modes": {
            mode: summary([part for part in parts if part.mode == mode])
            for mode in dict.fromkeys(part.mode for part in parts)
        },
    }


def summary(parts: Sequence[PlayedPart]) -> dict[str, Any]:
    """Return shares and means of some parts together with 95 % intervals; parts of different sides may be mixed.

    Returns are sums over the judged player's seats. Games with winners have shares of wins.
    """
    specs = parts[0].lineup.specs
    row: dict[str, Any] = {"episodes": sum(part.table.episodes for part in parts)}
    row |= _outcomes([part.results for part in parts]) if specs.has_winner else {}
    row |= _mean_row("return", [part.returns for part in parts])
    row |= _mean_row("length", [part.table.length for part in parts])
    if specs.has_winner:
        # Results against each player of a pool that sat on a seat of the other team.
        rivals: dict[str, list[NDArray[np.int8]]] = {}
        for part in parts:
            for name, games in games_against(part.table, part.lineup.specs, part.lineup.team).items():
                rivals.setdefault(name, []).append(part.results[games])
        row["against"] = {name: _outcomes(results) for name, results in rivals.items()}
    if specs.events:
        events = np.concatenate([part.table.events[:, part.judged_columns].sum(axis=1) for part in parts])  # (M, E)
        row["events"] = {name: float(events[:, specs.events.index(name)].mean()) for name in BEHAVIOUR}
    return row | _column_metrics(parts)


def _outcomes(results: list[NDArray[np.int8]]) -> dict[str, Any]:
    row: dict[str, Any] = {"episodes": sum(map(len, results))}
    for name, value in (("win", 1), ("draw", 0), ("loss", -1)):
        share, low, high = interval_over_sides([part == value for part in results])
        row |= {name: share, f"{name}_interval": [low, high]} if row["episodes"] else {name: 0.0}
    return row


def _mean_row(name: str, sides: list[NDArray[Any]]) -> dict[str, Any]:
    mean, low, high = interval_over_sides(sides)
    return {f"{name}_mean": mean, f"{name}_interval": [low, high]}


def interval_over_sides(sides: list[NDArray[Any]]) -> tuple[float, float, float]:
    """Return the mean of values (M,) of each side, and its 95 % interval; see ``interval_of``.

    Games of one number have one seed on all sides: they are one observation, as in a cup's ratings. So neither boards
    that favour a side nor sides with other chances are taken for chance.
    """
    values, numbers = np.concatenate(sides), len(sides[0])
    if len(sides) == 1 or len({*map(len, sides)}) > 1 or numbers < 2 or not values.std():
        return interval_of(values)
    mean, by_number = float(values.mean()), np.mean(sides, axis=0)
    if values.dtype != np.bool_:
        return mean, *mean_interval(by_number)[1:]
    spread = mean * (1 - mean)
    # As many independent games would vary as much. At most numbers^2: sides that always add up leave some doubt, too.
    games = round(spread * numbers / max(float(by_number.var()), spread / numbers))
    return mean, *wilson_interval(mean * games, games)


def _column_metrics(parts: Sequence[PlayedPart]) -> dict[str, Any]:
    """Return the metrics of groups with columns in the table, for the judged player's seats and team."""
    samples: dict[str, list[NDArray[Any]]] = {}
    for part in parts:
        seats_and_team = (*part.lineup.judged_seats, part.lineup.team)
        for group in filter(lambda group: group.column, groups("metrics")):
            for name, sample in group.measure(part.table, part.lineup.specs, seats_and_team).items():
                samples.setdefault(name, []).append(sample.values)
    rows = {name: interval_over_sides(values) for name, values in samples.items()}
    metrics = {name: {"mean": mean, "interval": [low, high]} for name, (mean, low, high) in rows.items()}
    return {"metrics": metrics} if metrics else {}


def seat_returns(part: PlayedPart) -> dict[str, float]:
    """Return the mean return of each of the judged player's seats."""
    means = part.table.returns.mean(axis=0)[part.judged_columns]
    return dict(zip(part.lineup.judged_seats, map(float, means), strict=True))


def labelled_games(evaluation: Evaluation) -> list[Any]:
    """Return best, median and worst game of each part, by the judged player's return, then by length.

    Episodes of Gymnasium need ``keep`` of :func:`evaluate`.
    """
    games = []
    for part in evaluation.parts:
        if not (evaluation.target.rivals or part.played[0].actions.size):
            continue
        length, returns = part.table.length, part.returns
        # A good game is won fast, a bad one lost fast: the longest games of equal returns rank in the middle.
        ranked = np.lexsort((np.where(returns > 0, -length, length), returns))
        for label, rank in zip(GAME_LABELS, (-1, len(ranked) // 2, 0), strict=True):
            title = f"{label} ({part.mode}, {part.lineup.team})"
            games.append(record_of(evaluation.target, part, int(ranked[rank]), evaluation.seed, title))
    return games


def record_of(target: Target, part: PlayedPart, number: int, seed: int, label: str) -> Any:
    """Return the record of a part's game, or of a stored episode of Gymnasium."""
    batch, row = divmod(number, part.played[0].table.episodes)
    played, players = part.played[batch], part.lineup.names
    if target.rivals:
        return record(target.spec, played, row, seed=seed, players=players, label=label)
    assert isinstance(target.factory, GymnasiumFactory)  # others store none
    (seat,), steps = players, int(played.table.length[row])
    actions, returns = {seat: played.actions[row, :steps].tolist()}, {seat: float(played.table.returns[row, 0])}
    return EpisodeRecord(
        label=label, env_id=target.factory.env_id, env_args=target.factory.env_args, seed=seed, game=played.first + row,
        players=players, actions=actions, returns=returns, result="",
    )  # fmt: skip


def _episode_columns(part: PlayedPart, evaluation: Evaluation) -> dict[str, NDArray[Any]]:
    table, games = part.table, part.table.episodes
    columns: dict[str, NDArray[Any]] = {
        "mode": np.full(games, part.mode),
        "side": np.full(games, part.lineup.team),
        "seed": np.full(games, evaluation.seed),
        "game": np.arange(games),
        "length": table.length,
    }
    if part.lineup.specs.has_winner:  # elsewhere no game is drawn, either
        columns["winner"] = np.array([*part.lineup.specs.team_names, "nobody"])[table.winner]  # nobody is -1, the last
        columns["result"] = np.array(["draw", "win", "loss"])[part.results]  # a loss is -1
    for seat, name in part.lineup.names.items():
        columns[f"player/{seat}"] = np.full(games, name)
    for a, seat in enumerate(part.lineup.specs.seats):
        columns[f"return/{seat}"] = table.returns[:, a].round(9)  # the same on every machine, to the last digit
        for e, event in enumerate(part.lineup.specs.events):
            columns[f"{event}/{seat}"] = table.events[:, a, e].round(6)  # events are single precision
    return columns


def write_episodes(evaluation: Evaluation, folder: Path) -> Path:
    """Write the table of all episodes, ``episodes.csv``, into ``folder``; returns the file.

    Parts follow each other, games in the order of their numbers. ``seed`` and ``game`` determine the game, ``result``
    is the judged player's by the win flag, where games are won; then each seat's player, return and events.
    """
    # Imported here: pyarrow takes a third of a second.
    import pyarrow.csv  # noqa: PLC0415

    parts = [_episode_columns(part, evaluation) for part in evaluation.parts]
    table = pyarrow.table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    pyarrow.csv.write_csv(table, folder / "episodes.csv", pyarrow.csv.WriteOptions(quoting_style="needed"))
    return folder / "episodes.csv"
