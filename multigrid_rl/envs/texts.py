"""Boards of PettingZoo's games as text, where their own renderers draw pictures alone: entries of ``tables.TEXTS``."""

from typing import Any


def tictactoe(env: Any) -> str:
    """Return three rows; a free square shows the number of the action that takes it."""
    marks = [str(k) if not mark else "xo"[mark - 1] for k, mark in enumerate(env.board.squares)]
    return "\n---+---+---\n".join(" " + " | ".join(marks[row::3]) for row in range(3))


def connect_four(env: Any) -> str:
    """Return six rows and, below them, the numbers of the columns."""
    rows = [env.board[k : k + 7] for k in range(0, 42, 7)]
    return "\n".join([*(" ".join(".xo"[mark] for mark in row) for row in rows), " ".join(map(str, range(7)))])
