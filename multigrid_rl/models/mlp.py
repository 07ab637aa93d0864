"""The default network: two towers over one-hot tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.fast.table import first_rows, sum_of_rows
from multigrid_rl.fast.towers import KINDS, MAX_WIDTH, Pass, TokenTowers, actor_critic
from multigrid_rl.models.vector import ACTIVATIONS, tower


class MLPActorCritic(nn.Module):
    """Separate policy and value towers.

    The first layer is a linear layer on the concatenated one-hot codes of all tokens. One token selects one row of
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
        self.register_buffer("first", first_rows(categories, central), persistent=False)
        self.first: Tensor
        self.sizes = np.array([*categories, *central])
        self.tokens = len(categories)
        self.width = hidden[0]
        self.widest = max(hidden)
        self.activation = activation
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
        self._towers: TokenTowers | None = None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Integer tokens (B, D) to logits (B, K) and values (B,)."""
        towers = self.compiled()
        return self.reference(tokens) if towers is None else actor_critic(towers, tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        """Compute only the logits (B, K), for a player: no gradients, no value tower."""
        towers = self.compiled()
        if towers is None:
            return self.reference(tokens)[0]
        return torch.from_numpy(towers.policy(tokens.contiguous().numpy()))

    def compiled(self) -> TokenTowers | None:
        """Return the compiled towers, valid while weights stay in place; ``None`` where torch computes the pass."""
        table, towers = self.table, self._towers
        if self.widest > MAX_WIDTH or table.device.type != "cpu" or table.dtype != torch.float32:
            return None
        if towers is None or towers.flat[0] is not table or not towers.reads():
            layers = [layer for part in (self.policy, self.value) for layer in part if isinstance(layer, nn.Linear)]
            linear = [weight for layer in layers for weight in (layer.weight, layer.bias)]
            flat = [table, self.bias, self.central, *linear]
            towers = TokenTowers(flat, KINDS[self.activation], self.first.numpy(), self.sizes, self.tokens)
            self._towers = towers
        return towers

    def reference(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the same in torch's own operations: for other devices, wide layers and tests."""
        features = sum_of_rows(tokens[:, : self.tokens], self.first[: self.tokens], self.table) + self.bias
        critic = features[:, self.width :]
        if self.central is not None:
            critic = critic + sum_of_rows(tokens[:, self.tokens :], self.first[self.tokens :], self.central)
        values: Tensor = self.value(critic)
        return self.policy(features[:, : self.width]), values.squeeze(-1)

    def start(self, tokens: NDArray[Any]) -> Pass | None:
        """Return a pass over tokens (B, D) whose gradients need no graph of torch; ``None`` if torch computes it."""
        towers = self.compiled()
        return None if towers is None else towers.start(np.ascontiguousarray(tokens))

    def __getstate__(self) -> dict[str, Any]:
        # The compiled towers read these weights in place: a copy must not share them.
        return {**self.__dict__, "_towers": None}
