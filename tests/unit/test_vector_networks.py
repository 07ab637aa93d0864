"""Networks over vectors: the compiled pass is torch's, normalisers are a part of the weights."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multigrid_rl.fast import compile_network
from multigrid_rl.fast.dense import BLOCK
from multigrid_rl.fast.loss import ppo_gradient
from multigrid_rl.jit import most_threads, use_threads
from multigrid_rl.learn.losses import Losses, Rows, Weighting, reference
from multigrid_rl.models import Layout
from multigrid_rl.models.distributions import Categorical, Gaussian
from multigrid_rl.models.registry import ArchitectureError, build, fingerprint, network_of
from multigrid_rl.models.vector import VectorActorCritic
from multigrid_rl.types import AgentSpec

WEIGHTING = Weighting(clip=0.2, vf_coef=0.5, entropy_coef=0.1)


def network(*, gaussian: bool, activation: str = "tanh", **options) -> VectorActorCritic:
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


def batch_of(distribution, rows: int = 37) -> tuple[np.ndarray, list[np.ndarray]]:
    """Observations, some of them beyond what a normaliser lets through, and the columns of a loss."""
    rng = np.random.default_rng(2)
    actions = rng.normal(size=(rows, 3)).astype(np.float32)
    if isinstance(distribution, Categorical):
        actions = rng.integers(0, 3, (rows, 1))
    floats = [rng.normal(size=rows).astype(np.float32) for _ in range(3)]
    floats[0] -= 2
    return (8 * rng.normal(size=(rows, 5))).astype(np.float32), [actions, rng.random((rows, 1)) < 0.8, *floats]


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize(("activation", "normalise"), [("tanh", True), ("relu", False)])
def test_compiled_update_equals_torch(gaussian, activation, normalise):
    net = network(gaussian=gaussian, activation=activation, normalise=normalise)
    distribution = Gaussian(-np.ones(3), np.ones(3), "clip") if gaussian else Categorical((3,))
    obs, columns = batch_of(distribution)

    outputs, values = net(torch.from_numpy(obs))
    rows = Rows(*map(torch.from_numpy, columns))
    loss, parts = reference(outputs, values, rows, distribution, Losses(), WEIGHTING)
    loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}

    for parameter in net.parameters():
        parameter.grad.zero_()
    passed = compile_network(net).start(obs)
    np.testing.assert_allclose(passed.outputs, outputs.detach().numpy(), rtol=1e-4, atol=1e-5)
    by_outputs, by_values, sums = ppo_gradient(passed.outputs, passed.values[:, 0], columns, distribution, WEIGHTING)
    passed.add_gradients((by_outputs, by_values[:, None]))
    np.testing.assert_allclose(sums, [float(part) for part in parts], rtol=1e-4, atol=1e-5)
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(parameter.grad, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("gaussian", [False, True])
def test_policy_or_values_alone_equal_whole_pass_per_row(gaussian):
    net = network(gaussian=gaussian, normalise=True)
    obs, _ = batch_of(Gaussian(-np.ones(3), np.ones(3), "clip"), rows=75)
    whole, towers = compile_network(net).start(obs), compile_network(net)
    assert np.array_equal(towers.policy(obs), whole.outputs)
    values = np.concatenate(list(towers.values([obs[:1], obs[1:40], obs[40:40], obs[40:]])))
    assert np.array_equal(values, whole.values[:, 0])
    np.testing.assert_allclose(values, net.values(torch.from_numpy(obs)).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(most_threads() == 1, reason="one thread alone")
@pytest.mark.parametrize("gaussian", [False, True])
def test_result_is_independent_of_threads(gaussian):
    distribution = Gaussian(-np.ones(3), np.ones(3), "clip") if gaussian else Categorical((3,))
    found = []
    for threads in (1, 2):
        net = network(gaussian=gaussian, normalise=True)
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        obs, columns = batch_of(distribution, rows=3 * BLOCK + 1)
        use_threads(threads)
        try:
            alone = compile_network(net).policy(obs)
            passed = compile_network(net).start(obs)
            upstream = ppo_gradient(passed.outputs, passed.values[:, 0], columns, distribution, WEIGHTING)
            passed.add_gradients((upstream[0], upstream[1][:, None]))
        finally:
            use_threads(1)
        gradients = (parameter.grad.numpy() for parameter in net.parameters())
        found.append([alone, passed.outputs, passed.values, *upstream, *gradients])
    assert all(map(np.array_equal, *found))


@pytest.mark.parametrize(("option", "value"), [("layer_norm", True), ("activation", "silu"), ("hidden", 300)])
def test_uncompiled_networks_fall_back_to_torch(option, value):
    options = {"layer_norm": value} if option == "layer_norm" else {}
    activation, hidden = (value if option == "activation" else "tanh"), (value if option == "hidden" else 8)
    net = VectorActorCritic(Layout("mlp", 5, 3, (hidden,), activation, torch.Generator(), **options))
    assert compile_network(net) is None
    with torch.inference_mode():
        assert net(torch.zeros(2, 5))[0].shape == (2, 3)


def test_other_devices_fall_back_to_torch():
    net = network(gaussian=True, normalise=True).to("meta")  # computes shapes alone
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
    net = network(gaussian=False)
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
    ],
)
def test_rejects_options_network_lacks(changes, observation, message):
    with pytest.raises(ArchitectureError, match=message):
        build({"name": "mlp", "hidden": [8]} | changes, observation, 3)
