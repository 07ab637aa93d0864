"""Tokens: a linear layer on their one-hot codes, computed as a sum of table rows."""

# A token's one-hot code selects one row of the weight matrix, so no wide input and no wide product is needed. It is
# ``torch.nn.EmbeddingBag(mode="sum")``, which runs on other devices; on the CPU it is compiled, as torch needs 64-bit
# indices there and sorts them in the backward pass. It is here and not in ``fast``, as the reference uses it.

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

from multigrid_rl.jit import float_inlined, float_kernel
from multigrid_rl.lanes import LANES, load, store
from multigrid_rl.text import expected

Floats = NDArray[np.float32]


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
