"""Tables of a cup's page: standings, payoff matrices, pairs."""

from __future__ import annotations

from typing import NamedTuple

from multigrid_rl.judge.cup.results import CupResults, PairResult, SideResult, Standing
from multigrid_rl.metrics import wilson_interval
from multigrid_rl.show.html import Raw, join, table, tag, td, th
from multigrid_rl.show.words import listed, percent, rounded, short, signed

#: More pairs than this are folded away.
FEW_PAIRS = 12
_STEPS = 10  # of the colour scale


class Scale(NamedTuple):
    """Numbers that an interval plot goes from and to."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a number lies, in per cent of the width; beyond the ends for numbers beyond."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def order(found: CupResults) -> list[str]:
    """Entries as they are ranked; those without a rank stand last."""
    ranked = [row.name for row in found.standings]
    return ranked + [entry.name for entry in found.entries if entry.name not in ranked]


# --- standings


def standings_table(found: CupResults) -> Raw:
    """One row for each entry, with its rating's interval drawn on one scale."""
    head = (
        th("Rank", number=True), th("Entry"), th("Rating", number=True), th("95% interval"), th("Points", number=True),
        th("Won / drawn / lost", number=True), th("Margin", number=True), th("Ahead by"),
    )  # fmt: skip
    scale = rating_scale(found.standings)
    rows = [_standing_row(row, scale) for row in found.standings]
    return table(head, rows, caption="Standings with ratings and their intervals")


def rating_scale(rows: list[Standing]) -> Scale:
    """From the lowest to the highest bound of those who really played: who forfeits everything lies far below."""
    playing = [row for row in rows if row.forfeited * 2 < max(row.games, 1)] or rows
    low, high = min(row.low for row in playing), max(row.high for row in playing)
    margin = 0.04 * (high - low) or 1.0
    return Scale(low - margin, high + margin)


def _standing_row(row: Standing, scale: Scale) -> Raw:
    counts = f"{row.win:,} / {row.draw:,} / {row.loss:,}"
    lost = tag("span", f"{row.forfeited:,} forfeited", class_="range") if row.forfeited else None
    spread = tag("span", f"{rounded(row.low)} to {rounded(row.high)}", class_="range")
    return tag(
        "tr",
        td(row.rank, number=True),
        th(row.name, scope="row"),
        td(join(tag("b", rounded(row.rating)), spread), number=True),
        td(interval(row.rating, row.low, row.high, scale), class_="interval-cell"),
        td(f"{row.points:,g}", number=True),
        td(join(counts, lost), number=True),
        td(signed(row.margin), number=True),
        td(row.decided_by),
    )  # fmt: skip


def interval(value: float, low: float, high: float, scale: Scale, middle: float | None = None) -> Raw:
    """A dot with its interval as a line; an arrow where it lies beyond the scale's left end."""
    axis: Raw | None = tag("line", x1=0, x2="100%", y1=12, y2=12, class_="axis")
    mark = None
    if middle is not None:
        at = f"{scale.place(middle)}%"
        mark = tag("line", x1=at, x2=at, y1=2, y2=22, class_="axis")
    if high < scale.low:
        axis, inside = None, tag("text", "\u25c2 far below", x=0, y=16, class_="tick start")
    else:
        left, dot, right = (f"{min(max(scale.place(v), 0), 100)}%" for v in (low, value, high))
        inside = join(
            tag("line", x1=left, x2=right, y1=12, y2=12, class_="span"),
            tag("line", x1=dot, x2=dot, y1=4, y2=20, class_="dot"),
        )
    return tag("svg", axis, mark, inside, width="100%", height=24, class_="interval", aria_hidden="true")


# --- payoff matrices


class Cell(NamedTuple):
    """What one entry got from another."""

    win: int
    draw: int
    loss: int

    @property
    def games(self) -> int:
        """Games of the cell."""
        return self.win + self.draw + self.loss

    @property
    def share(self) -> float:
        """Points per game."""
        return (self.win + self.draw / 2) / self.games

    @property
    def sure(self) -> bool:
        """Whether the 95 % interval of the share leaves one half out."""
        low, high = wilson_interval(self.win + self.draw / 2, self.games)
        return low > 0.5 or high < 0.5


def side_cells(sides: list[SideResult]) -> dict[tuple[str, str], Cell]:
    """(row as red, column as blue) -> what red got."""
    return {(row.red, row.blue): Cell(row.red_win, row.draw, row.blue_win) for row in sides}


def turned(cells: dict[tuple[str, str], Cell]) -> dict[tuple[str, str], Cell]:
    """The same seen from the other side: (row as blue, column as red) -> what blue got."""
    return {(blue, red): Cell(cell.loss, cell.draw, cell.win) for (red, blue), cell in cells.items()}


