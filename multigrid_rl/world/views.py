"""Observation windows (docs/game.md, section 4): table lookups, one row of the window at a time.

The window of an agent at (cell, heading) always covers the same board cells, so they come from a table. The board's
outer ring is wall, so clamping coordinates makes cells outside count as wall. How visibility spreads
within one row, and into the next, depends only on which cells of the row are visible and which are opaque: another
table.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import inlined
from multigrid_rl.world.constants import CELLS, DOOR_CLOSED, HEIGHT, UNSEEN, WALL, WIDTH

_OPAQUE_FROM = WALL
_OPAQUE_TO = DOOR_CLOSED + 1


class ViewTables(NamedTuple):
    """Lookup tables for one view size ``V``."""

    cells: NDArray[np.uint8]  # (128 * 4, V * V) board cell of window cell k = i * V + j for each pose
    spread: NDArray[np.uint8]  # (2**V, 2**V) visible cells of a row, from (visible before, opaque)
    upward: NDArray[np.uint8]  # (2**V, 2**V) cells that become visible in the row beyond


@lru_cache(maxsize=4)
def view_tables(view_size: int) -> ViewTables:
    """Build the tables for an odd ``view_size`` from 3 to 7."""
    v = view_size
    vectors = ((1, 0), (0, 1), (-1, 0), (0, -1))
    cells = np.zeros((CELLS * 4, v * v), np.uint8)
    for pose in range(CELLS * 4):
        x, y = divmod(pose // 4, HEIGHT)
        fx, fy = vectors[pose % 4]
        for i in range(v):
            for j in range(v):
                ahead, right = v - 1 - j, i - v // 2
                cx = min(max(x + ahead * fx - right * fy, 0), WIDTH - 1)
                cy = min(max(y + ahead * fy + right * fx, 0), HEIGHT - 1)
                cells[pose, i * v + j] = cx * HEIGHT + cy
    spread = np.zeros((2**v, 2**v), np.uint8)
    upward = np.zeros((2**v, 2**v), np.uint8)
    for visible in range(2**v):
        for opaque in range(2**v):
            spread[visible, opaque], upward[visible, opaque] = _spread_row(visible, opaque, v)
    return ViewTables(cells, spread, upward)


def _spread_row(visible: int, opaque: int, v: int) -> tuple[int, int]:
    up = 0
    for step, columns in ((1, range(v - 1)), (-1, range(v - 1, 0, -1))):
        for i in columns:
            if visible >> i & 1 and not opaque >> i & 1:
                visible |= 1 << (i + step)
                up |= (1 << i) | (1 << (i + step))
    return visible, up


@inlined
def draw_view(
    cells: NDArray[np.uint8], game: int, pose: int, hand: int, tables: ViewTables, out: NDArray[np.uint8]
) -> None:
    """Write the V * V codes that the agent at ``pose`` (cell * 4 + heading) sees into the start of ``out``."""
    size = int(np.sqrt(tables.cells.shape[1]))
    visible = 1 << (size // 2)
    for j in range(size - 1, -1, -1):
        opaque = 0
        for i in range(size):
            code = cells[game, tables.cells[pose, i * size + j]]
            if j == size - 1 and i == size // 2:
                code = np.uint8(hand)
            out[i * size + j] = code
            if _OPAQUE_FROM <= code <= _OPAQUE_TO:
                opaque |= 1 << i
        beyond = tables.upward[visible, opaque]
        visible = tables.spread[visible, opaque]
        for i in range(size):
            if not (visible >> i) & 1:
                out[i * size + j] = UNSEEN
        visible = int(beyond)
