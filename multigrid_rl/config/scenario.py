"""Schema of a scenario: its game or environment, the player of each seat, gates, and a league of opponents."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from multigrid_rl.text import ConfigError, expected, shown, unknown
from multigrid_rl.types import RULE_SETS, GameSpec

LEARN = "learn"
#: Opponent of a seat: a pool of snapshots of those who learn, and of fixed players; see ``LeagueConfig``.
LEAGUE = "league"
#: What a league makes of win rates: formulas in ``league.league``.
Weighting = Literal["squared", "variance", "linear", "linear_capped", "uniform", "latest", "nash"]


class Strict(BaseModel):
    """What is read again: no key beyond its own, finite numbers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Part(Strict):
    """A part of a configuration: no key beyond its own, nothing changes, numbers are numbers."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_keys_and_flags(cls, values: Any) -> Any:
        # pydantic would read true as 1: whole classes trained without parallelism because of such a flag.
        for name, value in values.items() if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                raise ValueError(unknown(shown(str(name)), shown(str(name)), cls.model_fields, "one of the keys {}"))
            if isinstance(value, dict):
                _no_flag_inside(name, value)
            annotation = cls.model_fields[name].annotation
            if isinstance(value, bool) and annotation in (int, float):
                raise ValueError(expected(name, "a whole number" if annotation is int else "a number", value))
        return values


def whole(value: Any) -> Any:
    """Return 2e5, a whole number to people, as one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: A number of environment steps.
Steps = Annotated[int, Field(ge=1), BeforeValidator(whole)]


def _no_flag_inside(key: str, values: dict[str, Any]) -> None:
    # Weights of bonuses and mixtures are numbers in mappings that have no fields of their own.
    for name, value in values.items():
        if isinstance(value, dict):
            _no_flag_inside(f"{key}.{name}", value)
        elif isinstance(value, bool) and key.split(".", maxsplit=1)[0] in ("bonus", "seats", "anchors"):
            raise ValueError(expected(f"{key}.{name}", "a number", value))


class GameConfig(Part):
    """One configuration of the game; see ``types.GameSpec``."""

    blue: int = Field(ge=0, le=4)
    red: int = Field(ge=1, le=4)
    obstacle: bool
    random_keys: bool
    death_match: bool
    max_steps: int = Field(ge=1, le=100_000)
    view_size: Literal[3, 5, 7]
    mission_observed: bool
    rules: Literal["fair", "classic"]

    def spec(self) -> GameSpec:
        """Return the specification that the engine reads."""
        return GameSpec(**{**self.model_dump(), "rules": RULE_SETS[self.rules]})


