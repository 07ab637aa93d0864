"""The loss and its gradient in one pass are those of torch's own operations."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete

from multigrid_rl.fast.descent import categorical_penalty, gaussian_penalty
from multigrid_rl.fast.loss import ppo_gradient, shapes
from multigrid_rl.learn.losses import KlPenalty, Losses, Rows, Weighting, loss_of, reference
from multigrid_rl.models.distributions import Categorical, distribution_of

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
