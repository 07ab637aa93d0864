"""Seating rules of the red/blue-door game."""

from __future__ import annotations

from typing import Any

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.recipes import scenario_names
from multigrid_rl.envs.grouping import agents_of
from multigrid_rl.players.cards import Card
from multigrid_rl.players.frozen import check_fits
from multigrid_rl.players.places import Doors as Doors  # noqa: PLC0414 - checkpoints name it here
from multigrid_rl.players.places import RulesText
from multigrid_rl.trust import import_object
from multigrid_rl.types import AgentSpec, GameSpec, MultiAgentSpec, Policy, Shaping
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
