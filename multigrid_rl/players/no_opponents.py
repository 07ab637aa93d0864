"""Environments without opponents as games with seats of one team, in which players that learned there are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import ScenarioConfig, env_factory, kind_named, packages, task_of
from multigrid_rl.envs.grouping import GroupedEnv
from multigrid_rl.players.cards import Card, PlayerError
from multigrid_rl.players.frozen import check_agent
from multigrid_rl.players.match import SeatsEnv
from multigrid_rl.players.places import RulesText
from multigrid_rl.players.zoo_seats import SeatByAgent
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import AgentSpec, MultiAgentSpec, Seats


@dataclass(frozen=True)
class NoOpponentSpec(Seats):
    """An environment without opponents (``types.Seats``); ``tables.PLACES`` has its seating rules."""

    env_id: str
    env_args: dict[str, Any]
    overrides: tuple[str, ...]

    @cached_property
    def factory(self) -> Any:
        """Factory of the environment. Raises ``ConfigError``: it cannot be built."""
        return env_factory(compose(list(self.overrides)).canonical)

    @property
    def specs(self) -> MultiAgentSpec:
        """Agents, seats and teams."""
        specs: MultiAgentSpec = self.factory.specs
        return specs

    @property
    def seats(self) -> tuple[str, ...]:
        """Seat names in index order."""
        return self.specs.seats

    def team_of(self, seat: str) -> str:
        """Return the team of a seat. Raises ``ValueError`` for a seat that the environment does not have."""
        return self.specs.teams[self.seats.index(seat)]


def game_of(scenario: ScenarioConfig, overrides: Sequence[str]) -> Seats:
    """Return the game of a scenario, which ``overrides`` select.

    Raises ``ConfigError``: its episodes cannot be played on request.
    """
    if scenario.kind.rivals:
        game: Seats = scenario.kind.spec
        return game
    if not scenario.kind.judged:
        judged = " or ".join(sorted(package for package in packages() if kind_named(package).judged))
        raise ConfigError(expected("scenario.package", f"{judged}, to play episodes", scenario.package))
    return NoOpponentSpec(str(scenario.env_id), scenario.env_args, tuple(overrides))


class NoOpponentPlace(SeatByAgent):
    """Seating rules of environments without opponents; see ``players.places.Place``."""

    protocol = ""
    built_in = False
    words = RulesText("its seats", "starts", "Nobody wins.")

    def environment(
        self,
        game: NoOpponentSpec,
        num_envs: int,
        *,
        seed: int,
        first: int,
        auto_reset: bool = True,  # noqa: ARG002
    ) -> SeatsEnv:
        """Build environments, which reset when an episode ends."""
        envs: Any = replace(game.factory, seed=seed).build(num_envs, first)
        return cast("SeatsEnv", envs.env if isinstance(envs, GroupedEnv) else envs)

    def who(self, game: NoOpponentSpec) -> MultiAgentSpec:
        """Return the seats and teams of an environment without learning agents."""
        return replace(game.specs, agents=(), has_winner=False)

    def agents(
        self,
        game: NoOpponentSpec,
        learning: dict[str, str],
        scheme: Any,  # noqa: ARG002 - each seat is an agent
        *,
        shared: bool,  # noqa: ARG002
    ) -> tuple[AgentSpec, ...]:
        """Return the agents of the seats."""
        return tuple(agent for agent in game.specs.agents if agent.seats[0] in learning)

    def interchangeable_seats(self, game: NoOpponentSpec, seat: str) -> tuple[str, ...]:
        """Return all seats with the same spaces, ``seat`` first."""
        spaces = {agent.seats[0]: (agent.observation_space, agent.action_space) for agent in game.specs.agents}
        return tuple(dict.fromkeys((seat, *(other for other in spaces if spaces[other] == spaces[seat]))))

    def fits(self, game: NoOpponentSpec, card: Card, seat: str) -> bool:
        """Return False: nothing is mirrored. Raises ``PlayerError``: the player cannot play it."""
        trained = "the red/blue-door game" if card.env is None else card.env.env_id
        if task_of(trained) != task_of(game.env_id):
            raise PlayerError(expected(f"player {card.name} does not fit this environment: env", game.env_id, trained))
        check_agent(card, *self.agents(game, {seat: ""}, None, shared=False))
        return False


#: Entry of ``tables.PLACES``.
PLACE = NoOpponentPlace()
