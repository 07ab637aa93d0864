"""Distributions over actions against torch's own and closed forms; draws fill boxes of any bounds."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as theirs

from multigrid_rl.config.compose import compose
from multigrid_rl.envs.base import flat_actions, native, unsupported_actions
from multigrid_rl.models.distributions import Categorical, Gaussian, distribution_of, sample
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import _trial_network
from multigrid_rl.types import AgentSpec

ALMOST_1 = 1 - 2.0**-53


def random_logits(rows: int, scale: float) -> np.ndarray:
    return (np.random.default_rng(5).normal(size=(rows, 7)) * scale).astype(np.float32)


def streams(rows: int, seed: int = 3) -> Streams:
    return Streams(seed, np.arange(rows, dtype=np.int64))


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


@pytest.mark.parametrize(("uniform", "action"), [(0.0, 0), (0.2499, 0), (0.25, 1), (0.4999, 1), (0.5, 2), (0.75, 3)])
def test_uniform_number_selects_by_cumulative_distribution(uniform, action):
    assert sample(row(0, 0, 0, 0), np.array([[uniform]])).actions[0] == action


@pytest.mark.parametrize("top", range(7))
def test_extreme_logits_do_not_overflow(top):
    logits = np.full((2, 7), -1e4, np.float32)
    logits[:, top] = 1e4
    drawn = sample(logits, np.array([[0.0], [0.999]]))
    assert drawn.actions.tolist() == [top, top]
    assert drawn.logp.tolist() == [0.0, 0.0]
    assert drawn.entropy.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_uniform_near_1_picks_last_action_with_true_probability(scale):
    logits = random_logits(2000, scale)
    drawn = sample(logits, np.full((2000, 1), ALMOST_1))
    assert (drawn.actions == 6).all()
    np.testing.assert_allclose(drawn.logp, torch.log_softmax(torch.from_numpy(logits), 1)[:, 6].numpy(), atol=2e-5)


def test_uniform_near_1_never_picks_impossible_last_action():
    logits = random_logits(20_000, 1.0)
    logits[:, 6] = -1e4
    drawn = sample(logits, np.full((20_000, 1), ALMOST_1))
    assert (drawn.actions == 5).all()


def test_strided_logits_draw_as_their_copy():
    wide = random_logits(50, 1.0)
    uniform = streams(50).uniform(1)
    np.testing.assert_array_equal(sample(wide[:, ::2], uniform).actions, sample(wide[:, ::2].copy(), uniform).actions)


# --- several choices at once


CHOICES = [(7,), (3, 3), (2, 4, 3), (1, 5), (250, 2)]


def assert_told(ours, outputs: np.ndarray, drawn, logp: torch.Tensor, entropy: torch.Tensor) -> None:
    """What comes with draws, and what is asked of them afterwards, is what torch's distribution says."""
    given, actions = torch.from_numpy(outputs), torch.from_numpy(drawn.actions)
    actions = actions if actions.is_floating_point() else actions.long()
    for ours_logp, ours_entropy in (
        (torch.from_numpy(drawn.logp), torch.from_numpy(drawn.entropy)),
        (ours.log_prob(given, actions), ours.entropy(given)),
    ):
        torch.testing.assert_close(ours_logp, logp.float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours_entropy, entropy.float(), rtol=1e-4, atol=1e-5)


def random_outputs(width: int, rows: int = 300) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(rows, width)).astype(np.float32)


