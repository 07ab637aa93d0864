"""A recipe for environments of the ``multigrid`` package that can be sent to another process and built there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from multigrid_rl.players.catalogue import Seated
from multigrid_rl.players.schemes import Scheme, Units, units_of
from multigrid_rl.types import Cast
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.multigrid_env import MultigridEnvs, make_env, token_categories

#: All agents of such an environment are one team, and all of them learn.
TEAM = "agents"


@dataclass(frozen=True)
class MultigridFactory:
    """Builds environments of one id.

    Args:
        env_id: id of a registered environment, for example ``MultiGrid-Empty-8x8-v0``.
        agents: number of agents.
        seed: of all environments.
        scheme: how the agents become learning units.
        shared: all agents play one network.
    """

    env_id: str
    agents: int
    seed: int
    scheme: Scheme = "dtde"
    shared: bool = False

    @cached_property
    def cast(self) -> Cast:
        """Who is in the environments. Raises ``ValueError`` for an unknown id."""
        categories = token_categories(make_env(self.env_id, self.agents))
        seats = {f"agent_{a}": TEAM for a in range(self.agents)}
        return Cast(
            units=units_of(self.scheme, shared=self.shared, seats=seats, categories=categories, choices=len(ACTIONS)),
            seats=tuple(seats),
            teams=tuple(seats.values()),
            team_names=(TEAM,),
            events=(),
        )

    def load(self) -> dict[str, tuple[Seated, ...]]:
        """Check the id; there are no background players to load.

        Raises:
            ValueError: unknown id; one line naming the key, its value and what is allowed.
        """
        try:
            make_env(self.env_id, self.agents)
        except ValueError as error:
            raise ValueError(f"scenario.{error}") from error
        return {}

    def packed(self) -> MultigridFactory:
        """Itself: there are no players whose files would have to travel."""
        return self

    def build(self, num_envs: int, first: int) -> Units:
        """Build environments number ``first`` to ``first + num_envs - 1``, shown by unit."""
        envs = MultigridEnvs(self.env_id, num_envs, agents=self.agents, seed=self.seed, first=first)
        return Units(envs, self.cast)
