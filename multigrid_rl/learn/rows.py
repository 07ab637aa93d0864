"""Rows of a batch: their order in training, and their mean and variance."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Mean and variance of all added rows, in float64.

    Args:
        width: columns of a row.
    """

    def __init__(self, width: int) -> None:
        self.count, self.mean, self.squares = 0.0, np.zeros(width), np.zeros(width)

    def add(self, rows: NDArray[Any]) -> None:
        """Add ``rows`` (B, width), at least one."""
        # Chan et al. 1979 (http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf): batches are combined
        # by squares around their own means, as a difference of large sums would cancel.
        mean, count = rows.mean(axis=0, dtype=np.float64), self.count + len(rows)
        squares = ((rows - mean) ** 2).sum(axis=0)
        self.squares = self.squares + squares + (mean - self.mean) ** 2 * self.count * len(rows) / count
        self.mean = self.mean + (mean - self.mean) * len(rows) / count
        self.count = count

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation (width,), never 0."""
        result: NDArray[np.float64] = np.sqrt(self.squares / max(self.count, 1.0) + 1e-8)
        return result


def minibatches(
    rows: Mapping[str, int], epochs: int, size: int, rng: np.random.Generator, *, shuffled: bool = False
) -> Iterator[dict[str, NDArray[np.int64]]]:
    """Yield row numbers of each minibatch, by module.

    The first epoch takes all rows of a module in the order of play and every later one in a new random order. A
    minibatch that reaches the end of an epoch is filled from the next one. It ends after ``epochs`` passes over the
    module with the most rows; other modules begin further epochs meanwhile.

    Args:
        rows: module -> rows of its batch, at least 1.
        epochs: passes over the largest batch.
        size: rows of a minibatch.
        rng: draws the orders.
        shuffled: shuffle the first epoch, too.
    """
    # As RLlib does; the recipes were tuned so. With the first one shuffled, too, one seed of ten missed the gates of
    # 2v2.
    ahead = {module: rng.permutation(count) if shuffled else np.arange(count) for module, count in rows.items()}
    for _ in range(math.ceil(epochs * max(rows.values()) / size)):
        chosen = {}
        for module, count in rows.items():
            while len(ahead[module]) < size:
                ahead[module] = np.concatenate([ahead[module], rng.permutation(count)])
            chosen[module], ahead[module] = ahead[module][:size], ahead[module][size:]
        yield chosen
