"""Batches without duplicate rows: in a small room many games look the same; equal rows are computed once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import float_kernel, inlined, kernel
from multigrid_rl.text import expected

Array = NDArray[Any]
#: A batch is reduced to its distinct rows if they are at most this share of it.
_MAX_DISTINCT_SHARE = 0.9


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
    # Open addressing with linear probing and Fibonacci hashing (Knuth, TAOCP 3, 6.4): half of the slots stay empty, so
    # that a chain is short. Sorting rows, as numpy's unique does, takes ten times as long.
    mask = np.uint64(len(slots) - 1)
    prime = np.uint64(0x9E3779B97F4A7C15)
    slots[:] = -1
    count = 0
    for b in range(tokens.shape[0]):
        # Two independent chains of multiplications: one chain would stall on its latency. A hash need not be perfect,
        # as rows in one slot are compared as a whole.
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


@inlined
def number_rows(ids: Array, rows: Array, base: int, assigned: Array, sources: Array, distinct: Array) -> int:
    """Count the distinct ones of ``rows`` (S,) of a batch, in the order in which they first occur.

    Args:
        ids: (R,) distinct row of the batch that each row equals; empty where all count as distinct.
        rows: numbers of rows of the batch.
        base: S times the number of calls before this one.
        assigned: (U,) -1 at first; the number that each distinct row got last, counted over all calls.
        sources: (S,) becomes each row's number.
        distinct: (S,) begins with the row of each number then.
    """
    count = 0
    for b in range(len(rows) if len(ids) else 0):
        k = ids[rows[b]]
        if assigned[k] < base:
            assigned[k] = base + count
            distinct[count] = rows[b]
            count += 1
        sources[b] = assigned[k] - base
    if len(ids) and count <= _MAX_DISTINCT_SHARE * len(rows):
        return count
    for b in range(len(rows)):
        sources[b], distinct[b] = b, rows[b]
    return len(rows)


@float_kernel
def sum_by_row(values: Array, inverse: Array, out: Array) -> None:
    """Add ``values[b]`` (K,) to ``out[inverse[b]]``."""
    for b in range(values.shape[0]):
        for k in range(values.shape[1]):
            out[inverse[b], k] += values[b, k]


def find_distinct(tokens: Array, sizes: Array) -> tuple[Array, Array]:
    """Return the number (B,) of each row among the distinct ones, and the first row of each of these.

    Raises ``IndexError``: a token is not below its size.
    """
    slots, inverse = hash_table(len(tokens))
    return inverse, slots[: check_count(distinct_rows(tokens, sizes, slots, inverse), tokens, sizes)]


def hash_table(rows: int) -> tuple[Array, Array]:
    """Return buffers of :func:`distinct_rows` for so many rows."""
    return np.empty(2 << rows.bit_length(), np.int32), np.empty(rows, np.int64)


def check_count(count: int, tokens: Array, sizes: Array) -> int:
    """Return the count of :func:`distinct_rows`. Raises ``IndexError``: a token is not below its size."""
    if count < 0:
        row = tokens[-1 - count].tolist()
        raise IndexError(expected("tokens", f"0 to less than {sizes.tolist()}, token by token", row))
    return count


class Distinct(NamedTuple):
    """A batch without duplicate rows: in a small room many games look the same."""

    tokens: Array  # (U, D)
    inverse: Array | None  # (B,) distinct row of each row; None: too few duplicates to pay off

    @classmethod
    def of(cls, tokens: Array, sizes: Array) -> Distinct:
        """Find the distinct rows of ``tokens`` (B, D), contiguous, whose values are below ``sizes`` (D,)."""
        inverse, first = find_distinct(tokens, sizes)
        if len(first) > _MAX_DISTINCT_SHARE * len(tokens):
            return cls(tokens, None)
        return cls(tokens[first], inverse)

    def expand(self, values: Array) -> Array:
        """Expand values of the distinct rows to all rows of the batch."""
        return values if self.inverse is None else values[self.inverse]

    def gather(self, gradient: Array) -> Array:
        """Sum gradients of all rows by distinct row."""
        if self.inverse is None:
            return gradient
        out = np.zeros((len(self.tokens), gradient.shape[1]), np.float32)
        sum_by_row(gradient, self.inverse, out)
        return out
