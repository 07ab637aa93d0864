"""The red/blue-door game as a kind of environments, and how players are seated in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.recipes import scenario_names
from multigrid_rl.config.scenario import GameConfig
from multigrid_rl.envs.grouping import agents_of
from multigrid_rl.players.places import SeatedKind, Words
from multigrid_rl.trust import import_object
from multigrid_rl.types import AgentSpec, EnvFactory, GameSpec, MultiAgentSpec, Policy, Shaping
from multigrid_rl.world.constants import ACTIONS, other_seat
from multigrid_rl.world.engine import DoorsEnv, World
from multigrid_rl.world.events import EventBonus, best_return, check_reward, game_specs
from multigrid_rl.world.state import token_categories

if TYPE_CHECKING:
    from multigrid_rl.players.cards import Card


class Doors(SeatedKind):
    """The red/blue-door game: a board, and a player on each seat."""

    board: ClassVar[bool] = True
    shaped: ClassVar[bool] = True
    stock: ClassVar[bool] = True

    game: GameConfig

    @property
    def spec(self) -> GameSpec:
        """The game."""
        return self.game.spec()

    def rewards(self) -> list[tuple[str, str, str]]:
        """Return the weights of its events, and the bound on a team's return."""
        spec = self.spec
        pays, teams = spec.reward, list(dict.fromkeys(map(spec.team_of, self.learning)))
        ball = f"ball {pays.ball_pickup:g} x {pays.ball_discount:g}, squared each time; " if spec.obstacle else ""
        fights = f"eliminating {pays.eliminated_opponent:g}, eliminated {pays.got_eliminated:g}; "
        said = (
            f"key {pays.key_pickup:g}; {ball}{fights if spec.death_match else ''}"
            f"any other pickup {pays.invalid_pickup:g}; "
            f"success {pays.success:g} - 0.9 x step / {spec.max_steps}, for one of the team (docs/game.md, section 5)"
        )
        bounds = " or ".join(f"below {best_return(spec, team):.2f}" for team in teams)
        best = "all that a team could earn in one game; what play reaches: docs/game.md, section 9"
        return [("rewards", "of events", said), ("best return", bounds, best)]

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:
        """Return the recipe for a run's matches."""
        from multigrid_rl.players.factories import MatchFactory  # noqa: PLC0415 - it brings torch

        return MatchFactory(
            spec=self.spec,
            opponents=self.opponents,
            checkpoints=config.checkpoint_root(),
            hashes=hashes,
            seed=config.seed,
            scheme=config.scheme,
            shared=config.shared,
            shaping=config.train.shaping,
            bonus=config.train.bonus,
            league=self.pool_seats,
        )


class DoorsPlace:
    """How players are seated at red/blue doors; see ``players.places.Place``. What it needs is imported when asked."""

    protocol = "1"
    built_in = True
    words = Words(
        "both sides of the board", "layouts", "A game is won by the win flag alone: a door or an elimination."
    )

    def title(self, game: GameSpec) -> str:
        """Return the name of the scenario with the same game, or that it is somebody's own."""
        return next((name for name in scenario_names() if load_scenario(name).spec == game), "own")

    def environment(self, game: GameSpec, num_envs: int, *, seed: int, first: int, auto_reset: bool = True) -> DoorsEnv:
        """Build games by all their seats."""
        return DoorsEnv(World(game, num_envs, seed=seed, first_game=first, auto_reset=auto_reset))

    def of_league(self, game: GameSpec) -> GameSpec:
        """Return the game: its board is symmetric."""
        return game

    def who(self, game: GameSpec) -> MultiAgentSpec:
        """Return who is in a game in which players fill every seat."""
        return game_specs(game)

    def agents(self, game: GameSpec, learning: dict[str, str], scheme: Any, *, shared: bool) -> tuple[AgentSpec, ...]:
        """Group seats that learn into agents."""
        view = tuple(token_categories(game))
        return agents_of(scheme, shared=shared, seats=learning, view=view, choices=len(ACTIONS))

    def alike(self, game: GameSpec, seat: str) -> tuple[str, ...]:  # noqa: ARG002 - the board is symmetric
        """Return a seat and the one at its place on the other side."""
        return seat, other_seat(seat)

    def fits(self, game: GameSpec, card: Card, seat: str) -> bool:
        """Return whether a player needs mirrored observations on a seat. Raises ``PlayerError``: it cannot play it."""
        from multigrid_rl.players.frozen import check_fits  # noqa: PLC0415

        return check_fits(card, game, seat)

    def training_reward(self, game: GameSpec, name: str | None, bonus: dict[str, dict[str, float]]) -> Shaping | None:
        """Return a function of events and rewards, and weights on events that are added to what it returns."""
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

    def own_class(self, game: GameSpec, code: str, seat: str) -> Policy:
        """Make a player of a class of the user's own and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import checked_player, made  # noqa: PLC0415

        return checked_player(code, made(code, game), game, seat)

    def own(self, game: GameSpec, name: str, player: Any, seat: str) -> Policy:
        """Take a player that was handed over as an object, and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import checked_player  # noqa: PLC0415

        return checked_player(name, player, game, seat)


#: Entry of ``tables.PLACES``.
PLACE = DoorsPlace()
