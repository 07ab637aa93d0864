"""What a policy is told to maximise, by hand."""

import math

import numpy as np
import pytest
import torch

from multigrid_rl.cli.explain import Sizes
from multigrid_rl.config.compose import compose
from multigrid_rl.learn.losses import (
    OBJECTIVES,
    Losses,
    Rows,
    Weighting,
    loss_of,
    objective_of,
    policy_gradient,
    ppo,
    reference,
    value_loss_of,
)
from multigrid_rl.models.distributions import Categorical, Gaussian
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import update_config

WEIGHTING = Weighting(clip=0.2, vf_coef=0.5, entropy_coef=0.1)
PLAIN = Weighting(clip=0.2, vf_coef=0.0, entropy_coef=0.0)
both = pytest.mark.parametrize("function", [loss_of, reference])


def rows_of(actions, mask, logp, advantages, targets) -> Rows:
    floats = (torch.tensor(column, dtype=torch.float32) for column in (logp, advantages, targets))
    return Rows(torch.tensor(actions), torch.tensor(mask), *floats)


# --- by hand


@both
def test_ppo_of_joint_action_by_hand(function):
    # Two seats with two actions each. Row 0: both in the game, uniform logits. Row 1: the second is out.
    half, third = math.log(0.5), [math.log(0.25), math.log(0.75)]
    outputs = torch.tensor([[0.0, 0.0, 0.0, 0.0], [*third, 5.0, -3.0]])
    # Row 0 was played with probability 0.2, row 1 with 0.75: ratios 0.25 / 0.2 = 1.25 and 1.
    rows = rows_of([[0, 1], [1, 0]], [[True, True], [True, False]], np.log([0.2, 0.75]), [2.0, -1.0], [1.0, 0.0])
    loss, parts = function(outputs, torch.tensor([0.0, 3.0]), rows, Categorical((2, 2)), Losses(), WEIGHTING)
    policy = -(2 * 1.2 + -1 * 1.0) / 2  # 1.25 is clipped to 1.2
    vf = (1.0 + 9.0) / 2
    entropy = (-2 * half + -(0.25 * third[0] + 0.75 * third[1])) / 2
    kl, k1 = ((1.25 - 1 - math.log(1.25)) + 0) / 2, (-math.log(1.25) + 0) / 2
    assert [float(part) for part in parts] == pytest.approx([policy, vf, entropy, kl, 0.5, k1])
    assert float(loss) == pytest.approx(policy + 0.5 * vf - 0.1 * entropy)


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_eliminated_seat_outputs_have_no_effect_or_gradient(objective):
    generator = torch.Generator().manual_seed(1)
    out = torch.arange(64) % 3 == 0
    mask = torch.stack([torch.ones(64, dtype=torch.bool), ~out], 1)
    actions = torch.randint(0, 7, (64, 2), generator=generator)
    rows = Rows(actions, mask, *torch.randn(3, 64, generator=generator))
    outputs = torch.randn(64, 14, generator=generator, requires_grad=True)
    loss, _ = loss_of(outputs, torch.zeros(64), rows, Categorical((7, 7)), Losses(objective), WEIGHTING)
    loss.backward()
    parts = outputs.grad.view(64, 2, 7)
    assert (parts[out, 1] == 0).all()
    assert (parts[~out, 1].abs().sum(1) > 0).any()
    assert (parts[out, 0].abs().sum(1) > 0).any()
    with torch.no_grad():
        moved = outputs.clone().view(64, 2, 7)
        moved[out, 1] += torch.linspace(-9, 9, 7)
        actions[out, 1] = (actions[out, 1] + 1) % 7
        again = loss_of(moved.flatten(1), torch.zeros(64), rows, Categorical((7, 7)), Losses(objective), WEIGHTING)
        assert again[0] == loss


