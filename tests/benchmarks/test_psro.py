"""Best responses to mixtures, one run after the other: mixtures by hand, a plan that goes on, nothing trained."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import psro
from multigrid_rl.text import ConfigError

#: Rock, paper and scissors as win rates, and a fourth who always loses.
CIRCLE = np.array([[0.5, 0.0, 1.0, 1.0], [1.0, 0.5, 0.0, 1.0], [0.0, 1.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.5]])


@pytest.mark.parametrize("meta", ["nash", "replicator"])
def test_cycle_is_met_evenly_and_dominated_player_never(meta):
    mixture = psro.mixture_of(["rock", "paper", "scissors", "nobody"], CIRCLE, meta)
    assert set(mixture) == {"rock", "paper", "scissors"}
    assert list(mixture.values()) == pytest.approx([1 / 3] * 3, abs=0.02)


def test_uniform_mixture_if_configured():
    assert psro.mixture_of(["a", "b"], CIRCLE[:2, :2], "uniform") == {"a": 0.5, "b": 0.5}


@pytest.fixture
def played(monkeypatch):
    """What would have been trained and played: who came later wins two of three games."""
    found = {"runs": [], "pairs": []}

    def trained(run, overrides):
        found["runs"].append(overrides)
        return run

    def win_rate(one, other, overrides, games):
        found["pairs"].append((one, other))
        return 2 / 3

    monkeypatch.setattr(psro, "trained", trained)
    monkeypatch.setattr(psro, "win_rate", win_rate)
    monkeypatch.setattr(psro, "players_for", lambda run, seat: {"": run})
    monkeypatch.setattr(psro, "export", lambda sources, home: home.mkdir())
    return found


def test_rounds_meet_mixture_warm_start_and_resume(played, tmp_path):
    for _ in range(2):  # the second time out of its file
        psro.Plan(tmp_path, ["scenario=1v1"], ["random"], 100).respond("nash", 5000)
    plan = psro.Plan(tmp_path, ["scenario=1v1"], ["random"], 100)
    plan.respond("nash", 5000)
    first, second, third = played["runs"]
    assert "scenario.seats.blue_0=random:1.0" in first
    assert not any(word.startswith("init=") for word in first)
    assert f"scenario.seats.blue_0={tmp_path / 'player-0'}:1.0" in second
    assert {f"init={tmp_path / 'round-1'}", f"scenario.seats.blue_0={tmp_path / 'player-1'}:1.0"} < set(third)
    lines = plan.lines()
    assert lines[-1].startswith("| player-2 | player-1 100% | 0.667")
    assert len(played["pairs"]) == len(set(played["pairs"])) == 6
    with pytest.raises(ConfigError, match="a new folder, or what it began with"):
        psro.Plan(tmp_path, ["scenario=1v1"], ["hunter"], 100)


def test_rejects_teams(tmp_path):
    with pytest.raises(ConfigError, match="one against one"):
        psro.Plan(tmp_path, ["scenario=2v2"], ["random"], 100)
