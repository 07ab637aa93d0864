"""The page of a cup: the winner in one line, then tables, payoffs and a selection of games."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from multigrid_rl.evaluation.cup_results import CupResults, EntryResult, PairResult, SideResult, Standing
from multigrid_rl.evaluation.replays import GameRecord, ZooRecord
from multigrid_rl.evaluation.seed_statistics import wilson_interval
from multigrid_rl.show.page import SCRIPTS, TEXT_SCRIPTS, Scale, render
from multigrid_rl.show.replay import Pack, TextPack
from multigrid_rl.show.words import join_names, plural, short

#: Bytes that packed games may take: with the tables of a dozen entries the page stays below 3 MB.
GAMES_BYTES = 2_000_000
_KINDS = {"scripted": "scripted player", "frozen": "trained player", "external": "program", "broken": "cannot play"}
#: Shown for entries that were refused as copies: the page is public, only ``results.json`` has the reason.
_REFUSED = "not admitted; the organiser of the cup can say why"
_DECIDED = {"last": "\u2013", "nothing": "tied"}


def cup_page(results: CupResults) -> str:
    """Return the public page: without the seed, and without suspected copies.

    Pure: the same results give the same page.

    Raises ``ReplayError``: a record that is not a complete game.
    """
    packed, names = pack_games(results), order(results)
    by_name = {entry.name: _public(entry) for entry in results.entries}
    places = {row.name: f"rank {row.rank}" for row in results.table}
    content = {
        "title": cup_title(results),
        "lead": "",
        "cup": results,
        "unranked": [by_name[name] for name in results.unranked],
        "entries": [
            (by_name[name], f"{places.get(name, 'not ranked')}, {_KINDS[by_name[name].kind]}") for name in names
        ],
        "made_with": ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        "data": packed.pack.data() if packed.pack.games else None,
        "scripts": TEXT_SCRIPTS if isinstance(packed.pack, TextPack) else SCRIPTS,
    }
    return _cup(results, packed, **content) if results.rated else _leaderboard(results, **content)


def _cup(results: CupResults, packed: "PackedGames", **content: Any) -> str:
    """Return the page of a cup with wins and ratings."""
    red, names = side_cells(results.sides), order(results)
    blue = swap_sides(red)
    first, other = results.teams
    left_out = f"; {packed.left_out:,} more would have made this page too large" if packed.left_out else ""
    games = plural(len(packed.pack.games), "game")
    return render(
        "cup.html",
        kind=f"Cup \u00b7 {results.scenario}",
        first=first,
        other=other,
        decided=_DECIDED,
        rating_scale=rating_scale(results.standings),
        points_of_first=sum(cell.points for cell in red.values()) / max(sum(cell.games for cell in red.values()), 1),
        names=[row.name for row in results.standings],
        both=pair_cells(results.pairs),
        red=red,
        blue=blue,
        pairs=ranked_pairs(results),
        share_scale=Scale(0, 1),
        games_lead=f"{games}, for each pairing and outcome the one of median length{left_out}.",
        packed=packed,
        opponents={name: [other for other in names if (name, other) in red.keys() | blue.keys()] for name in names},
        **content,
    )


def _leaderboard(results: CupResults, **content: Any) -> str:
    """Return the page of a cup ranked by returns."""
    rows, has_opponents = results.returns, len(results.teams) > 1
    # Not of the rows: a game of two entries is in both.
    games = plural(sum(it.games - it.forfeited for it in results.sides), "game" if has_opponents else "episode")
    return render(
        "leaderboard.html",
        kind=f"{'Cup' if has_opponents else 'Leaderboard'} \u00b7 {results.scenario}",
        rows=rows,
        sides=list(dict.fromkeys(side for row in rows for side in row.sides)),
        scale=Scale.around(rows),
        games_title=f"{games} of {plural(len(rows), 'entry', 'entries')}",
        payoffs={(row.red, row.blue): row for row in results.sides} if has_opponents else {},
        **content,
    )


def _public(entry: EntryResult) -> EntryResult:
    problem = _REFUSED if entry.kind == "broken" and entry.same_as else entry.problem
    return entry.model_copy(update={"problem": problem, "same_as": []})


# --- words


def cup_title(results: CupResults) -> str:
    """Return the winner, and whether the lead is significant."""
    rows: Sequence[Any] = results.table
    first = [row.name for row in rows if row.rank == 1]
    if not rows:
        return "No entry was ranked"
    if len(first) > 1:
        return f"{join_names(first)} share the first place"
    leader, *others = rows
    behind = [row for row in others if results.rated or not row.forfeited or leader.forfeited]
    if not behind:
        if results.rated:
            return f"{leader.name} is the only ranked entry"
        return f"{leader.name} earns {short(leader.mean)}; no other played all its games"
    second = behind[0]
    if not leader.low > second.high:  # NaN, of a single game, shows nothing
        return f"{leader.name} leads narrowly: {second.name} may be as good"
    if results.rated:
        return f"{leader.name} wins, {leader.rating - second.rating:.0f} rating points ahead of {second.name}"
    return f"{leader.name} earns most: {short(leader.mean)}, {second.name} {short(second.mean)}"


# --- payoffs


def rating_scale(rows: list[Standing]) -> Scale:
    """Return the scale of entries that forfeited less than half of their games: the others are far below."""
    return Scale.around([row for row in rows if row.forfeited * 2 < max(row.games, 1)] or rows)


def order(results: CupResults) -> list[str]:
    """Return the entries by rank; entries without a rank come last."""
    ranked = [row.name for row in results.table]
    return ranked + [entry.name for entry in results.entries if entry.name not in ranked]


class Cell(NamedTuple):
    """Results of one entry against another."""

    win: int
    draw: int
    loss: int
    forfeited: int = 0  # of these games, by either

    @property
    def games(self) -> int:
        """Games of the cell."""
        return self.win + self.draw + self.loss

    @property
    def points(self) -> float:
        """A win is one, a draw one half."""
        return self.win + self.draw / 2

    @property
    def share(self) -> float:
        """Points per game."""
        return self.points / self.games

    @property
    def classes(self) -> str:
        """CSS classes: its colour, and ``sure`` if the 95 % interval of the share excludes one half."""
        low, high = wilson_interval(self.points, self.games)
        return f"s{round(10 * self.share)}{' sure' if low > 0.5 or high < 0.5 else ''}"


Cells = dict[tuple[str, str], Cell]  # (row, column) -> results of the row's entry


def side_cells(sides: list[SideResult]) -> Cells:
    """Return the results of the row on the first side against the column; sides of a single seat are summed."""
    cells: Cells = {}
    for row in sides:
        cell = Cell(row.red_win, row.draw, row.blue_win, row.forfeited)
        total = cells.get((row.red, row.blue), Cell(0, 0, 0))
        cells[row.red, row.blue] = Cell(*map(sum, zip(total, cell, strict=True)))
    return cells


def swap_sides(cells: Cells) -> Cells:
    """Return the same from the view of the other side."""
    return {(blue, red): cell._replace(win=cell.loss, loss=cell.win) for (red, blue), cell in cells.items()}


def pair_cells(pairs: list[PairResult]) -> Cells:
    """Return the results of the row from both sides together."""
    cells = {(row.one, row.two): Cell(row.win, row.draw, row.loss, row.forfeited) for row in pairs}
    return cells | swap_sides(cells)


def ranked_pairs(results: CupResults) -> list[PairResult]:
    """Return every pair from the view of the higher ranked entry, the best first."""
    place = {name: number for number, name in enumerate(order(results))}
    rows = [row if place[row.one] < place[row.two] else row.swapped() for row in results.pairs]
    return sorted(rows, key=lambda row: (place[row.one], place[row.two]))


# --- games


class PackedGames(NamedTuple):
    """Games of a page."""

    pack: Pack  # data of its script
    number: dict[tuple[str, str], int]  # (red entry, blue entry) -> number of the pairing's first game on the page
    left_out: int  # games that did not fit


def sides_of(game: GameRecord | ZooRecord, teams: Sequence[str] = ("red", "blue")) -> tuple[str, str]:
    """Return the entries on the first side of a game, or on a single seat, and on the other."""
    by_seats = {team: name for team in teams for seat, name in game.players.items() if team in seat}
    if set(by_seats) == set(teams):
        return by_seats[teams[0]], by_seats[teams[-1]]
    rarest_first = [name for name, _ in reversed(Counter(game.players.values()).most_common())]
    names = rarest_first if teams[0] == "alone" else list(dict.fromkeys(game.players.values()))
    return names[0], names[-1]


def pack_games(results: CupResults, budget: int = GAMES_BYTES) -> PackedGames:
    """Pack the games, those of the best first. Raises ``ReplayError`` for a record that is not a complete game.

    Where ``budget`` bytes are not enough, every pairing gets a first game before any gets a second one.
    """
    place = {row.name: number for number, row in enumerate(results.table)}
    turns: Counter[tuple[str, str]] = Counter()
    rows: list[tuple[int, ...]] = []  # places of both, that of red, turn of the pairing, number of the game
    for number, game in enumerate(results.games):
        sides = sides_of(game, results.teams)
        places = [place.get(name, len(place)) for name in sides]
        rows.append((*sorted(places), places[0], turns[sides], number))
        turns[sides] += 1
    fitting: dict[tuple[int, ...], Any] = {}
    remaining, pack = budget, TextPack() if isinstance(next(iter(results.games), None), ZooRecord) else Pack()
    for row in sorted(rows, key=lambda row: (row[3], row)):
        game = results.games[row[-1]]
        content: Any = pack.pack(game, f"{game.label} ({game.steps} steps)")
        if content is None:  # the game has no text
            break
        if (size := len(json.dumps(content, separators=(",", ":")))) <= remaining:
            fitting[row] = content
            remaining -= size
    numbers: dict[tuple[str, str], int] = {}
    for row in sorted(fitting):
        numbers.setdefault(sides_of(results.games[row[-1]], results.teams), len(pack.games))
        pack.games.append(fitting[row])
    return PackedGames(pack, numbers, len(results.games) - len(fitting))
