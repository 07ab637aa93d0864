"""Schema of a scenario: its game or environment, the player of each seat, gates, and a league of opponents."""

import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from multigrid_rl.tables import POOLS, entries, load
from multigrid_rl.text import ConfigError, expected, first_error, shown, unknown
from multigrid_rl.types import RULE_SETS, EnvFactory, GameSpec

LEARN = "learn"
#: Entry of ``tables.ENVIRONMENTS`` for scenarios with a ``game``.
BOARD = "doors"
#: Opponent of a seat: a pool that grows by snapshots of learning seats; also the key of its settings.
LEAGUE = "league"


class Strict(BaseModel):
    """Base of models that are read from files: only known keys, finite numbers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Part(Strict):
    """A part of a configuration: only known keys, frozen, no booleans for numbers.

    The string below a field is its ``description`` in pydantic.
    """

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _check_keys_and_flags(cls, values: Any) -> Any:
        # pydantic would read true as 1: such a mistake has switched off parallelism unnoticed.
        for name, value in values.items() if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                raise ValueError(unknown(shown(str(name)), shown(str(name)), cls.model_fields, "one of the keys {}"))
            _check_numbers(name, value)
            # Also of int | None, and of Literal["auto", 1, 2].
            kinds = re.findall(r"\b(?:int|float|bool)\b|Literal\[.*\d", str(cls.model_fields[name].annotation))
            if isinstance(value, bool) and kinds and "bool" not in kinds:
                raise ValueError(expected(name, "a number" if "float" in kinds else "a whole number", value))
        return values


def as_integer(value: Any) -> Any:
    """Return an integral float such as 2e5, which yaml reads as text, as an integer; other values unchanged."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]*)?[eE][0-9]+", value):
        value = float(value)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


Model = TypeVar("Model", bound=BaseModel)
#: A number of environment steps.
Steps = Annotated[int, Field(ge=1), BeforeValidator(as_integer)]


def _check_numbers(key: str, value: Any) -> None:
    # Weights of bonuses and mixtures are numbers in mappings without a schema.
    for name, part in value.items() if isinstance(value, dict) else ():
        _check_numbers(f"{key}.{name}", part)
    if isinstance(value, bool) and re.match(r"(bonus|seats|anchors)\.", key):
        raise ValueError(expected(key, "a number", value))
    if isinstance(value, int) and abs(value) >= 2**63:  # the run's own file could not be read again
        raise ValueError(expected(key, "a whole number within 64 bits", value))


class GameConfig(Part):
    """One configuration of the game; see ``types.GameSpec``."""

    blue: int = Field(ge=0, le=4)
    """agents of the blue team"""
    red: int = Field(ge=1, le=4)
    """agents of the red team"""
    obstacle: bool
    """true: a ball of the other colour in front of each team's door"""
    random_keys: bool
    """true: keys on random cells of the room, else on fixed ones"""
    death_match: bool
    """true: toggling an opponent eliminates it"""
    max_steps: int = Field(ge=1, le=100_000)
    """the game is truncated after this many steps"""
    view_size: Literal[3, 5, 7]
    """an agent sees view_size x view_size cells. Larger: sees further, larger network"""
    mission_observed: bool
    """true: observations carry the mission index"""
    rules: Literal["fair", "classic"]
    """fair, or classic: the recorded original bit for bit"""

    def spec(self) -> GameSpec:
        """Return the specification that the engine reads."""
        return GameSpec(**{**self.model_dump(), "rules": RULE_SETS[self.rules]})


class Bound(Part):
    """A metric and its bound: exactly one of ``at_most`` and ``at_least``."""

    metric: str
    """name of a metric (docs/running.md); * stands for every learning seat"""
    at_most: float | None = None
    """largest value that passes. null: with at_least"""
    at_least: float | None = None
    """smallest value that passes. null: with at_most"""

    @model_validator(mode="after")
    def _one_bound(self) -> "Bound":
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"expected exactly one of at_most and at_least for {self.metric}")
        return self

    @property
    def comparison(self) -> Literal["<=", ">="]:
        """Operator between metric and :attr:`bound`."""
        return ">=" if self.at_most is None else "<="

    @property
    def bound(self) -> float:
        """The number."""
        return float((self.at_least if self.at_most is None else self.at_most) or 0.0)


class GateConfig(Bound):
    """One gate; ``*`` in the metric stands for every learning seat."""

    hold: Literal["every", "mean", "share"] = "every"
    """what must be within the bound over a window: every report, the mean over reports, or a share of them"""
    share: float = Field(default=0.95, gt=0, le=1)
    """with hold=share: this share of the reports. Higher: stricter"""
    window: Steps = 100_000
    """environment steps that it must hold for. More: stricter, later"""

    @property
    def of_values(self) -> bool:
        """Whether the metric measures a value network."""
        return self.metric.startswith("explained_variance/")


