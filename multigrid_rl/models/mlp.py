"""The default network: two towers, over one-hot tokens or (:mod:`multigrid_rl.models.vector`) over a vector.

The first layer over tokens is a linear layer on their one-hot codes, computed as a sum of table rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from multigrid_rl.jit import float_inlined, float_kernel
from multigrid_rl.lanes import LANES, load, store
from multigrid_rl.models import Layout
from multigrid_rl.text import expected

Floats = NDArray[np.float32]
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
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
        layer = orthogonal(nn.Linear(before, after), last_gain if last else gain, generator)
        # Ba et al. 2016, https://arxiv.org/abs/1607.06450
        norm = [nn.LayerNorm(after)] if layer_norm else []
        layers += [layer] if last else [layer, *norm, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def orthogonal(layer: Layer, gain: float, generator: Generator) -> Layer:
    """Return a layer with orthogonal weights, scaled by ``gain``, and a bias of zeros, if it has one."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class MLPActorCritic(nn.Module):
    """Separate policy and value towers over tokens."""

    # Separate towers reach more than a shared trunk, whose two losses need weighing (Andrychowicz et al. 2021,
    # https://arxiv.org/abs/2006.05990, section 3.2). The first layer is a linear layer on the one-hot codes of all
    # tokens (:func:`sum_of_rows`), of both towers at once: tokens are looked up once.

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
    return nn.Parameter(normal(torch.empty(sum(categories), width), generator, len(categories) ** -0.5))


def normal(tensor: Tensor, generator: Generator, std: float = 1.0) -> Tensor:
    """Fill a tensor with normal draws, but on "meta", where only shapes count and a draw imports torch's compiler."""
    return tensor if tensor.is_meta else tensor.normal_(std=std, generator=generator)


def build(layout: Layout) -> nn.Module:
    """Build towers over a vector or over tokens."""
    if isinstance(layout.observation, int):
        from multigrid_rl.models import vector  # noqa: PLC0415 - games show tokens

        return (vector.CentralActorCritic if layout.central else vector.VectorActorCritic)(layout)
    return MLPActorCritic(layout)


# --- sums of table rows

# A token's one-hot code selects one row of the weight matrix, so no wide input and no wide product is needed. It is
# ``torch.nn.EmbeddingBag(mode="sum")``, which runs on other devices; on the CPU it is compiled, as torch needs 64-bit
# indices there and sorts them in the backward pass. It is here and not in ``fast``, as the reference uses it.


@float_inlined
def gather(tokens: Any, column: int, first: Any, table: Floats, start: int, rows: Any, out: Floats) -> None:
    """Add rows ``first[d] + tokens[b, column + d]`` of a table, its columns from ``start`` on, to ``out[b]``."""
    count, width = len(first), out.shape[1]
    fours_end, lanes_end = count - count % 4, width - width % LANES
    for b in range(rows[0], rows[1]):
        # Four rows in one go, added up in registers: a tile of out is read and written once.
        for j in range(0, lanes_end, 2 * LANES):
            i = min(j + LANES, lanes_end - LANES)
            left, right = load(out, b, j), load(out, b, i)
            k, m = start + j, start + i
            for d in range(0, fours_end, 4):
                c = column + d
                r0, r1 = first[d] + tokens[b, c], first[d + 1] + tokens[b, c + 1]
                r2, r3 = first[d + 2] + tokens[b, c + 2], first[d + 3] + tokens[b, c + 3]
                left = left + ((load(table, r0, k) + load(table, r1, k)) + (load(table, r2, k) + load(table, r3, k)))
                right = right + ((load(table, r0, m) + load(table, r1, m)) + (load(table, r2, m) + load(table, r3, m)))
            for d in range(fours_end, count):
                row = first[d] + tokens[b, column + d]
                left, right = left + load(table, row, k), right + load(table, row, m)
            store(out, b, j, left)
            store(out, b, i, right)
        for h in range(lanes_end, width):
            k, total = start + h, out[b, h]
            for d in range(0, fours_end, 4):
                c = column + d
                r0, r1 = first[d] + tokens[b, c], first[d + 1] + tokens[b, c + 1]
                r2, r3 = first[d + 2] + tokens[b, c + 2], first[d + 3] + tokens[b, c + 3]
                total += (table[r0, k] + table[r1, k]) + (table[r2, k] + table[r3, k])
            for d in range(fours_end, count):
                total += table[first[d] + tokens[b, column + d], k]
            out[b, h] = total


