"""A trained network as a player."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from multigrid_rl.players.basic import _Memoryless
from multigrid_rl.players.sampling import sample
from multigrid_rl.types import SeatView, UniformSource


class FrozenPlayer(_Memoryless):
    """Plays a network's policy: draws from it, or takes its likeliest action if ``greedy``."""

    def __init__(self, name: str, network: nn.Module, sha256: str, *, greedy: bool = False) -> None:
        self.name = name
        self.network = network
        self.sha256 = sha256
        self.greedy = greedy

    def act(self, view: SeatView, state: None, rng: UniformSource) -> tuple[NDArray[np.int8], None]:  # noqa: ARG002
        """Draw actions (N,)."""
        with torch.inference_mode():
            logits = self.network(torch.from_numpy(np.ascontiguousarray(view.tokens)))[0].numpy()
        if self.greedy:
            return logits.argmax(axis=1).astype(np.int8), None
        return sample(logits, rng.uniform(1)).actions, None
