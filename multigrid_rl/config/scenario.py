"""Schema of a scenario: its game or environment, the player of each seat, gates, and a league of opponents."""

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from multigrid_rl.tables import POOLS, entries, load
from multigrid_rl.text import ConfigError, expected, first_error, shown, unknown
from multigrid_rl.types import RULE_SETS, EnvFactory, GameSpec

LEARN = "learn"
#: The entry of ``tables.ENVIRONMENTS`` that a scenario with a ``game`` is of.
BOARD = "doors"
#: Opponent of a seat: a pool that grows by snapshots of those who learn; its settings are named alike.
LEAGUE = "league"


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


Model = TypeVar("Model", bound=BaseModel)
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


def _checked(model: type[Model], values: Any) -> Model:
    """Return what a model of an entry of a table makes of ``values``, its errors below the key that asks."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ValueError(first_error(error)) from error


def _pool_settings(value: Any) -> Any:
    """Return the settings of a growing pool, checked by its own model."""
    return None if value is None else _checked(load(POOLS[LEAGUE]), value)


def _one_agent(value: int) -> int:
    if value != 1:
        raise ValueError(f"expected 1 with this package, got {value}")
    return value


#: The ``agents`` of a kind with one agent.
OneAgent = Annotated[int, AfterValidator(_one_agent)]


class EnvironmentKind(Part):
    """A kind of environments: what it takes in a scenario (its fields), what it can do, and how it is built.

    One is an entry of ``tables.ENVIRONMENTS``; its name is the ``package`` of a scenario. Fields are keys of
    ``scenario``; a validator of its own refuses what does not fit. The rest of the house asks these class variables.
    """

    #: What is played side by side, and one of it from its start to its end.
    games: ClassVar[str] = "environments"
    episode: ClassVar[str] = "episode"
    #: It is the red/blue-door game: players have seats, events have weights, a curriculum may lead to it.
    board: ClassVar[bool] = False
    #: Who plays it can win. Without that, its headline is the mean return.
    winner: ClassVar[bool] = True
    #: It shows vectors of floats: policy and values need share nothing.
    vectors: ClassVar[bool] = False
    #: Rewards can be learnt from recorded play in it.
    discriminators: ClassVar[bool] = False
    #: Networks with memory may play it, and remote env runners.
    memory: ClassVar[bool] = True
    remote: ClassVar[bool] = True
    #: RLlib's own env runner can play it.
    stock: ClassVar[bool] = False
    #: Building it once takes all places of the run: it is not tried out, and warmed up as it will be played.
    built_once: ClassVar[bool] = False
    #: Episodes without an end are a usual mistake of its users, worth a warning.
    may_not_end: ClassVar[bool] = False
    #: Fresh episodes can be asked for, to judge a player.
    judged: ClassVar[bool] = True
    #: ``module:function`` that draws its episodes; ``None``: nothing is drawn.
    drawn: ClassVar[str | None] = None

    env_id: str | None = None

    @property
    def learning(self) -> dict[str, str]:
        """Seats that learn, in index order, with their teams."""
        return {f"agent_{k}": "agents" for k in range(getattr(self, "agents", 1))}

    @property
    def pool_seats(self) -> tuple[str, ...]:
        """Seats of the team that a growing pool plays, in index order."""
        return ()

    @property
    def opponents(self) -> dict[str, dict[str, float]]:
        """For each seat that players fill: player name -> weight among the players that take turns there."""
        return {}

    def seats_of(self, team: str) -> tuple[str, ...]:
        """Return all seats of a team, in index order."""
        return tuple(seat for seat, its in self.learning.items() if its == team)

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:
        """Return the recipe for the environments of a run (``config.schema.RunConfig``).

        ``hashes``: required sha256 of frozen players, by name.
        """
        raise NotImplementedError


def packages() -> list[str]:
    """Return the names of all kinds of environments but the red/blue-door game."""
    return [name for name in entries("environments") if name != BOARD]


def kind_named(package: str | None) -> type[EnvironmentKind]:
    """Return the kind of environments of a ``package``; ``None``: the red/blue-door game."""
    kind: type[EnvironmentKind] = load(entries("environments")[package or BOARD])
    return kind


class ScenarioConfig(Part):
    """A game, who sits where, and what training must reach; or an environment of another kind by its id."""

    name: str = ""
    description: str
    recipe: str | dict[str, str] | None = None
    aliases: tuple[str, ...] = ()
    game: GameConfig | None = None
    package: str | None = None
    env_id: str | None = None
    env_args: dict[str, Any] = {}
    env_path: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    agents: int = Field(default=1, ge=1, le=4)
    seats: dict[str, str | dict[str, float]] = {}
    league: Annotated[Any, BeforeValidator(_pool_settings)] = None
    held_out: tuple[str, ...] = ()
    gates: tuple[GateConfig, ...] = ()
    report_episodes: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _check_kind(self) -> "ScenarioConfig":
        if (self.game is None) == (self.env_id is None):
            raise ValueError("expected exactly one of game and env_id")
        if self.env_id is not None and self.package not in packages():
            wanted = f"{', '.join(packages()[:-1])} or {packages()[-1]} with env_id={self.env_id}"
            raise ValueError(expected("package", wanted, self.package or "null"))
        opponents = self.kind.opponents  # its kind refuses what does not fit
        if self.held_out and not opponents:
            raise ValueError(expected("held_out", "[] without opponents", list(self.held_out)))
        return self

    @property
    def kind(self) -> EnvironmentKind:
        """What is played, with all that its kind takes of this scenario."""
        kind = kind_named(self.package if self.env_id else None)
        return _checked(kind, {name: getattr(self, name) for name in kind.model_fields})

    @property
    def spec(self) -> GameSpec:
        """The game. Raises :class:`ConfigError` for an environment of another kind."""
        if self.game is None:
            raise ConfigError(expected("scenario", "one of the red/blue-door game", f"{self.name} ({self.env_id})"))
        return self.game.spec()

    @property
    def view_size(self) -> int | None:
        """Edge of what one agent sees of the board; ``None`` where there is none."""
        return None if self.game is None else self.game.view_size

    @property
    def learning(self) -> dict[str, str]:
        """Seats that learn, in index order, with their teams."""
        return self.kind.learning

    @property
    def opponents(self) -> dict[str, dict[str, float]]:
        """For each seat that players fill: player name -> weight among the players that take turns there.

        For a league these are its anchors; each run makes its own snapshots.
        """
        return self.kind.opponents
