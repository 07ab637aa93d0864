"""The red/blue-door game as a kind of environments: who sits where, and who learns."""

from typing import Any, ClassVar

from pydantic import model_validator

from multigrid_rl.config.scenario import LEAGUE, LEARN, EnvironmentKind, GameConfig
from multigrid_rl.text import expected
from multigrid_rl.types import EnvFactory, GameSpec


class Doors(EnvironmentKind):
    """The red/blue-door game: a board, and a player on each seat."""

    games: ClassVar[str] = "games"
    episode: ClassVar[str] = "game"
    board: ClassVar[bool] = True
    shaped: ClassVar[bool] = True
    stock: ClassVar[bool] = True

    game: GameConfig
    seats: dict[str, str | dict[str, float]]
    league: Any = None
    held_out: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_seats(self) -> "Doors":
        seats = self.spec.seats
        if sorted(self.seats) != sorted(seats):
            raise ValueError(expected("seats", f"{', '.join(seats)} in this game", ", ".join(self.seats)))
        for seat, names in self.seats.items():
            if isinstance(names, dict) and (not names or {LEARN, LEAGUE} & set(names) or min(names.values()) <= 0):
                raise ValueError(expected(f"seats.{seat}", "players with weights above 0", names))
        self._check_pool()
        met = [name for names in self.opponents.values() for name in names] if self.held_out else []
        for name in self.held_out if met else ():
            if name in (LEARN, LEAGUE, *met):
                raise ValueError(expected("held_out", "players that it does not meet while it trains", name))
        return self

    def _check_pool(self) -> None:
        """Check that a league plays all seats of one team, and that all seats of the other learn."""
        seats = self.pool_seats
        if bool(seats) != (self.league is not None):
            wanted = "settings, as a seat is set to league" if seats else "null without a seat set to league"
            raise ValueError(expected("league", wanted, "null" if self.league is None else "settings"))
        teams = {self.spec.team_of(seat) for seat in seats}
        for seat, player in self.seats.items() if seats else ():
            wanted = LEAGUE if self.spec.team_of(seat) in teams else LEARN
            if player != wanted or len(teams) > 1:
                allowed = f"{LEAGUE} on all seats of one team and {LEARN} on all of the other"
                raise ValueError(expected(f"seats.{seat}", allowed, player))

    @property
    def spec(self) -> GameSpec:
        """The game."""
        return self.game.spec()

    @property
    def learning(self) -> dict[str, str]:
        """Seats that learn, in index order, with their teams."""
        return {seat: self.spec.team_of(seat) for seat in self.spec.seats if self.seats[seat] == LEARN}

    @property
    def pool_seats(self) -> tuple[str, ...]:
        """Seats of the team that a growing pool plays, in index order."""
        return tuple(seat for seat in self.spec.seats if self.seats[seat] == LEAGUE)

    @property
    def opponents(self) -> dict[str, dict[str, float]]:
        """For each seat that players fill: player name -> weight; of a growing pool its fixed players."""
        anchors = self.league.anchors if self.league is not None else {}
        seats = {seat: anchors if player == LEAGUE else player for seat, player in self.seats.items()}
        rows = {seat: seats[seat] for seat in self.spec.seats if seats[seat] != LEARN}
        return {seat: names if isinstance(names, dict) else {names: 1.0} for seat, names in rows.items()}

    def seats_of(self, team: str) -> tuple[str, ...]:
        """Return all seats of a team, in index order, those that do not learn included."""
        return self.spec.seats_of(team)

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
