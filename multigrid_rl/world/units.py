"""Training schemes as seen from outside: who ``step`` answers for (rules, section 6)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import TEAM_ORDER, GameSpec, Rules
from multigrid_rl.world.constants import EV_ELIMINATED, EV_ELIMINATION_WIN


def eliminated_opponent_num(events: NDArray[np.floating], rules: Rules) -> NDArray[np.floating]:
    """The info number of that name: (N, A) from events (N, A, E), rewarded winners (classic) or victims (fair)."""
    return events[..., EV_ELIMINATION_WIN if rules.eliminated_count == "winners" else EV_ELIMINATED]


Scheme = Literal["DTDE", "CTDE", "CTCE"]


class UnitFold:
    """Folds per-agent arrays into the units of a scheme: agents under DTDE and CTDE, teams under CTCE."""

    def __init__(self, spec: GameSpec, scheme: Scheme) -> None:
        seats = spec.seats
        if scheme == "CTCE":
            self.names: tuple[str, ...] = tuple(t for t in TEAM_ORDER if any(s.startswith(t) for s in seats))
            self.members = [[a for a, s in enumerate(seats) if s.startswith(name)] for name in self.names]
        else:
            self.names = seats
            self.members = [[a] for a in range(len(seats))]

    def total(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """Sum of members: (N, A) -> (N, U)."""
        return np.stack([values[:, m].sum(axis=1) for m in self.members], axis=1)

    def any(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """True where any member's flag is: (N, A) -> (N, U)."""
        return np.stack([flags[:, m].any(axis=1) for m in self.members], axis=1)

    def all(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """True where all members' flags are: (N, A) -> (N, U)."""
        return np.stack([flags[:, m].all(axis=1) for m in self.members], axis=1)
