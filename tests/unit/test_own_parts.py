"""Networks and objectives of one's own, ``module:name``: where they may be imported, and how mistakes are told."""

from __future__ import annotations

import sys

import gymnasium
import pytest
import torch
from torch import nn

from commands import call, complaint
from multigrid_rl.config import ConfigError, compose
from multigrid_rl.learn.losses import objective_of
from multigrid_rl.models.registry import ArchitectureError, custom
from multigrid_rl.players.cards import PlayerError, read_card, read_network, write_player
from multigrid_rl.recipes import recipe_overrides

SPACE = gymnasium.spaces.Box(-1, 1, (3,))
SOURCE = """
import torch
from torch import nn


class Small(nn.Module):
    state_size = 0

    def __init__(self, observation_space, outputs, hidden, generator):
        super().__init__()
        size = observation_space.shape[0]
        self.policy, self.value = nn.Linear(size, outputs), nn.Linear(size, 1)
        for layer in (self.policy, self.value):
            nn.init.normal_(layer.weight, generator=generator)

    def logits(self, obs):
        return self.policy(obs)

    def forward(self, obs):
        return self.logits(obs), self.value(obs).squeeze(-1)


class Bare(nn.Module):
    def __init__(self, *given):
        super().__init__()


def doubled(logp, rows, clip):
    return 2 * logp * rows.advantages


def meaned(logp, rows, clip):
    return (logp * rows.advantages).mean()


def detached(logp, rows, clip):
    return logp.detach() * rows.advantages


def two(logp, rows):
    return logp


class FewerOut(Small):
    def __init__(self, observation_space, outputs, hidden, generator):
        super().__init__(observation_space, outputs - 1, hidden, generator)


class WideValue(Small):
    def forward(self, obs):
        return self.logits(obs), self.value(obs)


class Other(Small):
    def forward(self, obs):
        return -self.logits(obs), self.value(obs).squeeze(-1)


class LogitsAlone(Small):
    def forward(self, obs):
        return self.logits(obs)
"""


@pytest.fixture
def own_parts(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own_parts", None)


def test_builds_a_network_from_outside(own_parts):
    network = custom("own_parts:Small", {"hidden": [8]}, SPACE, 2, seed=1)
    again = custom("own_parts:Small", {"hidden": [8]}, SPACE, 2, seed=1)
    assert isinstance(network, nn.Module)
    assert torch.equal(network.policy.weight, again.policy.weight)
    assert compose(["env_id=CartPole-v1", "model.name=own_parts:Small"]).model.name == "own_parts:Small"


def test_rejects_a_network_without_its_parts(own_parts):
    with pytest.raises(ArchitectureError, match="expected a network with state_size and logits"):
        custom("own_parts:Bare", {"hidden": [8]}, SPACE, 2)


def test_takes_an_objective_from_outside(own_parts):
    assert objective_of("own_parts:doubled").__name__ == "doubled"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("own_parts:tripled", "got own_parts:tripled: module 'own_parts' has no attribute 'tripled'"),
        ("nowhere:f", "train.objective: expected module:function, got nowhere:f: No module named"),
        ("reinforce", "train.objective: expected ppo, policy_gradient or module:function, got reinforce"),
    ],
)
def test_rejects_an_unknown_objective(own_parts, name, told):
    with pytest.raises(ConfigError) as error:
        objective_of(name)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.objective=reinforce", "train.objective: expected ppo, policy_gradient or module:function"),
        ("train.objective=own_parts:meaned", "expected shape (3,) for 3 rows, got ()"),
        ("train.objective=own_parts:detached", "expected a gradient by the log-probabilities, got none"),
        ("train.objective=own_parts:two", "TypeError: two() takes 2 positional arguments"),
        ("model.name=own_parts:Large", "expected module:Class, got own_parts:Large: module"),
        ("model.name=own_parts:Bare", "expected a network with state_size and logits"),
        ("model.name=own_parts:FewerOut", "forward: outputs: expected shape (3, 2) for 3 rows, got (3, 1)"),
        ("model.name=own_parts:WideValue", "forward: values: expected shape (3,) for 3 rows, got (3, 1)"),
        ("model.name=own_parts:Other", "logits: expected the outputs of forward"),
        ("model.name=own_parts:LogitsAlone", "forward: expected outputs, values, got Tensor"),
        ("model.name=own_parts:doubled", "TypeError: doubled() takes 3 positional arguments"),
        ("model.name=broken_parts:Net", "expected module:Class, got broken_parts:Net"),
    ],
)
def test_refuses_mistaken_parts_before_a_run_folder_is_made(own_parts, override, said):
    (own_parts / "broken_parts.py").write_text("class Net(:\n")
    run = own_parts / "run"
    told = complaint(call("train", "env_id=CartPole-v1", override, f"run_dir={run}"))
    assert all(part in told for part in override.split("="))
    assert said in told
    assert not run.exists()


def test_a_card_imports_nothing_unless_its_module_is_listed(own_parts, monkeypatch):
    network = custom("own_parts:Small", {"hidden": [8]}, SPACE, 2)
    card = {
        "name": "mine",
        "architecture": {"name": "own_parts:Small", "hidden": [8]},
        "observation": {"size": 3},
        "actions": 2,
        "scenario": "gymnasium",
        "seats": ["agent_0"],
        "provenance": {},
    }
    folder = own_parts / "player"
    write_player(folder, network.state_dict(), card)
    sys.modules.pop("own_parts")
    with pytest.raises(PlayerError, match=r"architecture\.name: .*MULTIGRID_RL_NETWORKS.*, got own_parts:Small"):
        read_network(folder, read_card(folder))
    assert "own_parts" not in sys.modules
    monkeypatch.setenv("MULTIGRID_RL_NETWORKS", "other,own_parts")
    loaded = read_network(folder, read_card(folder))
    assert torch.equal(loaded.policy.weight, network.policy.weight)


@pytest.mark.parametrize("line", ["model: {name: 'a:B'}", "train: {objective: 'a:b'}", "scenario: {env_id: 'a:B-v0'}"])
def test_recipe_files_name_no_code_unless_trusted(tmp_path, line):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"defaults: []\n{line}\n")
    with pytest.raises(ConfigError, match="imports code"):
        recipe_overrides(str(recipe), trusted=False)
    assert recipe_overrides(str(recipe), trusted=True)
