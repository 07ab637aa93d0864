"""The loss, its gradient and the step equal torch's own operations, minibatches visit every row."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box, MultiDiscrete
from numba.core.errors import TypingError

from multigrid_rl.fast.dense import tanh
from multigrid_rl.fast.descent import categorical_penalty, gaussian_penalty
from multigrid_rl.fast.loss import ppo_gradient, shapes
from multigrid_rl.jit import float_kernel, kernel
from multigrid_rl.lanes import LANES, load, store
from multigrid_rl.learn.batches import minibatches
from multigrid_rl.learn.flat import FlatAdam, FlatWeights
from multigrid_rl.learn.losses import KlPenalty, Losses, Rows, Weighting, loss_of, reference
from multigrid_rl.models.distributions import NO_CHOICE, Categorical, distribution_of
from multigrid_rl.models.registry import build
from multigrid_rl.models.squashed import ClampedTanhGaussian, TanhGaussian
from multigrid_rl.players.gymnasium_env import SeatVectorEnv
from multigrid_rl.players.zoo_seats import RandomLegal
from multigrid_rl.streams import Streams
from multigrid_rl.types import AgentSpec, SeatView

WEIGHTING = Weighting(clip=0.2, vf_coef=0.5, entropy_coef=0.03)


def case(seats, rows=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, seats, 7, generator=generator)
    mask = torch.rand(rows, seats, generator=generator) < 0.7
    mask[::10] = False  # steps in which the whole unit was out
    actions = torch.randint(0, 7, (rows, seats), generator=generator)
    played = (torch.log_softmax(logits, -1).gather(2, actions[..., None]).squeeze(2) * mask).sum(1)
    behaviour = played + 0.3 * torch.randn(rows, generator=generator)
    advantages, targets, values = (torch.randn(rows, generator=generator) for _ in range(3))
    return logits, values, Rows(actions, mask, behaviour, advantages, targets)


def outcome(function, logits, values, rows, weighting):
    logits, values = logits.clone().requires_grad_(), values.clone().requires_grad_()
    distribution = Categorical((logits.shape[2],) * logits.shape[1])
    loss, parts = function(logits.flatten(1), values, rows, distribution, Losses(), weighting)
    (3.0 * loss).backward()  # a loss may be one term of a larger one
    return [loss.detach(), *(part.float() for part in parts), logits.grad, values.grad]


@pytest.mark.parametrize("seats", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_loss_parts_and_gradients_equal_torch(seats, seed):
    logits, values, rows = case(seats, seed=seed)
    ours, theirs = (outcome(f, logits, values, rows, WEIGHTING) for f in (loss_of, reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    ratio = torch.exp(
        (torch.log_softmax(logits, -1).gather(2, rows.actions[..., None]).squeeze(2) * rows.mask).sum(1) - rows.logp
    )
    assert (ratio > 1.2).any()  # both sides of the clip are in the case
    assert (ratio < 0.8).any()


@pytest.mark.parametrize("seats", [1, 3, None], ids=["one", "three", "gaussian"])
def test_gradient_of_kl_penalty_equals_torch(seats):
    outputs, values, rows = case(seats or 1)
    distribution = distribution_of(Box(-1, 1, (3,)) if seats is None else MultiDiscrete([7] * seats))
    if seats is None:
        outputs = outputs[:, 0, :6]
        rows = rows._replace(actions=torch.randn(len(values), 3))
    outputs = outputs.flatten(1).contiguous()
    old, penalty = outputs + 0.5 * torch.randn(outputs.shape), KlPenalty(0.7, 0.01)
    new, criticised = outputs.clone().requires_grad_(), values.clone().requires_grad_()
    loss, _ = reference(new, criticised, rows, distribution, Losses(), WEIGHTING)
    divergence = penalty.of(distribution, old, new, rows.mask)
    (loss + 0.7 * divergence).backward()
    columns = [None if column is None else column.numpy() for column in rows]
    found, *_ = ppo_gradient(outputs.numpy(), values.numpy(), columns, distribution, WEIGHTING)
    shape, (parts, _) = shapes(len(outputs), distribution)
    parts[:] = 0
    every, added = np.arange(len(outputs)), gaussian_penalty if seats is None else categorical_penalty
    passed, held = (outputs.numpy().reshape(shape), values.numpy(), every), (0.7, old.numpy().reshape(shape))
    told = np.zeros(6, np.float32)
    added(passed, every, rows.mask.numpy(), held, found.reshape(shape), parts, told)
    torch.testing.assert_close(torch.from_numpy(found), new.grad, rtol=1e-4, atol=1e-6)
    assert told[3] == pytest.approx(divergence.item(), rel=1e-5)


def test_steps_without_living_seat_are_excluded():
    logits, values, rows = case(2)
    living = rows.mask.any(1)
    whole = outcome(loss_of, logits, values, rows, WEIGHTING)
    part = outcome(loss_of, logits[living], values[living], rows.map(lambda column: column[living]), WEIGHTING)
    torch.testing.assert_close(whole[:7], part[:7])
    assert (whole[7][~living] == 0).all()
    assert (whole[8][~living] == 0).all()


def test_batch_without_living_seat_has_no_loss_and_no_gradient():
    logits, values, rows = case(2)
    rows.mask[:] = False
    for function in (loss_of, reference):
        loss, *_, by_logits, by_values = outcome(function, logits, values, rows, WEIGHTING)
        assert loss == 0
        assert not by_logits.any()
        assert not by_values.any()


def test_near_certain_policies_do_not_overflow():
    logits = torch.tensor([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]])
    rows = Rows(
        torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1).bool(), torch.zeros(2), torch.ones(2), torch.zeros(2)
    )
    for value in outcome(loss_of, logits, torch.zeros(2), rows, WEIGHTING):
        assert value.isfinite().all()


def test_nan_propagates():
    logits, values, rows = case(1)
    logits[1, 0, 3] = float("nan")
    loss, *_ = outcome(loss_of, logits, values, rows, WEIGHTING)
    assert loss.isnan()


# --- gradients in one row


def flat_of(*values):
    parameters = [torch.nn.Parameter(torch.ones(len(part))) for part in values]
    flat = FlatWeights(parameters)
    for parameter, part in zip(parameters, values, strict=True):
        parameter.grad += torch.tensor(part)
    return flat, parameters


def test_adam_step_is_that_of_torch():
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    ours, theirs = (FlatWeights([torch.nn.Parameter(weights.clone())]) for _ in range(2))
    adams = FlatAdam(ours), torch.optim.Adam([theirs.weights], fused=True)
    for k in range(5):
        for flat, adam in zip((ours, theirs), adams, strict=True):
            flat.gradient.copy_(torch.randn(1000, generator=torch.Generator().manual_seed(k)))
            adam.param_groups[0]["lr"] = 1e-3 / (k + 1)
        adams[0].descend()
        adams[1].step()
    # Equal to the last bit where it was written; torch chooses other kernels on other processors.
    torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-6, atol=1e-8)
    states = [adam.state_dict()["state"][0] for adam in adams]
    for name in ("step", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("most", "left"), [(0.5, [0.3, 0.0, 0.4]), (6, [3.0, 0.0, 4.0])])
def test_gradients_are_clipped_by_global_norm(most, left):
    flat, parameters = flat_of([3.0, 0.0], [4.0])
    assert flat.clip(most).item() == pytest.approx(5.0)
    assert torch.cat([p.grad for p in parameters]).tolist() == pytest.approx(left, rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradient_zeroes_all(bad):
    flat, parameters = flat_of([1.0], [bad])
    flat.clip(0.5)
    assert [p.grad.item() for p in parameters] == [0.0, 0.0]


# --- minibatches


def drawn(rows, epochs, size, seed=0):
    return list(minibatches(rows, epochs, size, np.random.default_rng(seed)))


def test_every_epoch_visits_rows_once_and_reshuffles():
    (*batches,) = drawn({"red": 12}, 3, 4)
    epochs = np.concatenate([batch["red"] for batch in batches]).reshape(3, 12).tolist()
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 3
    assert epochs[0] == list(range(12))  # as they were played
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_minibatch_at_epoch_end_is_filled_from_next():
    batches = drawn({"red": 10}, 2, 4)
    assert [len(batch["red"]) for batch in batches] == [4] * 5
    rows = np.concatenate([batch["red"] for batch in batches])
    assert sorted(rows[:10]) == sorted(rows[10:20]) == list(range(10))


def test_largest_module_sets_steps_and_smaller_repeat():
    batches = drawn({"red": 8, "blue": 3}, 1, 4)
    assert len(batches) == 2
    blue = np.concatenate([batch["blue"] for batch in batches])
    assert sorted(blue[:3]) == sorted(blue[3:6]) == [0, 1, 2]
    assert sorted(np.concatenate([batch["red"] for batch in batches])) == list(range(8))


# --- what a learner on a GPU runs


CATEGORIES = (23,) * 25 + (4, 4)
ROWS, STEPS = 256, 20


def trained(device: str, architecture: dict) -> tuple[torch.Tensor, float]:
    """Weights after some gradient steps on one batch, and the last loss."""
    generator = torch.Generator().manual_seed(1)
    net = build(architecture, CATEGORIES, 7, seed=3).to(device)
    flat = FlatWeights(list(net.parameters()))
    optimizer = torch.optim.Adam([flat.weights], lr=1e-3, fused=True)
    tokens = torch.stack([torch.randint(0, n, (ROWS,), generator=generator) for n in CATEGORIES], dim=1).to(device)
    actions = torch.randint(0, 7, (ROWS, 1), generator=generator)
    advantages, targets = torch.randn(2, ROWS, generator=generator)
    rows = Rows(actions, torch.ones(ROWS, 1).bool(), torch.full((ROWS,), -1.9459), advantages, targets)
    rows = rows.map(lambda column: column.to(device))
    for _ in range(STEPS):
        flat.gradient.zero_()
        logits, values = net(tokens)
        loss, _ = loss_of(logits, values, rows, Categorical((7,)), Losses(), Weighting(0.2, 0.5, 0.01))
        loss.backward()
        flat.clip(0.5)
        optimizer.step()
    return flat.weights.detach().cpu(), float(loss)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    "architecture", [{"name": "mlp", "hidden": [64, 64], "activation": "tanh"}, {"name": "embedding", "hidden": [32]}]
)
def test_gpu_learns_same_as_cpu(architecture):
    here, there = trained("cpu", architecture), trained("cuda", architecture)
    torch.testing.assert_close(there[0], here[0], rtol=1e-3, atol=2e-4)
    assert there[1] == pytest.approx(here[1], rel=1e-3)


# --- edges of arithmetic


INFINITE = np.inf


@kernel
def _tanh_of(x, out):
    for k in range(len(x)):
        out[k] = tanh(x[k])


def test_compiled_tanh_is_accurate_and_saturates():
    x = np.array([9.02, 50, 1e6, np.inf, -9.02, -1e6, -np.inf, 8.5, -8.5, np.nan], np.float32)
    out = np.empty_like(x)
    _tanh_of(x, out)
    assert out[:7].tolist() == [1, 1, 1, 1, -1, -1, -1]
    assert np.abs(out[7:9]).tolist() == pytest.approx([1, 1], abs=3e-7)
    assert np.isnan(out[9])
    x = np.linspace(-12, 12, 2000, dtype=np.float32)
    out = np.empty_like(x)
    _tanh_of(x, out)
    np.testing.assert_allclose(out, np.tanh(x.astype(np.float64)), rtol=4e-7, atol=1e-9)


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


# --- sixteen floats as one number of a kernel


@float_kernel
def _scaled_sum(x, factor, row, column, out):
    store(out, row, column, load(out, row, column) + factor * load(x, row, column))


def test_a_place_is_read_added_to_and_written_and_no_other():
    x = np.arange(3 * 40, dtype=np.float32).reshape(3, 40)
    out, wanted = np.ones_like(x), np.ones_like(x)
    _scaled_sum(x, np.float32(0.5), 1, 7, out)
    wanted[1, 7 : 7 + LANES] += 0.5 * x[1, 7 : 7 + LANES]
    assert (out == wanted).all()


@pytest.mark.parametrize(
    "wrong", [np.ones((40, 3), np.float32).T, np.ones((3, 40)), np.ones(40, np.float32)], ids=["order", "type", "shape"]
)
def test_another_array_is_refused_when_a_kernel_is_compiled(wrong):
    with pytest.raises(TypingError, match="expected a contiguous"):
        _scaled_sum(wrong, np.float32(1), 0, 0, wrong)
