"""A cup's files: everything as JSON, the tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from multigrid_rl.judge.cup.pairings import Pairing, write_whole
from multigrid_rl.judge.cup.results import CupResults

RESULTS_FILE = "results.json"


def versions() -> dict[str, str]:
    """Of what decides a game."""
    return {name: metadata.version(name) for name in ("multigrid-rl", "numpy", "numba", "torch", "evalica")}


def write_results(found: CupResults, pairings: list[Pairing], folder: Path) -> list[Path]:
    """Write results, standings, pairs, sides and every single game; returns the files. They are made anew each time."""
    files = {
        RESULTS_FILE: found.model_dump_json(indent=1),
        "standings.csv": _csv([row.model_dump() for row in found.standings]),
        "pairs.csv": _csv([row.model_dump() for row in found.pairs]),
        "sides.csv": _csv([row.model_dump() for row in found.sides]),
        "games.csv": _csv(_games(pairings)),
    }
    for name, text in files.items():
        write_whole(folder / name, text)
    return [folder / name for name in files]


def _games(pairings: list[Pairing]) -> Iterable[dict[str, Any]]:
    words = {"R": "red", "B": "blue", "D": "nobody", "r": "blue", "b": "red", "-": "not played"}
    for pairing in pairings:
        rows = zip(pairing.outcomes, pairing.length, pairing.return_red, pairing.return_blue, strict=True)
        for game, (letter, length, red, blue) in enumerate(rows):
            yield {
                "red": pairing.red,
                "blue": pairing.blue,
                "game": game,
                "winner": words[letter],
                "forfeited_by": {"r": pairing.red, "b": pairing.blue}.get(letter, ""),
                "length": length,
                "return_red": red,
                "return_blue": blue,
            }


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    listed: Sequence[dict[str, Any]] = list(rows)
    writer = csv.DictWriter(text, list(listed[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()
