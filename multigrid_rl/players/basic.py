"""Players without a plan: uniform random and idle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import SeatView, UniformSource
from multigrid_rl.world.constants import ACTIONS, DONE


class _Memoryless:
    name: str

    def initial_state(self, games: int) -> None:  # noqa: ARG002
        """No memory."""
        return

    def reset_state(self, state: None, done: NDArray[np.bool_]) -> None:  # noqa: ARG002
        """Nothing to forget."""
        return


class RandomPlayer(_Memoryless):
    """Every action with the same probability."""

    name = "random"

    def act(self, view: SeatView, state: None, rng: UniformSource) -> tuple[NDArray[np.int8], None]:  # noqa: ARG002
        """Draw actions (N,)."""
        drawn = rng.uniform(1)[:, 0] * len(ACTIONS)
        return drawn.astype(np.int8), None


class IdlePlayer(_Memoryless):
    """Does nothing."""

    name = "idle"

    def act(self, view: SeatView, state: None, rng: UniformSource) -> tuple[NDArray[np.int8], None]:  # noqa: ARG002
        """Return ``done`` for every game."""
        return np.full(len(view.tokens), DONE, np.int8), None
