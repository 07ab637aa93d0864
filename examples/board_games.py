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


class OneMoveConnectFour:
    """Wins if it can, blocks if it must, else drops anywhere."""

    def __init__(self, observation_space, action_space):
        pass

    def act(self, view, state, rng):
        """Return columns (N,). An observation is the board (6, 7) with own and other discs, then what is legal."""
        boards = view.tokens[:, :84].reshape(-1, 6, 7, 2) > 0
        uniform = rng.uniform(1)[:, 0]
        columns = np.zeros(len(boards), np.int64)
        for n, (board, legal) in enumerate(zip(boards, view.tokens[:, 84:], strict=True)):
            free = np.flatnonzero(legal)
            if len(free):
                due = [column for side in (0, 1) for column in free.tolist() if wins(board, column, side)]
                columns[n] = due[0] if due else free[int(uniform[n] * len(free))]
        return columns, state


def wins(board, column, side):
    """Return whether a disc of ``side`` in a ``column`` makes four in a row."""
    row = 5 - int(board[:, column].any(axis=1).sum())
    own = board[:, :, side].copy()
    own[row, column] = True
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        count = 1
        for way in (1, -1):
            y, x = row + way * down, column + way * right
            while 0 <= y < 6 and 0 <= x < 7 and own[y, x]:
                count, y, x = count + 1, y + way * down, x + way * right
        if count >= 4:
            return True
    return False