def test_choice_policy_gradient_is_advantage_times_score():
    # Two rows, the second of which nobody was in: the mean is over the first. Whatever was played, nothing is clipped.
    outputs = torch.tensor([[-2.5, 0.9, 2.4, 3.7], [1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    rows = rows_of([[2], [0]], [[True], [False]], [-9.0, 0.0], [2.0, 50.0], [0.0, 0.0])
    loss, parts = loss_of(outputs, torch.zeros(2), rows, Categorical((4,)), Losses(policy_gradient), PLAIN)
    loss.backward()
    assert float(parts.policy_loss) == pytest.approx(-2 * math.log(0.20408), rel=1e-4)
    score = np.array([-0.0015, -0.0455, 0.7959, -0.7489])
    assert outputs.grad[0].tolist() == pytest.approx((-2 * score).tolist(), abs=1e-4)
    assert not outputs.grad[1].any()


def test_gaussian_policy_gradient_is_advantage_times_score():
    outputs = torch.tensor([[0.0, 1.2, -0.5, -0.5]], requires_grad=True)
    rows = Rows(
        torch.tensor([[0.1, 1.0]]), torch.ones(1, 1).bool(), torch.zeros(1), torch.tensor([-3.0]), torch.zeros(1)
    )
    distribution = Gaussian([-1.0, -1.0], [1.0, 1.0], "clip")
    loss, _ = loss_of(outputs, torch.zeros(1), rows, distribution, Losses(policy_gradient), PLAIN)
    loss.backward()
    assert outputs.grad[0, :2].tolist() == pytest.approx([3 * 0.2718, 3 * -0.5437], abs=2e-4)


@pytest.mark.parametrize(
    "distribution", [Categorical((5, 5)), Gaussian([-1.0] * 2, [1.0] * 2, "clip")], ids=["choices", "numbers"]
)
def test_compiled_clipped_value_loss_is_that_of_torch(distribution):
    generator = torch.Generator().manual_seed(2)
    numbers = torch.randn(6, 512, generator=generator)
    old, values = numbers[4], (numbers[4] + 0.4 * numbers[5]).requires_grad_()
    outputs = torch.randn(512, distribution.outputs, generator=generator, requires_grad=True)
    actions = torch.randint(0, 5, (512, 2), generator=generator)
    mask = torch.rand(512, distribution.components, generator=generator) > 0.2
    drawn = actions if isinstance(distribution, Categorical) else actions.float()
    rows = Rows(drawn, mask, *numbers[:3], values=old)
    assert (abs(values - old) > 0.2).float().mean() > 0.3
    losses, found = Losses(value_loss=value_loss_of("clipped")), []
    assert losses.compiled(distribution)
    for function in (loss_of, reference):
        loss, parts = function(outputs, values, rows, distribution, losses, WEIGHTING)
        found.append((loss, torch.stack(parts), *torch.autograd.grad(loss, [outputs, values])))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    held, active = found[0][3] == 0, mask.any(1)
    assert (held & active).any()
    assert (~held & active & (abs(values - old) > 0.2)).any()
    plain, _ = loss_of(outputs, values, rows, distribution, Losses(), WEIGHTING)
    assert plain != found[0][0]


# --- objectives by name


def test_objectives_resolve_by_name_or_module_function():
    assert {name: objective_of(name) for name in OBJECTIVES} == {"ppo": ppo, "policy_gradient": policy_gradient}
    assert objective_of("multigrid_rl.learn.losses:ppo") is ppo


@pytest.mark.parametrize("name", ["pg", "", "nowhere:f", "math:nothing", "math.py:pow", ":", "math:"])
def test_rejects_unknown_objective(name):
    with pytest.raises(ConfigError, match=r"^train\.objective.*module:function"):
        objective_of(name)


def test_a2c_takes_one_step_on_whole_batch():
    config = compose(["train=a2c", "experiment=none"])
    train = config.train
    assert (train.objective, train.epochs, train.minibatch_size, train.minibatch) == (
        "policy_gradient", 1, None, train.batch_size,
    )  # fmt: skip
    sizes = Sizes.of(config, ["red_0"])
    assert (sizes.gradient_steps_per_update, sizes.minibatches_per_epoch) == (1, 1)
    built = update_config(config)
    assert (built.objective, built.epochs, built.minibatch_size) == ("policy_gradient", 1, None)
    assert compose(["train=a2c", "train.lr=0.01"]).train.schedules["lr"].end == 0.01
