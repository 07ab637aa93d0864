"""The default network: two towers over one-hot tokens; over vectors see :mod:`multigrid_rl.models.vector`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from multigrid_rl.models import Layout
from multigrid_rl.models.tokens import first_rows, sum_of_rows
from multigrid_rl.models.vector import ACTIVATIONS, VectorActorCritic, tower


class MLPActorCritic(nn.Module):
    """Separate policy and value towers; separate ones learn faster than one trunk (Andrychowicz et al. 2021).

    The first layer is a linear layer on the concatenated one-hot codes of all tokens, computed as a sum of ``D`` table
    rows (:mod:`multigrid_rl.models.tokens`): no wide one-hot input, no wide matrix product.

    Args:
        categories: number of values of each of the ``D`` tokens.
        actions: number of discrete actions ``K``.
        hidden: units of each layer, in both towers.
        activation: ``tanh`` or ``relu``.
        central: number of values of each token that only the value tower reads (CTDE); they come after the others.
        generator: source of the initial weights: see :func:`~multigrid_rl.models.vector.tower`.
    """

    #: No memory between steps.
    state_size = 0

    def __init__(
        self,
        categories: Sequence[int],
        actions: int,
        hidden: Sequence[int],
        activation: str,
        central: Sequence[int],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.register_buffer("first", first_rows(categories, central), persistent=False)
        self.first: Tensor
        self.sizes = np.array([*categories, *central])
        self.tokens = len(categories)
        self.hidden, self.activation = tuple(hidden), activation
        # One row is summed for each token, so this gives the first layer unit variance.
        table = torch.empty(sum(categories), 2 * hidden[0]).normal_(std=self.tokens**-0.5, generator=generator)
        self.table = nn.Parameter(table)
        self.bias = nn.Parameter(torch.zeros(2 * hidden[0]))
        self.policy, self.value = (
            nn.Sequential(ACTIVATIONS[activation](), *tower((*hidden, outputs), activation, gain, generator))
            for outputs, gain in ((actions, 0.01), (1, 1.0))
        )
        extra = torch.empty(sum(central), hidden[0])
        self.central = nn.Parameter(extra.normal_(std=len(central) ** -0.5, generator=generator)) if central else None

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


def build(layout: Layout) -> nn.Module:
    """Build towers over tokens or over a vector."""
    observation, outputs, hidden, activation, generator = layout[1:6]
    if isinstance(observation, int):
        options = {"layer_norm": layout.layer_norm, "normalise": layout.normalise}
        return VectorActorCritic(observation, outputs, hidden, activation, layout.log_std, generator, **options)
    return MLPActorCritic(observation, outputs, hidden, activation, layout.central, generator)
