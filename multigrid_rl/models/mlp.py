"""The default network: two towers, over one-hot tokens or (:mod:`multigrid_rl.models.vector`) over a vector."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Generator, Tensor, nn

from multigrid_rl.models import Layout
from multigrid_rl.models.tokens import first_rows, sum_of_rows

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


def tower(
    sizes: Sequence[int],
    activation: str,
    last_gain: float,
    generator: Generator,
    *,
    gain: float = 2**0.5,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Build linear layers from each of ``sizes`` to the next with activations between them, orthogonal by ``gain``."""
    # Orthogonal weights preserve the length of vectors (Saxe et al. 2014,
    # https://arxiv.org/abs/1312.6120); a gain of sqrt(2) makes up for the activations. A last gain of 0.01
    # starts with a nearly uniform policy: one of the details that PPO owes its results to (Engstrom et al. 2020,
    # https://arxiv.org/abs/2005.12729).
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise(sizes)):
        last = k == len(sizes) - 2
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, last_gain if last else gain, generator=generator)
        nn.init.zeros_(layer.bias)
        # Ba et al. 2016, https://arxiv.org/abs/1607.06450
        norm = [nn.LayerNorm(after)] if layer_norm else []
        layers += [layer] if last else [layer, *norm, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class MLPActorCritic(nn.Module):
    """Separate policy and value towers over tokens."""

    # Separate towers reach more than a shared trunk, whose two losses need weighing (Andrychowicz et al. 2021,
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
        """Compute only the logits (B, K), for a player, which has no critic-only tokens."""
        logits: Tensor = self.policy(self._features(tokens)[0])
        return logits

    def _features(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first layer (B, H) of the policy and of the values."""
        sums = sum_of_rows(tokens[:, : self.tokens], self.first[: self.tokens], self.table) + self.bias
        return sums[:, : self.hidden[0]], sums[:, self.hidden[0] :]


def table_of(categories: Sequence[int], width: int, generator: Generator) -> nn.Parameter:
    """Draw a table of a row for each value of each token; one row of each is summed: the sum has unit variance."""
    return nn.Parameter(torch.empty(sum(categories), width).normal_(std=len(categories) ** -0.5, generator=generator))


def build(layout: Layout) -> nn.Module:
    """Build towers over a vector or over tokens."""
    if isinstance(layout.observation, int):
        from multigrid_rl.models import vector  # noqa: PLC0415 - games show tokens

        return (vector.CentralActorCritic if layout.central else vector.VectorActorCritic)(layout)
    return MLPActorCritic(layout)