def pair_cells(pairs: list[PairResult]) -> dict[tuple[str, str], Cell]:
    """(row, column) -> what the row got from both sides together."""
    cells = {(row.one, row.two): Cell(row.win, row.draw, row.loss) for row in pairs}
    return cells | turned(cells)


def matrix(names: list[str], cells: dict[tuple[str, str], Cell], caption: str, sides: tuple[str, str]) -> Raw:
    """A payoff matrix: points per game of the row in per cent, a number in every cell, and its colour.

    Args:
        names: of rows and columns, in order; columns are headed by their numbers.
        cells: (row, column) -> what the row got.
        caption: what the matrix says.
        sides: what stands behind the row's and the column's name in a cell's title: ``(" as red", " as blue")``.
    """
    head = (th(""), *(th(number, title=name) for number, name in enumerate(names, 1)))
    rows = []
    for number, row in enumerate(names, 1):
        told = [_matrix_cell(row, column, cells.get((row, column)), sides) for column in names]
        rows.append(tag("tr", tag("th", f"{number} {row}", scope="row", title=row), told))
    return table(head, rows, caption=caption, class_="matrix")


def _matrix_cell(row: str, column: str, cell: Cell | None, sides: tuple[str, str]) -> Raw:
    if row == column:
        return td("\u00b7", class_="self")
    if cell is None or not cell.games:
        return td("\u2013", class_="self")
    told = f"{row}{sides[0]} against {column}{sides[1]}: {cell.win} won, {cell.draw} drawn, {cell.loss} lost"
    classes = f"s{round(cell.share * _STEPS)}{' sure' if cell.sure else ''}"
    return tag("td", f"{100 * cell.share:.0f}", class_=classes, title=told)


def colour_scale() -> Raw:
    """The matrix's colours with their numbers."""
    steps = [tag("li", f"{100 * k // _STEPS}", class_=f"s{k}") for k in range(0, _STEPS + 1, 1)]
    return tag("div", tag("span", "loses"), tag("ol", steps), tag("span", "wins; bold where 95% sure"), class_="scale")


# --- pairs and circles


def pairs_table(found: CupResults) -> Raw:
    """Every pair, seen from the one who is ranked higher."""
    place = {name: number for number, name in enumerate(order(found))}
    seen = sorted(
        (row if place[row.one] < place[row.two] else swapped(row) for row in found.pairs),
        key=lambda row: (place[row.one], place[row.two]),
    )
    head = (
        th("Pair"), th("Won", number=True), th("Drawn", number=True), th("Lost", number=True),
        th("Points per game", number=True), th("95% interval, line at one half"), th("Margin", number=True),
        th("Steps", number=True), th("Forfeited", number=True),
    )  # fmt: skip
    made = table(head, [_pair_row(row) for row in seen], caption="All pairs, both sides together")
    if len(seen) <= FEW_PAIRS:
        return made
    return tag("details", tag("summary", f"Show all {len(seen)} pairs"), made)


def _pair_row(row: PairResult) -> Raw:
    name = join(tag("b", row.one), " \u2013 ", row.two)
    if not row.games:
        return tag("tr", tag("th", name, scope="row"), tag("td", "not played: neither can play", colspan=8))
    played = row.games > row.forfeited
    spread = tag("span", f"{percent(row.low)} to {percent(row.high)}", class_="range")
    return tag(
        "tr",
        tag("th", name, scope="row"),
        *(td(f"{number:,}", number=True) for number in (row.win, row.draw, row.loss)),
        td(join(tag("b", percent(row.share)), spread), number=True),
        td(interval(row.share, row.low, row.high, Scale(0, 1), middle=0.5), class_="interval-cell"),
        td(signed(row.margin) if played else "\u2013", number=True),
        td(short(row.length_mean) if played else "\u2013", number=True),
        td(f"{row.forfeited:,}", number=True),
    )


def swapped(row: PairResult) -> PairResult:
    """The same pair seen from the other one."""
    return row.model_copy(update={
        "one": row.two, "two": row.one, "win": row.loss, "loss": row.win, "share": 1 - row.share,
        "low": 1 - row.high, "high": 1 - row.low, "margin": -row.margin,
    })  # fmt: skip


def circle_sentence(circle: list[str]) -> str:
    """A circle in words: ``a beats b, b beats c and c beats a.``."""
    steps = [f"{one} beats {two}" for one, two in zip(circle, [*circle[1:], circle[0]], strict=True)]
    return f"{listed(steps)}."
