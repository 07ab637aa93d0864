"""The table-sum layer's own forward and backward pass."""

import pytest
import torch
from torch.nn import functional as F

from multigrid_rl.models.mlp import first_rows, sum_of_rows

SIZES = [9, 3, 8, 2, 11, 4, 3]


def case():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.stack([torch.randint(0, size, (33,), generator=generator) for size in SIZES], 1)
    table = torch.randn(sum(SIZES), 5, generator=generator)
    upstream = torch.randn(33, 5, generator=generator)
    return tokens, first_rows(SIZES, []), table, upstream


def test_forward_and_gradient_equal_torch_embedding_bag():
    tokens, first, table, upstream = case()
    ours, theirs = table.clone().requires_grad_(), table.clone().requires_grad_()
    a, b = sum_of_rows(tokens, first, ours), F.embedding_bag(tokens + first, theirs, mode="sum")
    (a * upstream).sum().backward()
    (b * upstream).sum().backward()
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_repeated_row_in_sample_counts_twice():
    table = torch.ones(3, 2).requires_grad_()
    sum_of_rows(torch.tensor([[1, 0]]), torch.tensor([0, 1]), table).sum().backward()
    assert table.grad.tolist() == [[0, 0], [2, 2], [0, 0]]


def test_non_contiguous_upstream_gradient():
    tokens, first, table, upstream = case()
    rows = (tokens + first).flatten()
    expected = torch.zeros_like(table).index_add_(0, rows, upstream.repeat_interleave(len(SIZES), 0))
    table.requires_grad_()
    sum_of_rows(tokens, first, table).backward(upstream.t().contiguous().t())
    torch.testing.assert_close(table.grad, expected)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([[8, 3]], "8, 3"), ([[0, 0], [-1, 0]], "-1, 0"), ([[1]], "tokens: expected 2 columns, got 1")],
)
def test_rejects_tokens_without_row(tokens, message):
    with pytest.raises(IndexError, match=message):
        sum_of_rows(torch.tensor(tokens), first_rows([9, 2], []), torch.ones(11, 2))
