"""The network that attends: where it looks, what mates hear of each other, and what a central critic may not tell."""

import numpy as np
import pytest
import torch

from multigrid_rl.models.cells import seats_in
from multigrid_rl.models.registry import CENTRAL, build
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run

SEAT = [23] * 25 + [4, 4]
MATE = [*SEAT, 8, 8]
ARCHITECTURE = {"name": "attention", "hidden": [16, 16], "activation": "tanh"}


def tokens(rows: int, categories, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, categories, (rows, len(categories))).astype(np.uint8)
    )


def test_seats_begin_with_views():
    assert seats_in([*SEAT, *MATE, *MATE]) == [tuple(SEAT), tuple(MATE), tuple(MATE)]
    assert seats_in([5, 5, 3]) == [(5, 5, 3)]


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


def test_same_seed_same_weights():
    one, two, other = (build(ARCHITECTURE, SEAT, 7, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["policy.seats.place"], other["policy.seats.place"])


def test_vectors_are_refused():
    with pytest.raises(ConfigError, match="for a vector, got attention"):
        build(ARCHITECTURE, 5, 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [("scenario=coop", "scheme=ctde"), ("scenario=2v2", "scheme=ctce")])
def test_it_trains_under_every_scheme(words, tmp_path):
    _, rows = tiny_run(tmp_path / "run", *words, "model=attention", "model.hidden=[16,16]", "train.until=1024")
    losses = [value for row in rows for name, value in row.items() if name.endswith(("policy_loss", "vf_loss"))]
    assert losses
    assert np.isfinite(losses).all()
