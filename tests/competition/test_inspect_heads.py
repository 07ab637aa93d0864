"""What ``inspect`` tells of a player's head."""

import numpy as np
import pytest
from gymnasium import spaces

from multigrid_rl.competition.bundle import about
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import signature, write_player
from multigrid_rl.types import AgentSpec

ACTS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
AGENT = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), ACTS)


@pytest.mark.parametrize(
    ("head", "size"), [(None, None), ("deterministic", None), ("mixture", 3), ("bins", 9), ("diffusion", 4)]
)
def test_inspect_names_head_its_size_and_its_pace(tmp_path, head, size):
    shape = {"name": "mlp", "hidden": [16, 12], "activation": "tanh", "head": head, "head_size": size}
    card = {
        "name": "one", "architecture": shape, **signature(AGENT, None), "scenario": "gymnasium", "seats": ["a"],
        "env": {"package": "gymnasium", "env_id": "Some-v0"}, "provenance": {},
    }  # fmt: skip
    write_player(tmp_path / "one", network_of(AGENT, shape, seed=2).state_dict(), card)
    output = "\n".join(about(tmp_path / "one"))
    assert " ms an action, one at a time" in output
    assert (f"head {head}" in output) == (head is not None)
    assert (f"head_size {size}" in output) == (size is not None)
