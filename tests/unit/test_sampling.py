"""Drawing from logits against torch's categorical distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from multigrid_rl.models.distributions import sample
from multigrid_rl.world.streams import Streams

ALMOST_1 = 1 - 2.0**-53


def random_logits(rows: int, scale: float) -> np.ndarray:
    return (np.random.default_rng(5).normal(size=(rows, 7)) * scale).astype(np.float32)


def streams(rows: int, seed: int = 3) -> Streams:
    return Streams(seed, np.arange(rows, dtype=np.int64))


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


@pytest.mark.parametrize(
    "logits", [(0, 0, 0, 0, 0, 0, 0), (1, 2, 3, 0, -1, -2, 0.5), (5, 5, -50, 0, 0, 0, 0), (-3, -3, -3, -3, -3, -3, 2)]
)
def test_frequencies_follow_softmax(logits):
    draws = 40_000
    drawn = sample(np.tile(row(*logits), (draws, 1)), streams(draws).uniform(1)).actions
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64), 0).numpy() * draws
    observed = np.bincount(drawn, minlength=7)
    likely = expected > 1
    assert observed[~likely].sum() <= 5
    chi_square = ((observed - expected)[likely] ** 2 / expected[likely]).sum()
    # 99.9 % quantile of chi-square with 6 degrees of freedom; fewer likely actions only lower it.
    assert chi_square < 22.46


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 10.0])
def test_log_probability_and_entropy_equal_torch(scale):
    logits = random_logits(500, scale)
    drawn = sample(logits, streams(500).uniform(1))
    reference = Categorical(logits=torch.from_numpy(logits).double())
    wanted = reference.log_prob(torch.from_numpy(drawn.actions).long()).numpy()
    np.testing.assert_allclose(drawn.logp, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(drawn.entropy, reference.entropy().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("uniform", "action"), [(0.0, 0), (0.2499, 0), (0.25, 1), (0.4999, 1), (0.5, 2), (0.75, 3)])
def test_a_uniform_number_picks_by_the_cumulative_distribution(uniform, action):
    assert sample(row(0, 0, 0, 0), np.array([[uniform]])).actions[0] == action


@pytest.mark.parametrize("top", range(7))
def test_extreme_logits_give_the_only_likely_action_without_overflow(top):
    logits = np.full((2, 7), -1e4, np.float32)
    logits[:, top] = 1e4
    drawn = sample(logits, np.array([[0.0], [0.999]]))
    assert drawn.actions.tolist() == [top, top]
    assert drawn.logp.tolist() == [0.0, 0.0]
    assert drawn.entropy.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("level", [-1e30, -1e4, 1e4, 1e30])
def test_a_common_level_of_all_logits_changes_nothing(level):
    drawn = sample(np.full((1, 7), level, np.float32), np.array([[0.5]]))
    assert drawn.actions[0] == 3
    assert drawn.logp[0] == pytest.approx(-np.log(7))
    assert drawn.entropy[0] == pytest.approx(np.log(7))


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_a_uniform_number_next_to_1_picks_the_last_action_with_its_true_probability(scale):
    logits = random_logits(2000, scale)
    drawn = sample(logits, np.full((2000, 1), ALMOST_1))
    assert (drawn.actions == 6).all()
    np.testing.assert_allclose(drawn.logp, torch.log_softmax(torch.from_numpy(logits), 1)[:, 6].numpy(), atol=2e-5)


def test_a_uniform_number_next_to_1_does_not_pick_an_impossible_last_action():
    logits = random_logits(20_000, 1.0)
    logits[:, 6] = -1e4
    drawn = sample(logits, np.full((20_000, 1), ALMOST_1))
    assert (drawn.actions == 5).all()


def test_the_same_stream_draws_the_same_and_another_draws_other_actions():
    logits = random_logits(200, 1.0)
    first, again, other = (sample(logits, streams(200, seed).uniform(1)) for seed in (3, 3, 4))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (first.actions != other.actions).any()


def test_a_row_does_not_depend_on_the_rows_beside_it():
    logits, uniform = random_logits(16, 1.0), streams(16).uniform(1)
    together = sample(logits, uniform)
    alone = sample(logits[7:8], uniform[7:8])
    assert (together.actions[7], together.logp[7]) == (alone.actions[0], alone.logp[0])


def test_logits_that_are_a_strided_view_draw_as_their_copy():
    wide = random_logits(50, 1.0)
    uniform = streams(50).uniform(1)
    np.testing.assert_array_equal(sample(wide[:, ::2], uniform).actions, sample(wide[:, ::2].copy(), uniform).actions)
