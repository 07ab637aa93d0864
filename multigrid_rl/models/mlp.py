"""The default network: two towers over one-hot tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from multigrid_rl.models.table import sum_of_rows

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


class MLPActorCritic(nn.Module):
    """Separate policy and value towers.

    The first layer is a linear layer on the concatenated one-hot codes of all tokens. One token switches on one row of
    its weight matrix, so it is computed as a sum of ``D`` table rows: no wide one-hot input, no wide matrix product.

    Args:
        categories: number of values of each of the ``D`` tokens.
        actions: number of discrete actions ``K``.
        hidden: units of each layer, in both towers.
        activation: ``tanh`` or ``relu``.
        central: number of values of each token that only the value tower reads (CTDE); they come after the others.
        generator: source of the initial weights: orthogonal (Saxe et al. 2014), outputs scaled as Engstrom et al. 2020.
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
        first = list(accumulate([*categories, *central], initial=0))
        self.register_buffer("offsets", torch.tensor(first[:-1], dtype=torch.int64), persistent=False)
        self.offsets: Tensor
        self.tokens = len(categories)
        self.width = hidden[0]
        rows = first[self.tokens]
        self.table = nn.Parameter(torch.empty(rows, 2 * hidden[0]))
        self.bias = nn.Parameter(torch.zeros(2 * hidden[0]))
        self.policy = _tower(hidden, actions, ACTIVATIONS[activation])
        self.value = _tower(hidden, 1, ACTIVATIONS[activation])
        if central:
            self.central = nn.Parameter(torch.empty(first[-1] - rows, hidden[0]))
        self._initialise(len(categories), len(central), generator)

    def _initialise(self, tokens: int, central: int, generator: torch.Generator) -> None:
        # Exactly `tokens` rows are summed, so this gives the first layer unit variance.
        nn.init.normal_(self.table, std=tokens**-0.5, generator=generator)
        for tower, gain in ((self.policy, 0.01), (self.value, 1.0)):
            layers = [layer for layer in tower if isinstance(layer, nn.Linear)]
            for layer in layers:
                nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5, generator=generator)
                nn.init.zeros_(layer.bias)
        if central:
            nn.init.normal_(self.central, std=central**-0.5, generator=generator)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Integer tokens (B, D) to logits (B, K) and values (B,)."""
        own = tokens[:, : self.tokens].long() + self.offsets[: self.tokens]
        features = sum_of_rows(own, self.table) + self.bias
        critic = features[:, self.width :]
        if hasattr(self, "central"):
            rest = tokens[:, self.tokens :].long() + (self.offsets[self.tokens :] - len(self.table))
            critic = critic + sum_of_rows(rest, self.central)
        values: Tensor = self.value(critic)
        return self.policy(features[:, : self.width]), values.squeeze(-1)


def _tower(hidden: Sequence[int], outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = [activation()]
    for before, after in pairwise(hidden):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))
