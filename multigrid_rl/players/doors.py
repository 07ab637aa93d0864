"""Seating rules of the red/blue-door game, and of environments without opponents.

The latter count as games with seats of one team, in which players that learned there are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.recipes import scenario_names
from multigrid_rl.config.scenario import ScenarioConfig, env_factory, kind_named, packages, task_of
from multigrid_rl.envs.grouping import GroupedEnv, agents_of
from multigrid_rl.players.cards import Card, PlayerError
from multigrid_rl.players.frozen import check_agent, check_fits
from multigrid_rl.players.match import SeatsEnv
from multigrid_rl.players.places import Doors as Doors  # noqa: PLC0414 - checkpoints name it here
from multigrid_rl.players.places import RulesText, SeatByAgent
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import import_object
from multigrid_rl.types import AgentSpec, GameSpec, MultiAgentSpec, Policy, Seats, Shaping
from multigrid_rl.world.constants import ACTIONS, other_seat
from multigrid_rl.world.engine import DoorsEnv, World
from multigrid_rl.world.events import EventBonus, check_reward, game_specs
from multigrid_rl.world.state import token_categories


class DoorsPlace:
    """Seating rules of red/blue doors; see ``players.places.Place``."""

    protocol = "1"
    built_in = True
    words = RulesText(
        "both sides of the board", "layouts", "A game is won by the win flag alone: a door or an elimination."
    )

    def title(self, game: GameSpec) -> str:
        """Return the name of our scenario with the same game, or ``own``."""
        return next((name for name in scenario_names() if load_scenario(name).spec == game), "own")

    def environment(self, game: GameSpec, num_envs: int, *, seed: int, first: int, auto_reset: bool = True) -> DoorsEnv:
        """Build games that show all their seats."""
        return DoorsEnv(World(game, num_envs, seed=seed, first_game=first, auto_reset=auto_reset))

    def of_league(self, game: GameSpec) -> GameSpec:
        """Return the game: its board is symmetric."""
        return game

    def who(self, game: GameSpec) -> MultiAgentSpec:
        """Return the seats and teams of a game without learning agents."""
        return game_specs(game)

    def agents(self, game: GameSpec, learning: dict[str, str], scheme: Any, *, shared: bool) -> tuple[AgentSpec, ...]:
        """Group seats that learn into agents."""
        view = tuple(token_categories(game))
        return agents_of(scheme, shared=shared, seats=learning, view=view, choices=len(ACTIONS))

    def interchangeable_seats(self, game: GameSpec, seat: str) -> tuple[str, ...]:  # noqa: ARG002 - symmetric
        """Return a seat and its counterpart on the other side."""
        return seat, other_seat(seat)

    def fits(self, game: GameSpec, card: Card, seat: str) -> bool:
        """Return whether a player needs mirrored observations on a seat. Raises ``PlayerError``: it cannot play it."""
        return check_fits(card, game, seat)

    def training_reward(self, game: GameSpec, name: str | None, bonus: dict[str, dict[str, float]]) -> Shaping | None:
        """Return a function of events and rewards; weights on events are added to its result."""
        shaping: Shaping | None = import_object("train.shaping", name) if name else None
        if not bonus:
            return shaping
        added = EventBonus(game, bonus)
        return added if shaping is None else lambda events, reward: added(events, shaping(events, reward))

    def try_reward(self, game: GameSpec, name: str) -> None:
        """Call a training reward with events of some games. Raises ``ConfigError``: it cannot be used."""
        check_reward(name, game.num_agents)

    def scripted(self, game: GameSpec, name: str, seat: str) -> Policy:  # noqa: ARG002 - it plays any seat
        """Make a built-in player."""
        from multigrid_rl.players import scripted  # noqa: PLC0415

        return scripted.SCRIPTED[name](game)

    def from_class(self, game: GameSpec, code: str, seat: str) -> Policy:
        """Make a player from a user's class and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import checked_player, import_player  # noqa: PLC0415

        return checked_player(code, import_player(code, game), game, seat)

    def from_object(self, game: GameSpec, name: str, player: Any, seat: str) -> Policy:
        """Wrap a player that a user passes as an object, and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import checked_player  # noqa: PLC0415

        return checked_player(name, player, game, seat)


#: Entry of ``tables.PLACES``.
PLACE = DoorsPlace()


# --- environments without opponents


@dataclass(frozen=True)
class NoOpponentSpec:
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

    def seats_of(self, team: str) -> tuple[str, ...]:
        """Return the seats of a team, in index order."""
        return self.specs.members(team)


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

    def title(self, game: NoOpponentSpec) -> str:
        """Return the name of an environment."""
        return game.env_id

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
        seats: Any = envs.env if isinstance(envs, GroupedEnv) else envs
        found: SeatsEnv = seats
        return found

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
        agents = {agent.seats[0]: agent for agent in game.specs.agents}
        identical = [
            other
            for other, agent in agents.items()
            if (agent.observation_space, agent.action_space)
            == (agents[seat].observation_space, agents[seat].action_space)
        ]
        return tuple(dict.fromkeys((seat, *identical)))

    def fits(self, game: NoOpponentSpec, card: Card, seat: str) -> bool:
        """Return False: nothing is mirrored. Raises ``PlayerError``: the player cannot play it."""
        trained = "the red/blue-door game" if card.env is None else card.env.env_id
        if task_of(trained) != task_of(game.env_id):
            raise PlayerError(expected(f"player {card.name} does not fit this environment: env", game.env_id, trained))
        check_agent(card, *self.agents(game, {seat: ""}, None, shared=False))
        return False


#: Entry of ``tables.PLACES``.
NO_OPPONENT = NoOpponentPlace()
