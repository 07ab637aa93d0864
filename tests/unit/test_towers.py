"""Compiled towers compute what torch does, whatever the sizes and the repetitions."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch

from multigrid_rl.fast import compile_network, forward
from multigrid_rl.fast.towers import MAX_WIDTH, Stack
from multigrid_rl.jit import most_threads, use_threads
from multigrid_rl.models.registry import build

CATEGORIES = [28] * 9 + [4, 3, 2]
CENTRAL = [5, 6, 7]


def network(hidden=(16, 24), activation="tanh", central=(), seed=1):
    architecture = {"name": "mlp", "hidden": list(hidden), "activation": activation}
    net = build(architecture, CATEGORIES, 7, seed, central)
    with torch.no_grad():  # biases start at zero, where a forgotten one would not show
        for name, weight in net.named_parameters():
            if name.endswith("bias"):
                weight.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(seed))
        net.policy[-1].weight.mul_(100)
    return net


def tokens_of(rows, central=(), distinct=None, seed=2):
    """Random tokens (rows, D), of ``distinct`` different rows."""
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(0, size, (rows,), generator=generator) for size in (*CATEGORIES, *central)]
    tokens = torch.stack(columns, 1).to(torch.uint8)
    return tokens if distinct is None else tokens[torch.randint(0, min(distinct, rows), (rows,), generator=generator)]


def outcome(net, function, tokens):
    """Logits, values and the gradients of a random mixture of both."""
    generator = torch.Generator().manual_seed(3)
    net.zero_grad()
    logits, values = function(tokens)
    upstream = torch.randn(logits.shape, generator=generator), torch.randn(values.shape, generator=generator)
    torch.autograd.backward((logits, values), upstream)
    return [logits.detach(), values.detach(), *(weight.grad.clone() for weight in net.parameters())]


both_critics = pytest.mark.parametrize("central", [(), CENTRAL], ids=["own view", "central critic"])
any_size = pytest.mark.parametrize("hidden", [(8,), (5, 3), (64, 64), (16, 24, 8)], ids=str)
both_activations = pytest.mark.parametrize("activation", ["tanh", "relu"])


def assert_equals_torch(net, tokens):
    ours, theirs = (outcome(net, function, tokens) for function in (partial(forward, net), net))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 31, 33, 130])
@pytest.mark.parametrize("distinct", [None, 5])
@both_critics
def test_outputs_and_gradients_equal_torch(rows, distinct, central):
    assert_equals_torch(network(central=central), tokens_of(rows, central, distinct))


@any_size
@both_activations
def test_any_depth_and_width_and_both_activations(hidden, activation):
    assert_equals_torch(network(hidden, activation), tokens_of(50))


@pytest.mark.skipif(most_threads() < 2, reason="one CPU, or no OpenMP")
@both_critics
def test_two_threads_are_bit_identical(central):
    net, tokens = network(central=central), tokens_of(130, central)
    alone = outcome(net, partial(forward, net), tokens)
    use_threads(2)
    try:
        beside = outcome(net, partial(forward, net), tokens)
    finally:
        use_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(alone, beside, strict=True))


def test_values_alone_equal_whole_pass():
    net, tokens = network(central=CENTRAL), tokens_of(130, CENTRAL, distinct=40)
    with torch.no_grad():
        whole = forward(net, tokens)[1].numpy()
    parts = [tokens[:33].numpy(), tokens[33:33].numpy(), tokens[33:].numpy()]
    assert np.array_equal(np.concatenate(list(compile_network(net).values(parts))), whole)


def test_too_wide_layer_falls_back_to_torch():
    net = network((MAX_WIDTH + 1,))
    assert compile_network(net) is None
    assert forward(net, tokens_of(4))[0].shape == (4, 7)


def logits_of(net, tokens):
    """The compiled policy's logits."""
    return torch.from_numpy(compile_network(net).policy(tokens.numpy()))


def test_row_is_bit_identical_in_any_batch():
    net, tokens = network((64, 64)), tokens_of(67)
    with torch.no_grad():
        whole, values = forward(net, tokens)
        for rows in (slice(0, 1), slice(3, 10), slice(60, 67), torch.tensor([5, 5, 5, 8])):
            logits, alone = forward(net, tokens[rows])
            assert torch.equal(logits, whole[rows])
            assert torch.equal(alone, values[rows])
            assert torch.equal(logits_of(net, tokens[rows]), whole[rows])