def validated(model: type[Model], values: Any, place: str = "") -> Model:
    """Validate ``values`` by a model. Raises ``ConfigError`` with the first wrong key, below ``place``."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(first_error(error, place)) from error


def _pool_settings(value: Any) -> Any:
    """Return the settings of a growing pool, validated by the pool's model."""
    return None if value is None else validated(load(POOLS[LEAGUE]), value)


#: The ``agents`` of a kind with one agent.
OneAgent = Literal[1]


class EnvironmentKind(Part):
    """A kind of environments: its keys in a scenario (its fields), its abilities, and its factory.

    Each kind is an entry of ``tables.ENVIRONMENTS``; its name is the ``package`` of a scenario. Fields are keys of
    ``scenario``, which the kind validates. The rest of the package reads the class variables.
    """

    #: Plural noun for parallel environments, and noun for one episode.
    games: ClassVar[str] = "environments"
    episode: ClassVar[str] = "episode"
    #: Whether it is the red/blue-door game: players have seats, events have weights, a curriculum is possible.
    board: ClassVar[bool] = False
    #: Whether observations are vectors of floats; then policy and values may share no layers.
    vectors: ClassVar[bool] = False
    #: Whether other players sit on seats that do not learn.
    rivals: ClassVar[bool] = False
    #: Whether rewards can be learned from recorded play.
    discriminators: ClassVar[bool] = False
    #: Whether ``train.shaping`` may name a training reward; its factories then have ``check_reward``.
    shaped: ClassVar[bool] = False
    #: Whether networks with memory, and remote env runners, may play it.
    memory: ClassVar[bool] = True
    remote: ClassVar[bool] = True
    #: Whether RLlib's env runner can play it.
    stock: ClassVar[bool] = False
    #: Whether only one instance can exist: it gets no trial, and the training environments warm it up.
    built_once: ClassVar[bool] = False
    #: Whether episodes without an end are a frequent mistake, worth a warning.
    may_not_end: ClassVar[bool] = False
    #: Whether fresh episodes can be played to judge a player.
    judged: ClassVar[bool] = True

    env_id: str | None = None

    @property
    def spec(self) -> Any:
        """The game with seats (``types.Seats``). Raises :class:`ConfigError`: it has no opponents."""
        raise ConfigError(expected("scenario", "a game with opponents", self.env_id))

    @property
    def learning(self) -> dict[str, str]:
        """Seats that learn, in index order, with their teams."""
        return {f"agent_{k}": "agents" for k in range(getattr(self, "agents", 1))}

    @property
    def pool_seats(self) -> tuple[str, ...]:
        """Seats of the team that a growing pool fills, in index order."""
        return ()

    @property
    def opponents(self) -> dict[str, dict[str, float]]:
        """For each seat of other players: player name -> weight in the mixture of that seat.

        For a league these are its anchors; each run adds its snapshots.
        """
        return {}

    @property
    def sharing(self) -> dict[str, str]:
        """Seat -> group of seats that share a network with ``shared=true``: their team."""
        return self.learning

    def seats_of(self, team: str) -> tuple[str, ...]:
        """Return all seats of a team, in index order."""
        return tuple(seat for seat, other in self.learning.items() if other == team)

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:
        """Return the recipe for the environments of a run (``config.schema.RunConfig``).

        ``hashes``: required sha256 of frozen players, by name.
        """
        raise NotImplementedError


def packages() -> list[str]:
    """Return the names of all kinds of environments except the red/blue-door game."""
    return [name for name in entries("environments") if name != BOARD]


def kind_named(package: str | None) -> type[EnvironmentKind]:
    """Return the kind of environments of a ``package``; ``None``: the red/blue-door game."""
    kind: type[EnvironmentKind] = load(entries("environments")[package or BOARD])
    return kind


#: Keys of a scenario that only some kinds of environments take.
KIND_KEYS = ("league", "env_args", "env_path", "port", "agents", "teams", "symmetric", "outcome")


def _by_purpose(value: Any) -> Any:
    """Return held-out players by purpose; a plain list, the form of older files, is for ``validate``."""
    return {"validate": value} if isinstance(value, list | tuple) and value else value or {}


HeldOut = Annotated[dict[Literal["validate", "test"], tuple[str, ...]], BeforeValidator(_by_purpose)]


