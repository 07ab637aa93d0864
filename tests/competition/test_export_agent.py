"""A network of one's own as an agent: the folder plays as the network does, wherever its module is not installed."""

import importlib
import json
import sys

import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces

from bundles import ONE, TWO, edit
from commands import call, complaint, works
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.competition.sandbox import bwrap_available
from multigrid_rl.models.registry import custom_network
from multigrid_rl.players.cards import write_player
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import RandomPlayer
from multigrid_rl.world.state import token_categories

#: A network without memory, and one with; both choose clearly, so that two ways of drawing draw the same.
SOURCE = """
import torch
from torch import nn
from own_parts.sizes import SCALE

print("a greeting")


class Wide(nn.Module):
    state_size = 0

    def __init__(self, observation_space, outputs, hidden, generator):
        super().__init__()
        self.register_buffer("scale", torch.tensor([24.0]))
        self.body, self.policy = nn.Linear(len(observation_space.nvec), hidden[0]), nn.Linear(hidden[0], outputs)
        self.value = nn.Linear(hidden[0], 1)
        for weight in self.parameters():
            nn.init.normal_(weight, generator=generator)

    def logits(self, obs):
        return SCALE * self.policy(torch.tanh(self.body(obs.float() / self.scale)))

    def forward(self, obs):
        return self.logits(obs), self.value(torch.tanh(self.body(obs.float() / self.scale))).squeeze(-1)


class Remembers(Wide):
    state_size = 2

    def forward(self, obs, memory):
        turned = torch.stack([1 + memory[:, 1], memory[:, 0]], dim=1)
        tilt = torch.sin(turned.sum(1, keepdim=True)) * torch.arange(7.0)
        return self.logits(obs) + SCALE * tilt, obs.float().sum(1), turned

    def sequence(self, obs, memory, starts):
        raise NotImplementedError
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Make a run's player of a class; its module is found until the test forgets it."""
    home = tmp_path / "home"
    (home / "own_parts").mkdir(parents=True)
    (home / "own_parts" / "__init__.py").touch()
    (home / "own_parts" / "sizes.py").write_text("SCALE = 1e4\n")
    (home / "own_nets.py").write_text(SOURCE)
    (home / "unused.py").write_text("secret = 1\n")
    monkeypatch.syspath_prepend(home)
    monkeypatch.chdir(home)

    def make(name: str, seats: tuple[str, ...] = ("red_0",), members: int = 1, scenario: str = "1v1"):
        architecture = {"name": f"own_nets:{name}", "hidden": [16]}
        categories = token_categories(ONE) * members
        network = custom_network(architecture["name"], architecture, [spaces.MultiDiscrete(categories)], 7 * members, 3)
        card = {
            "name": "mine", "architecture": architecture, "actions": 7, "members": members, "scenario": scenario,
            "observation": {"view_size": 5, "categories": categories}, "seats": list(seats), "provenance": {},
        }  # fmt: skip
        source = tmp_path / f"{name}-{'-'.join(seats)}"
        write_player(source, network.state_dict(), card)
        monkeypatch.setattr("multigrid_rl.runs.players.players_for", lambda *_: {"": source})
        return source

    yield make
    for name in ("own_nets", "own_parts", "own_parts.sizes"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seats", "members", "team"),
    [
        ("Wide", ("red_0",), 1, "blue"),
        ("Remembers", ("red_0",), 1, "red"),
        ("Wide", ("red_0", "red_1"), 1, "red"),
        ("Wide", ("red_0", "red_1"), 2, "blue"),
    ],
)
def test_agent_acts_as_its_network(own, name, seats, members, team, tmp_path):
    spec = ONE if len(seats) == 1 else TWO
    source = own(name, seats, members, "1v1" if spec is ONE else "2v2")
    works("export", "run", "--seat", "red", "-o", tmp_path / "agent", "--agent")
    rivals = {seat: RandomPlayer() for seat in spec.seats if not seat.startswith(team)}
    played = [
        play_games(spec, {**load_team(folder, spec, team), **rivals}, 4, seed=2).actions
        for folder in (source, tmp_path / "agent")
    ]
    np.testing.assert_array_equal(*played)
    assert len(np.unique(played[0])) > 4


@pytest.mark.slow
@pytest.mark.skipif(not bwrap_available(), reason="bubblewrap is not available")
def test_agent_is_graded_and_inspected_without_its_module(own, tmp_path, monkeypatch):
    own("Wide")
    assert call("export", "run", "--seat", "red_0", "-o", tmp_path / "agent", "--agent").exit_code == 0
    names = sorted(
        str(path.relative_to(tmp_path / "agent")) for path in (tmp_path / "agent").rglob("*") if path.is_file()
    )
    own_files = ["own_nets.py", "own_parts/__init__.py", "own_parts/sizes.py"]
    assert names == ["agent.py", "agent.yaml", "model.safetensors", "networks.json", *own_files]
    for name in ("own_nets", "own_parts", "own_parts.sizes"):
        sys.modules.pop(name, None)
    sys.path.remove(str(tmp_path / "home"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("own_nets")
    assert call("inspect", tmp_path / "agent").output.splitlines()[-1] == "ok: plays 1v1 as red and as blue"
    exam = {"name": "x", "opponent": "idle", "episodes": 100}
    exam["checks"] = [{"metric": "draw/*", "at_least": 0.0, "points": 1}]
    (tmp_path / "rubric.yaml").write_text(yaml.safe_dump({"scenario": "1v1", "pass_points": 1, "exams": [exam]}))
    graded = works("grade", tmp_path / "agent", "--rubric", tmp_path / "rubric.yaml")
    assert json.loads(graded.output.splitlines()[-1])["points"] == 1


def test_agent_export_wants_own_network(own, tmp_path, monkeypatch):
    source = own("Wide")
    (tmp_path / "home" / "agent.py").write_text((tmp_path / "home" / "own_nets.py").read_text())
    edit(source, architecture={"name": "agent:Wide", "hidden": [16]})
    refused = complaint(call("export", "run", "--seat", "red_0", "-o", tmp_path / "a", "--agent"))
    assert "a module with another name than agent.py" in refused
    sys.modules.pop("agent", None)
    edit(source, architecture={"name": "mlp", "hidden": [16], "activation": "tanh"})
    monkeypatch.setattr("multigrid_rl.competition.bundle.read_network", lambda *_: torch.nn.Linear(1, 1))
    refused = complaint(call("export", "run", "--seat", "red_0", "-o", tmp_path / "a", "--agent"))
    assert "--agent: expected a network of your own for the red/blue-door game" in refused
    assert not (tmp_path / "a").exists()
