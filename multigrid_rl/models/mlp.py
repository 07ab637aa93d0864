"""The default network: two towers, over one-hot tokens or (:mod:`multigrid_rl.models.vector`) over a vector."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor, nn

from multigrid_rl.models import Layout
from multigrid_rl.models.tokens import first_rows, sum_of_rows
from multigrid_rl.models.vector import ACTIVATIONS, VectorActorCritic, tower


class MLPActorCritic(nn.Module):
    """Separate policy and value towers over tokens."""

    # Towers of their own reach more than a shared trunk, whose two losses need weighing (Andrychowicz et al. 2021,
    # https://arxiv.org/abs/2006.05990, section 3.2). The first layer is a linear layer on the one-hot codes of all
    # tokens (models.tokens), of both towers at once: tokens are looked up once.

    #: No memory between steps.
    state_size = 0

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        categories, hidden, generator = layout.observation, layout.hidden, layout.generator
        assert not isinstance(categories, int)
        self.register_buffer("first", first_rows(categories, layout.central), persistent=False)
        self.first: Tensor
        self.sizes = np.array([*categories, *layout.central])
        self.tokens, self.hidden, self.activation = len(categories), hidden, layout.activation
        self.table = table_of(categories, 2 * hidden[0], generator)
        self.bias = nn.Parameter(torch.zeros(2 * hidden[0]))
        self.policy, self.value = (
            nn.Sequential(ACTIVATIONS[self.activation](), *tower((*hidden, outputs), self.activation, gain, generator))
            # The table is a linear layer: the activation after it comes first.
            for outputs, gain in ((layout.outputs, 0.01), (1, 1.0))
        )
        self.central = table_of(layout.central, hidden[0], generator) if layout.central else None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Integer tokens (B, D) to logits (B, K) and values (B,)."""
        policy, critic = self._features(tokens)
        if self.central is not None:
            critic = critic + sum_of_rows(tokens[:, self.tokens :], self.first[self.tokens :], self.central)
        values: Tensor = self.value(critic)
        return self.policy(policy), values.squeeze(-1)

    def logits(self, tokens: Tensor) -> Tensor:
        """Compute only the logits (B, K), for a player, who has no critic-only tokens."""
        logits: Tensor = self.policy(self._features(tokens)[0])
        return logits

    def _features(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first layer (B, H) of the policy and of the values."""
        both = sum_of_rows(tokens[:, : self.tokens], self.first[: self.tokens], self.table) + self.bias
        return both[:, : self.hidden[0]], both[:, self.hidden[0] :]


def table_of(categories: Sequence[int], width: int, generator: Generator) -> nn.Parameter:
    """Draw a table of a row for each value of each token; one row of each is summed: the sum has unit variance."""
    return nn.Parameter(torch.empty(sum(categories), width).normal_(std=len(categories) ** -0.5, generator=generator))


def build(layout: Layout) -> nn.Module:
    """Build towers over a vector or over tokens."""
    return VectorActorCritic(layout) if isinstance(layout.observation, int) else MLPActorCritic(layout)
