"""A cup as one page."""

from __future__ import annotations

from multigrid_rl.judge.cup.results import CupResults, EntryResult, SideResult
from multigrid_rl.show.cup_games import Shown, shown_games
from multigrid_rl.show.cup_tables import (
    Cell,
    circle_sentence,
    colour_scale,
    matrix,
    order,
    pair_cells,
    pairs_table,
    side_cells,
    standings_table,
    turned,
)
from multigrid_rl.show.html import Raw, join, section, table, tag, td, th
from multigrid_rl.show.page import Heading, page, replay_box
from multigrid_rl.show.words import count, listed, percent, plural

_KINDS = {"scripted": "scripted player", "frozen": "trained player", "external": "program", "broken": "cannot play"}


def cup_page(found: CupResults) -> str:
    """The whole page. Pure: the same results give the same page.

    Raises:
        ReplayError: a record of a game that does not make a whole game.
    """
    shown = shown_games(found)
    parts = [
        ("standings", "Standings", _standings(found)),
        ("rules", "Rules", _rules(found)),
        ("payoff", "Who beats whom", _payoff(found)),
        ("pairs", "Pairs", section("pairs", _pairs_title(found), pairs_table(found), _circles(found))),
        ("games", "Games", _games(shown)),
        ("entries", "Entries", _entries(found, shown)),
    ]
    heading = Heading(
        f"Cup \u00b7 {found.scenario} \u00b7 seed {found.seed}",
        cup_title(found),
        _lead(found),
        tuple((key, name) for key, name, _ in parts),
    )
    data = shown.pack.data() if shown.pack.games else None
    return page(heading, _tiles(found), *(content for _, _, content in parts), data=data)


def cup_title(found: CupResults) -> str:
    """Who won, and whether that is beyond doubt."""
    rows = found.standings
    if not rows:
        return "Nobody was ranked"
    first = [row for row in rows if row.rank == 1]
    if len(first) > 1:
        return f"{listed(row.name for row in first)} share the first place"
    if len(rows) == 1:
        return f"{first[0].name} is alone"
    second = rows[1]
    if first[0].low > second.high:
        return f"{first[0].name} wins, {first[0].rating - second.rating:.0f} rating points ahead of {second.name}"
    return f"{first[0].name} wins by a hair: {second.name} may be as strong"


def _lead(found: CupResults) -> str:
    if len(found.standings) < 2 or found.standings[1].rank == 1:
        return ""
    one, two = found.standings[:2]
    words = "do not overlap" if one.low > two.high else "overlap"
    return (
        f"Ratings {one.rating:.0f} ({one.low:.0f} to {one.high:.0f}) and {two.rating:.0f} ({two.low:.0f} to "
        f"{two.high:.0f}): the 95% intervals {words}."
    )


def _tiles(found: CupResults) -> Raw:
    games = sum(side.games for side in found.sides)
    forfeited = sum(side.forfeited for side in found.sides)
    rows = [
        ("Entries", f"{len(found.entries)}"),
        ("Games", f"{games:,}"),
        ("Games per pair and side", f"{found.games_per_side:,}"),
        ("Forfeited games", f"{forfeited:,}"),
    ]
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="tiles")


def _standings(found: CupResults) -> Raw:
    ranks = [row.rank for row in found.standings]
    shared = sum(ranks.count(rank) > 1 for rank in ranks)
    lead = "Rating is Bradley-Terry's on Elo's scale, 1000 on average; points are 1 for a win and \u00bd for a draw."
    if shared:
        lead += f" {count(shared).capitalize()} entries share a rank with another."
    return section("standings", standings_title(found), standings_table(found), lead=lead)


def standings_title(found: CupResults) -> str:
    """How many may be the best: those whose intervals reach that of the first."""
    rows = found.standings
    close = [row.name for row in rows if row.high >= rows[0].low]
    return f"{count(len(close)).capitalize()} may be the best" if len(close) > 1 else "The first place is beyond doubt"


def _rules(found: CupResults) -> Raw:
    rules = tag("ul", [tag("li", rule) for rule in found.rules], class_="rules")
    made_with = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    note = tag("p", f"Played with {made_with}.", class_="note") if made_with else None
    return section("rules", "How it was played and ranked", rules, note)


def _payoff(found: CupResults) -> Raw:
    names = order(found)
    red = side_cells(found.sides)
    both = matrix(
        names, pair_cells(found.pairs), "Both sides together: points per game of the row in per cent", ("", "")
    )
    as_red = matrix(names, red, "Row plays red, column blue", (" as red", " as blue"))
    as_blue = matrix(names, turned(red), "Row plays blue, column red", (" as blue", " as red"))
    lead = "Points per game, in per cent, of the entry on the left against the one above, whom the number names."
    sides = tag(
        "div",
        tag("div", tag("h3", "On the left as red"), as_red),
        tag("div", tag("h3", "On the left as blue"), as_blue),
        class_="matrices" if len(names) <= 6 else "matrices wide",
    )
    title = side_sentence(list(red.values()))
    return section("payoff", title, colour_scale(), tag("h3", "Both sides"), both, sides, lead=lead)


def side_sentence(cells: list[Cell]) -> str:
    """Which side has it easier, over all games."""
    games = sum(cell.games for cell in cells)
    if not games:
        return "No game was played"
    share = sum(cell.win + cell.draw / 2 for cell in cells) / games
    side, its = ("red", share) if share >= 0.5 else ("blue", 1 - share)
    if its < 0.52:
        return f"Neither side has it much easier: {side} takes {percent(its)} of the points"
    return f"{side.capitalize()} has it easier: it takes {percent(its)} of the points"


