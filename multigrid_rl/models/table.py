"""A linear layer on one-hot tokens, computed as a sum of table rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from multigrid_rl.jit import kernel


@kernel
def _add_rows(rows: NDArray[np.int64], gradient: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for b in range(rows.shape[0]):
        for d in range(rows.shape[1]):
            row = rows[b, d]
            for h in range(gradient.shape[1]):
                out[row, h] += gradient[b, h]


class _SumOfRows(torch.autograd.Function):
    """``EmbeddingBag(mode="sum")`` whose backward pass adds rows; torch sorts all indices first, which takes longer."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return F.embedding_bag(rows, table, mode="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (rows,) = ctx.saved_tensors
        out = np.zeros(tuple(ctx.shape), np.float32)
        _add_rows(rows.numpy(), gradient.contiguous().numpy(), out)
        return None, torch.from_numpy(out)


def sum_of_rows(rows: Tensor, table: Tensor) -> Tensor:
    """Sum of the table's rows: indices (B, D) int64 and table (R, H) float32 to (B, H)."""
    if table.requires_grad and torch.is_grad_enabled() and table.device.type == "cpu":
        summed: Tensor = _SumOfRows.apply(rows, table)  # type: ignore[no-untyped-call]
        return summed
    return F.embedding_bag(rows, table, mode="sum")
