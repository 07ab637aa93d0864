"""Networks with one embedding shared by all cells, then dense or convolutional layers."""

from collections.abc import Sequence
from itertools import groupby
from math import isqrt

import torch
from torch import Tensor, nn

from multigrid_rl.models import Layout

#: Width of a token's embedding.
EMBEDDING = 8
CHANNELS = (16, 32)
_SMALLEST_VIEW = 3


class CellActorCritic(nn.Module):
    """Separate policy and value towers over embedded tokens.

    Tokens with the same number of values share one embedding table. For ``cnn``, runs of tokens that form a
    square view pass through two 3x3 convolutions first; all other tokens go to the dense layers directly.
    """

    #: No memory between steps.
    state_size = 0

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        categories, convolution = layout.observation, layout.name == "cnn"
        assert not isinstance(categories, int)
        self.policy = _CellTower(categories, layout.hidden, layout.outputs, convolution)
        self.value = _CellTower(categories, layout.hidden, 1, convolution)
        for part, gain in ((self.policy, 0.01), (self.value, 1.0)):
            part.initialise(gain, layout.generator)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Integer tokens (B, D) to logits (B, K) and values (B,)."""
        codes = tokens.long()
        values: Tensor = self.value(codes)
        return self.policy(codes), values.squeeze(-1)

    def logits(self, tokens: Tensor) -> Tensor:
        """Compute only the logits (B, K), for a player."""
        logits: Tensor = self.policy(tokens.long())
        return logits


def build(layout: Layout) -> nn.Module:
    """Build a network over an image, or over the cells of a view."""
    if isinstance(layout.observation, int):
        from multigrid_rl.models.vector import ImageActorCritic  # noqa: PLC0415 - games show tokens

        return ImageActorCritic(layout)
    return CellActorCritic(layout)


class _CellTower(nn.Module):
    def __init__(self, categories: Sequence[int], hidden: Sequence[int], outputs: int, convolution: bool) -> None:
        super().__init__()
        # Cells of a view mean the same wherever they are: one embedding for all of them learns from all of them.
        counts = sorted(set(categories))
        self.tables = nn.ModuleDict({str(count): nn.Embedding(count, EMBEDDING) for count in counts})
        # Runs of equal numbers of values: that number, the first token and how many tokens.
        self.runs, first = [], 0
        for count, group in groupby(categories):
            self.runs.append((count, first, len(list(group))))
            first += self.runs[-1][2]
        views = [convolution and isqrt(size) ** 2 == size and size >= _SMALLEST_VIEW**2 for _, _, size in self.runs]
        self.views = views
        # The first convolution is padded, so that cells at a view's border count as much as those inside; the second is
        # not, and leaves (side - 2)^2 places.
        self.convolve = nn.Sequential(
            nn.Conv2d(EMBEDDING, CHANNELS[0], 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(CHANNELS[0], CHANNELS[1], 3),
            nn.Tanh(),
        )
        if not any(views):
            self.convolve = nn.Sequential()
        width = sum(
            CHANNELS[1] * (isqrt(size) - 2) ** 2 if view else EMBEDDING * size
            for (_, _, size), view in zip(self.runs, views, strict=True)
        )
        # Towers share nothing: a value's gradient cannot disturb the policy (Andrychowicz et al. 2021, section 3.2,
        # https://arxiv.org/abs/2006.05990, found separate ones at least as good).
        layers: list[nn.Module] = []
        for units in hidden:
            layers += [nn.Linear(width, units), nn.Tanh()]
            width = units
        self.dense = nn.Sequential(*layers, nn.Linear(width, outputs))

    def initialise(self, gain: float, generator: torch.Generator) -> None:
        """Orthogonal weights, the last layer scaled by ``gain``."""
        layers = [layer for layer in self.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        # Normal, as rows of a table are looked up and not multiplied: no length has to be preserved.
        for table in self.tables.values():
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, generator=generator)
        for layer in layers:
            last = layer is self.dense[-1]
            nn.init.orthogonal_(layer.weight, gain if last else 2**0.5, generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def forward(self, codes: Tensor) -> Tensor:
        parts = []
        for (count, first, size), view in zip(self.runs, self.views, strict=True):
            embedded = self.tables[str(count)](codes[:, first : first + size])
            if view:
                side = isqrt(size)
                embedded = self.convolve(embedded.view(-1, side, side, EMBEDDING).permute(0, 3, 1, 2))
            parts.append(embedded.flatten(1))
        output: Tensor = self.dense(torch.cat(parts, dim=1))
        return output
