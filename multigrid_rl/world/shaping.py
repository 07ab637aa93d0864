"""Training rewards that help exploration. Gates, evaluation and the cup always use the canonical reward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.world.constants import EV_KEY

#: What the key is worth on top of its canonical 0.5.
KEY_BONUS = 1.0


def key_bonus(events: NDArray[np.float32], reward: NDArray[np.float64]) -> NDArray[np.float64]:
    """Canonical reward (N, A) plus a bonus for the first pickup of the own key.

    In a death match an agent finds out quickly that lying in wait for the opponent wins, and then hardly ever comes
    across its key, which the canonical return needs: a win without it is worth 0.97, with it 1.46.
    """
    return reward + KEY_BONUS * events[..., EV_KEY]
