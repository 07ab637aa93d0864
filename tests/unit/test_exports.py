"""Networks and heads, ours and from outside: exported and read back as they were, or refused before a run."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from commands import call, complaint
from multigrid_rl import tables
from multigrid_rl.config.compose import compose
from multigrid_rl.config.network import ModelConfig
from multigrid_rl.models.mlp import first_rows, sum_of_rows
from multigrid_rl.models.registry import ArchitectureError, build, fingerprint, network_of
from multigrid_rl.players.cards import packed, read_card, read_network
from multigrid_rl.tables import HEADS, NETWORKS, HeadEntry, Network
from multigrid_rl.text import ConfigError
from multigrid_rl.training.loop import write_players
from multigrid_rl.training.stages import stages_of
from tiny_runs import tiny_run

BOARDS = [
    ("scenario=2v2", f"scheme={scheme}", f"shared={shared}", f"model.name={name}")
    for scheme, shared in (("dtde", "false"), ("dtde", "true"), ("ctde", "true"), ("ctde", "false"), ("ctce", "false"))
    for name in NETWORKS
]
VECTORS = [(task, f"model.name={name}") for task in ("env_id=CartPole-v1", "scenario=tictactoe") for name in NETWORKS]
NUMBERS = [
    ("env_id=Pendulum-v1", f"model.name={name}", f"model.head={head}", *trained)
    for name in NETWORKS
    for head in ("null", *HEADS)
    for trained in ((), ("train=bc", "data=none"), ("train=sac",))
]
SIZE = "model.hidden=[12]"
WIDE = """
import gymnasium as gym
import numpy as np


