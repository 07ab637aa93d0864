"""One random stream for each game: a 64-bit counter through the splitmix64 mixer.

Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014), and Vigna's reference constants.
The draws of a game depend only on (seed, game number, purpose), never on the number of games.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import inlined, kernel

#: First purposes of random streams: 0 is the engine's, then background players', mixtures' and learners'.
PLAYER_PURPOSE = 16
MIXTURE_PURPOSE = 48
LEARNER_PURPOSE = 64

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11, _S32 = (np.uint64(k) for k in (30, 27, 31, 11, 32))
_TWO53 = 1.0 / 9007199254740992.0


@inlined
def mix(z: np.uint64) -> np.uint64:
    """Apply the splitmix64 output function."""
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    mixed: np.uint64 = z ^ (z >> _S31)
    return mixed


@inlined
def next_u64(stream: NDArray[np.uint64], game: int) -> np.uint64:
    """Advance one game's stream and return 64 random bits."""
    stream[game] += _GAMMA
    return mix(stream[game])


@inlined
def below(stream: NDArray[np.uint64], game: int, bound: int) -> int:
    """Uniform integer in [0, bound); the bias is under bound / 2**32."""
    return int(((next_u64(stream, game) >> _S32) * np.uint64(bound)) >> _S32)


@kernel
def _seed_streams(seed: np.uint64, purpose: np.uint64, games: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    root = mix(mix(seed + _GAMMA) ^ (purpose * _MIX1 + _GAMMA))
    for k in range(len(games)):
        out[k] = mix(root + (np.uint64(games[k]) + np.uint64(1)) * _GAMMA)


@kernel
def fill_uniform(stream: NDArray[np.uint64], out: NDArray[np.float64]) -> None:
    """Fill ``out`` (N, C) with numbers in [0, 1), a row from each game's stream."""
    for g in range(out.shape[0]):
        for c in range(out.shape[1]):
            out[g, c] = float(next_u64(stream, g) >> _S11) * _TWO53


def purpose_of(kind: int, index: int, room: int = 32) -> int:
    """Return the purpose of number ``index`` of a kind; purposes of different kinds never collide.

    Args:
        kind: first purpose of the kind.
        index: number of the seat, team or agent, from 0.
        room: number of purposes before the first one of the next kind.
    """
    return kind + index if index < room else (kind << 32) + index


def seeded(seed: int | Sequence[int], games: NDArray[np.int64], purpose: int = 0) -> NDArray[np.uint64]:
    """Return initial states (N,) of the streams of ``games`` under ``seed``, for a ``purpose`` (:func:`purpose_of`).

    With a sequence of seeds, each stream is that of the first game under its seed.
    """
    if isinstance(seed, Sequence):
        return np.concatenate([seeded(game_seed, np.zeros(1, np.int64), purpose) for game_seed in seed])
    out = np.empty(len(games), np.uint64)
    _seed_streams(np.uint64(int(seed) % 2**64), np.uint64(purpose), games, out)
    return out


class Streams:
    """Independent random streams, one for each game; implements ``types.UniformSource``."""

    #: Selected games: all, except in :meth:`rows`.
    _which: NDArray[np.intp] | slice = slice(None)

    def __init__(self, seed: int | Sequence[int], games: NDArray[np.int64], purpose: int = 0) -> None:
        self.state = seeded(seed, games, purpose)

    def uniform(self, columns: int) -> NDArray[np.float64]:
        """Return (N, columns) numbers in [0, 1), a row for each game."""
        part = self.state[self._which]  # a view if all games are selected, else a copy
        out = np.empty((len(part), columns), np.float64)
        fill_uniform(part, out)
        if not isinstance(self._which, slice):
            self.state[self._which] = part
        return out

    def rows(self, which: NDArray[np.intp]) -> Streams:
        """Return the streams of the games numbered ``which`` (M,), with the same state: only these advance."""
        selected = copy.copy(self)
        selected._which = which
        return selected

    def uniform_of(self, which: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return (N,) numbers in [0, 1); only the streams in ``which`` (N,) advance, the other rows are 0."""
        out = np.zeros(len(self.state), np.float64)
        out[which] = self.rows(np.flatnonzero(which)).uniform(1)[:, 0]
        return out
