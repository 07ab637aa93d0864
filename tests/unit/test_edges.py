"""Edges of arithmetic: saturated activations, sure choices, squashed entropies, actions within odd bounds."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multigrid_rl.fast.dense import tanh
from multigrid_rl.fast.loss import ppo_gradient
from multigrid_rl.jit import kernel
from multigrid_rl.models.distributions import NO_CHOICE, Categorical
from multigrid_rl.models.squashed import ClampedTanhGaussian, TanhGaussian
from multigrid_rl.players.gymnasium_env import SeatVectorEnv
from multigrid_rl.players.zoo_seats import RandomLegal
from multigrid_rl.streams import Streams
from multigrid_rl.types import AgentSpec, SeatView

INFINITE = np.inf


@kernel
def _tanh_of(x, out):
    for k in range(len(x)):
        out[k] = tanh(x[k])


def test_saturated_tanh_has_no_slope_in_compiled_passes():
    x = np.array([9.02, 50, 1e6, np.inf, -9.02, -1e6, -np.inf, 8.5, -8.5, np.nan], np.float32)
    out = np.empty_like(x)
    _tanh_of(x, out)
    assert out[:7].tolist() == [1, 1, 1, 1, -1, -1, -1]
    assert np.abs(out[7:9]).tolist() == pytest.approx([1, 1], abs=3e-7)
    assert np.isnan(out[9])


@pytest.mark.parametrize(("mean", "log_std"), [(m, s) for m in (0, 0.5, 2, -4) for s in (-5, -1, -0.5, 0.3, 1, 2)])
def test_entropy_of_squashed_gaussian_is_that_of_its_draws(mean, log_std):
    head = ClampedTanhGaussian(np.full(2, -1, np.float32), np.full(2, 1, np.float32))
    outputs = torch.tensor([[mean, 0.1, log_std, -0.7]], dtype=torch.float32, requires_grad=True)
    entropy = head.entropy(outputs)
    torch.manual_seed(0)
    noise = torch.randn(400_000, 2)
    _, logp = head.reparameterised(outputs.detach().expand(len(noise), 4), noise)
    assert entropy.item() == pytest.approx(-logp.mean().item(), abs=0.02 + 0.02 * math.exp(log_std))
    assert entropy.item() <= 2 * math.log(2) + 0.01
    assert torch.isfinite(torch.autograd.grad(entropy.sum(), outputs)[0]).all()


def test_entropy_of_a_fresh_squashed_policy_is_below_that_of_a_uniform_one():
    head = TanhGaussian(np.full(1, -2, np.float32), np.full(1, 2, np.float32))
    assert head.entropy(torch.zeros(1, 2)).item() < math.log(2)


@pytest.mark.parametrize(
    ("low", "high", "within"),
    [
        (50, 100, (50, 100)),
        (-100, -20, (-100, -20)),
        (0, 255, (0, 255)),
        (-2, 2, (-2, 2)),
        (-INFINITE, INFINITE, (-10, 10)),
        (50, INFINITE, (50, 60)),
        (-INFINITE, 3, (-10, 3)),
        (-INFINITE, -50, (-60, -50)),
        (np.finfo(np.float32).min, np.finfo(np.float32).max, (np.finfo(np.float32).min, np.finfo(np.float32).max)),
    ],
)
def test_random_plays_in_all_of_the_bounds_and_not_beyond(low, high, within):
    space = spaces.Box(low, high, (3,), np.float32)
    agent = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (2,)), space)
    seen = SeatView(np.zeros((500, 2), np.float32), None, 0)
    actions, _ = RandomLegal(agent).act(seen, None, Streams(0, np.arange(500), 1))
    assert all(row in space for row in actions)
    span = float(within[1]) - float(within[0])
    assert within[0] <= actions.min() <= float(within[0]) + 0.02 * span
    assert float(within[1]) - 0.02 * span <= actions.max() <= within[1]


def test_games_of_a_vector_environment_are_not_kept():
    env = SeatVectorEnv(16, "1v1", players={"blue_0": {"random": 0.5, "key-runner": 0.5}})
    env.reset(seed=0)
    rng, ended = np.random.default_rng(0), 0
    for _ in range(400):
        _, _, terminated, truncated, _ = env.step(rng.integers(0, 7, 16))
        ended += int((terminated | truncated).sum())
    assert ended > 16
    assert env.match.drain_episodes().episodes <= 16
    assert len(env.match._played) == 1


@pytest.mark.parametrize(("choices", "legal"), [(1, 1), (3, 1), (3, 2)])
def test_gradient_of_a_sure_choice_is_exactly_0(choices, legal):
    rng, rows = np.random.default_rng(0), 8
    outputs = np.zeros((rows, choices), np.float32)
    outputs[:, legal:] = NO_CHOICE
    actions, mask = np.zeros((rows, 1), np.int64), np.ones((rows, 1), np.bool_)
    numbers = np.full(rows, 0.01, np.float32), rng.normal(size=rows).astype(np.float32), np.zeros(rows, np.float32)
    values, weighting = np.zeros(rows, np.float32), (0.2, 0.5, 0.01)
    by_outputs, _, _ = ppo_gradient(outputs, values, (actions, mask, *numbers), Categorical((choices,)), weighting)
    assert (by_outputs[:, legal:] == 0).all()
    assert (by_outputs[:, 0] == 0).all() == (legal == 1)
