"""Games whose alike agents swap parts from episode to episode."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from multigrid_rl.envs.zoo import Game, Happened

#: What the random numbers are for that say who takes whose part.
_PARTS = 1


class SwappedParts:
    """A game in which it is drawn anew for each episode who of a group of alike agents takes whose part.

    ``groups``: agents that see and do alike.
    """

    def __init__(self, game: Game, groups: Iterable[tuple[str, ...]]) -> None:
        self.game, self.groups = game, tuple(groups)
        self.agents = game.agents

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        # Not the game's own numbers: its cards must not tell who is who.
        rng = np.random.default_rng((seed, _PARTS))
        self._part = {agent: agent for agent in self.agents}
        for group in self.groups:
            self._part |= dict(zip(group, (group[k] for k in rng.permutation(len(group))), strict=True))
        self._whose = {part: agent for agent, part in self._part.items()}
        return self._told(self.game.start(seed))

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one step with the actions of whose turn it is."""
        return self._told(self.game.play({self._part[agent]: action for agent, action in actions.items()}))

    def _told(self, now: Happened) -> Happened:
        whose = self._whose
        return Happened(
            {whose[part]: its for part, its in now.seen.items()},
            tuple(whose[part] for part in now.turn),
            {whose[part]: its for part, its in now.paid.items()},
            {whose[part]: its for part, its in now.ended.items()},
            {whose[part]: its for part, its in now.owed.items()},
            lambda: {whose[part]: its for part, its in now.others().items()},
        )
