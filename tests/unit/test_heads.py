"""Heads for bounded numbers: losses by hand, gradients, and players that keep them."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from bundles import edit
from multigrid_rl.config.compose import compose
from multigrid_rl.models.distributions import Categorical, Gaussian, distribution_of
from multigrid_rl.models.heads import Bins, Deterministic, Diffusion, Mixture
from multigrid_rl.models.registry import ArchitectureError, network_of
from multigrid_rl.players.cards import PlayerError, read_card, read_network, signature, write_player
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.training.stages import stages_of
from multigrid_rl.types import AgentSpec, SeatView

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
ACTS = spaces.Box(LOW, HIGH)
AGENT = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), ACTS)
SIZES = {"deterministic": None, "mixture": 3, "bins": 9, "diffusion": 4}


def architecture(head: str | None, **more) -> dict:
    return {"name": "mlp", "hidden": [16, 12], "activation": "tanh", "head": head, "head_size": SIZES.get(head)} | more


def network(head: str | None, **more):
    """A network with outputs and a head that are far from what they are at the start, and its head."""
    net = network_of(AGENT, architecture(head, **more), seed=2)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in [*net.policy[-1].parameters(), *getattr(net, "head", torch.nn.Identity()).parameters()]:
            parameter.normal_(std=0.5, generator=generator)
    return net, distribution_of(ACTS, network=net)


def write_one(folder, net, shape: dict, agent: AgentSpec = AGENT):
    """Write a player of an environment with these actions; returns its folder."""
    card = {
        "name": "one", "architecture": shape, **signature(agent, None), "scenario": "gymnasium", "seats": ["a"],
        "env": {"package": "gymnasium", "env_id": "Some-v0"}, "provenance": {},
    }  # fmt: skip
    write_player(folder / "one", net.state_dict(), card)
    return folder / "one"


def test_keys_of_numbers_are_announced_for_choices(caplog):
    stages_of(compose(["env_id=CartPole-v1", "experiment=none", "model.bound=tanh", "model.log_std=-2"]))
    said = [f"model.{part}: not read, as actions are choices, not numbers" for part in ("bound=tanh", "log_std=-2.0")]
    assert [record.getMessage() for record in caplog.records] == said


def streams(rows: int, seed: int = 3) -> Streams:
    return Streams(seed, np.arange(rows, dtype=np.int64))


def some(rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    obs = torch.rand((rows, 1), generator=generator) * 2 - 1
    return obs, torch.rand((rows, 2), generator=generator) * torch.tensor(HIGH - LOW) + torch.tensor(LOW)


# --- losses by hand


def test_deterministic_head_costs_its_mean_squared_error():
    # Actions 1 and 0.75 are 0.5 of both ranges around their middle.
    head = Deterministic(LOW, HIGH)
    given = torch.tensor([[0.5, 0.0], [0.5, 0.5]]), torch.tensor([[1.0, 0.75]] * 2)
    assert head.cloning_loss(*given).tolist() == head.uncensored_loss(*given).tolist() == pytest.approx([0.125, 0.0])


def test_deterministic_head_may_lie_beyond_a_bound_that_the_action_lies_at():
    head = Deterministic(LOW, HIGH)
    outputs = torch.tensor([[1.5, 3.0], [0.5, 0.0], [-2.0, -1.5]])
    actions = torch.from_numpy(np.stack([HIGH, HIGH, LOW]))
    assert head.cloning_loss(outputs, actions).tolist() == pytest.approx([0.0, (0.25 + 1) / 2, 0.0])
    uncensored = head.uncensored_loss(outputs, actions)
    assert uncensored.tolist() == pytest.approx([(0.25 + 4) / 2, (0.25 + 1) / 2, (1 + 0.25) / 2])


def test_mixture_costs_log_of_its_weighted_densities():
    head = Mixture(LOW, HIGH, 2)
    head.log_std.data.fill_(math.log(0.5))
    outputs = torch.tensor([[0.0, math.log(3), 0.5, 0.5, 0.0, 0.0]])
    # Means, scaled, are (0, 0) and (0.5, 0.5); in units of actions (0, 0.5) and (1, 0.75), deviations (1, 0.25).
    action = torch.tensor([[1.0, 0.75]])
    near = 1 / (2 * math.pi * 1 * 0.25)
    wanted = -math.log(0.75 * near + 0.25 * near * math.exp(-0.5 - 0.5))
    assert head.cloning_loss(outputs, action).item() == pytest.approx(wanted, rel=1e-5)
    assert head.mode(outputs.numpy())[0].tolist() == pytest.approx([1.0, 0.75])
    # At its upper bound, 2, the first number stands for all draws beyond it.
    beyond = [0.5 * math.erfc(d / math.sqrt(2)) for d in (2.0, 1.0)]
    mass = [share / math.sqrt(2 * math.pi) / 0.25 for share in (math.exp(-0.5), 1.0)]
    wanted = -math.log(0.25 * beyond[0] * mass[0] + 0.75 * beyond[1] * mass[1])
    assert head.cloning_loss(outputs, torch.tensor([[2.0, 0.75]])).item() == pytest.approx(wanted, rel=1e-5)
    apart = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)  # entropy of the weights
    assert head.entropy(outputs).item() == pytest.approx(apart + 1 + math.log(2 * math.pi * 0.25), rel=1e-5)


def test_bins_cost_autoregressive_cross_entropy():
    head = Bins(LOW, HIGH, 3, 1, torch.Generator())  # values -2, 0, 2 and 0, 0.5, 1
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.table[0, 2] = 1.0  # a first number of 2
        head.bias[0] = torch.tensor([0.0, 0.0, math.log(2)])
        head.weight[1, 0, 1] = math.log(3) * (1 + math.exp(-1))  # ... makes 0.5 three times as likely: silu(1)
    outputs = torch.zeros(3, 1)
    actions = torch.tensor([[2.0, 0.5], [1.9, 0.2], [0.0, 0.5]])  # 1.9 is 0.95 of 2, 0.2 is 0.6 of 0
    both = -0.95 * math.log(0.5) - 0.05 * math.log(0.25) - 0.6 * math.log(0.2) - 0.4 * math.log(0.6)
    wanted = [-math.log(0.5 * 0.6), both, -math.log(0.25 / 3)]
    assert head.cloning_loss(outputs, actions).tolist() == pytest.approx(wanted, rel=1e-5)
    # The likeliest are 2 and 0.5; around them 0 has half the chance of 2, and 0 as much as 1.
    np.testing.assert_allclose(head.mode(outputs[:1].numpy()), [[4 / 3, 0.5]], rtol=1e-6)
    both = math.log(4) - 0.5 * math.log(2), math.log(5) - 0.6 * math.log(3)
    assert head.entropy(outputs[:1]).item() == pytest.approx(sum(both), rel=1e-5)


def test_diffusion_costs_predicted_noise_error():
    head = Diffusion(LOW, HIGH, 4, 3, torch.Generator())
    curve = [math.cos((t / 4 + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(5)]
    wanted = [curve[t] / curve[0] for t in (1, 2, 3)] + [curve[3] / curve[0] * 0.001]  # the last share is capped
    assert head.alpha_bar.tolist() == pytest.approx(wanted, rel=1e-4)
    seen = []
    head.predicted = lambda outputs, noisy, steps: seen.append(noisy) or torch.ones_like(noisy)
    noise = torch.tensor([[3.0, -1.0]])
    loss = head.noise_loss(torch.zeros(1, 3), torch.tensor([[1.0, 0.75]]), torch.tensor([1]), noise)
    assert loss.item() == pytest.approx((4 + 4) / 2)
    clean = curve[2] / curve[0]
    parts = [math.sqrt(clean) * 0.5 + math.sqrt(1 - clean) * value for value in (3.0, -1.0)]
    assert seen[0][0].tolist() == pytest.approx(parts, rel=1e-4)


def test_diffusion_recovers_action_from_known_noise():
    head = Diffusion(LOW, HIGH, 10, 3, torch.Generator())
    noise = torch.tensor([0.25, -0.5])

    def exact(outputs, noisy, steps):
        clean = head.alpha_bar[steps].unsqueeze(1)
        return (noisy - clean.sqrt() * noise) / (1 - clean).sqrt()

    head.predicted = exact
    outputs = np.zeros((5, 3), np.float32)
    for actions in (head.draw(outputs, streams(5)).actions, head.mode(outputs)):
        np.testing.assert_allclose(actions, np.tile([0.5, 0.25], (5, 1)), atol=1e-4)


@pytest.mark.parametrize(
    "plain", [Gaussian(LOW, HIGH, "clip"), Categorical((3, 4))], ids=lambda one: type(one).__name__
)
def test_other_distributions_cost_negative_log_probability(plain):
    outputs = torch.randn(6, plain.outputs, generator=torch.Generator().manual_seed(1))
    actions = torch.full((6, 2), 0.5) if isinstance(plain, Gaussian) else torch.ones(6, 2, dtype=torch.int64)
    torch.testing.assert_close(plain.cloning_loss(outputs, actions), -plain.log_prob(outputs, actions).sum(1))


# --- gradients


# --- drawing


@pytest.mark.parametrize("head", SIZES)
def test_row_is_drawn_from_its_own_stream(head):
    net, ours = network(head)
    obs, _ = some(16)
    outputs = net.logits(obs).detach().numpy()
    together, again = ours.draw(outputs, streams(16)), ours.draw(outputs, streams(16))
    alone = ours.draw(outputs[7:8], Streams(3, np.array([7], dtype=np.int64)))
    np.testing.assert_array_equal(together.actions, again.actions)
    np.testing.assert_allclose(together.actions[7], alone.actions[0], atol=1e-5)
    other = ours.draw(outputs, streams(16, seed=4)).actions
    assert (head == "deterministic") == np.array_equal(together.actions, other)
    assert [column.shape for column in together] == [(16, 2), (16, 1), (16, 1)]
    assert {column.dtype for column in together} == {np.dtype(np.float32)}
    inside = ours.bounded(together.actions * 9)
    assert (inside >= LOW).all()
    assert (inside <= HIGH).all()


@pytest.mark.parametrize("head", ["mixture", "bins"])
def test_draws_match_reported_probability(head):
    net, ours = network(head)
    rows = 20_000
    outputs = net.logits(torch.zeros(rows, 1)).detach()
    drawn = ours.draw(outputs.numpy(), streams(rows))
    wanted = ours.log_prob(outputs, torch.from_numpy(drawn.actions)).detach()
    np.testing.assert_allclose(drawn.logp, wanted, atol=1e-5)
    np.testing.assert_allclose(drawn.entropy, ours.entropy(outputs).detach(), atol=1e-5)
    if head == "bins":
        values, counts = np.unique(drawn.actions, axis=0, return_counts=True)
        every = np.stack(np.meshgrid(np.linspace(-2, 2, 9), np.linspace(0, 1, 9)), -1).reshape(-1, 2).astype(np.float32)
        shares = ours.log_prob(outputs[:81], torch.from_numpy(every)).exp().detach()
        assert shares.sum().item() == pytest.approx(1, abs=1e-5)
        likely = ours.log_prob(outputs[: len(values)], torch.from_numpy(values)).exp()[:, 0].detach().numpy()
        assert np.abs(counts / rows - likely).max() < 5 * 0.5 / rows**0.5
    else:  # an action's probability is its share below a value: against torch's own mixture
        weights, means, log_std = (part[0].detach().double() for part in ours._parts(outputs[:1]))
        normal = torch.distributions.Normal(means[:, 0], log_std[:, 0].exp())
        share = float((weights.exp() * normal.cdf(torch.tensor(0.1))).sum())
        assert np.mean(drawn.actions[:, 0] < 0.2) == pytest.approx(share, abs=5 * 0.5 / rows**0.5)


@pytest.mark.parametrize("head", ["deterministic", "diffusion"])
def test_heads_without_probability_report_none(head):
    net, ours = network(head)
    outputs = net.logits(torch.zeros(3, 1)).detach()
    drawn = ours.draw(outputs.numpy(), streams(3))
    assert np.isnan(drawn.logp).all()
    assert np.isnan(drawn.entropy).all()
    for asked in (lambda: ours.log_prob(outputs, torch.zeros(3, 2)), lambda: ours.entropy(outputs)):
        with pytest.raises(NotImplementedError, match=f"^{head}: actions have no log-probability$"):
            asked()


@pytest.mark.parametrize("kind", ["mixture", "bins"])
def test_draws_any_of_many_parts(kind):
    low, high, generator = np.array([-1.0]), np.array([1.0]), torch.Generator().manual_seed(1)
    head = Mixture(low, high, 200) if kind == "mixture" else Bins(low, high, 200, 3, generator)
    outputs = np.zeros((50, head.outputs), np.float32)
    with torch.no_grad():
        if kind == "mixture":
            outputs[:, 150] = 50.0
            head.log_std.fill_(-9.0)
            wanted, within = float(head.places[150]), 0.05
        else:
            head.bias[0, 150] = 50.0
            wanted, within = 150 * 2 / 199 - 1, 1e-6
    np.testing.assert_allclose(head.draw(outputs, streams(50)).actions, wanted, atol=within)


# --- players


@pytest.mark.parametrize("head", [None, "gaussian", *SIZES])
@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_player_keeps_its_head(tmp_path, head, name):
    shape = architecture(head, name=name, **({"hidden": [12]} if name == "gru" else {}))
    net = network_of(AGENT, shape, seed=2)
    folder = write_one(tmp_path, net, shape)
    read = read_card(folder)
    player, own = FrozenPlayer.of(read, read_network(folder, read)), FrozenPlayer.of(read, net)
    view = SeatView(some(9)[0].numpy(), None, 0)
    for one in (player, own):
        one.taken_twice = [one.act(view, one.initial_state(9), streams(9))[0] for _ in range(2)]
    np.testing.assert_array_equal(player.taken_twice, own.taken_twice)
    assert player.taken_twice[0].shape == (9, 2)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([250]), spaces.Box(-np.inf, np.inf, (1,))], ids=str)
def test_player_takes_many_choices_and_numbers_without_bounds(tmp_path, space):
    agent = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), space)
    net = network_of(agent, architecture(None), seed=2)
    with torch.no_grad():
        net.policy[-1].bias[-1] = 200.0
    folder = write_one(tmp_path, net, architecture(None), agent)
    read = read_card(folder)
    assert read.action_space == space
    for greedy in (False, True):
        player = FrozenPlayer.of(read, read_network(folder, read), greedy=greedy)
        taken, _ = player.act(SeatView(some(9)[0].numpy(), None, 0), player.initial_state(9), streams(9))
        np.testing.assert_allclose(taken.reshape(-1), 249 if isinstance(space, spaces.MultiDiscrete) else 200, atol=6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "crystal"}, "architecture.head: expected gaussian, deterministic, mixture, bins, diffusion, tanh-"),
        ({"head_size": 4}, "shape"),
        ({"head_size": 1}, "architecture.head_size: expected 2 to 1000 with head bins, got 1"),
        ({"head_size": 10**9}, "architecture.head_size: expected 2 to 1000 with head bins"),
        ({"bound": "tanh"}, "architecture.bound: expected clip with head bins, got tanh"),
        ({"head": "diffusion"}, "head.bias: expected shape None"),
        ({"head": None}, "shape"),
    ],
)
def test_rejects_card_with_other_head(tmp_path, changes, message):
    net, _ = network("bins")
    folder = write_one(tmp_path, net, architecture("bins"))
    edit(folder, architecture=architecture("bins") | changes)
    with pytest.raises(PlayerError, match=r"^[^\n]*$") as caught:
        read_network(folder, read_card(folder))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("acts", "changes", "message"),
    [
        (spaces.Box(-np.inf, np.inf, (1,)), {"bound": "tanh"}, "head gaussian with bound clip .* without bounds, got"),
        (spaces.Box(-np.inf, np.inf, (1,)), {"head": "deterministic"}, "head gaussian .* without bounds, got"),
        (
            spaces.MultiDiscrete([3]),
            {"head": "mixture"},
            r"^architecture.head: expected null for choices, as heads are for numbers \(Box\), got mixture$",
        ),
    ],
)
def test_rejects_heads_that_actions_do_not_fit(acts, changes, message):
    with pytest.raises(ArchitectureError, match=message):
        network_of(AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), acts), architecture(None) | changes)


# --- what a run may say


def test_head_has_default_size():
    def size(*more):
        return compose(["env_id=Pendulum-v1", "experiment=none", *more]).model.head_size

    assert (size(), size("model.head=mixture"), size("model.head=bins", "model.head_size=7")) == (None, 5, 7)


def test_density_of_a_noisy_draw_is_that_of_many_draws():
    net, _ = network("tanh-gaussian")
    generator = torch.Generator().manual_seed(5)
    outputs = torch.tensor([[0.3, -1.4, 0.1, -0.2], [2.5, 0.0, -3.0, 0.4]])  # means, then what deviations come of
    actions, count, noise = torch.tensor([[0.1, -1.3], [1.2, 0.4]]), 200_000, 0.5
    for row, action in zip(outputs, actions, strict=True):
        drawn, _ = net.head.reparameterised(row.repeat(count, 1), torch.randn((count, 2), generator=generator))
        many = torch.distributions.Normal(drawn, noise).log_prob(action).sum(1).exp().mean().log()
        found = net.head.noisy_log_prob(row[None], action[None], noise)
        assert found.shape == (1,)
        assert float(found) == pytest.approx(float(many), abs=0.02)