class Bound(Part):
    """What a metric shall be: exactly one of ``at_most`` and ``at_least``."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> "Bound":
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"expected exactly one of at_most and at_least for {self.metric}")
        return self

    @property
    def comparison(self) -> Literal["<=", ">="]:
        """How it is compared with :attr:`bound`."""
        return ">=" if self.at_most is None else "<="

    @property
    def bound(self) -> float:
        """The number."""
        return float((self.at_least if self.at_most is None else self.at_most) or 0.0)


class GateConfig(Bound):
    """One gate; ``*`` in the metric stands for every learning seat."""

    hold: Literal["every", "mean", "share"] = "every"
    share: float = Field(default=0.95, gt=0, le=1)
    window: int = Field(default=100_000, ge=1)

    @property
    def of_values(self) -> bool:
        """Whether it is about a value network."""
        return self.metric.startswith("explained_variance/")


class LeagueConfig(Part):
    """Who joins a growing pool of opponents, and how often each of them plays. What each key means stands in yaml."""

    anchors: dict[str, float]
    anchor_share: float = Field(ge=0, lt=1)
    latest_share: float = Field(ge=0, le=1)
    weighting: Weighting
    every: Steps | None
    win: float | None = Field(gt=0, lt=1)
    win_over: Literal["pool", "episodes"]
    most: int = Field(ge=1, le=64)
    redraw: Steps

    @model_validator(mode="after")
    def _grows(self) -> "LeagueConfig":
        if not self.anchors or {LEARN, LEAGUE} & set(self.anchors) or min(self.anchors.values()) <= 0:
            raise ValueError(expected("anchors", "at least one player with a weight above 0", self.anchors))
        if self.every is None and self.win is None:
            raise ValueError(expected("every", "a number of environment steps, or a win rate in win", "null for both"))
        if self.anchor_share + self.latest_share > 1:
            raise ValueError(expected("latest_share", f"at most {1 - self.anchor_share:g}", self.latest_share))
        return self


class ScenarioConfig(Part):
    """A game, who sits where, and what training must reach; or an environment of another package by its id."""

    name: str = ""
    description: str
    recipe: str | dict[str, str] | None = None
    aliases: tuple[str, ...] = ()
    game: GameConfig | None = None
    package: Literal["multigrid", "gymnasium", "unity"] | None = None
    env_id: str | None = None
    env_args: dict[str, Any] = {}
    env_path: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    agents: int = Field(default=1, ge=1, le=4)
    seats: dict[str, str | dict[str, float]] = {}
    league: LeagueConfig | None = None
    held_out: tuple[str, ...] = ()
    gates: tuple[GateConfig, ...] = ()
    report_episodes: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _seats_fit(self) -> "ScenarioConfig":
        if (self.game is None) == (self.env_id is None):
            raise ValueError("expected exactly one of game and env_id")
        if self.game is None:
            if self.package is None:
                wanted = f"multigrid, gymnasium or unity with env_id={self.env_id}"
                raise ValueError(expected("package", wanted, "null"))
            if self.package != "multigrid" and self.agents != 1:
                raise ValueError(expected("agents", f"1 with package {self.package}", self.agents))
            if self.package == "unity" and self.port is None:
                raise ValueError(expected("port", "a number with package unity", "null"))
            return self
        seats = self.game.spec().seats
        if sorted(self.seats) != sorted(seats):
            raise ValueError(expected("seats", f"{', '.join(seats)} in this game", ", ".join(self.seats)))
        for seat, names in self.seats.items():
            if isinstance(names, dict) and (not names or {LEARN, LEAGUE} & set(names) or min(names.values()) <= 0):
                raise ValueError(expected(f"seats.{seat}", "players with weights above 0", names))
        self._league_fits()
        return self

    @model_validator(mode="after")
    def _held_out_fits(self) -> "ScenarioConfig":
        if self.held_out and (self.game is None or not self.opponents):
            raise ValueError(expected("held_out", "[] without opponents", list(self.held_out)))
        met = [name for names in self.opponents.values() for name in names] if self.held_out else []
        for name in self.held_out:
            if name in (LEARN, LEAGUE, *met):
                raise ValueError(expected("held_out", "players that it does not meet while it trains", name))
        return self

    def _league_fits(self) -> None:
        """Check that a league plays all seats of one team, and that all seats of the other learn."""
        league_seats = self.league_seats
        if bool(league_seats) != (self.league is not None):
            wanted = "settings, as a seat is set to league" if league_seats else "null without a seat set to league"
            raise ValueError(expected("league", wanted, "null" if self.league is None else "settings"))
        teams = {self.spec.team_of(seat) for seat in league_seats}
        for seat, player in self.seats.items() if league_seats else ():
            wanted = LEAGUE if self.spec.team_of(seat) in teams else LEARN
            if player != wanted or len(teams) > 1:
                allowed = f"{LEAGUE} on all seats of one team and {LEARN} on all of the other"
                raise ValueError(expected(f"seats.{seat}", allowed, player))

    @property
    def spec(self) -> GameSpec:
        """The game. Raises :class:`ConfigError` for an environment of another package."""
        if self.game is None:
            raise ConfigError(expected("scenario", "one of the red/blue-door game", f"{self.name} ({self.env_id})"))
        return self.game.spec()

    @property
    def learning(self) -> dict[str, str]:
        """Seats that learn, in index order, with their teams."""
        if self.game is None:
            return {f"agent_{k}": "agents" for k in range(self.agents)}
        return {seat: self.spec.team_of(seat) for seat in self.spec.seats if self.seats[seat] == LEARN}

    @property
    def league_seats(self) -> tuple[str, ...]:
        """Seats of the team that a league plays, in index order."""
        return tuple(seat for seat in self.spec.seats if self.seats[seat] == LEAGUE) if self.game is not None else ()

    @property
    def opponents(self) -> dict[str, dict[str, float]]:
        """For each seat that players fill: player name -> weight among the players that take turns there.

        For a league these are its anchors; each run makes its own snapshots.
        """
        if self.game is None:
            return {}
        anchors = self.league.anchors if self.league is not None else {}
        seats = {seat: anchors if player == LEAGUE else player for seat, player in self.seats.items()}
        rows = {seat: seats[seat] for seat in self.spec.seats if seats[seat] != LEARN}
        return {seat: names if isinstance(names, dict) else {names: 1.0} for seat, names in rows.items()}
