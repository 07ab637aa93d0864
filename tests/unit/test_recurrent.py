"""Networks that remember and that attend, critics that see the whole team: what is equal, and what must not leak."""

import numpy as np
import pytest
import torch

from multigrid_rl import fast
from multigrid_rl.fast import compile_network
from multigrid_rl.jit import most_threads, use_threads
from multigrid_rl.models.registry import CENTRAL, build
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.types import SeatView
from tiny_runs import tiny_run

CATEGORIES, CENTRAL_CATEGORIES = [5, 3, 4], [6, 2]
ACTIONS, GAMES, STEPS = 7, 4, 9
CELLS = ["gru", "lstm"]
MLP = {"name": "mlp", "hidden": [8, 6], "activation": "tanh"}
any_architecture = pytest.mark.parametrize("architecture", [MLP, *({"name": cell, "hidden": [8]} for cell in CELLS)])
both_critics = pytest.mark.parametrize("central", [(), CENTRAL_CATEGORIES], ids=["own view", "central critic"])


def network(cell: str, central=(), seed: int = 0):
    """A network whose outputs depend clearly on what it has seen."""
    net = build({"name": cell, "hidden": [8]}, CATEGORIES, ACTIONS, seed, central)
    with torch.no_grad():
        net.policy.weight.mul_(200)
        net.bias.copy_(torch.linspace(-0.5, 0.5, 8))
    return net


def tokens_of(central=(), seed: int = 1) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, count, (GAMES, STEPS)) for count in (*CATEGORIES, *central)]
    return torch.from_numpy(np.stack(columns, axis=-1).astype(np.uint8))


def starts_of(*places: tuple[int, int]) -> torch.Tensor:
    starts = torch.zeros(GAMES, STEPS, dtype=torch.bool)
    for game, step in places:
        starts[game, step] = True
    return starts


def step_by_step(net, tokens, state, starts):
    """As the env runner plays: (B, T, K) logits and (B, T) values."""
    logits, values = [], []
    for t in range(tokens.shape[1]):
        state = state * ~starts[:, t, None]
        row, value, state = net(tokens[:, t], state)
        logits.append(row)
        values.append(value)
    return torch.stack(logits, 1), torch.stack(values, 1)


@both_critics
@pytest.mark.parametrize("cell", CELLS)
def test_sequence_equals_single_steps(cell, central):
    net, tokens = network(cell, central), tokens_of(central)
    state = torch.randn(GAMES, net.state_size, generator=torch.Generator().manual_seed(5))
    starts = starts_of((0, 0), (1, 3), (1, 4), (3, 8))
    with torch.no_grad():
        logits, values = net.sequence(tokens, state, starts)
        wanted_logits, wanted_values = step_by_step(net, tokens, state, starts)
    assert logits.shape == (GAMES * STEPS, ACTIONS)
    assert values.shape == (GAMES * STEPS,)
    torch.testing.assert_close(logits.view(GAMES, STEPS, ACTIONS), wanted_logits)
    torch.testing.assert_close(values.view(GAMES, STEPS), wanted_values)


@pytest.mark.parametrize(("cell", "size"), [("gru", 8), ("lstm", 16)])
def test_memory_has_announced_shape_and_matters(cell, size):
    net, tokens = network(cell), tokens_of()
    assert net.state_size == size
    with torch.no_grad():
        fresh, _, following = net(tokens[:, 0], torch.zeros(GAMES, size))
        other, _, _ = net(tokens[:, 0], following)
    assert following.shape == (GAMES, size)
    assert (fresh != other).any(dim=1).all()


@pytest.mark.parametrize("cell", CELLS)
def test_gradient_stops_at_episode_start(cell):
    net, tokens = network(cell), tokens_of()
    starts = starts_of((1, 5))
    read = []
    original = net._embed
    net._embed = lambda rows: read.append(original(rows).requires_grad_()) or read[0]
    state = torch.zeros(GAMES, net.state_size, requires_grad=True)
    logits, values = net.sequence(tokens, state, starts)
    (logits.view(GAMES, STEPS, ACTIONS)[1, 7].sum() + values.view(GAMES, STEPS)[1, 7]).backward(inputs=[*read, state])
    gradient = read[0].grad.view(GAMES, STEPS, -1)
    reached = gradient.abs().sum(2) > 0
    assert reached[1].tolist() == [5 <= t <= 7 for t in range(STEPS)]
    assert not reached[[0, 2, 3]].any()
    assert not state.grad.any()


@pytest.mark.parametrize("cell", CELLS)
def test_every_parameter_learns(cell):
    net, tokens = network(cell, CENTRAL_CATEGORIES), tokens_of(CENTRAL_CATEGORIES)
    logits, values = net.sequence(tokens, torch.randn(GAMES, net.state_size), starts_of())
    (torch.log_softmax(logits, 1)[:, 0].sum() + values.pow(2).sum()).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


# --- central critics


