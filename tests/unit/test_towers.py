"""Compiled towers over tokens and vectors compute what torch does, whatever the sizes and the repetitions."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multigrid_rl.fast import compile_network, forward
from multigrid_rl.fast.dense import BLOCK
from multigrid_rl.fast.towers import MAX_WIDTH, Stack
from multigrid_rl.jit import most_threads, use_threads
from multigrid_rl.models import Layout
from multigrid_rl.models.registry import ArchitectureError, build, fingerprint, network_of
from multigrid_rl.models.vector import VectorActorCritic
from multigrid_rl.text import ConfigError
from multigrid_rl.types import AgentSpec

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


CASES = {
    "own view": lambda: (network(), tokens_of(130)),
    "central critic": lambda: (network(central=CENTRAL), tokens_of(130, CENTRAL, distinct=40)),
    "choices by vectors": lambda: (vector_network(gaussian=False, normalise=True), vectors(3 * BLOCK + 1)),
    "numbers by vectors": lambda: (vector_network(gaussian=True, normalise=True), vectors(3 * BLOCK + 1)),
}
every_kind = pytest.mark.parametrize("case", CASES)


@pytest.mark.skipif(most_threads() < 2, reason="one CPU, or no OpenMP")
@every_kind
def test_two_threads_are_bit_identical(case):
    (net, obs), found = CASES[case](), []
    for threads in (1, 2):
        use_threads(threads)
        try:
            found.append([*outcome(net, partial(forward, net), obs), logits_of(net, obs)])
        finally:
            use_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@every_kind
def test_policy_or_values_alone_equal_whole_pass(case):
    net, obs = CASES[case]()
    with torch.no_grad():
        outputs, values = forward(net, obs)
    parts = [obs[:33].numpy(), obs[33:33].numpy(), obs[33:].numpy()]
    assert torch.equal(logits_of(net, obs), outputs)
    assert np.array_equal(np.concatenate(list(compile_network(net).values(parts))), values.numpy())


# --- over vectors: normalisers and scales are a part of the weights


def vectors(rows: int = 37) -> torch.Tensor:
    """Observations, some of them beyond what a normaliser lets through."""
    return 8 * torch.randn(rows, 5, generator=torch.Generator().manual_seed(2))


def vector_network(*, gaussian: bool, activation: str = "tanh", **options) -> VectorActorCritic:
    """One whose outputs, normaliser and scale of values are far from what they are at the start."""
    generator = torch.Generator().manual_seed(1)
    log_std = -0.5 if gaussian else None
    net = VectorActorCritic(Layout("mlp", 5, 3, (16, 8), activation, generator, log_std=log_std, **options))
    with torch.no_grad():
        net.policy[-1].weight.mul_(100)
        net.value_scale.fill_(3.0)
        for name, buffer in net.named_buffers():
            if name.startswith("normaliser"):
                buffer.uniform_(0.5, 2.0, generator=generator)
    return net


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize(("activation", "normalise"), [("tanh", True), ("relu", False)])
def test_vector_outputs_and_gradients_equal_torch(gaussian, activation, normalise):
    assert_equals_torch(vector_network(gaussian=gaussian, activation=activation, normalise=normalise), vectors())


@pytest.mark.parametrize(("option", "value"), [("layer_norm", True), ("activation", "silu"), ("hidden", 300)])
def test_uncompiled_networks_fall_back_to_torch(option, value):
    options = {"layer_norm": value} if option == "layer_norm" else {}
    activation, hidden = (value if option == "activation" else "tanh"), (value if option == "hidden" else 8)
    net = VectorActorCritic(Layout("mlp", 5, 3, (hidden,), activation, torch.Generator(), **options))
    assert compile_network(net) is None
    with torch.inference_mode():
        assert net(torch.zeros(2, 5))[0].shape == (2, 3)


def test_other_devices_fall_back_to_torch():
    net = vector_network(gaussian=True, normalise=True).to("meta")  # computes shapes alone
    with torch.no_grad():
        assert net(torch.zeros(2, 5, device="meta"))[0].shape == (2, 6)


@pytest.mark.parametrize("option", [{"normalise": True}, {"scale_values": True}, {"norm": "layer"}])
def test_rejects_built_in_options_for_external_network(option):
    box = spaces.Box(-1, 1, (5,))
    architecture = {"name": "own:Net", "hidden": [8]} | option
    with pytest.raises(ArchitectureError, match=rf"^architecture\.{next(iter(option))}: expected .* with own:Net"):
        network_of(AgentSpec("a", "a", ("a",), box, box), architecture)


def test_normaliser_and_scale_are_part_of_weights():
    agent = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (5,)), spaces.Box(-1, 1, (2,)))
    architecture = {"name": "mlp", "hidden": [8], "normalise": True, "scale_values": True}
    net = network_of(agent, architecture)
    before = fingerprint(net.state_dict())
    assert {"normaliser.mean", "normaliser.std", "value_scale"} <= set(net.state_dict())
    net.normaliser.mean.add_(1.0)
    assert fingerprint(net.state_dict()) != before


def test_rescaling_keeps_values():
    net = vector_network(gaussian=False)
    obs = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    before = net.values(obs).detach()
    net.rescale_values(50.0)
    torch.testing.assert_close(net.values(obs).detach(), before, rtol=1e-4, atol=1e-4)
    assert net.value[-1].weight.abs().max() < 0.1


@pytest.mark.parametrize(
    ("changes", "observation", "message"),
    [
        ({"normalise": True}, [4, 4], r"^architecture\.normalise: expected false with mlp for tokens, got True$"),
        ({"norm": "layer"}, [4, 4], r"^architecture\.norm: expected none with mlp for tokens, got layer$"),
        ({"name": "gru", "scale_values": True}, 5, r"^architecture\.scale_values: expected false with gru"),
        ({"activation": "elu"}, [4, 4], r"^architecture\.activation: expected tanh or relu for tokens, got elu$"),
        ({"name": "attention"}, 5, "for a vector, got attention"),
    ],
)
def test_rejects_options_network_lacks(changes, observation, message):
    with pytest.raises(ConfigError, match=message):
        build({"name": "mlp", "hidden": [8]} | changes, observation, 3)
