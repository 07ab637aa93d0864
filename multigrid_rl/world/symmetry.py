"""The board's symmetry: rotated by 180 degrees and with the colours swapped, it is the same game.

Cell (x, y) becomes (15 - x, 7 - y), headings turn by two, and red and blue change places; starts, doors, fixed keys and
obstacles of red_k map to those of blue_k. Views are relative to their agent, so only colours and headings in them
change. A player that learned one side plays the other through :func:`other_side`.

One asymmetry: eliminated agents of both teams stand at y = 2 of their side room. Their observations matter only to a
player of a whole team.
"""

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.world.constants import AGENT, BALL, DOOR_CLOSED, DOOR_LOCKED, DOOR_OPEN, KEY, NUM_CODES


def _swapped_codes() -> NDArray[np.uint8]:
    table = np.arange(NUM_CODES, dtype=np.uint8)
    for base, width in ((DOOR_LOCKED, 1), (DOOR_CLOSED, 1), (DOOR_OPEN, 1), (KEY, 2), (BALL, 1)):
        red, blue = slice(base, base + width), slice(base + width, base + 2 * width)
        table[red], table[blue] = np.arange(NUM_CODES)[blue], np.arange(NUM_CODES)[red]
    for team in range(2):
        for heading in range(4):
            table[AGENT + 4 * team + heading] = AGENT + 4 * (1 - team) + (heading + 2) % 4
    return table


#: (23,): the code that each cell code becomes.
SWAPPED = _swapped_codes()
#: (4,): the heading that each heading becomes.
TURNED = np.array([2, 3, 0, 1], np.uint8)


def other_side(tokens: NDArray[np.uint8], members: int = 1) -> NDArray[np.uint8]:
    """Return tokens (N, members * D) of the same situation as seen from the other team's seats."""
    blocks = tokens.reshape(len(tokens), members, -1)
    turned = SWAPPED[blocks]
    turned[..., -2] = TURNED[blocks[..., -2]]
    turned[..., -1] = blocks[..., -1]  # missions have no colour
    return turned.reshape(len(tokens), -1)


def other_seat(seat: str) -> str:
    """Return the seat or team on the other side: ``red_1`` for ``blue_1``, ``red`` for ``blue``."""
    return seat.replace("blue", "red") if seat.startswith("blue") else seat.replace("red", "blue")
