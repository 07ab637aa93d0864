"""Distributions over actions against torch's own, and against closed forms."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as theirs

from multigrid_rl.models.distributions import Categorical, Gaussian, distribution_of, sample
from multigrid_rl.streams import Streams

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


@pytest.mark.parametrize("level", [-1e30, -1e4, 1e4, 1e30])
def test_softmax_ignores_common_offset(level):
    drawn = sample(np.full((1, 7), level, np.float32), np.array([[0.5]]))
    assert drawn.actions[0] == 3
    assert drawn.logp[0] == pytest.approx(-np.log(7))
    assert drawn.entropy[0] == pytest.approx(np.log(7))


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


@pytest.mark.parametrize("choices", [(3, 3), (2, 4, 3)], ids=str)
def test_component_gradients_equal_torch(choices):
    ours, given = Categorical(choices), torch.from_numpy(random_outputs(sum(choices), 20))
    actions = torch.stack([torch.arange(20) % count for count in choices], 1)
    found, wanted = given.clone().requires_grad_(), given.clone().requires_grad_()
    (ours.log_prob(found, actions).sum() + 0.3 * ours.entropy(found).sum()).backward()
    parts = parts_of(wanted, choices)
    (sum(p.log_prob(actions[:, c]).sum() + 0.3 * p.entropy().sum() for c, p in enumerate(parts))).backward()
    torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 10.0])
def test_log_probability_and_entropy_equal_torch(scale):
    logits = random_logits(500, scale)
    drawn = sample(logits, streams(500).uniform(1))
    reference = theirs.Categorical(logits=torch.from_numpy(logits).double())
    wanted = reference.log_prob(torch.from_numpy(drawn.actions).long()).numpy()
    np.testing.assert_allclose(drawn.logp, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(drawn.entropy, reference.entropy().numpy(), rtol=1e-5, atol=1e-5)