class Wide(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))

    def __init__(self, numbers):
        self.action_space = gym.spaces.Box(-1, 1, (numbers,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


gym.register("Wide-v0", lambda: Wide(1001))
gym.register("Long" * 30 + "-v0", lambda: Wide(1))
"""
CARD = {
    "name": "toy", "architecture": {"name": "mlp"}, "observation": {"size": 2}, "actions": 2, "scenario": "toy",
    "seats": ["agent_0"], "provenance": {},
}  # fmt: skip


def exported(config, folder):
    """Export fresh networks as a run does; yields each with what is read from its files."""
    stages = stages_of(config)
    specs = stages[0].factory.specs
    networks = {m: network_of(specs.agent_of(m), config.model.model_dump(), seed=3) for m in specs.modules}
    weights = {m: {f"net.{k}": v.numpy() for k, v in net.state_dict().items()} for m, net in networks.items()}
    run = SimpleNamespace(
        learner=SimpleNamespace(get_weights=lambda: weights), stages=stages, stage=0, env_steps=9, league=None
    )
    write_players(folder, run, config, folder, {})
    for module, network in networks.items():
        card = read_card(folder / module)
        yield specs.agent_of(module), network, read_network(folder / module, card)


def outputs_of(network, agent, critic_space=None):
    """Outputs of what an agent sees; a network that trains also sees what its critic alone reads."""
    rng, space = np.random.default_rng(0), agent.observation_space
    if hasattr(space, "nvec"):
        shown = [space.nvec, *([] if critic_space is None else [critic_space.nvec])]
        obs = torch.cat([torch.from_numpy(rng.integers(0, sizes, (5, len(sizes)))) for sizes in shown], 1)
    else:
        obs = torch.from_numpy(rng.normal(size=(5, int(np.prod(space.shape)))).astype(np.float32))
        if agent.legal:
            obs[:, -agent.legal :] = 1
    with torch.no_grad():
        if not network.state_size:
            return network.logits(obs[:, : int(np.prod(space.shape))])
        starts = torch.ones(5, 1, dtype=torch.bool)
        return network.sequence(obs[:, None], torch.zeros(5, network.state_size), starts)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "least"), [(BOARDS, 25), (VECTORS, 5), (NUMBERS, 12)], ids=["boards", "vectors", "numbers"]
)
def test_every_network_that_a_configuration_may_name_is_read_back_with_equal_outputs(pairs, least, tmp_path):
    good = 0
    for k, pair in enumerate(pairs):
        try:
            config = compose([*pair, SIZE])
            played = list(exported(config, tmp_path / str(k)))
        except ConfigError:
            continue
        good += 1
        for agent, network, found in played:
            assert torch.allclose(outputs_of(network, agent, agent.critic_space), outputs_of(found, agent)), pair
    assert good >= least


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env_id=CartPole-v1", "model.hidden=[1024,1024]"], "model: expected weights of at most 5,500,000 bytes"),
        (
            ["env_id=wide_spaces:Wide-v0"],
            "card of the player: actions.BoxSignature.low: expected a list of at most 1000",
        ),
        ([f"env_id=wide_spaces:{'Long' * 30}-v0"], "card of the player: env.env_id: expected at most 100 characters"),
    ],
    ids=["bytes of weights", "numbers of an action", "letters of an id"],
)
def test_limits_of_cards_are_asked_before_a_run_starts(overrides, message, tmp_path, monkeypatch):
    (tmp_path / "wide_spaces.py").write_text(WIDE)
    monkeypatch.syspath_prepend(tmp_path)
    result = call("train", *overrides, f"run_dir={tmp_path / 'run'}", "--until", 1024)
    assert message in complaint(result)
    assert not (tmp_path / "run").exists()


def test_weights_that_two_layers_share_are_written():
    shared = torch.ones(2, 2)
    data = packed({"a": shared, "b": shared}, CARD)[0]
    assert len(data) > 2 * shared.nbytes


# --- a network and a head from outside: one entry of a table each


pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start

SOURCE = """
import torch
from torch import nn

from multigrid_rl.models.heads import Mixture


class Counting(nn.Module):
    state_size = 0

    def __init__(self, layout):
        super().__init__()
        self.hidden = nn.Linear(len(layout.observation), layout.hidden[0])
        self.policy, self.value = (nn.Linear(layout.hidden[0], size) for size in (layout.outputs, 1))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.1, generator=layout.generator)

    def logits(self, tokens):
        return self.policy(torch.tanh(self.hidden(tokens.float())))

    def forward(self, tokens):
        return self.logits(tokens), self.value(torch.tanh(self.hidden(tokens.float()))).squeeze(-1)


class Narrow(Mixture):
    pass
"""


@pytest.fixture
def from_outside(tmp_path, monkeypatch):
    """A module of another package, with an entry for each of its classes."""
    (tmp_path / "outside_networks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tables.NETWORKS, "counting", Network("outside_networks:Counting"))
    monkeypatch.setitem(tables.HEADS, "narrow", HeadEntry("outside_networks:Narrow", size=2))
    return tmp_path


@pytest.mark.slow
def test_network_from_outside_trains(from_outside):
    _, rows = tiny_run(from_outside / "run", "scenario=1v1", "model.name=counting")
    assert len(rows) >= 2
    assert np.isfinite([row["learner/red_0/policy_loss"] for row in rows]).all()
    assert all(row["gradient_steps"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["model.activation=relu"], r"model\.activation: expected tanh with model=counting"),
        (["scenario=2v2", "scheme=ctde"], "model: expected mlp, attention, gru or lstm with scheme=ctde, got counting"),
    ],
)
def test_entry_decides_what_configuration_may_say(from_outside, overrides, key):
    with pytest.raises(ConfigError, match=key):
        compose(["scenario=1v1", "model.name=counting", *overrides])


def test_head_from_outside_has_its_size(from_outside):
    assert ModelConfig(name="mlp", hidden=(8,), head="narrow").head_size == 2


# --- the network: what it computes, how it starts, and what is refused


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


def test_initial_policy_is_near_uniform():
    probabilities = torch.softmax(network(hidden=[64, 64])(all_tokens())[0], 1)
    assert (probabilities - 1 / ACTIONS).abs().max() < 0.01


# --- seeds and fingerprints


@pytest.mark.parametrize("name", NETWORKS)
def test_seed_alone_determines_initial_weights(name):
    board = [23] * 25 + [4, 4]
    one, same, other = (
        build({**MLP, "name": name, "hidden": [8]}, board, ACTIONS, seed).state_dict() for seed in (3, 3, 4)
    )
    assert all(torch.equal(one[part], same[part]) for part in one)
    assert any(not torch.equal(one[part], other[part]) for part in one)


def test_fingerprint_changes_with_any_weight():
    net = network()
    seen = {fingerprint(net.state_dict())}
    for parameter in net.parameters():
        flat = parameter.data.view(-1)
        for index in (0, len(flat) - 1):
            flat[index] += 1e-4
            seen.add(fingerprint(net.state_dict()))
    assert len(seen) == 1 + 2 * len(list(net.parameters()))


def test_fingerprint_distinguishes_names_shapes_and_types_and_no_strides():
    value = torch.arange(6.0).view(2, 3)
    variants = [{"a": value}, {"b": value}, {"a": value.view(3, 2)}, {"a": value.to(torch.int32)}, {}]
    assert len({fingerprint(weights) for weights in variants}) == len(variants)
    assert (
        fingerprint({"a": value.t()})
        == fingerprint({"a": value.t().contiguous()})
        == fingerprint({"a": value.t().numpy()})
    )
    assert fingerprint({"a": value, "b": value}) == fingerprint({"b": value, "a": value})


# --- the table-sum layer's own forward and backward pass


SIZES = [9, 3, 8, 2, 11, 4, 3]


def table_case():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.stack([torch.randint(0, size, (33,), generator=generator) for size in SIZES], 1)
    table = torch.randn(sum(SIZES), 5, generator=generator)
    upstream = torch.randn(33, 5, generator=generator)
    return tokens, first_rows(SIZES, []), table, upstream


def test_forward_and_gradient_equal_torch_embedding_bag():
    tokens, first, table, upstream = table_case()
    ours, theirs = table.clone().requires_grad_(), table.clone().requires_grad_()
    a, b = sum_of_rows(tokens, first, ours), F.embedding_bag(tokens + first, theirs, mode="sum")
    (a * upstream).sum().backward()
    (b * upstream).sum().backward()
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_repeated_row_in_sample_counts_twice():
    table = torch.ones(3, 2).requires_grad_()
    sum_of_rows(torch.tensor([[1, 0]]), torch.tensor([0, 1]), table).sum().backward()
    assert table.grad.tolist() == [[0, 0], [2, 2], [0, 0]]


def test_non_contiguous_upstream_gradient():
    tokens, first, table, upstream = table_case()
    rows = (tokens + first).flatten()
    expected = torch.zeros_like(table).index_add_(0, rows, upstream.repeat_interleave(len(SIZES), 0))
    table.requires_grad_()
    sum_of_rows(tokens, first, table).backward(upstream.t().contiguous().t())
    torch.testing.assert_close(table.grad, expected)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([[8, 3]], "8, 3"), ([[0, 0], [-1, 0]], "-1, 0"), ([[1]], "tokens: expected 2 columns, got 1")],
)
def test_rejects_tokens_without_row(tokens, message):
    with pytest.raises(IndexError, match=message):
        sum_of_rows(torch.tensor(tokens), first_rows([9, 2], []), torch.ones(11, 2))
