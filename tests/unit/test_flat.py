"""Weights and gradients in one row, and the minibatches that they are learned from."""

import numpy as np
import pytest
import torch

from multigrid_rl.learn.batches import minibatches
from multigrid_rl.learn.flat import FlatAdam, FlatWeights

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


def test_flat_step_updates_network_parameters():
    module = torch.nn.Linear(3, 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    flat = FlatWeights(list(module.parameters()))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    flat.gradient.fill_(1.0)
    torch.optim.SGD([flat.weights], lr=0.5).step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name] - 0.5)
    module.load_state_dict(before)  # the weights that come from elsewhere land in the row too
    torch.testing.assert_close(flat.weights.detach(), torch.cat([p.flatten() for p in module.parameters()]).detach())


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


def test_seed_determines_row_order():
    first, again, other = (drawn({"red": 64}, 2, 16, seed) for seed in (1, 1, 2))
    assert all((a["red"] == b["red"]).all() for a, b in zip(first, again, strict=True))
    assert any((a["red"] != b["red"]).any() for a, b in zip(first, other, strict=True))
