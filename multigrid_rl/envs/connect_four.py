"""PettingZoo's connect four, all boards in one call.

The package looks for a row of four cell by cell in Python, a quarter of a training's time with
convolutions and half of it with dense layers. Observations, legal choices, rewards and endings are the same here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec
from multigrid_rl.envs.zoo import StepResult, roles_of

Array = NDArray[Any]
CONNECT_FOUR = "pettingzoo:classic/connect_four-v3"
_ROWS, _COLUMNS = 6, 7


class ConnectFourEnvs(PettingZooEnvs):
    """``num_envs`` boards of :data:`CONNECT_FOUR` without arguments, never drawn; arguments are those of its base."""

    def _open_games(self, game: ZooSpec) -> list[Any]:  # noqa: ARG002 - it has no arguments
        self._discs = np.zeros((self.num_envs, 2, _ROWS, _COLUMNS), np.bool_)  # by seat; row 0 is the top
        return []

    def _play(self, chosen: dict[str, Array], terminated: Array, done: Array, truncated: Array) -> None:  # noqa: ARG002
        boards, movers = np.nonzero(self.turn)
        choices = np.stack([chosen[seat] for seat in self.seats], axis=1)[boards, movers]
        for n, mover, choice in zip(boards.tolist(), movers.tolist(), choices, strict=True):
            self.played[n].append({self.seats[mover]: choice})
        done[boards] = self._move(boards, movers, choices)
        terminated[done] = True

    def _move(self, boards: Array, movers: Array, columns: Array) -> Array:
        """Drop a disc of each mover (M,) into a column (M,) of its board (M,); returns which games are over (M,)."""
        heights = self._discs.any(axis=1).sum(axis=1)[boards, columns]
        if (heights == _ROWS).any():
            m = int(heights.argmax())
            raise self._broken(int(boards[m]), f"step: {self.seats[movers[m]]}", f"a disc in column {columns[m]}, full")
        self._discs[boards, movers, _ROWS - 1 - heights, columns] = True
        won = has_four(self._discs[boards, movers])
        self._rewards[boards, movers] = won
        self._rewards[boards, 1 - movers] = 0.0 - won
        over: Array = won | np.all(self._discs[boards, :, 0].any(axis=1), axis=1)  # or full
        self.turn[boards, movers] = False
        self.turn[boards, 1 - movers] = ~over
        self._show(boards, 1 - movers)
        self._show(boards[over], movers[over])
        return over

    def _show(self, boards: Array, seats: Array) -> None:
        """Write what a seat (M,) sees of its board (M,): its discs, the other's, and columns that are not full."""
        for a, obs in enumerate(self._obs.values()):
            rows = boards[seats == a]
            discs = self._discs[rows]
            obs[rows, :-_COLUMNS] = np.moveaxis(discs[:, [a, 1 - a]], 1, -1).reshape(len(rows), 2 * _ROWS * _COLUMNS)
            obs[rows, -_COLUMNS:] = ~discs[:, :, 0].any(axis=1)

    def _call(self, n: int, call: str, argument: Any) -> StepResult:
        board = np.array([n])
        if call == "step":
            ((seat, column),) = argument.items()
            self._move(board, np.array([self._places[seat]]), np.array([column]))
        else:
            first = list(roles_of(argument, self.seats, self._swapped).values()).index(self.seats[0])
            self._discs[n] = False
            self.turn[n] = np.arange(2) == first
            self._show(board, np.array([first]))
        return StepResult({}, self.seats)


def has_four(discs: Array) -> Array:
    """Return which boards (M, 6, 7) have four discs in a row, column or diagonal (M,)."""
    across = discs[:, :, :-1] & discs[:, :, 1:]  # two neighbours; two such pairs, two apart, are four
    down = discs[:, :-1] & discs[:, 1:]
    falling = discs[:, :-1, :-1] & discs[:, 1:, 1:]
    rising = discs[:, 1:, :-1] & discs[:, :-1, 1:]
    fours = (
        across[:, :, :-2] & across[:, :, 2:],
        down[:, :-2] & down[:, 2:],
        falling[:, :-2, :-2] & falling[:, 2:, 2:],
        rising[:, 2:, :-2] & rising[:, :-2, 2:],
    )
    return np.asarray(np.any([four.any(axis=(1, 2)) for four in fours], axis=0))
