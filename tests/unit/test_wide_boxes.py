"""Boxes of numbers far from 0, on one side of it, wide or narrow: without a word of the user's, draws fill them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multigrid_rl.config.compose import compose
from multigrid_rl.envs.base import flat_actions, native, unsupported_actions
from multigrid_rl.models.distributions import Gaussian, distribution_of
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import _trial_network
from multigrid_rl.types import AgentSpec

INF = np.inf


@pytest.mark.parametrize(
    ("low", "high", "bound"),
    [
        ([-1] * 6, [1] * 6, "clip"),  # HalfCheetah, LunarLander and the walker
        ([-2], [2], "clip"),  # Pendulum
        ([-0.4] * 17, [0.4] * 17, "clip"),  # Humanoid
        ([-0.2], [1], "clip"),
        ([-1, 0, 0], [1, 1, 1], "clip3"),  # CarRacing
        ([0] * 5, [1] * 5, "clip3"),  # the numbers of PettingZoo's mpe
        ([-1], [0], "clip3"),
        ([1], [3], "clip3"),
        ([-INF], [INF], "clip"),
        ([0], [INF], "clip"),
        ([-1, -INF], [1, INF], "clip"),
        ([300], [500], "clip3"),
        ([0], [1000], "clip3"),
        ([-10], [10], "clip3"),
        ([5], [6], "clip3"),
        ([-0.001], [0.001], "clip3"),
        ([-1, 300], [1, 500], "clip3"),
        ([-3.4e38], [3.4e38], "clip"),  # as good as none
    ],
)
def test_unsaid_bound_of_boxes_far_wide_narrow_and_on_one_side(low, high, bound):
    assert Gaussian(low, high, None).bound == bound


@pytest.mark.parametrize(("low", "high"), [(300, 500), (0, 1000), (-1000, 10), (5, 6), (0, 0.01), (0, 1), (1, 3)])
def test_draws_before_anything_is_learned_reach_all_of_a_box(low, high):
    ours = distribution_of(spaces.Box(low, high, (1,)))
    drawn = ours.bounded(np.random.default_rng(0).normal(size=(10_000, 1)).astype(np.float32))
    where = (drawn - low) / (high - low)
    assert np.ptp(where) > 0.95
    assert 0.1 < where.std() < 0.35
    assert (np.diff(np.sort(where[:, 0])) < 0.2).all()


def test_cloning_counts_actions_of_a_far_box_where_their_draws_lie():
    ours, plain = Gaussian([300], [500], None), Gaussian([-3], [3], "clip")
    outputs = torch.tensor([[0.5, -0.3]]).repeat(3, 1)
    far, near = torch.tensor([[300.0], [450.0], [500.0]]), torch.tensor([[-3.0], [1.5], [3.0]])
    for loss in ("cloning_loss", "uncensored_loss"):
        torch.testing.assert_close(getattr(ours, loss)(outputs, far), getattr(plain, loss)(outputs, near))


@pytest.mark.parametrize(("bound", "warned"), [("clip", 1), ("null", 0), ("tanh", 0)])
def test_clip_that_leaves_few_actions_of_a_box_is_told_before_the_start(bound, warned, caplog):
    config = compose(["env_id=Pendulum-v1", f"model.bound={bound}"])
    agent = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (2,)), spaces.Box(300, 500, (1,)))
    _trial_network(agent, config.model.model_dump(), config.train.functions)
    assert [record.message.count("model.bound: ") for record in caplog.records] == [1] * warned
    assert "300 to 500" in caplog.text or not warned


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-0.3, 0.3, (1,), np.float64),
        spaces.Box(np.array([0.1, -0.7]), np.array([0.7, 0.3]), dtype=np.float64),
        spaces.Box(-(2**31), 2**31 - 1, (2, 2), np.int32),
        spaces.Box(0, 2**32 - 1, (1,), np.uint32),
        spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64),
        spaces.Box(-1e300, np.inf, (1,), np.float64),
    ],
)
def test_actions_at_bounds_that_float32_rounds_are_actions_of_the_box(space):
    flat = flat_actions(space)
    ours = Gaussian(flat.low, flat.high, None)
    ends = np.stack([ours.bounded(np.full(flat.shape, end, np.float32)) for end in (-3e38, 3e38)])
    assert all(space.contains(action) for action in native(space, ends))


@pytest.mark.parametrize(("key", "value"), [("bound", "tanh"), ("bound", "clip3"), ("head", "tanh-gaussian")])
def test_boxes_whose_width_is_no_number_are_clipped_alone(key, value):
    agent = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (2,)), spaces.Box(-3e38, 3e38, (1,)))
    architecture = {**compose(["env_id=Pendulum-v1"]).model.model_dump(), key: value}
    with pytest.raises(ConfigError, match=rf"model\.{key}: expected head gaussian .*, got .*{value}"):
        _trial_network(agent, architecture, {})


def test_a_box_without_width_is_refused_by_its_space():
    assert "low bounds" in unsupported_actions(spaces.Box(1.0, 1.0 + 1e-12, (1,), np.float64))
