"""The only reader of ``configs/``: Hydra composes, pydantic validates, errors are one line.

The schema is here, the values are in yaml; a test holds that both name the same keys.
"""

from __future__ import annotations

import difflib
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from multigrid_rl.types import GameSpec, Rules

LEARN = "learn"
#: Largest network, in a run and in a frozen player's card.
MAX_UNITS = 4096
MAX_LAYERS = 8
GROUPS = ("scenario", "train", "model", "cluster", "experiment")
#: The scenario that stands for every environment of the multigrid package.
MULTIGRID = "multigrid"
_TEXT_KEYS = ("run_dir", "checkpoints")
_SEATS = "scenario.seats."
_BONUS = "train.bonus"


class ConfigError(ValueError):
    """A mistake in what the user asked for; the message is one line naming key, value and what is allowed."""


def data_root() -> Path:
    """Folder that holds ``configs/`` and ``checkpoints/``: inside an installed wheel, or the project itself."""
    packaged = Path(__file__).parent / "_data"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent


Schema = TypeVar("Schema", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_flag_as_number(cls, values: Any) -> Any:
        # pydantic would read true as 1: whole classes trained without parallelism because of such a flag.
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation in (int, float):
                kind = "integer" if field.annotation is int else "number"
                raise ValueError(f"{name}={value}: allowed is a valid {kind}")
        return values


class GameConfig(_Part):
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
        """The specification that the engine reads."""
        values = self.model_dump()
        values["rules"] = Rules.fair() if self.rules == "fair" else Rules.classic()
        return GameSpec(**values)


class GateConfig(_Part):
    """One gate; exactly one of ``at_most`` and ``at_least``. ``*`` in the metric stands for every learning seat."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    hold: Literal["every", "mean", "share"] = "every"
    share: float = Field(default=0.95, gt=0, le=1)
    window: int = Field(default=100_000, ge=1)

    @model_validator(mode="after")
    def _one_bound(self) -> GateConfig:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"gate on {self.metric}: allowed is exactly one of at_most and at_least")
        return self


class ScenarioConfig(_Part):
    """A game, who sits where, and what training must reach; or an environment of the multigrid package by its id."""

    name: str = ""
    description: str
    aliases: tuple[str, ...] = ()
    game: GameConfig | None = None
    env_id: str | None = None
    agents: int = Field(default=1, ge=1, le=4)
    seats: dict[str, str | dict[str, float]] = {}
    gates: tuple[GateConfig, ...] = ()

    @model_validator(mode="after")
    def _seats_fit(self) -> ScenarioConfig:
        if (self.game is None) == (self.env_id is None):
            raise ValueError("allowed is exactly one of game and env_id")
        if self.game is None:
            return self
        expected = self.game.spec().seats
        if tuple(sorted(self.seats)) != tuple(sorted(expected)):
            raise ValueError(f"seats are {', '.join(self.seats)}; this game's seats are {', '.join(expected)}")
        for seat, names in self.seats.items():
            if isinstance(names, dict) and (not names or LEARN in names or min(names.values()) <= 0):
                raise ValueError(f"seats.{seat}={names}: allowed is a mapping of players to weights above 0")
        return self

    @property
    def spec(self) -> GameSpec:
        """The game. Raises ``ValueError`` for an environment of another package."""
        if self.game is None:
            raise ValueError(f"scenario={self.name}: env_id={self.env_id} is no red/blue-door game")
        return self.game.spec()

    @property
    def learning(self) -> dict[str, str]:
        """Seats that learn, in index order, with their teams."""
        if self.game is None:
            return {f"agent_{k}": "agents" for k in range(self.agents)}
        return {seat: self.spec.team_of(seat) for seat in self.spec.seats if self.seats[seat] == LEARN}

    @property
    def opponents(self) -> dict[str, dict[str, float]]:
        """For each seat that players fill: player name -> weight among the players that take turns there."""
        if self.game is None:
            return {}
        rows = {seat: self.seats[seat] for seat in self.spec.seats if self.seats[seat] != LEARN}
        return {seat: names if isinstance(names, dict) else {names: 1.0} for seat, names in rows.items()}


class TrainConfig(_Part):
    """PPO and its batch. The meaning of each key stands beside its value in ``configs/train/ppo.yaml``."""

    until: int = Field(ge=1)
    stop_when_held: bool
    num_envs: int = Field(ge=1)
    num_steps: int = Field(ge=1)
    epochs: int = Field(ge=1)
    minibatch_size: int = Field(ge=1)
    lr: float = Field(gt=0)
    lr_final: float = Field(gt=0)
    gamma: float = Field(gt=0, le=1)
    lam: float = Field(ge=0, le=1)
    clip: float = Field(gt=0)
    vf_coef: float = Field(ge=0)
    entropy_coef: float = Field(ge=0)
    entropy_final: float = Field(ge=0)
    entropy_decay: int = Field(ge=1)
    grad_clip: float = Field(gt=0)
    torch_threads: int = Field(ge=0)
    shaping: str | None = None
    bonus: dict[str, dict[str, float]] = {}
    checkpoint_every: int = Field(ge=1)

    @field_validator("until", "entropy_decay", "checkpoint_every", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @property
    def batch_size(self) -> int:
        """Environment steps of one iteration: ``num_envs * num_steps``."""
        return self.num_envs * self.num_steps


class ModelConfig(_Part):
    """The network."""

    name: Literal["mlp", "gru", "lstm"]
    hidden: tuple[int, ...] = Field(min_length=1, max_length=MAX_LAYERS)
    activation: Literal["tanh", "relu"] = "tanh"

    @property
    def recurrent(self) -> bool:
        """Whether the network has memory."""
        return self.name != "mlp"

    @field_validator("hidden")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= units <= MAX_UNITS for units in value):
            raise ValueError(f"allowed is at least 1 unit and at most {MAX_UNITS} in each layer")
        return value


class ClusterConfig(_Part):
    """Where games are played."""

    num_env_runners: int = Field(ge=0)


class RunConfig(_Part):
    """Everything that decides a run."""

    scenario: ScenarioConfig
    train: TrainConfig
    model: ModelConfig
    cluster: ClusterConfig
    scheme: Literal["dtde", "ctde", "ctce"]
    shared: bool
    experiment: str | None = None
    seed: int = Field(ge=0, lt=2**31)
    run_dir: str | None = None
    checkpoints: str | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        train, runners = self.train, self.cluster.num_env_runners
        _require(bool(self.scenario.learning), "scenario.seats", dict(self.scenario.seats), "at least one seat: learn")
        self._check_scheme()
        cpus = available_cpus()
        _require(runners <= cpus, "cluster.num_env_runners", runners, f"0 to {cpus}, the CPUs of this machine")
        shares = max(runners, 1)
        _require(train.num_envs % shares == 0, "train.num_envs", train.num_envs, f"a multiple of {shares} env runners")
        _require(
            train.minibatch_size <= train.batch_size,
            "train.minibatch_size",
            train.minibatch_size,
            f"at most num_envs * num_steps = {train.batch_size}",
        )
        if self.model.recurrent:
            whole = train.minibatch_size % train.num_steps == 0
            allowed = f"a multiple of num_steps={train.num_steps}, because a network with memory learns whole sequences"
            _require(whole, "train.minibatch_size", train.minibatch_size, allowed)
            _require(len(self.model.hidden) == 1, "model.hidden", list(self.model.hidden), "one size for a recurrent core")
        return self

    def _check_scheme(self) -> None:
        scenario = self.scenario
        learning = list(scenario.learning.values())
        if self.scheme != "dtde":
            for team in dict.fromkeys(learning):
                if scenario.game is not None:
                    mates = [seat for seat in scenario.spec.seats if scenario.spec.team_of(seat) == team]
                else:
                    mates = list(scenario.learning)
                whole = all(seat in scenario.learning for seat in mates)
                _require(len(mates) > 1, "scheme", self.scheme, f"dtde: team {team} of {scenario.name} has one agent")
                _require(whole, "scheme", self.scheme, f"dtde: not every agent of team {team} learns")
        if self.shared:
            _require(self.scheme != "ctce", "shared", self.shared, "false: with scheme=ctce a team is one agent already")
            several = any(learning.count(team) > 1 for team in learning)
            _require(several, "shared", self.shared, f"false: no team of {scenario.name} has two agents that learn")

    def checkpoint_root(self) -> Path:
        """Folder of frozen players."""
        return Path(self.checkpoints) if self.checkpoints else data_root() / "checkpoints"


def _require(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{key}={value}: allowed is {allowed}")


def available_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _choices(group: str) -> list[str]:
    return sorted(path.stem for path in (data_root() / "configs" / group).glob("*.yaml"))


def scenario_names() -> list[str]:
    """Ids of all scenarios of the red/blue-door game, sorted."""
    return [name for name in _choices("scenario") if name != MULTIGRID]


def experiment_names() -> list[str]:
    """Names of all recipes, sorted."""
    return _choices("experiment")


def scenario_id(name: str) -> str:
    """Our id of a scenario, from the id itself or from an original environment name.

    Raises:
        ConfigError: unknown scenario.
    """
    names = [*scenario_names(), MULTIGRID]
    if name in names:
        return name
    aliases = {alias: stem for stem in names for alias in _read_yaml("scenario", stem).get("aliases", [])}
    if name in aliases:
        return aliases[name]
    raise ConfigError(f"scenario={name}: unknown{_suggest(name, names)}; allowed is {', '.join(names)}")


def load_scenario(name: str) -> ScenarioConfig:
    """Read one scenario by id or original environment name.

    Raises:
        ConfigError: unknown scenario, or its file is not valid.
    """
    stem = scenario_id(name)
    return _validated(ScenarioConfig, {**_read_yaml("scenario", stem), "name": stem}, "scenario")


def _read_yaml(group: str, stem: str) -> dict[str, Any]:
    text = (data_root() / "configs" / group / f"{stem}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def compose(overrides: list[str]) -> RunConfig:
    """Compose and validate a run from ``key=value`` overrides.

    Raises:
        ConfigError: an unknown or malformed key, or a value that is not allowed.
    """
    values = _compose(_with_scenario_id(overrides))
    return _validated(RunConfig, values)


def _with_scenario_id(overrides: list[str]) -> list[str]:
    result = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"{override}: not an override; allowed is key=value, for example train.lr=3e-4")
        if key == "scenario":
            result.append(f"scenario={scenario_id(value)}")
        elif key == "env_id":
            result.append(f"scenario.env_id={value}")
        elif not (key == "experiment" and value in ("none", "null")):
            _check_choice(key, value)
            result.append(override)
    return result if any(o.startswith("experiment=") for o in overrides) else result + _own_recipe(result)


def _own_recipe(overrides: list[str]) -> list[str]:
    # A scenario's own recipe is the file of its name; one for a certain scheme carries the scheme in its name.
    given = dict(override.split("=", 1) for override in overrides)
    scenario = given.get("scenario", "1v1")
    recipe = f"{scenario}-{given['scheme']}" if "scheme" in given else scenario
    return [f"experiment={recipe}"] if recipe in experiment_names() else []


def _check_choice(key: str, value: str) -> None:
    if key in GROUPS:
        allowed = _choices(key)
        if value not in allowed:
            raise ConfigError(f"{key}={value}: unknown{_suggest(value, allowed)}; allowed is {', '.join(allowed)}")


def _compose(overrides: list[str]) -> dict[str, Any]:
    # Imported here: Hydra takes a third of a second, and most verbs do not need it.
    from hydra import compose as hydra_compose  # noqa: PLC0415
    from hydra import initialize_config_dir  # noqa: PLC0415
    from hydra.errors import HydraException  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    with initialize_config_dir(version_base=None, config_dir=str(data_root() / "configs")):
        groups = [override for override in overrides if override.partition("=")[0] in GROUPS]
        try:
            base = hydra_compose("config", groups, return_hydra_config=True)
            chosen = dict(base.hydra.runtime.choices)
            known = OmegaConf.to_container(hydra_compose("config", groups))
            for override in overrides:
                if override not in groups and not override.startswith(_BONUS):
                    _check_key(override, known)
            grammar = [_addition(override) for override in overrides if not _is_text(override)]
            composed = OmegaConf.to_container(hydra_compose("config", grammar), resolve=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(f"{' '.join(overrides)}: {' '.join(str(error).split())}") from error
    values = cast("dict[str, Any]", composed)
    values["scenario"] = {**values["scenario"], "name": chosen["scenario"]}
    values["experiment"] = chosen.get("experiment")
    for override in filter(_is_text, overrides):
        key, _, value = override.partition("=")
        if key.startswith(_SEATS):
            values["scenario"]["seats"][key.removeprefix(_SEATS)] = _players(value)
        else:
            values[key] = None if value == "null" else value
    return values


def _players(value: str) -> str | dict[str, float]:
    """A player's name, or a mixture written as ``blue-rookie:3,random:1``."""
    if not re.fullmatch(r"[^:,/]+:[0-9.]+(,[^:,/]+:[0-9.]+)*", value):
        return value
    try:
        return {name: float(weight) for name, weight in (part.split(":") for part in value.split(","))}
    except ValueError as error:
        raise ConfigError(f"{value}: allowed is player:weight,player:weight with numbers as weights") from error


def _addition(override: str) -> str:
    # Bonuses are a mapping that may be empty: a weight in it is always set, whether or not it was there.
    return f"++{override}" if override.startswith(_BONUS) else override


def _is_text(override: str) -> bool:
    # Paths and names are taken as they were typed: they may hold characters that mean something to Hydra.
    key = override.partition("=")[0]
    return key in _TEXT_KEYS or key.startswith(_SEATS)


def _check_key(override: str, known: Any) -> None:
    key, _, value = override.partition("=")
    place, node = "", known
    for part in key.lstrip("+~").split("."):
        if not isinstance(node, dict) or part not in node:
            allowed = list(node) if isinstance(node, dict) else []
            where = f"keys of {place}" if place else "keys"
            listed = f"; {where} are {', '.join(map(str, allowed))}" if allowed else ""
            raise ConfigError(f"{key}={value}: unknown key {part!r}{_suggest(part, allowed)}{listed}")
        place, node = (f"{place}.{part}" if place else part), node[part]


def _suggest(word: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _validated(schema: type[Schema], values: dict[str, Any], prefix: str = "") -> Schema:
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, [*([prefix] if prefix else []), *first["loc"]]))
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "allowed is")
        shown = f"={first['input']}" if not isinstance(first["input"], dict) else ""
        # A message about one key of a part names that key itself: cluster + num_env_runners=True: ...
        joint = "." if re.match(r"\w+=", message) else ": "
        raise ConfigError(f"{key}{shown}{joint}{message}" if key else message) from error


def default_run_dir(config: RunConfig, now: datetime) -> Path:
    """``runs/<scenario>/<time>-seed<seed>`` below the working directory."""
    return Path("runs") / config.scenario.name / f"{now:%Y%m%d-%H%M%S}-seed{config.seed}"


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration as yaml."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return text