def outputs(net, tokens: torch.Tensor):
    flat = tokens.flatten(0, 1)
    with torch.no_grad():
        state = (torch.zeros(len(flat), net.state_size),) if net.state_size else ()
        return net(flat, *state)[:2]


@any_architecture
def test_critic_only_input_changes_values_not_policy(architecture):
    net = build(architecture, CATEGORIES, ACTIONS, 1, CENTRAL_CATEGORIES)
    tokens = tokens_of(CENTRAL_CATEGORIES)
    logits, values = outputs(net, tokens)
    for column, count in enumerate(CENTRAL_CATEGORIES, len(CATEGORIES)):
        changed = tokens.clone()
        changed[..., column] = (changed[..., column] + 1) % count
        other_logits, other_values = outputs(net, changed)
        assert torch.equal(other_logits, logits)
        assert (other_values != values).all()
    own = tokens.clone()
    own[..., 0] = (own[..., 0] + 1) % CATEGORIES[0]
    assert (outputs(net, own)[0] != logits).any(dim=1).all()


@any_architecture
def test_exported_player_without_central_weights_has_same_logits(architecture):
    net = build(architecture, CATEGORIES, ACTIONS, 1, CENTRAL_CATEGORIES)
    player = build(architecture, CATEGORIES, ACTIONS)
    player.load_state_dict({name: value for name, value in net.state_dict().items() if name != CENTRAL})
    tokens = tokens_of(CENTRAL_CATEGORIES)
    assert torch.equal(outputs(player, tokens[..., : len(CATEGORIES)])[0], outputs(net, tokens)[0])


# --- as a frozen player


@pytest.mark.parametrize("cell", CELLS)
def test_frozen_player_memory_lasts_one_game(cell):
    net, tokens = network(cell), tokens_of()
    player = FrozenPlayer("f", net, "", greedy=True)
    starts = starts_of((1, 3), (2, 6))
    with torch.no_grad():
        wanted = step_by_step(net, tokens, torch.zeros(GAMES, net.state_size), starts)[0].argmax(2)
    state, rng, played = player.initial_state(GAMES), Streams(1, np.arange(GAMES, dtype=np.int64)), []
    for t in range(STEPS):
        state = player.reset_state(state, starts[:, t].numpy())
        actions, state = player.act(SeatView(tokens[:, t].numpy(), None, 0), state, rng)
        played.append(actions)
    assert np.stack(played, axis=1).tolist() == wanted.tolist()
    assert len(set(wanted.flatten().tolist())) > 2


