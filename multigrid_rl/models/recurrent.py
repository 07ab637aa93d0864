"""A network with memory: one-hot tokens, a GRU or LSTM cell, two heads."""

import numpy as np
import torch
from torch import Tensor, nn

from multigrid_rl.models import Layout
from multigrid_rl.models.mlp import first_rows, orthogonal, sum_of_rows, table_of
from multigrid_rl.models.vector import LogStd, Normaliser

CELLS: dict[str, type[nn.GRUCell | nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


class RecurrentActorCritic(nn.Module):
    """Policy and value heads over one recurrent core.

    GRU: Cho et al. 2014, https://arxiv.org/abs/1406.1078. LSTM: Hochreiter and Schmidhuber 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735.

    Attributes:
        state_size: size of one game's memory: H, for an LSTM 2 H (hidden, then cell).
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        observation, generator, (hidden,) = layout.observation, layout.generator, layout.hidden
        vector = isinstance(observation, int)
        categories = () if isinstance(observation, int) else observation
        self.register_buffer("first", first_rows(categories, layout.central), persistent=False)
        self.first: Tensor
        self.tokens = observation if isinstance(observation, int) else len(observation)
        self.sizes = np.array(categories, np.int64)
        self.state_size = hidden * (2 if layout.name == "lstm" else 1)
        self.table = None if vector else table_of(categories, hidden, generator)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.encode = nn.Linear(self.tokens, hidden, bias=False) if vector else None
        self.normaliser = Normaliser(self.tokens) if layout.normalise else nn.Identity()
        self.core = CELLS[layout.name](input_size=hidden, hidden_size=hidden)
        self.policy = nn.Linear(hidden, layout.outputs)
        self.spread = nn.Identity() if layout.log_std is None else LogStd(layout.outputs, layout.log_std)
        self.value_hidden = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, 1)
        # Without central tokens nothing is drawn here: the other weights are then the same with and without them.
        self.central = table_of(layout.central, hidden, generator) if layout.central else None
        self._initialise(generator)

    def _initialise(self, generator: torch.Generator) -> None:
        # Gate by gate: one orthogonal matrix for all of them would not be one for each.
        for name, weight in self.core.named_parameters():
            if name.startswith("weight"):
                for gate in torch.split(weight.data, self.core.hidden_size):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                nn.init.zeros_(weight)
        for layer, gain in ((self.policy, 0.01), (self.value_hidden, 2**0.5), (self.value, 1.0), (self.encode, 1.0)):
            if layer is not None:
                orthogonal(layer, gain, generator)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step: tokens (B, D) and state (B, S) to logits (B, K), values (B,) and the next state (B, S)."""
        state = self._advance(self._embed(tokens[:, : self.tokens]), state)
        return *self._heads(state[:, : self.core.hidden_size], tokens), state

    def sequence(self, tokens: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Many steps: logits (B * T, K) and values (B * T,).

        Args:
            tokens: (B, T, D).
            state: (B, S), the memory before the first step.
            starts: (B, T), a new episode begins with this step: the memory is cleared before it.
        """
        games, steps, _ = tokens.shape
        # All steps at once: only the core must go step by step.
        embedded = self._embed(tokens[..., : self.tokens].reshape(games * steps, -1)).view(games, steps, -1)
        # Multiplied, not indexed: the gradient through time then stops at a start.
        not_cleared = (~starts).float().unsqueeze(-1)
        hidden = []
        for t in range(steps):
            state = self._advance(embedded[:, t], state * not_cleared[:, t])
            hidden.append(state[:, : self.core.hidden_size])
        return self._heads(torch.stack(hidden, dim=1).flatten(0, 1), tokens.flatten(0, 1))

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.table is None:
            assert self.encode is not None
            return torch.tanh(self.encode(self.normaliser(tokens)) + self.bias)
        return torch.tanh(sum_of_rows(tokens, self.first[: self.tokens], self.table) + self.bias)

    def _advance(self, embedded: Tensor, state: Tensor) -> Tensor:
        # An LSTM's memory is (hidden, cell) in one row, so that collectors, players and checkpoints know one shape.
        size = self.core.hidden_size
        if isinstance(self.core, nn.LSTMCell):
            return torch.cat(self.core(embedded, (state[:, :size], state[:, size:])), dim=1)
        next_state: Tensor = self.core(embedded, state)
        return next_state

    def _heads(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        # The policy reads the memory directly; values get a separate layer, which central tokens enter.
        critic = self.value_hidden(hidden)
        if self.central is not None:
            critic = critic + sum_of_rows(tokens[:, self.tokens :], self.first[self.tokens :], self.central)
        return self.spread(self.policy(hidden)), self.value(torch.tanh(critic)).squeeze(-1)
