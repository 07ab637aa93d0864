"""Untrained players in a catalogue of their own, for tests of the command line."""

from __future__ import annotations

from pathlib import Path

from bundles import MLP
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.models.registry import build
from multigrid_rl.players.cards import write_player
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.state import token_categories


def make_player(root: Path, name: str, seat: str = "blue_0", scenario: str = "1v1", wins: float = 0.75) -> Path:
    """A sound, untrained player in the catalogue of ``root``."""
    spec = load_scenario(scenario).spec
    strength = {"scenario": scenario, "opponent": "random", "episodes": 1000, "win": wins, "draw": 0.0}
    card = {
        "name": name,
        "architecture": MLP,
        "observation": {"view_size": spec.view_size, "categories": token_categories(spec)},
        "actions": len(ACTIONS),
        "scenario": scenario,
        "seats": [seat],
        "provenance": {"env_steps": 123_456},
        "strength": [{**strength, "loss": 1 - wins, "length_mean": 20.0, "seed": 1}],
    }
    written = write_player(root / name, build(MLP, token_categories(spec), len(ACTIONS)).state_dict(), card)
    Catalogue(root).add(name, {"scenario": scenario, "seats": [seat], "sha256": written.sha256})
    return root / name
