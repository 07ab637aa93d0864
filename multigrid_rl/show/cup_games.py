"""Which games of a cup its page can show: all of them, or a fair part where they would make it too large."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from multigrid_rl.judge.cup.results import CupResults
from multigrid_rl.judge.replays import GameRecord
from multigrid_rl.show.replay import Pack

#: Bytes that packed games may take: with the tables of a dozen entries the page stays below 3 MB.
GAMES_BYTES = 2_000_000


@dataclass(frozen=True)
class Shown:
    """Games of a page.

    Attributes:
        pack: what its script reads.
        number: (red entry, blue entry) -> number of the pairing's first game on the page.
        left_out: games that did not fit.
    """

    pack: Pack
    number: dict[tuple[str, str], int] = field(default_factory=dict)
    left_out: int = 0


def sides_of(game: GameRecord) -> tuple[str, str]:
    """Entries on the red and on the blue side."""
    names = {colour: game.players[seat] for colour in ("blue", "red") for seat in game.players if colour in seat}
    return names.get("red", ""), names.get("blue", "")


def shown_games(found: CupResults, budget: int = GAMES_BYTES) -> Shown:
    """Pack the games, those of the best first. Raises ``ReplayError`` for a record that makes no whole game.

    Where ``budget`` bytes are not enough, every pairing gets a first game before any gets its second.
    """
    place = {row.name: number for number, row in enumerate(found.standings)}
    ranked: list[tuple[tuple[int, ...], int, GameRecord]] = []
    turns: dict[tuple[str, str], int] = {}
    for number, game in enumerate(found.games):
        red, blue = sides_of(game)
        turn = turns[red, blue] = turns.get((red, blue), -1) + 1
        places = sorted(place.get(name, len(place)) for name in (red, blue))
        ranked.append(((*places, place.get(red, len(place)), turn), turn, found.games[number]))
    ranked.sort(key=lambda row: row[0])
    pack, packed, left = Pack(), {}, budget
    for number in sorted(range(len(ranked)), key=lambda k: ranked[k][1]):
        game = ranked[number][2]
        row = pack.pack(game, f"{game.label} ({game.steps} steps)")
        size = len(json.dumps(row, separators=(",", ":")))
        if size <= left:
            packed[number] = row
            left -= size
    return _shown(pack, packed, [game for _, _, game in ranked])


def _shown(pack: Pack, packed: dict[int, dict[str, Any]], games: list[GameRecord]) -> Shown:
    numbers: dict[tuple[str, str], int] = {}
    for place, number in enumerate(sorted(packed)):
        pack.games.append(packed[number])
        numbers.setdefault(sides_of(games[number]), place)
    return Shown(pack, numbers, len(games) - len(packed))
