"""Networks with one embedding shared by all cells, then dense or convolutional layers, or attention over cells.

With attention, each seat's queries weigh the embeddings of the cells in its view.
"""

from collections.abc import Sequence
from itertools import groupby
from math import isqrt

import torch
from torch import Tensor, nn

from multigrid_rl.models import Layout
from multigrid_rl.models.mlp import ACTIVATIONS, normal, orthogonal, tower

#: Width of a token's embedding.
EMBEDDING = 8
CHANNELS = (16, 32)
_SMALLEST_VIEW = 3


def _table(rows: int, width: int, generator: torch.Generator) -> nn.Embedding:
    """Return a table of normal rows, which are looked up and not multiplied: no length has to be preserved."""
    # An ``nn.Embedding`` by itself would draw them with torch's global generator.
    weight = normal(torch.empty(rows, width), generator)
    table: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False)  # type: ignore[no-untyped-call]
    return table


class CellActorCritic(nn.Module):
    """Separate policy and value towers over embedded tokens.

    Tokens with the same number of values share one embedding table. For ``cnn``, runs of tokens that form a
    square view pass through two 3x3 convolutions first; all other tokens go to the dense layers directly.
    """

    #: No memory between steps.
    state_size = 0

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.policy = _CellTower(layout, layout.outputs, 0.01)
        self.value = _CellTower(layout, 1, 1.0)

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
    def __init__(self, layout: Layout, outputs: int, gain: float) -> None:
        super().__init__()
        categories, generator = layout.observation, layout.generator
        assert not isinstance(categories, int)
        # Cells of a view mean the same wherever they are: one embedding for all of them learns from all of them.
        self.tables = nn.ModuleDict(
            {str(count): _table(count, EMBEDDING, generator) for count in sorted({*categories})}
        )
        # Runs of equal numbers of values: that number, the first token and how many tokens.
        self.runs, first = [], 0
        for count, group in groupby(categories):
            self.runs.append((count, first, len(list(group))))
            first += self.runs[-1][2]
        self.views = [
            layout.name == "cnn" and isqrt(size) ** 2 == size and size >= _SMALLEST_VIEW**2 for _, _, size in self.runs
        ]
        # The first convolution is padded, so that cells at a view's border count as much as those inside; the second is
        # not, and leaves (side - 2)^2 places.
        self.convolve = nn.Sequential()
        if any(self.views):
            for layer in (nn.Conv2d(EMBEDDING, CHANNELS[0], 3, padding=1), nn.Conv2d(CHANNELS[0], CHANNELS[1], 3)):
                self.convolve.extend([orthogonal(layer, 2**0.5, generator), nn.Tanh()])
        width = sum(
            CHANNELS[1] * (isqrt(size) - 2) ** 2 if view else EMBEDDING * size
            for (_, _, size), view in zip(self.runs, self.views, strict=True)
        )
        # Towers share nothing: a value's gradient cannot disturb the policy (Andrychowicz et al. 2021, section 3.2,
        # https://arxiv.org/abs/2006.05990, found separate ones at least as good).
        self.dense = tower((width, *layout.hidden, outputs), "tanh", gain, generator)

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


# --- attention

#: Width of an embedding, number of heads with which a seat attends to its cells, smallest number of cells of a view.
WIDE, HEADS, _VIEW = 32, 8, 9
#: Number of values of each token of one seat.
Group = tuple[int, ...]


def seats_in(categories: Sequence[int]) -> list[Group]:
    """Split tokens into seats: each begins with a view, a run of tokens with equally many values."""
    groups: list[list[int]] = []
    for _, run in groupby(categories):
        tokens = list(run)
        if not groups or len(tokens) >= _VIEW:
            groups.append([])
        groups[-1] += tokens
    return [tuple(group) for group in groups]