@float_inlined
def scatter(tokens: Any, column: int, first: Any, gradient: Floats, columns: Any, start: int, out: Floats) -> None:
    """Go back through :func:`gather`: add the ``columns`` of ``gradient[b]`` to all rows of ``out`` that it read."""
    low, high = columns
    lanes_end = high - (high - low) % LANES
    for b in range(len(tokens)):
        for d in range(len(first)):
            row = first[d] + tokens[b, column + d]
            for h in range(low, lanes_end, LANES):
                store(out, row, start + h, load(out, row, start + h) + load(gradient, b, h))
            for h in range(lanes_end, high):
                out[row, start + h] += gradient[b, h]


@float_kernel
def sum_rows(tokens: NDArray[Any], first: NDArray[np.int64], table: Floats, out: Floats) -> int:
    """Add rows ``first[d] + tokens[b, d]`` of the table (R, H), over all ``d``, to ``out[b]`` (H,).

    Returns -1; if a row is outside of the table, adds nothing and returns the first such ``b``.
    """
    for b in range(tokens.shape[0]):
        for d in range(len(first)):
            if tokens[b, d] < 0 or first[d] + tokens[b, d] >= table.shape[0]:
                return b
    gather(tokens, 0, first, table, 0, (0, len(tokens)), out)
    return -1


@float_kernel
def add_rows(tokens: NDArray[Any], first: NDArray[np.int64], gradient: Floats, out: Floats) -> None:
    """Go back through :func:`sum_rows`: add ``gradient[b]`` (H,) to each row of ``out`` (R, H) that was summed."""
    scatter(tokens, 0, first, gradient, (0, gradient.shape[1]), 0, out)


def first_rows(categories: Sequence[int], central: Sequence[int]) -> Tensor:
    """Row (D,) of each token's value 0 in a table of all one-hot codes; central tokens have a table of their own."""
    rows = [row for part in (categories, central) for row in list(accumulate(part, initial=0))[:-1]]
    return torch.tensor(rows, dtype=torch.int64)


class _SumOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, first: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, first)
        ctx.rows = len(table)
        out = torch.zeros(len(tokens), table.shape[1])
        if tokens.shape[1] != len(first):
            raise IndexError(expected("tokens", f"{len(first)} columns", tokens.shape[1]))
        if (bad := sum_rows(tokens.numpy(), first.numpy(), table.detach().numpy(), out.numpy())) >= 0:
            raise IndexError(expected("tokens", f"rows of a table of {len(table)}", tokens[bad].tolist()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        tokens, first = ctx.saved_tensors
        out = torch.zeros(ctx.rows, gradient.shape[1])
        add_rows(tokens.numpy(), first.numpy(), gradient.contiguous().numpy(), out.numpy())
        return None, None, out


def sum_of_rows(tokens: Tensor, first: Tensor, table: Tensor) -> Tensor:
    """Rows ``first[d] + tokens[b, d]`` of the table, summed over ``d``: (B, H) float32.

    Args:
        tokens: (B, D) integers.
        first: (D,) int64, row of each token's value 0.
        table: (R, H) float32.

    Raises ``IndexError``: wrong number of tokens, or a token out of range.
    """
    if torch.onnx.is_in_onnx_export():  # written down as ONNX, which knows no kernels of ours
        return table[tokens.long() + first].sum(1)
    if table.device.type == "cpu":
        sums: Tensor = _SumOfRows.apply(tokens, first, table)  # type: ignore[no-untyped-call]
        return sums
    return F.embedding_bag(tokens.long() + first, table, mode="sum")
