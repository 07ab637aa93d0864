"""Bundles as players hand them in, and why they are refused, for tests."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from multigrid_rl.competition.bundle import load_team
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.models.registry import build
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, sha256_of, write_player
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.state import token_categories

ONE, TWO = (load_scenario(name).spec for name in ("1v1", "2v2"))
MLP = {"name": "mlp", "hidden": [8], "activation": "tanh"}
#: No check may work longer: one hand-in must not keep the others waiting.
SECONDS = 5.0


def network(members: int = 1, seed: int = 1) -> torch.nn.Module:
    """A small network whose actions depend clearly on what it sees."""
    net = build(MLP, token_categories(ONE) * members, len(ACTIONS) * members, seed)
    with torch.no_grad():
        net.policy[-1].weight.mul_(200.0)
    return net


def bundle(path: Path, seats=("red_0",), members: int = 1, seed: int = 1, **changes) -> Path:
    """A sound bundle with a small network."""
    card = {
        "name": path.name,
        "architecture": MLP,
        "observation": {"view_size": 5, "categories": token_categories(ONE) * members},
        "actions": len(ACTIONS),
        "members": members,
        "scenario": "1v1" if members == 1 and len(seats) == 1 else "2v2",
        "seats": list(seats),
        "provenance": {"seed": seed, "env_steps": 10 * seed},
    }
    write_player(path, network(members, seed).state_dict(), {**card, **changes})
    return path


def refusal(path: Path, spec=ONE, team: str = "red") -> str:
    """Why a team cannot be loaded: one line, soon."""
    begin = time.process_time()
    with pytest.raises(PlayerError) as caught:
        load_team(path, spec, team)
    assert time.process_time() - begin < SECONDS
    text = str(caught.value)
    assert text
    assert text.isprintable()
    assert len(text) < 600
    return text


def vouch(path: Path) -> None:
    """Make the card say what the model file is."""
    data = (path / MODEL_FILE).read_bytes()
    edit(path, bytes=len(data), sha256=sha256_of(data))


def edit(path: Path, **changes: object) -> None:
    """Change a card."""
    content = json.loads((path / CARD_FILE).read_text())
    (path / CARD_FILE).write_text(json.dumps({**content, **changes}))


def everything(folder: Path) -> dict[str, bytes | None]:
    """Every path below ``folder`` with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}
