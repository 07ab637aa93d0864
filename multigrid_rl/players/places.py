"""Rules for seating players in each kind of games, and the base classes of games with seats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from pydantic import Field, model_validator

from multigrid_rl.config.scenario import LEAGUE, LEARN, EnvironmentKind, GameConfig
from multigrid_rl.tables import PLACES, find
from multigrid_rl.text import expected
from multigrid_rl.types import AgentSpec, EnvFactory, GameSpec, MultiAgentSpec, Policy, Seats

if TYPE_CHECKING:
    from multigrid_rl.players.cards import Card
    from multigrid_rl.players.match import SeatsEnv


class RulesText(NamedTuple):
    """Words for a kind of games in the rules of a competition."""

    sides: str  # where each entry plays from
    identical: str  # what the seed and number of a game fix
    win: str  # how a game is won, a sentence


class Place(Protocol):
    """Rules for seating players in one kind of games; the class of ``game``, its description, is the key of ``PLACES``.

    Attributes:
        protocol: messages to external programs, an entry of ``tables.PROTOCOLS``.
        built_in: all built-in players play it, and the catalogue has their results; otherwise only random plays it.
        words: text for the rules of a competition.
    """

    protocol: str
    built_in: bool
    words: RulesText

    def title(self, game: Any) -> str:
        """Return the name of a game."""

    def environment(self, game: Any, num_envs: int, *, seed: int, first: int, auto_reset: bool = True) -> SeatsEnv:
        """Build ``num_envs`` games that show all their seats; without ``auto_reset`` each is played once."""

    def of_league(self, game: Any) -> Any:
        """Return the game for training in a league, where snapshots must be able to play the learners' seats."""

    def who(self, game: Any) -> MultiAgentSpec:
        """Return the seats and teams of a game without learning agents."""

    def agents(self, game: Any, learning: dict[str, str], scheme: Any, *, shared: bool) -> tuple[AgentSpec, ...]:
        """Group seats that learn (seat -> team) into agents."""

    def interchangeable_seats(self, game: Any, seat: str) -> tuple[str, ...]:
        """Return the seats whose players can also play ``seat``, which comes first."""

    def fits(self, game: Any, card: Card, seat: str) -> bool:
        """Return whether a player needs mirrored observations on a seat. Raises ``PlayerError``: it cannot play it."""

    def training_reward(self, game: Any, name: str | None, bonus: dict[str, dict[str, float]]) -> Any:
        """Return the training reward from a user's function and weights on events.

        ``None``: the game's own reward. Raises ``ConfigError``: no such function or event.
        """

    def try_reward(self, game: Any, name: str) -> None:
        """Try a user's training reward. Raises ``ConfigError``: it fails, or returns an invalid value."""

    def scripted(self, game: Any, name: str, seat: str) -> Policy:
        """Make a built-in player. Raises ``PlayerError``: it does not play this game."""

    def from_class(self, game: Any, code: str, seat: str) -> Policy:
        """Make a player from a user's class and try it. Raises ``ConfigError``."""

    def from_object(self, game: Any, name: str, player: Any, seat: str) -> Policy:
        """Wrap a player that a user passes as an object, and try it. Raises ``ConfigError``."""


def place_of(game: Seats) -> Place:
    """Return the seating rules of a game."""
    place: Place = find(PLACES, type(game).__name__)
    return place


def sides_of(game: Seats) -> tuple[str, ...]:
    """Return the teams of a game that have seats, in the order of their numbers."""
    return tuple(team for team in place_of(game).who(game).team_names if game.seats_of(team))


def counterpart(game: Seats, seat: str) -> str:
    """Return the seat of the other team at the same place, ``blue_0`` for ``red_0``; without such a team ``seat``."""
    team = game.team_of(seat)
    others = [other for other in dict.fromkeys(map(game.team_of, game.seats)) if other != team]
    if len(others) != 1 or len(game.seats_of(others[0])) != len(game.seats_of(team)):
        return seat
    return game.seats_of(others[0])[game.seats_of(team).index(seat)]


class SeatedKind(EnvironmentKind):
    """Base of kinds of games in which players fill the seats that do not learn."""

    games: ClassVar[str] = "games"
    episode: ClassVar[str] = "game"
    rivals: ClassVar[bool] = True

    seats: dict[str, str | dict[str, float]] = Field(default={})
    league: Any = None
    held_out: dict[str, tuple[str, ...]] = Field(default={})

    @model_validator(mode="after")
    def _check_seats(self) -> SeatedKind:
        seats = self.spec.seats
        if sorted(self.seated) != sorted(seats):
            raise ValueError(expected("seats", f"{', '.join(seats)} in this game", ", ".join(self.seats)))
        for seat, names in self.seated.items():
            if isinstance(names, dict) and (not names or {LEARN, LEAGUE} & set(names) or min(names.values()) <= 0):
                raise ValueError(expected(f"seats.{seat}", "players with weights above 0", names))
        self._check_pool()
        held_out = [name for names in self.held_out.values() for name in names]
        training_players = [name for names in self.opponents.values() for name in names] if held_out else []
        for name in held_out if training_players else ():
            if name in (LEARN, LEAGUE, *training_players):
                raise ValueError(expected("held_out", "players that it does not meet while it trains", name))
            if held_out.count(name) > 1:
                raise ValueError(expected("held_out", "players of one list alone, named once", name))
        return self

    def _check_pool(self) -> None:
        """Check that a league plays all seats of one team, and that all seats of the other learn."""
        seats = self.pool_seats
        if bool(seats) != (self.league is not None):
            wanted = "settings, as a seat is set to league" if seats else "null without a seat set to league"
            raise ValueError(expected("league", wanted, "null" if self.league is None else "settings"))
        teams = {self.spec.team_of(seat) for seat in seats}
        for seat, player in self.seated.items() if seats else ():
            wanted = LEAGUE if self.spec.team_of(seat) in teams else LEARN
            if player != wanted or len(teams) > 1:
                allowed = f"{LEAGUE} on all seats of one team and {LEARN} on all of the other"
                raise ValueError(expected(f"seats.{seat}", allowed, player))

    @property
    def spec(self) -> Any:
        """The game (``types.Seats``)."""
        raise NotImplementedError

    @property
    def seated(self) -> dict[str, str | dict[str, float]]:
        """Player of each seat, or ``learn``."""
        return self.seats

    @property
    def learning(self) -> dict[str, str]:
        """Seats that learn, in index order, with their teams."""
        return {seat: self.spec.team_of(seat) for seat in self.spec.seats if self.seated[seat] == LEARN}

    @property
    def pool_seats(self) -> tuple[str, ...]:
        """Seats of the team that a growing pool plays, in index order."""
        return tuple(seat for seat in self.spec.seats if self.seated.get(seat) == LEAGUE)

    @property
    def opponents(self) -> dict[str, dict[str, float]]:
        """For each seat that players fill: player name -> weight; of a growing pool its fixed players."""
        anchors = self.league.anchors if self.league is not None else {}
        seats = {seat: anchors if player == LEAGUE else player for seat, player in self.seated.items()}
        rows = {seat: seats[seat] for seat in self.spec.seats if seats[seat] != LEARN}
        return {seat: names if isinstance(names, dict) else {names: 1.0} for seat, names in rows.items()}

    def seats_of(self, team: str) -> tuple[str, ...]:
        """Return all seats of a team in index order, including those that do not learn."""
        return tuple(self.spec.seats_of(team))

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
