"""A network and a head from outside: one file and one entry of a table each."""

import numpy as np
import pytest

from composing import compose
from multigrid_rl import tables
from multigrid_rl.config.network import ModelConfig
from multigrid_rl.tables import HeadEntry, Network
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run

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