def test_in_place_weight_changes_take_effect():
    net, tokens = network(), tokens_of(5)
    with torch.no_grad():
        before = logits_of(net, tokens)
        net.policy[-1].bias.add_(1.0)
        torch.testing.assert_close(logits_of(net, tokens), before + 1)
        net.load_state_dict(network(seed=9).state_dict())
        assert torch.equal(logits_of(net, tokens), logits_of(network(seed=9), tokens))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_copy_reads_its_own_weights(copied):
    net, tokens = network(), tokens_of(5)
    with torch.no_grad():
        before = logits_of(net, tokens)
        other = copied(net)
        other.policy[-1].bias.add_(1.0)
        torch.testing.assert_close(logits_of(other, tokens), before + 1)
        assert torch.equal(logits_of(net, tokens), before)
        net.table.data = net.table.data + 1.0  # weights that were moved elsewhere
        torch.testing.assert_close(forward(net, tokens), net(tokens), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("column", "value"), [(0, 28), (11, 2), (9, 255)])
def test_rejects_token_without_table_row(column, value):
    net, tokens = network(), tokens_of(6)
    tokens[4, column] = value
    for function in (forward, logits_of):
        with pytest.raises(IndexError, match=rf"tokens: expected .*{value}"):
            function(net, tokens)
    with pytest.raises(IndexError, match=r"0 to less than .*-1"):
        forward(net, -torch.ones_like(tokens, dtype=torch.int64))


@pytest.mark.parametrize("columns", [11, 13])
def test_rejects_another_number_of_tokens(columns):
    tokens = torch.zeros(3, columns, dtype=torch.uint8)
    for function in (forward, logits_of):
        with pytest.raises(IndexError, match=rf"tokens: expected 12 .*{columns}"):
            function(network(), tokens)


def test_player_may_omit_critic_only_input():
    net, tokens = network(central=CENTRAL), tokens_of(5, CENTRAL)
    with torch.no_grad():
        assert torch.equal(logits_of(net, tokens[:, : len(CATEGORIES)]), forward(net, tokens)[0])
        assert torch.equal(net.logits(tokens[:, : len(CATEGORIES)]), net(tokens)[0])
    with pytest.raises(IndexError, match=r"tokens: expected 15 .*12"):
        forward(net, tokens[:, : len(CATEGORIES)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_weights_show_in_outputs(bad):
    net, tokens = network(), tokens_of(4)
    with torch.no_grad():
        net.policy[1].weight[0, 0] = bad
        logits, values = forward(net, tokens)
        wanted, _ = net(tokens)
    assert torch.equal(logits.isnan(), wanted.isnan())
    assert values.isfinite().all()


def test_tanh_is_accurate_to_few_ulp():
    net, exact = build({"name": "mlp", "hidden": [1], "activation": "tanh"}, [250], 1, 0), np.linspace(-12, 12, 2000)
    with torch.no_grad():
        net.table.zero_()
        net.policy[-1].weight.fill_(1.0)
        for part in exact.reshape(8, 250):
            net.table[:, 0] = torch.from_numpy(part)
            found = logits_of(net, torch.arange(250, dtype=torch.uint8)[:, None])[:, 0].double().numpy()
            np.testing.assert_allclose(found, np.tanh(part), rtol=4e-7, atol=1e-9)
            assert np.abs(found).max() <= 1.0


@any_size
@both_activations
@pytest.mark.parametrize("distinct", [None, 5])
def test_stacked_networks_are_bit_identical_to_single_ones(hidden, activation, distinct):
    central = [(), (), CENTRAL, ()]
    networks = [compile_network(network(hidden, activation, central[seed], seed=seed)) for seed in range(4)]
    tokens = tokens_of(150, distinct=distinct).numpy()
    numbers = np.sort(np.random.default_rng(1).choice([0, 2, 3], 150))
    together = Stack(networks).policy(tokens, numbers)
    alone = [networks[n].policy(tokens[numbers == n]) for n in (0, 2, 3)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_stack_rejects_tokens_without_row():
    tokens = tokens_of(3).numpy()
    tokens[1, 0] = CATEGORIES[0]
    with pytest.raises(IndexError, match=r"^tokens: expected 0 to less than "):
        Stack([compile_network(network())] * 2).policy(tokens, np.array([0, 0, 1]))
