"""One row per episode, as CSV and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.judge.evaluation import CODE, Evaluation, Part, results_of
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import BALL, EVENTS, HEIGHT, KEY

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
