"""The network: what it computes, how it starts, and what is refused."""

import re

import pytest
import torch
from torch.nn import functional as F

from multigrid_rl.models.registry import ArchitectureError, build, fingerprint
from multigrid_rl.tables import NETWORKS

CATEGORIES = [5, 3, 4]
ACTIONS = 7
KNOWN = ", ".join(NETWORKS)
MLP = {"name": "mlp", "hidden": [8, 6], "activation": "tanh"}


def network(seed: int = 0, **changes):
    return build({**MLP, **changes}, CATEGORIES, ACTIONS, seed)


def all_tokens() -> torch.Tensor:
    """Every combination of token values: (60, 3), of the type that games have: another is compiled on its own."""
    return torch.cartesian_prod(*(torch.arange(k) for k in CATEGORIES)).byte()


# --- refused


@pytest.mark.parametrize(
    ("key", "wanted", "values"),
    [
        ("name", KNOWN, ["transformer", "MLP", "", None, ["mlp"]]),
        ("hidden", "a list of 1 to 4096", [[], None, 64, "64", [0], [8, -1], [8.0], ["8"], [4097], [None], {"8": 8}]),
        ("activation", "tanh, relu", ["gelu", "Tanh", None, 3, ["tanh"], {"tanh": 1}]),
    ],
)
def test_rejects_impossible_architectures(key, wanted, values):
    for value in values:
        with pytest.raises(ArchitectureError, match=re.escape(f"architecture.{key}: expected {wanted}")) as caught:
            network(**{key: value})
        assert str(caught.value).endswith(f"got {value}".strip())


# --- what it computes


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_first_layer_equals_dense_layer_on_one_hot_codes(activation):
    net = network(activation=activation)
    with torch.no_grad():
        net.bias.copy_(torch.linspace(-1, 1, 16))  # it starts at zero, where a forgotten bias would not show
        one_hot = torch.cat([F.one_hot(all_tokens()[:, k].long(), size) for k, size in enumerate(CATEGORIES)], dim=1)
        features = (one_hot.double() @ net.table.double() + net.bias.double()).float()
        wanted = net.policy(features[:, :8]), net.value(features[:, 8:]).squeeze(-1)
        logits, values = net(all_tokens())
    torch.testing.assert_close((logits, values), wanted)
    assert logits.shape == (60, ACTIONS)
    assert values.shape == (60,)


def test_byte_tokens_do_not_overflow_in_long_table():
    categories = [200, 200, 200]
    net = build(MLP, categories, ACTIONS)
    tokens = torch.tensor([[199, 150, 120]])
    with torch.no_grad():
        torch.testing.assert_close(net(tokens.to(torch.uint8)), net(tokens))


def test_policy_and_value_share_no_weights():
    net = network()
    with torch.no_grad():
        logits, values = net(all_tokens())
        for layer in net.value:
            if isinstance(layer, torch.nn.Linear):
                layer.weight.add_(1.0)
        net.table[:, 8:].add_(1.0)
        changed, other = net(all_tokens())
    torch.testing.assert_close(changed, logits)
    assert (other != values).any()


def test_gradient_reaches_every_parameter_and_table_row():
    net = network()
    logits, values = net(all_tokens())
    targets = torch.linspace(-1, 1, len(values))
    (F.cross_entropy(logits, all_tokens().sum(1) % ACTIONS) + F.mse_loss(values, targets)).backward()
    without = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []
    assert (net.table.grad.abs().sum(1) > 0).all()


def test_initial_policy_is_near_uniform():
    probabilities = torch.softmax(network(hidden=[64, 64])(all_tokens())[0], 1)
    assert (probabilities - 1 / ACTIONS).abs().max() < 0.01


# --- seeds and fingerprints


def test_fingerprint_changes_with_any_weight():
    net = network()
    seen = {fingerprint(net.state_dict())}
    for parameter in net.parameters():
        flat = parameter.data.view(-1)
        for index in (0, len(flat) - 1):
            flat[index] += 1e-4
            seen.add(fingerprint(net.state_dict()))
    assert len(seen) == 1 + 2 * len(list(net.parameters()))


def test_fingerprint_is_same_for_tensors_and_arrays():
    weights = network().state_dict()
    arrays = {name: value.numpy().copy() for name, value in weights.items()}
    assert fingerprint(weights) == fingerprint(arrays)
    assert fingerprint(weights) == fingerprint(dict(reversed(list(arrays.items()))))


def test_fingerprint_distinguishes_names_shapes_and_types_and_no_strides():
    value = torch.arange(6.0).view(2, 3)
    variants = [{"a": value}, {"b": value}, {"a": value.view(3, 2)}, {"a": value.to(torch.int32)}, {}]
    assert len({fingerprint(weights) for weights in variants}) == len(variants)
    assert fingerprint({"a": value.t()}) == fingerprint({"a": value.t().contiguous()})
