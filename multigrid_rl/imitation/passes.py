"""The order in which recorded steps are learned from."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.imitation.demonstrations import Demonstrations
from multigrid_rl.models.vector import Moments
from multigrid_rl.text import ConfigError, expected

Array = NDArray[Any]


class LabelledPairs(NamedTuple):
    """Observations and actions."""

    obs: Array  # (B, D)
    actions: Array  # (B, C) or (B, A)


class ShuffledReader:
    """Endless passes over recorded steps, in an order that depends only on seed and position.

    A pass visits stretches of neighbouring rows in random order, and the rows of many stretches are shuffled together.
    So the position is enough to resume, and the disk is read in large pieces. Small data is shuffled as a whole.

    Args:
        data: the recorded steps.
        held_out: share of the episodes excluded from training.
        seed: of the order and of the held-out episodes.
    """

    #: Rows of a stretch, and rows that are shuffled together.
    CHUNK_ROWS, SHUFFLE_BUFFER_ROWS = 1024, 1 << 18
    #: With fewer episodes than this, stretches are held out instead.
    MIN_EPISODES = 20

    def __init__(self, data: Demonstrations, held_out: float, seed: int) -> None:
        self.data = data
        self._seed = seed
        ends = (
            data.episode_ends if len(data.episode_ends) >= self.MIN_EPISODES else _cuts(data.card.rows, self.CHUNK_ROWS)
        )
        bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
        order = np.random.default_rng((seed, 1)).permutation(len(bounds))
        out = int(np.ceil(held_out * len(bounds)))
        self._out, kept = bounds[np.sort(order[:out])], bounds[np.sort(order[out:])]
        if not len(kept):
            raise ConfigError(
                expected("train.cloning.held_out", f"a share that leaves some of {len(bounds)}", held_out)
            )
        self._stretches = np.concatenate([_pieces(low, high, self.CHUNK_ROWS) for low, high in _merged(kept)])
        self.rows = int((self._stretches[:, 1] - self._stretches[:, 0]).sum())
        self._at: tuple[int, int] | None = None

    def take(self, position: int, count: int) -> LabelledPairs:
        """Return observations and actions of ``count`` rows, from number ``position`` of the endless order on."""
        parts: list[LabelledPairs] = []
        while count:
            first, obs, actions = self._around(position)
            part = slice(position - first, position - first + count)
            parts.append(LabelledPairs(obs[part], actions[part]))
            position, count = position + len(parts[-1].obs), count - len(parts[-1].obs)
        return parts[0] if len(parts) == 1 else LabelledPairs._make(map(np.concatenate, zip(*parts, strict=True)))

    def _around(self, position: int) -> tuple[int, Array, Array]:
        """Return the position of the first row shuffled together with ``position``, and those rows."""
        which, inside = divmod(position, self.rows)
        order = np.random.default_rng((self._seed, 2, which)).permutation(len(self._stretches))
        behind = np.cumsum(self._stretches[order, 1] - self._stretches[order, 0])
        # Groups end with the first stretch that fills them.
        marks = np.searchsorted(behind, np.arange(self.SHUFFLE_BUFFER_ROWS, self.rows, self.SHUFFLE_BUFFER_ROWS)) + 1
        edges = np.unique([0, *marks[marks < len(order)], len(order)])
        starts = np.concatenate([[0], behind])[edges]
        group = int(np.searchsorted(starts, inside, side="right")) - 1
        if self._at != (which, group):
            rows = np.concatenate([np.arange(*self._stretches[k]) for k in order[edges[group] : edges[group + 1]]])
            np.random.default_rng((self._seed, 3, which, group)).shuffle(rows)
            self._rows = (self.data.observations[rows], self.data.actions[rows])
            self._at = (which, group)
        return which * self.rows + int(starts[group]), *self._rows

    def held_out(self, most: int) -> LabelledPairs | None:
        """Return observations and actions of at most ``most`` held-out rows; ``None`` if there are none."""
        if not len(self._out):
            return None
        rows = np.concatenate([np.arange(low, high) for low, high in self._out])
        rows = rows[:: -(-len(rows) // most)]
        return LabelledPairs(self.data.observations[rows], self.data.actions[rows])

    def moments(self) -> Moments:
        """Return mean and variance of the training observations."""
        moments = Moments(self.data.observations.shape[1])
        for low, high in self._stretches:
            moments.add(self.data.observations[low:high])
        return moments


def _cuts(rows: int, length: int) -> Array:
    return np.append(np.arange(length, rows, length), rows)


def _pieces(low: int, high: int, length: int) -> Array:
    ends = low + _cuts(high - low, length)
    return np.stack([np.concatenate([[low], ends[:-1]]), ends], axis=1)


def _merged(bounds: Array) -> Array:
    """Return ``bounds`` (E, 2) with neighbours joined: many short episodes become few stretches."""
    apart = bounds[1:, 0] != bounds[:-1, 1]
    return np.stack([bounds[np.append(True, apart), 0], bounds[np.append(apart, True), 1]], axis=1)
