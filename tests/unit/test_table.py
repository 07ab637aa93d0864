"""The table-sum layer's own backward pass."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from multigrid_rl.models.table import sum_of_rows


def case():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 40, (33, 7), generator=generator)
    table = torch.randn(40, 5, generator=generator)
    upstream = torch.randn(33, 5, generator=generator)
    return rows, table, upstream


def test_forward_and_gradient_equal_torch_embedding_bag():
    rows, table, upstream = case()
    ours, theirs = table.clone().requires_grad_(), table.clone().requires_grad_()
    a, b = sum_of_rows(rows, ours), F.embedding_bag(rows, theirs, mode="sum")
    (a * upstream).sum().backward()
    (b * upstream).sum().backward()
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_row_named_twice_in_one_sample_counts_twice():
    table = torch.ones(3, 2).requires_grad_()
    sum_of_rows(torch.tensor([[1, 1]]), table).sum().backward()
    assert table.grad.tolist() == [[0, 0], [2, 2], [0, 0]]


def test_an_upstream_gradient_that_is_not_contiguous_is_read_right():
    rows, table, upstream = case()
    expected = torch.zeros(40, 5).index_add_(0, rows.flatten(), upstream.repeat_interleave(7, 0))
    table.requires_grad_()
    sum_of_rows(rows, table).backward(upstream.t().contiguous().t())
    torch.testing.assert_close(table.grad, expected)
