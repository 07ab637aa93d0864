"""The table of others' best numbers: ours are read from the pages, and every loss is in it."""

from __future__ import annotations

import pytest

from benchmarks.anchors import PAGES, SCORES, SPEED, Anchor, Cell, rows_of, value_of

PAGE = """# A page

## One

| arm | overrides | IQM | 95 % |
|---|---|--:|--:|
| mine | `x` | 4,884 | 4,413 to 5,289 |

## Two

| arm | IQM |
|---|--:|
| mine | 0.5 (0.4 to 0.6) |
| 0 | 1 |
| 1 | 9 |
| 2 | 4 |
"""


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path


def test_a_cell_is_found_by_page_row_column_and_section(pages):
    assert value_of(Cell("page", "mine", "IQM", "One"), pages) == 4884
    assert value_of(Cell("page", "mine", "IQM", "Two"), pages) == 0.5
    assert value_of(Cell("page", r"\d", "IQM"), pages) == 4  # the median of the seeds
    with pytest.raises(SystemExit, match=r"page.md: expected a row mine with a column return, got none"):
        value_of(Cell("page", "mine", "return"), pages)


def test_the_largest_loss_comes_first(pages):
    cell = Cell("page", "mine", "IQM", "One")
    anchors = (
        Anchor("a", "s", "-", 1000, cell),
        Anchor("b", "s", "-", 48_840, cell),
        Anchor("c", "s", "-", cell, cell),
    )
    assert [(row[0], row[5]) for row in rows_of(anchors, pages)] == [("b", "0.10"), ("c", "1.00"), ("a", "4.88")]


def test_the_page_is_what_the_script_reads_now():
    text = (PAGES / "anchors.md").read_text()
    for row in rows_of((*SPEED, *SCORES)):
        assert f"| {' | '.join(row)} |" in text
