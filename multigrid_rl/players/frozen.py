"""A trained network as a player."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from multigrid_rl.players.sampling import Sampled, sample
from multigrid_rl.types import SeatView, UniformSource
from multigrid_rl.world.symmetry import other_side


class FrozenPlayer:
    """Plays a network's policy.

    Args:
        name: what it is called.
        network: see ``models.registry.build``.
        sha256: of its file.
        members: seats ``C`` that it acts for at once; more than one for a team with a joint action.
        mirrored: it learned on the other side of the board, and sees it from there.
        greedy: take the likeliest action instead of drawing one.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        sha256: str,
        *,
        members: int = 1,
        mirrored: bool = False,
        greedy: bool = False,
    ) -> None:
        self.name = name
        self.network: Any = network
        self.sha256 = sha256
        self.members = members
        self.mirrored = mirrored
        self.greedy = greedy

    def initial_state(self, games: int) -> torch.Tensor:
        """Empty memory (N, S) of ``games`` fresh games; S is 0 for a network without memory."""
        return torch.zeros(games, self.network.state_size)

    def reset_state(self, state: torch.Tensor, done: NDArray[np.bool_]) -> torch.Tensor:
        """Memory with the games in ``done`` (N,) forgotten."""
        if not state.shape[1]:
            return state
        return state * torch.from_numpy(~done).unsqueeze(1)

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[np.int8], torch.Tensor]:
        """Draw actions (N,), of a team (N, C)."""
        logits, state = self.logits(view, state)
        return self.choose(logits, rng).actions, state

    def logits(self, view: SeatView, state: torch.Tensor) -> tuple[NDArray[np.float32], torch.Tensor]:
        """Logits (N, C, K) of the actions of its ``C`` seats, and the next memory."""
        seen = other_side(view.tokens, self.members) if self.mirrored else np.ascontiguousarray(view.tokens)
        with torch.inference_mode():
            tokens = torch.from_numpy(seen)
            if self.network.state_size:
                output, _, state = self.network(tokens, state)
            else:
                output = self.network.logits(tokens)
        return output.numpy().reshape(len(seen), self.members, -1), state

    def choose(self, logits: NDArray[np.float32], rng: UniformSource) -> Sampled:
        """Actions, log-probabilities and entropies, each (N,), of a team (N, C), out of logits (N, C, K)."""
        flat = logits.reshape(-1, logits.shape[-1])
        uniform = rng.uniform(self.members).reshape(-1, 1)  # drawn in any case: a game's stream moves on alike
        drawn = sample(flat, uniform)
        if self.greedy:
            drawn = drawn._replace(actions=flat.argmax(axis=1).astype(np.int8))
        if self.members == 1:
            return drawn
        shape = (-1, self.members)
        return Sampled(drawn.actions.reshape(shape), drawn.logp.reshape(shape), drawn.entropy.reshape(shape))
