"""Recorded play on disk for tests."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multigrid_rl.imitation.demonstrations import Episode, write


class Shown(NamedTuple):
    """Recorded play as ``imitation.adversarial`` reads it."""

    observations: Any
    actions: Any
    terminated: Any
    episode_ends: Any
    final_observations: Any


def pusher(root: Path, steps: int, *, early: bool = False) -> Path:
    """Write ten episodes of Pendulum by a player that always pushes to one side; returns the folder.

    ``early``: as if they had ended by themselves, and not by a time limit.
    """
    rng = np.random.default_rng(1)

    def episode(k: int) -> Episode:
        obs = rng.normal(size=(steps + 1, 3)).astype(np.float32)
        return Episode(obs[:steps], np.full((steps, 1), 1.5), np.zeros(steps), early, not early, obs[steps], (1, k, 0))

    facts = {
        "who": "pusher", "scenario": "gymnasium", "env": {"package": "gymnasium", "env_id": "Pendulum-v1"},
        "observation": {"size": 3}, "actions": {"low": [-2.0], "high": [2.0]},
    }  # fmt: skip
    write(root / "pusher", map(episode, range(10)), facts)
    return root / "pusher"
