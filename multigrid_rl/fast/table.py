"""Tokens: a linear layer on their one-hot codes, computed as a sum of table rows; grouping of equal rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from multigrid_rl.fast.kernels import Floats, gather, scatter
from multigrid_rl.jit import float_kernel, kernel
from multigrid_rl.text import expected


@kernel
def distinct_rows(tokens: NDArray[Any], sizes: NDArray[np.int64], slots: NDArray[np.int32], inverse: Any) -> int:
    """Count the distinct rows of ``tokens`` (B, D) and number them in the order in which they first occur.

    A token that is not below its size would read beyond the table: the first such row is returned as ``-1 - row``.

    Args:
        tokens: (B, D) integers.
        sizes: (D,) number of values of each token.
        slots: buffer of a hash table: a power of two, at least 2 B.
        inverse: (B,) becomes each row's number. ``slots`` then begins with the first row of each number.
    """
    mask = np.uint64(len(slots) - 1)
    prime = np.uint64(0x9E3779B97F4A7C15)
    slots[:] = -1
    count = 0
    for b in range(tokens.shape[0]):
        # Two independent chains of multiplications: one chain would stall on its latency.
        even, odd = prime, np.uint64(1)
        for d in range(0, tokens.shape[1] - 1, 2):
            even = (even ^ np.uint64(tokens[b, d])) * prime
            odd = (odd ^ np.uint64(tokens[b, d + 1])) * prime
        if tokens.shape[1] % 2:
            even = (even ^ np.uint64(tokens[b, tokens.shape[1] - 1])) * prime
        code = (even ^ (odd >> np.uint64(29))) * prime
        slot = (code >> np.uint64(32)) & mask
        while True:
            other = slots[slot]
            if other < 0:
                for d in range(tokens.shape[1]):
                    if tokens[b, d] < 0 or tokens[b, d] >= sizes[d]:
                        return -1 - b
                slots[slot] = b
                inverse[b] = count
                count += 1
                break
            same = True
            for d in range(tokens.shape[1]):
                if tokens[b, d] != tokens[other, d]:
                    same = False
                    break
            if same:
                inverse[b] = inverse[other]
                break
            slot = (slot + np.uint64(1)) & mask
    number = 0
    for b in range(tokens.shape[0]):
        if inverse[b] == number:
            slots[number] = b
            number += 1
    return count


@float_kernel
def add_up(values: Floats, inverse: NDArray[np.int64], out: Floats) -> None:
    """Add ``values[b]`` (K,) to ``out[inverse[b]]``."""
    for b in range(values.shape[0]):
        for k in range(values.shape[1]):
            out[inverse[b], k] += values[b, k]


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
    """``EmbeddingBag(mode="sum")`` on tokens of any type: torch needs 64-bit indices and sorts them in backward."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, first: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, first)
        ctx.rows = len(table)
        out = torch.zeros(len(tokens), table.shape[1])
        if tokens.shape[1] != len(first):
            raise IndexError(expected("tokens", f"{len(first)} columns", tokens.shape[1]))
        bad = sum_rows(tokens.numpy(), first.numpy(), table.detach().numpy(), out.numpy())
        if bad >= 0:
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
    """Rows ``first[d] + tokens[b, d]`` of the table, summed over ``d``.

    Args:
        tokens: (B, D) integers.
        first: (D,) int64, row of each token's value 0.
        table: (R, H) float32.

    Returns:
        (B, H) float32.

    Raises:
        IndexError: wrong number of tokens, or a token out of range.
    """
    if table.device.type == "cpu":
        summed: Tensor = _SumOfRows.apply(tokens, first, table)  # type: ignore[no-untyped-call]
        return summed
    return F.embedding_bag(tokens.long() + first, table, mode="sum")