class ScenarioConfig(Part):
    """A game with its players and gates, or an environment of another kind by its id."""

    name: str = ""
    """name of its file, filled in"""
    description: str
    """one line, printed when a run starts"""
    recipe: str | dict[str, str] | None = None
    """recipe that it is trained with; or by file of configs/train/ or scheme, {default: NAME, a2c: NAME}. null: none"""
    aliases: tuple[str, ...] = ()
    """other names of this scenario"""
    game: GameConfig | None = None
    """the red/blue-door game. null: the environment of package and env_id"""
    package: str | None = None
    """kind of the environment: gymnasium, pettingzoo or unity. null: the red/blue-door game"""
    env_id: str | None = None
    """registered id, or module:Id; unity: name of the behaviour that learns, or any. Same as env_id=..."""
    env_args: dict[str, Any] = {}
    """arguments of the environment, such as {max_episode_steps: 200}. Same as env_args=..."""
    env_path: str | None = None
    """unity: program to start. null: press Play in the editor. Same as env_path=..."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """unity: port of this machine that Unity connects to; 5004 is the editor's. Same as port=..."""
    agents: int = Field(default=1, ge=1, le=4)
    """always 1: who learns follows from the seats"""
    teams: dict[str, tuple[str, ...]] = {}
    """pettingzoo: name -> its agents; {}: each is a team of its own"""
    symmetric: tuple[tuple[str, ...], ...] = ()
    """pettingzoo: groups of agents on whose seats the same player can sit; []: only where it was trained"""
    outcome: Literal["win", "return"] | None = None
    """pettingzoo: win, the team with the largest return wins an episode; return, no team does. null: win with two teams
    or more"""
    seats: dict[str, str | dict[str, float]] = {}
    """who sits where: learn, or a player of `multigrid-rl players`, or the folder of one or of a run; {} without
    seats"""
    league: Annotated[Any, BeforeValidator(_pool_settings)] = None
    """who plays on a seat that says league: fixed players, and snapshots of who learns (docs/league.md)"""
    held_out: HeldOut = {}
    """players that are never met in training: validate, by whom one chooses, whom the policy plays at the end
    (held_out.json), and test, whom no choice has seen (results --fresh). A list: validate"""
    gates: tuple[GateConfig, ...] = ()
    """what training must reach and hold; * stands for every learning seat. []: the run ends at train.until"""
    report_episodes: int = Field(default=100, ge=1)
    """finished episodes behind one report of lengths and returns. More: steadier, rarer reports"""

    @model_validator(mode="after")
    def _check_kind(self) -> "ScenarioConfig":
        if (self.game is None) == (self.env_id is None):
            raise ValueError("expected exactly one of game and env_id")
        if self.env_id is not None and self.package not in packages():
            wanted = f"{', '.join(packages()[:-1])} or {packages()[-1]} with env_id={self.env_id}"
            raise ValueError(expected("package", wanted, self.package or "null"))
        opponents, takes = self.kind.opponents, type(self.kind).model_fields  # its kind refuses what does not fit
        for name in KIND_KEYS:
            if name not in takes and (value := getattr(self, name)) != type(self).model_fields[name].default:
                what = f"package={self.package}" if self.package else "the red/blue-door game"
                raise ValueError(expected(name, f"none, as {what} takes none", shown(str(value))))
        if self.held_out and not opponents:
            raise ValueError(expected("held_out", "{} without opponents", dict(self.held_out)))
        return self

    @property
    def kind(self) -> EnvironmentKind:
        """The kind of environment, with its keys of this scenario."""
        kind = kind_named(self.package if self.env_id else None)
        return validated(kind, {name: getattr(self, name) for name in kind.model_fields})

    @property
    def spec(self) -> GameSpec:
        """The game. Raises :class:`ConfigError` for an environment of another kind."""
        if self.game is None:
            raise ConfigError(expected("scenario", "one of the red/blue-door game", f"{self.name} ({self.env_id})"))
        return self.game.spec()


def env_factory(config: Any, hashes: dict[str, str] | None = None) -> EnvFactory:
    """Return the factory for the environments of a run (``config.schema.RunConfig``) of any kind.

    Args:
        hashes: required sha256 of frozen players, by name.

    Raises ``ConfigError``: a setting that this kind of environments does not support.
    """
    scenario, train, kind = config.scenario, config.train, config.scenario.kind
    for key, value, supported, wanted, missing in (
        ("train.bonus", train.bonus, kind.board, "{}", "events to weigh"),
        ("train.shaping", train.shaping, kind.shaped, "null", "steps to hand to a function"),
        ("scenario.seats", scenario.seats, kind.rivals, "{}", "opponents, every agent learns"),
    ):
        if value and not supported:
            raise ConfigError(expected(key, f"{wanted}, as scenario={scenario.name} has no {missing}", value))
    factory: EnvFactory = kind.factory(config, hashes or {})
    return factory


def env_signature(scenario: ScenarioConfig) -> dict[str, Any] | None:
    """Return the environment's entry in a card; ``None`` for the red/blue-door game."""
    return None if scenario.kind.board else scenario.model_dump(include={"package", "env_id", "env_args", "agents"})


def task_of(env_id: str) -> str:
    """Return the task of an environment: its id without module and version."""
    return re.sub(r"-v\d+$", "", env_id.rpartition(":")[2])