def parts_of(outputs: torch.Tensor, choices: tuple[int, ...]) -> list[theirs.Categorical]:
    """Torch's distribution of each component: outputs are their logits, one component after the other."""
    return [theirs.Categorical(logits=part.double()) for part in torch.split(outputs, list(choices), dim=1)]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_components_match_torch_log_prob_and_entropy(choices):
    ours, outputs = Categorical(choices), random_outputs(sum(choices))
    drawn = ours.draw(outputs, streams(300))
    tensor, actions = torch.from_numpy(outputs), torch.from_numpy(drawn.actions.astype(np.int64))
    assert (ours.outputs, ours.components, ours.width) == (sum(choices), len(choices), len(choices))
    assert (drawn.actions >= 0).all()
    assert (drawn.actions < np.array(choices)).all()
    assert all(len(np.unique(column)) > count // 3 for column, count in zip(drawn.actions.T, choices, strict=True))
    wanted = torch.stack([p.log_prob(actions[:, c]) for c, p in enumerate(parts_of(tensor, choices))], 1)
    assert_told(ours, outputs, drawn, wanted, torch.stack([p.entropy() for p in parts_of(tensor, choices)], 1))


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_mode_is_likeliest_choice_per_component(choices):
    outputs = random_outputs(sum(choices))
    parts = np.split(outputs, np.cumsum(choices)[:-1], axis=1)
    wanted = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    np.testing.assert_array_equal(Categorical(choices).mode(outputs), wanted)
    assert Categorical(choices).bounded(wanted) is wanted


# --- continuous actions


LOW, HIGH = np.array([-2.0, 0.0, -1.0]), np.array([2.0, 1.0, 5.0])


def test_gaussian_matches_torch_density_and_entropy():
    ours, outputs = Gaussian(LOW, HIGH, "clip"), random_outputs(6, 400)
    outputs[:, 3:] = outputs[:, 3:] / 2 - 0.5
    assert (ours.outputs, ours.components, ours.width) == (6, 1, 3)
    drawn = ours.draw(outputs, streams(400))
    assert (drawn.actions.dtype, drawn.actions.shape) == (np.float32, (400, 3))
    means, log_std = torch.from_numpy(outputs).double().split(3, dim=1)
    normal = theirs.Normal(means, log_std.exp())
    logp = normal.log_prob(torch.from_numpy(drawn.actions)).sum(1, keepdim=True)
    assert_told(ours, outputs, drawn, logp, normal.entropy().sum(1, keepdim=True))


def test_gaussian_draws_have_right_moments_and_independence():
    draws = 40_000
    outputs = np.tile(np.array([[0.5, -1.0, 3.0, 0.0, -1.0, 0.7]], np.float32), (draws, 1))
    actions = Gaussian(LOW, HIGH, "clip").draw(outputs, streams(draws)).actions.astype(np.float64)
    normal = (actions - [0.5, -1.0, 3.0]) / np.exp([0.0, -1.0, 0.7])
    # Five standard errors of a mean, a variance, a correlation and a share.
    assert np.abs(normal.mean(axis=0)).max() < 5 / draws**0.5
    assert np.abs(normal.var(axis=0) - 1).max() < 5 * (2 / draws) ** 0.5
    assert np.abs(np.corrcoef(normal.T) - np.eye(3)).max() < 5 / draws**0.5
    for quantile, share in ((-1.0, 0.158655), (0.0, 0.5), (1.959964, 0.975)):
        assert np.abs((normal < quantile).mean(axis=0) - share).max() < 5 * (share * (1 - share) / draws) ** 0.5


@pytest.mark.parametrize(
    ("bound", "drawn", "taken"),
    [
        ("clip", [-9.0, 0.25, 0.0], [-2.0, 0.25, 0.0]),
        ("clip", [1.5, 7.0, 9.0], [1.5, 1.0, 5.0]),
        ("tanh", [0.0, 0.0, 0.0], [0.0, 0.5, 2.0]),  # the middle
        ("tanh", [0.5, 40.0, -40.0], [2 * math.tanh(0.5), 1.0, -1.0]),
        ("clip3", [0.0, 1.5, -1.5], [0.0, 0.75, 0.5]),
        ("clip3", [-3.0, 9.0, -9.0], [-2.0, 1.0, -1.0]),
    ],
)
def test_bounding_of_draws_by_hand(bound, drawn, taken):
    found = Gaussian(LOW, HIGH, bound).bounded(np.array([drawn], np.float32))
    np.testing.assert_allclose(found, [taken], atol=1e-6)


@pytest.mark.parametrize("bound", ["clip", "tanh", "clip3"])
def test_draws_stay_within_bounds(bound):
    space = spaces.Box(np.float32(LOW) + np.float32(0.1), np.float32(HIGH), dtype=np.float32)
    ours = distribution_of(space, bound)
    wild = np.random.default_rng(1).normal(scale=8, size=(5000, 3)).astype(np.float32)
    taken = ours.bounded(wild)
    assert (taken >= space.low).all()
    assert (taken <= space.high).all()
    assert taken.dtype == np.float32
    assert all(len(np.unique(column)) > 100 for column in taken.T)


def test_without_bounds_draws_are_actions():
    ours, draws = Gaussian([-np.inf], [np.inf], "clip"), np.array([[-9.0], [7e6]], np.float32)
    np.testing.assert_array_equal(ours.bounded(draws), draws)
    outputs = torch.zeros(2, 2, requires_grad=True)
    ours.cloning_loss(outputs, torch.tensor([[-1.0], [2.0]])).sum().backward()
    np.testing.assert_allclose(outputs.grad, [[1.0, 0.0], [-2.0, -3.0]])  # that of the density


def test_rejects_space_of_another_kind():
    with pytest.raises(TypeError, match=r"^action space: expected Box or MultiDiscrete, got Discrete\(3\)$"):
        distribution_of(spaces.Discrete(3))


# --- boxes far from 0, on one side of it, wide or narrow: without a word of the user's, draws fill them


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
