"""Random streams: one for each game, decided by seed, game number and purpose alone."""

import numpy as np
import pytest

from games import spec
from multigrid_rl.streams import Streams, below, seeded
from multigrid_rl.world.engine import World

SPEC = spec("fair", blue=1, red=1, random_keys=True, obstacle=True, max_steps=25)


def test_accepts_large_and_distant_game_numbers_and_seeds():
    w = World(SPEC, 3, seed=2**63 + 5, first_game=10**12)
    again = World(SPEC, 1, seed=2**63 + 5, first_game=10**12 + 2)
    assert w.state.stream[2] == again.state.stream[0]


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1])
def test_any_integer_is_a_seed(seed):
    assert len(np.unique(seeded(seed, np.arange(100)))) == 100


def test_streams_of_seeds_purposes_and_games_all_differ():
    starts = [seeded(seed, np.arange(50), purpose) for seed in range(20) for purpose in range(8)]
    assert len(np.unique(np.concatenate(starts))) == 20 * 8 * 50


def test_streams_do_not_overlap_soon():
    """A stream is a counter: two streams whose counters come near each other would repeat each other's numbers."""
    numbers = [Streams(seed, np.arange(20), purpose).uniform(200) for seed in range(5) for purpose in range(3)]
    assert len(np.unique(np.concatenate(numbers))) == 15 * 20 * 200


def test_uniform_lies_in_0_1_and_is_even():
    numbers = Streams(1, np.arange(500)).uniform(400)
    assert numbers.shape == (500, 400)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    expected = numbers.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi-squared with 19 degrees of freedom
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.012
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.012


def test_uniform_continues_where_it_stopped():
    whole = Streams(3, np.arange(4)).uniform(6)
    source = Streams(3, np.arange(4))
    assert np.array_equal(np.hstack([source.uniform(2), source.uniform(4)]), whole)
    assert np.array_equal(Streams(3, np.arange(2, 3)).uniform(6), whole[2:3])


@pytest.mark.parametrize("bound", [1, 2, 3, 36, 255])
def test_below_is_even_and_in_range(bound):
    stream = seeded(bound, np.arange(1))
    draws = 200 * bound
    counts = np.bincount([below(stream, 0, bound) for _ in range(draws)], minlength=bound)
    assert len(counts) == bound
    degrees = bound - 1
    assert ((counts - 200) ** 2 / 200).sum() <= degrees + 5 * np.sqrt(2 * degrees)


def test_below_moves_only_its_own_stream():
    stream = seeded(0, np.arange(3))
    before = stream.copy()
    below(stream, 1, 10)
    assert (stream != before).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.uint64])
def test_seeds_of_numpy_are_those_of_python(kind):
    assert np.array_equal(seeded(kind(7), np.arange(3)), seeded(7, np.arange(3)))
