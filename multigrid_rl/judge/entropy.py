"""How sure a policy is of what it does, measured by play."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.types import SeatView, UniformSource


class Metered:
    """A frozen player whose entropy is added up while it plays: in nats, of its own distribution, per decision.

    A team's joint action counts as one decision: the sum over its living seats, as in training (``entropy/<module>``).
    """

    def __init__(self, player: FrozenPlayer) -> None:
        self.player = player
        self.name = player.name
        self.total = 0.0
        self.decisions = 0

    @property
    def mean(self) -> float:
        """Mean entropy of the decisions so far; NaN before the first."""
        return self.total / self.decisions if self.decisions else float("nan")

    def initial_state(self, games: int) -> torch.Tensor:
        """Memory of fresh games."""
        return self.player.initial_state(games)

    def reset_state(self, state: torch.Tensor, done: NDArray[np.bool_]) -> torch.Tensor:
        """Memory with the games in ``done`` (N,) forgotten."""
        return self.player.reset_state(state, done)

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[np.int8], torch.Tensor]:
        """Return actions (N,), of a team (N, C), exactly those of the player.

        Raises:
            PlayerError: weights so large that they play by no distribution.
        """
        outputs, state = self.player.outputs(view, state)
        drawn = self.player.choose(outputs, rng)
        if view.board is not None:
            seats = slice(view.seat, view.seat + self.player.members)
            living = view.board.out[:, seats] == 0  # an eliminated seat, or a game that is over, decides nothing
            entropy = drawn.entropy.reshape(living.shape)
            added = float((entropy * living).sum())
            if not math.isfinite(added):
                raise PlayerError(
                    f"{self.name}: its network's values are too large: what it does has no probabilities; allowed is "
                    "finite entropy in every decision"
                )
            self.total += added
            self.decisions += int(living.any(axis=1).sum())
        actions = drawn.actions.astype(np.int8)
        return (actions[:, 0] if self.player.members == 1 else actions), state