@pytest.mark.parametrize("games", [1, GAMES, 70])
@both_critics
def test_compiled_pass_through_time_equals_torch(central, games):
    net = network("gru", central)
    rng = np.random.default_rng(3)
    columns = [rng.integers(0, count, (games, STEPS)) for count in (*CATEGORIES, *central)]
    tokens = np.stack(columns, axis=-1).astype(np.uint8)
    starts = rng.random((games, STEPS)) < 0.2
    memory = rng.standard_normal((games, 8)).astype(np.float32)
    logits, values = net.sequence(*map(torch.from_numpy, (tokens, memory, starts)))
    by_logits, by_values = (rng.standard_normal(part.shape).astype(np.float32) for part in (logits, values))
    torch.autograd.backward((logits, values), (torch.from_numpy(by_logits), torch.from_numpy(by_values)))
    wanted = {name: weight.grad.clone() for name, weight in net.named_parameters()}
    net.zero_grad(set_to_none=False)
    passed = compile_network(net).start(tokens, memory, starts)
    np.testing.assert_allclose(passed.outputs, logits.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(passed.values[:, 0], values.detach().numpy(), rtol=1e-4, atol=1e-5)
    passed.add_gradients((by_logits, by_values[:, None]))
    for name, weight in net.named_parameters():
        np.testing.assert_allclose(weight.grad, wanted[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_compiled_step_equals_torch():
    net, tokens = network("gru"), tokens_of()
    state = torch.randn(GAMES, net.state_size, generator=torch.Generator().manual_seed(5))
    wanted = net(tokens[:, 0], state)
    found = fast.step(net, tokens[:, 0], state)
    assert not found[0].requires_grad
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_only_supported_cores_have_compiled_pass():
    assert compile_network(network("lstm")) is None
    with pytest.raises(IndexError, match="tokens: expected 0 to less than"):
        compile_network(network("gru")).start(
            np.full((1, 1, 3), 9, np.uint8), np.zeros((1, 8), np.float32), np.zeros((1, 1), bool)
        )


@pytest.mark.long  # almost all of it compiles
@pytest.mark.skipif(most_threads() < 2, reason="one CPU, or no OpenMP")
def test_two_threads_are_bit_identical():
    net = network("gru", CENTRAL_CATEGORIES)
    tokens, starts = tokens_of(CENTRAL_CATEGORIES).repeat(11, 1, 1), starts_of((0, 0), (1, 3)).repeat(11, 1)
    tokens[5:, ::2] += 1  # an odd number of rows that are alike
    tokens %= torch.tensor([*CATEGORIES, *CENTRAL_CATEGORIES])
    state = torch.randn(44, net.state_size, generator=torch.Generator().manual_seed(5))
    found = []
    for count in (1, 2):
        use_threads(count)
        try:
            for weight in net.parameters():
                weight.grad = torch.zeros_like(weight)
            passed = compile_network(net).start(tokens.byte().numpy(), state.numpy(), starts.numpy())
            passed.add_gradients((np.cos(passed.outputs), np.sin(passed.values)))
        finally:
            use_threads(1)
        found.append([passed.outputs, passed.values, passed.memory, *(w.grad.numpy() for w in net.parameters())])
    assert all(np.array_equal(one, two) for one, two in zip(*found, strict=True))


# --- the network that attends: where it looks, and what mates hear of each other


SEAT = [23] * 25 + [4, 4]
MATE = [*SEAT, 8, 8]
ARCHITECTURE = {"name": "attention", "hidden": [16, 16], "activation": "tanh"}


def tokens(rows: int, categories, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, categories, (rows, len(categories))).astype(np.uint8)
    )


def test_features_are_a_weighted_mean_of_cells():
    net = build(ARCHITECTURE, SEAT, 7)
    look, seen = net.policy.seats.looks[0], tokens(3, SEAT).long()
    cells = torch.tanh(look.codes(seen[:, :25]) + look.places)
    rest = [table(seen[:, 25 + k]) for k, table in enumerate(look.rest)]
    query = look.query(torch.cat([cells.mean(1), *rest], 1)).view(3, 8, 32)
    heads = []
    for h in range(8):
        weights = torch.softmax((cells * query[:, None, h]).sum(2) / 32**0.5, 1)
        heads.append((weights[:, :, None] * cells).sum(1))
    torch.testing.assert_close(look(seen), look.out(torch.cat([*heads, *rest], 1)))


def test_mates_hear_of_each_other_once_that_is_learned():
    net = build(ARCHITECTURE, SEAT * 2, 14)
    one = tokens(4, SEAT * 2)
    other = one.clone()
    other[:, len(SEAT) :] = tokens(4, SEAT, seed=1)
    alone = [net.logits(seen)[:, :7] for seen in (one, other)]
    torch.testing.assert_close(*alone)  # at the start each decides by what it sees
    torch.nn.init.normal_(net.policy.mates.tell.weight, generator=torch.Generator().manual_seed(0))
    heard = [net.logits(seen)[:, :7] for seen in (one, other)]
    assert (heard[0] - heard[1]).abs().max() > 1e-3
    assert net.logits(one).shape == (4, 14)


def test_central_tokens_change_values_alone():
    net = build(ARCHITECTURE, SEAT, 7, central=MATE * 2)
    torch.nn.init.normal_(net.central.tell.weight, generator=torch.Generator().manual_seed(0))
    one = tokens(4, [*SEAT, *MATE, *MATE])
    other = one.clone()
    other[:, len(SEAT) :] = tokens(4, MATE * 2, seed=1)
    (logits, values), (same, changed) = net(one), net(other)
    torch.testing.assert_close(logits, same)
    assert (values - changed).abs().max() > 1e-3
    player = build(ARCHITECTURE, SEAT, 7)  # what is exported has no such part, and the rest fits
    player.load_state_dict({name: w for name, w in net.state_dict().items() if not name.startswith(CENTRAL)})
    torch.testing.assert_close(player.logits(one[:, : len(SEAT)]), logits)


@pytest.mark.parametrize(("seat", "outputs", "central"), [(SEAT, 7, MATE * 2), (SEAT * 2, 14, ())])
def test_every_weight_is_learned(seat, outputs, central):
    net = build(ARCHITECTURE, seat, outputs, central=central)
    # Nothing is told at the start, and so nothing learned of asking.
    for tell in (module for name, module in net.named_modules() if name.endswith("tell")):
        torch.nn.init.normal_(tell.weight, generator=torch.Generator().manual_seed(0))
    logits, values = net(tokens(64, [*seat, *central]))
    (logits.square().sum() + values.square().sum()).backward()
    still = [name for name, weight in net.named_parameters() if weight.grad is None or not weight.grad.any()]
    # A softmax does not change with what is added to every score.
    assert [name for name in still if not name.endswith("show.bias")] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [("scenario=coop", "scheme=ctde"), ("scenario=2v2", "scheme=ctce")])
def test_it_trains_under_every_scheme(words, tmp_path):
    _, rows = tiny_run(tmp_path / "run", *words, "model=attention", "model.hidden=[16,16]", "train.until=1024")
    losses = [value for row in rows for name, value in row.items() if name.endswith(("policy_loss", "vf_loss"))]
    assert losses
    assert np.isfinite(losses).all()
