"""A linear layer on one-hot tokens, computed as a sum of table rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from multigrid_rl.models.kernels import add_rows, sum_rows
from multigrid_rl.text import expected


def first_rows(categories: Sequence[int], central: Sequence[int]) -> Tensor:
    """Row (D,) of each token's value 0 in a table of all one-hot codes; central tokens have a table of their own."""
    rows = [row for part in (categories, central) for row in list(accumulate(part, initial=0))[:-1]]
    return torch.tensor(rows, dtype=torch.int64)


class _SumOfRows(torch.autograd.Function):
    """``EmbeddingBag(mode="sum")`` on tokens as they come: torch wants 64-bit indices and sorts them to go back."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, first: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, first)
        ctx.rows = len(table)
        out = torch.zeros(len(tokens), table.shape[1])
        if tokens.shape[1] != len(first):
            raise IndexError(expected("tokens", f"{len(first)} columns", tokens.shape[1]))
        bad = sum_rows(tokens.numpy(), first.numpy(), table.detach().numpy(), out.numpy())
        if bad >= 0:
            raise IndexError(expected("tokens", f"what has a row in a table of {len(table)}", tokens[bad].tolist()))
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
        IndexError: another number of tokens, or one without a row.
    """
    if table.device.type == "cpu":
        summed: Tensor = _SumOfRows.apply(tokens, first, table)  # type: ignore[no-untyped-call]
        return summed
    return F.embedding_bag(tokens.long() + first, table, mode="sum")
