"""Players of board games to measure others by: perfect play in tic-tac-toe, one move of foresight in connect four.

multigrid-rl evaluate runs/mine --opponent examples.board_games:PerfectTicTacToe
"""

from functools import cache

import numpy as np

#: Rows, columns and diagonals of tic-tac-toe by the numbers of their cells.
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@cache
def value(own, other):
    """Return what a position is worth to who moves next, both sides as sets of cells: 1, 0 or -1."""
    if any(set(line) <= other for line in LINES):
        return -1
    free = frozenset(range(9)) - own - other
    return max((-value(other, own | {cell}) for cell in free), default=0)


class PerfectTicTacToe:
    """Draws one of the best moves (minimax)."""

    def __init__(self, observation_space, action_space):
        pass

    def act(self, view, state, rng):
        """Return moves (N,). An observation is the board with two planes, own and other marks, then what is legal."""
        boards = view.tokens[:, :18].reshape(len(view.tokens), 9, 2)
        uniform = rng.uniform(1)[:, 0]
        moves = np.zeros(len(boards), np.int64)
        for n, (board, legal) in enumerate(zip(boards, view.tokens[:, 18:], strict=True)):
            own, other = (frozenset(np.flatnonzero(board[:, side]).tolist()) for side in (0, 1))
            free = np.flatnonzero(legal).tolist()
            if free:
                values = [-value(other, own | {cell}) for cell in free]
                best = [cell for cell, worth in zip(free, values, strict=True) if worth == max(values)]
                moves[n] = best[int(uniform[n] * len(best))]
        return moves, state


#: Cells of the board (6, 7) by their numbers, and which of them each of the 69 fours in a row is made of (69, 42).
CELLS = np.arange(42).reshape(6, 7)
FOURS = np.zeros((69, 42), np.float32)
for number, four in enumerate(
    [CELLS[row, column : column + 4] for row in range(6) for column in range(4)]
    + [CELLS[row : row + 4, column] for row in range(3) for column in range(7)]
    + [CELLS[row + k, column + k] for k in [np.arange(4)] for row in range(3) for column in range(4)]
    + [CELLS[row + 3 - k, column + k] for k in [np.arange(4)] for row in range(3) for column in range(4)]
):
    FOURS[number, four] = 1


def wins(discs, landing):
    """Return whether one more of a side's ``discs`` (N, 42) makes four where it lands in a column (N, 7)."""
    missing_one = (discs.astype(np.float32) @ FOURS.T == 3).astype(np.float32)
    return np.take_along_axis((missing_one @ FOURS > 0) & ~discs, landing, axis=1)


class OneMoveConnectFour:
    """Wins if it can, blocks if it must, else drops anywhere."""

    def __init__(self, observation_space, action_space):
        pass

    def act(self, view, state, rng):
        """Return columns (N,). An observation is the board (6, 7) with own and other discs, then what is legal."""
        boards, legal = view.tokens[:, :84].reshape(-1, 42, 2) > 0, view.tokens[:, 84:] > 0
        heights = boards.any(axis=2).reshape(-1, 6, 7).sum(axis=1)
        landing = CELLS[np.maximum(5 - heights, 0), np.arange(7)]
        own, other = (wins(boards[:, :, side], landing) & legal for side in (0, 1))
        lots = rng.uniform(7) + legal
        return np.argmax(lots + 4 * other + 8 * own, axis=1), state