class AttentionActorCritic(nn.Module):
    """Separate policy and value towers; several seats in what the actor reads are a team with one policy."""

    #: No memory between steps.
    state_size = 0

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        assert not isinstance(layout.observation, int)
        seats, self.tokens = seats_in(layout.observation), len(layout.observation)
        # Each seat of a team decides by the same weights; other games' actions have no known seat.
        groups = len(seats) if layout.outputs % len(seats) == 0 and len(set(seats)) == 1 else 1
        self.policy = _Tower(layout, seats, layout.outputs // groups, 0.01, joint=groups == 1)
        self.value = _Tower(layout, seats, 1, 1.0, joint=True)
        # Last, and only of the critic: the other weights are the same with and without them.
        self.central = _Mates(layout, seats_in(layout.central)) if layout.central else None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Integer tokens (B, D) to logits (B, K) and values (B,)."""
        codes = tokens.long()
        actor_codes, values = codes[:, : self.tokens], self.value.features(codes[:, : self.tokens])
        if self.central is not None:
            values = self.central(values, codes[:, self.tokens :])
        return self.policy(actor_codes), self.value.outputs(values).squeeze(-1)

    def logits(self, tokens: Tensor) -> Tensor:
        """Compute only the logits (B, K), for a player."""
        logits: Tensor = self.policy(tokens.long())
        return logits


class _Tower(nn.Module):
    def __init__(self, layout: Layout, seats: list[Group], outputs: int, gain: float, *, joint: bool) -> None:
        super().__init__()
        self.joint, self.seats = joint, _Seats(layout, seats)
        self.mates = _Mates(layout) if len(seats) > 1 else None
        self.dense = tower((*layout.hidden, outputs), layout.activation, gain, layout.generator)

    def features(self, codes: Tensor) -> Tensor:
        """Codes (B, D) to features (B, S, H) of the seats, after attention between them."""
        features: Tensor = self.seats(codes)
        return features if self.mates is None else self.mates(features)

    def outputs(self, features: Tensor) -> Tensor:
        """Features (B, S, H) to outputs (B, K)."""
        outputs: Tensor = self.dense(features.mean(1) if self.joint else features)
        return outputs.flatten(1)

    def forward(self, codes: Tensor) -> Tensor:
        return self.outputs(self.features(codes))


class _Mates(nn.Module):
    """Adds attention between seats to features (B, S, H), or attention to seats of tokens that only a critic has."""

    def __init__(self, layout: Layout, seats: Sequence[Group] = ()) -> None:
        super().__init__()
        width, generator = layout.hidden[0], layout.generator
        self.seats = _Seats(layout, list(seats)) if seats else None
        # Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), a single head: there are few mates. Zero at the start:
        # a seat first learns from what it sees itself.
        self.ask, self.show, self.tell = (
            orthogonal(nn.Linear(width, width), gain, generator) for gain in (1.0, 1.0, 0.0)
        )

    def forward(self, features: Tensor, codes: Tensor | None = None) -> Tensor:
        others = features if self.seats is None else self.seats(codes)
        scores = self.ask(features) @ self.show(others).transpose(1, 2) * features.shape[2] ** -0.5
        result: Tensor = features + self.tell(torch.softmax(scores, 2) @ others)
        return result


class _Seats(nn.Module):
    """Features (B, S, H) of each seat; seats with equal inputs share all weights except a place."""

    def __init__(self, layout: Layout, seats: list[Group]) -> None:
        super().__init__()
        kinds = list(dict.fromkeys(seats))
        self.looks = nn.ModuleList(_Look(layout, kind) for kind in kinds)
        self.kinds, self.sizes = [kinds.index(seat) for seat in seats], [len(seat) for seat in seats]
        self.place = nn.Parameter(normal(torch.empty(len(seats), layout.hidden[0]), layout.generator) * 0.1)
        self.activation = ACTIVATIONS[layout.activation]()

    def forward(self, codes: Tensor) -> Tensor:
        parts = torch.split(codes, self.sizes, dim=1)
        seat_features = [self.looks[kind](part) for kind, part in zip(self.kinds, parts, strict=True)]
        features: Tensor = self.activation(torch.stack(seat_features, 1) + self.place)
        return features


class _Look(nn.Module):
    """Features of one seat: its cells, pooled by attention, and its other tokens."""

    def __init__(self, layout: Layout, categories: Group) -> None:
        super().__init__()
        # Pooling by attention: Lee et al. 2019 (https://arxiv.org/abs/1810.00825). Queries depend on the tokens that
        # are no cells (heading, mission) and on the cells' mean, so that a head's focus depends on the cells;
        # queries meet embeddings themselves: keys for every cell would take most of the time, and are linear, too.
        generator = layout.generator
        self.cells = next(len(list(run)) for _, run in groupby(categories))
        rest = categories[self.cells :]
        self.places = nn.Parameter(normal(torch.empty(self.cells, WIDE), generator))
        self.codes = _table(categories[0], WIDE, generator)
        self.rest = nn.ModuleList(_table(count, WIDE, generator) for count in rest)
        self.query = orthogonal(nn.Linear(WIDE * (1 + len(rest)), HEADS * WIDE), 1.0, generator)
        self.out = orthogonal(nn.Linear(WIDE * (HEADS + len(rest)), layout.hidden[0]), 2**0.5, generator)
        normal(self.query.bias.data, generator)  # heads with equal weights would stay equal

    def forward(self, codes: Tensor) -> Tensor:
        """Codes (B, D) to features (B, H)."""
        cells = torch.tanh(self.codes(codes[:, : self.cells]) + self.places)  # (B, C, E)
        rest = [table(codes[:, self.cells + k]) for k, table in enumerate(self.rest)]
        queries = self.query(torch.cat([cells.mean(1), *rest], 1)).unflatten(1, (HEADS, WIDE))
        weights = torch.softmax(queries @ cells.transpose(1, 2) * WIDE**-0.5, 2)  # (B, heads, C)
        features: Tensor = self.out(torch.cat([(weights @ cells).flatten(1), *rest], 1))
        return features
