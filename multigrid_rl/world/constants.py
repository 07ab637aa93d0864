"""Board, encodings, event names (docs/game.md, sections 1 and 3), and the symmetry of the board.

Inside the engine a cell is one byte, its *code*. ``CELL[code]`` is the public (type, colour, state) triple.
Teams are numbered 0 red and 1 blue, so that the code of a team's object is ``BASE + team``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.text import expected

WIDTH: Final = 16
HEIGHT: Final = 8
CELLS: Final = WIDTH * HEIGHT

TYPES: Final = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS: Final = ("red", "green", "blue", "purple", "yellow", "grey")
STATES: Final = ("open", "closed", "locked", "pickedup", "available", "alive", "dead")
ACTIONS: Final = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
MISSIONS: Final = (
    "Go pick up the key or the ball for opening the door",
    "Go pick up the key",
    "Go move away the ball",
    "Go open the door with the key",
)

LEFT: Final = 0
RIGHT: Final = 1
FORWARD: Final = 2
PICKUP: Final = 3
DROP: Final = 4
TOGGLE: Final = 5
DONE: Final = 6

RED: Final = 0
BLUE: Final = 1
#: Index in ``COLOURS`` of each team.
TEAM_COLOUR: Final = (0, 2)

# Cell codes. Where a code says "+ team", add 0 for red and 1 for blue.
UNSEEN: Final = 0
EMPTY: Final = 1
WALL: Final = 2
DOOR_LOCKED: Final = 3  # + team
DOOR_CLOSED: Final = 5  # + team: an unlocked door that was toggled shut
DOOR_OPEN: Final = 7  # + team
KEY: Final = 9  # + 2 * team, + 1 once it has been picked up
BALL: Final = 13  # + team
AGENT: Final = 15  # + 4 * team + heading
NUM_CODES: Final = 23


def _cell_table() -> NDArray[np.uint8]:
    rows = [(0, 0, 0), (1, 0, 0), (2, 5, 0)]
    rows += [(4, c, state) for state in (2, 1, 0) for c in TEAM_COLOUR]
    rows += [(5, c, state) for c in TEAM_COLOUR for state in (4, 3)]
    rows += [(6, c, 0) for c in TEAM_COLOUR]
    rows += [(10, c, heading) for c in TEAM_COLOUR for heading in range(4)]
    return np.array(rows, np.uint8)


#: (23, 3): the (type, colour, state) triple of each code.
CELL: Final = _cell_table()


def decode(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn cell codes of any shape into triples: shape ``codes.shape + (3,)``."""
    return CELL[codes]


def encode(triples: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn (type, colour, state) triples (last axis 3) into cell codes.

    Raises ``ValueError`` with the first triple that never occurs in this game.
    """
    known = {tuple(row): code for code, row in enumerate(CELL.tolist())}
    distinct, places = np.unique(triples.reshape(-1, 3), axis=0, return_inverse=True)
    for triple in map(tuple, distinct.tolist()):
        if triple not in known:
            raise ValueError(expected("cell", "one that occurs in this game", triple))
    codes = np.array([known[tuple(row)] for row in distinct.tolist()], np.uint8)
    return codes[places.reshape(triples.shape[:-1])]


def cell_index(x: int, y: int) -> int:
    """Return the flat index of cell (x, y): ``x * 8 + y``."""
    return x * HEIGHT + y


#: Step in the flat index for each heading (+x, +y, -x, -y).
STRIDE: Final = (HEIGHT, 1, -HEIGHT, -1)
#: By team: door cell, the cell in front of it (where the obstacle ball stands), the side room for eliminated agents.
DOOR_CELL: Final = (cell_index(4, 6), cell_index(11, 1))
DOOR_FRONT: Final = (cell_index(5, 6), cell_index(10, 1))
FIXED_KEY: Final = (cell_index(7, 4), cell_index(8, 3))
SIDE_ROOM: Final = (cell_index(2, 2), cell_index(13, 2))
#: The middle room, where the game is played: 36 cells.
ROOM: Final = np.array([cell_index(x, y) for x in range(5, 11) for y in range(1, 7)], np.uint8)

#: Event kinds, in the order of the last axis of ``Step.events``.
EVENTS: Final = (
    "key_pickup",  # 1 when the agent first picks up its key
    "ball_pay",  # the factor that a rewarded ball pickup paid
    "invalid_pickup",  # 1 for a pickup action that earns the penalty
    "success",  # 1 - 0.9 * step / max_steps for a rewarded winner
    "eliminated_opponents",  # number of opponents this agent eliminated
    "got_eliminated",  # 1 when eliminated
    "door_open",  # 1 when this agent opened its own door
    "door_win",  # flag: success by a door
    "elimination_win",  # flag: success by eliminating the last opponent
    "door_ready",  # 1 when the agent begins to carry its key with nothing before its door, -1 when that ends
)
NUM_EVENTS: Final = len(EVENTS)
(
    EV_KEY,
    EV_BALL,
    EV_INVALID,
    EV_SUCCESS,
    EV_ELIMINATED,
    EV_VICTIM,
    EV_DOOR,
    EV_DOOR_WIN,
    EV_ELIMINATION_WIN,
    EV_READY,
) = range(NUM_EVENTS)

# Columns of the weight table (A, 7) that kernels read.
W_KEY, W_BALL, W_DISCOUNT, W_INVALID, W_SUCCESS, W_ELIMINATED, W_VICTIM = range(7)


def empty_board() -> NDArray[np.uint8]:
    """Return the (128,) codes of the board with locked doors and no movable object."""
    board = np.full((WIDTH, HEIGHT), EMPTY, np.uint8)
    board[[0, 4, 11, 15], :] = WALL
    board[:, [0, 7]] = WALL
    flat = board.reshape(-1)
    for team in (RED, BLUE):
        flat[DOOR_CELL[team]] = DOOR_LOCKED + team
    return flat


# --- symmetry
#
# Rotated by 180 degrees and with the colours swapped, the board is the same game. Cell (x, y) becomes (15 - x, 7 - y),
# headings turn by two, and red and blue change places; starts, doors, fixed keys and obstacles of red_k map to those of
# blue_k. Views are relative to their agent, so only colours and headings in them change. A player that learned one side
# plays the other through :func:`other_side`.
#
# One asymmetry: eliminated agents of both teams stand at y = 2 of their side room. Their observations matter only to a
# player of a whole team.


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
SWAPPED: Final = _swapped_codes()
#: (4,): the heading that each heading becomes.
TURNED: Final = np.array([2, 3, 0, 1], np.uint8)


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