def _pairs_title(found: CupResults) -> str:
    clear = sum(row.low > 0.5 or row.high < 0.5 for row in found.pairs if row.games)
    played = sum(row.games > 0 for row in found.pairs)
    return f"{clear} of {plural(played, 'pair')} {'is' if clear == 1 else 'are'} decided beyond doubt"


def _circles(found: CupResults) -> Raw:
    if not found.cycles:
        return tag("p", "No circles: nobody beats somebody who beats somebody who beats them.", class_="note")
    title = "A circle" if len(found.cycles) == 1 else f"{count(len(found.cycles)).capitalize()} circles"
    lines = tag("ul", [tag("li", circle_sentence(circle)) for circle in found.cycles], class_="rules")
    note = tag("p", "Each of these is beyond doubt, so no ranking can be right about all of them.", class_="note")
    return join(tag("h3", title), lines, note)


def _games(shown: Shown) -> Raw:
    number = len(shown.pack.games)
    if not number:
        return section("games", "No games to show", tag("p", "No finished game was kept.", class_="note"))
    lead = f"For each pairing and each way it ended, one game that was kept. {plural(number, 'game')} in all"
    if shown.left_out:
        lead += f"; {shown.left_out:,} more would have made this page too large"
    return section("games", "Games to look at", replay_box(), lead=f"{lead}.")


# --- entries


def _entries(found: CupResults, shown: Shown) -> Raw:
    by_name = {entry.name: entry for entry in found.entries}
    red = side_cells(found.sides)
    parts = [_entry(found, by_name[name], red, shown) for name in order(found) if name in by_name]
    troubled = sum(bool(entry.problem or entry.faults) for entry in found.entries)
    title = f"{plural(len(parts), 'entry', 'entries')}, {count(troubled)} with faults"
    return section("entries", title, tag("div", parts))


def _entry(found: CupResults, entry: EntryResult, red: dict[tuple[str, str], Cell], shown: Shown) -> Raw:
    standing = next((row for row in found.standings if row.name == entry.name), None)
    place = f"rank {standing.rank}" if standing else "not ranked"
    about = join(f"{place}, {_KINDS[entry.kind]}: {entry.about}", _sha(entry.sha256))
    return tag(
        "article",
        tag("h3", entry.name),
        tag("p", about, class_="about"),
        _faults(entry),
        _results(found, entry.name, red, shown),
        class_="entry",
    )


def _sha(sha256: str | None) -> Raw | None:
    return join(", sha256 ", tag("code", sha256[:12])) if sha256 else None


def _faults(entry: EntryResult) -> Raw | None:
    if entry.problem is not None:
        return tag("div", tag("b", "Forfeits every game: "), entry.problem, class_="problem")
    if not entry.faults:
        return None
    games = sum(fault.games for fault in entry.faults)
    items = [
        tag("li", f"{plural(fault.games, 'game')}, {fault.red} (red) \u2013 {fault.blue} (blue): {fault.reason}")
        for fault in entry.faults
    ]
    return tag("div", tag("b", f"Forfeited {plural(games, 'game')}:"), tag("ul", items), class_="problem")


def _results(found: CupResults, name: str, red: dict[tuple[str, str], Cell], shown: Shown) -> Raw:
    head = (
        th("Against"), th("As red", number=True), th("As blue", number=True), th("Points per game", number=True),
        th("Games to look at"),
    )  # fmt: skip
    length = {(side.red, side.blue): side for side in found.sides}
    others = [other for other in order(found) if (name, other) in red or (other, name) in red]
    rows = [_result_row(name, other, (red, turned(red)), shown, length) for other in others]
    made = table(head, rows, caption=f"Results of {name}")
    return tag("details", tag("summary", f"Results against {plural(len(others), 'opponent')}"), made)


def _result_row(
    name: str,
    other: str,
    cells: tuple[dict[tuple[str, str], Cell], dict[tuple[str, str], Cell]],
    shown: Shown,
    sides: dict[tuple[str, str], SideResult],
) -> Raw:
    as_red, as_blue = (part.get((name, other), Cell(0, 0, 0)) for part in cells)
    whole = Cell(*(one + two for one, two in zip(as_red, as_blue, strict=True)))
    links = [
        _watch(shown, red, blue, words)
        for red, blue, words in ((name, other, "as red"), (other, name, "as blue"))
    ]  # fmt: skip
    return tag(
        "tr",
        th(other, scope="row"),
        td(_counts(as_red, sides.get((name, other))), number=True),
        td(_counts(as_blue, sides.get((other, name))), number=True),
        td(percent(whole.share) if whole.games else "\u2013", number=True),
        td(join(*links)),
    )


def _counts(cell: Cell, side: SideResult | None) -> Raw:
    lost = f"{side.forfeited} forfeited" if side is not None and side.forfeited else ""
    told = join(f"{cell.win} / {cell.draw} / {cell.loss}", tag("span", lost, class_="range") if lost else None)
    return told if cell.games else join("\u2013")


def _watch(shown: Shown, red: str, blue: str, words: str) -> Raw | None:
    number = shown.number.get((red, blue))
    if number is None:
        return None
    label = f"Watch {red} (red) against {blue} (blue)"
    return join(tag("a", words, href="#games", data_game=number, aria_label=label, class_="watch"), " ")
