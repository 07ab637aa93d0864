"""What a run's configuration may say: names, types, bounds, and which choices fit together.

Values are in yaml, below ``configs/``; a test holds that both name the same keys.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from multigrid_rl.text import expected
from multigrid_rl.types import RULE_SETS, GameSpec

LEARN = "learn"
#: Opponent of a seat: a pool of snapshots of those who learn, and of fixed players; see ``LeagueConfig``.
LEAGUE = "league"
#: What a league makes of win rates: formulas in ``players.league``.
Weighting = Literal["squared", "variance", "linear", "linear_capped", "uniform", "latest"]
#: What the log-probability of an action is weighed by, as numbered in equation 1 of Schulman et al. 2016
#: (https://arxiv.org/abs/1506.02438): formulas in ``learn.advantages``.
Psi = Literal["total_reward", "future_return", "baselined_return", "q", "gae", "td"]
#: Those that read no value network.
WITHOUT_VALUES = ("total_reward", "future_return")
#: Networks by name: those with memory, those that look at a view cell by cell, all; others are ``module:Class``.
RECURRENT = ("gru", "lstm")
CELL_WISE = ("embedding", "cnn")
NETWORKS = ("mlp", *CELL_WISE, *RECURRENT)
#: What may stand between a hidden layer and its activation.
NORMS = ("none", "layer")
#: Largest network, in a run and in a frozen player's card.
MAX_UNITS = 4096
MAX_LAYERS = 8


class ConfigError(ValueError):
    """A mistake in what the user asked for; the message is one line, ``KEY: expected X, got Y``."""


def import_object(key: str, path: str, what: str = "module:function") -> Any:
    """Import what ``module:name`` says.

    Raises:
        ConfigError: no such module, or nothing of that name in it that can be called.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, SyntaxError, NameError, TypeError) as error:
        raise ConfigError(expected(key, what, f"{path}: {error}")) from error
    if not callable(found):
        raise ConfigError(expected(key, what, f"{path}: {found!r} is no function"))
    return found


def data_root() -> Path:
    """Folder that holds ``configs/`` and ``checkpoints/``: inside an installed wheel, or the project itself."""
    packaged = Path(__file__).parent / "_data"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent


#: What ``train.runner=stock`` can do: the values of RLlib's own PPO.
_OF_STOCK = {
    "objective": "ppo", "psi": "gae", "standardise": True, "pi_iters": None, "v_iters": None, "recompute": False,
    "target_kl": None, "clip_final": None,
}  # fmt: skip


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_flag_as_number(cls, values: Any) -> Any:
        # pydantic would read true as 1: whole classes trained without parallelism because of such a flag.
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, dict) and cls.model_fields.get(name) is not None:
                _no_flag_inside(name, value)
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation in (int, float):
                kind = "integer" if field.annotation is int else "number"
                raise ValueError(expected(name, f"a valid {kind}", value))
        return values


def _no_flag_inside(key: str, values: dict[str, Any]) -> None:
    # Weights of bonuses and mixtures are numbers in mappings that have no fields of their own.
    for name, value in values.items():
        if isinstance(value, dict):
            _no_flag_inside(f"{key}.{name}", value)
        elif isinstance(value, bool) and key.split(".", maxsplit=1)[0] in ("bonus", "seats", "anchors"):
            raise ValueError(expected(f"{key}.{name}", "a number", value))


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
        """Return the specification that the engine reads."""
        values = self.model_dump()
        values["rules"] = RULE_SETS[self.rules]
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
            raise ValueError(f"expected exactly one of at_most and at_least for {self.metric}")
        return self


class LeagueConfig(_Part):
    """Who joins a growing pool of opponents, and how often each of them plays. What each key means stands in yaml."""

    anchors: dict[str, float]
    anchor_share: float = Field(ge=0, lt=1)
    latest_share: float = Field(ge=0, le=1)
    weighting: Weighting
    every: int | None = Field(ge=1)
    win: float | None = Field(gt=0, lt=1)
    win_over: Literal["pool", "episodes"]
    most: int = Field(ge=1, le=64)
    redraw: int = Field(ge=1)

    @model_validator(mode="after")
    def _grows(self) -> LeagueConfig:
        if not self.anchors or {LEARN, LEAGUE} & set(self.anchors) or min(self.anchors.values()) <= 0:
            raise ValueError(expected("anchors", "at least one player with a weight above 0", self.anchors))
        if self.every is None and self.win is None:
            raise ValueError(expected("every", "a number of environment steps, or a win rate in win", "null for both"))
        if self.anchor_share + self.latest_share > 1:
            raise ValueError(expected("latest_share", f"at most {1 - self.anchor_share:g}", self.latest_share))
        return self

    @field_validator("every", "redraw", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value


class ScenarioConfig(_Part):
    """A game, who sits where, and what training must reach; or an environment of another package by its id."""

    name: str = ""
    description: str
    aliases: tuple[str, ...] = ()
    game: GameConfig | None = None
    package: Literal["multigrid", "gymnasium"] | None = None
    env_id: str | None = None
    env_args: dict[str, Any] = {}
    agents: int = Field(default=1, ge=1, le=4)
    seats: dict[str, str | dict[str, float]] = {}
    league: LeagueConfig | None = None
    gates: tuple[GateConfig, ...] = ()
    report_episodes: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _seats_fit(self) -> ScenarioConfig:
        if (self.game is None) == (self.env_id is None):
            raise ValueError("expected exactly one of game and env_id")
        if self.game is None:
            if self.package is None:
                raise ValueError(expected("package", f"multigrid or gymnasium with env_id={self.env_id}", "null"))
            if self.package == "gymnasium" and self.agents != 1:
                raise ValueError(expected("agents", "1 with package gymnasium", self.agents))
            return self
        seats = self.game.spec().seats
        if sorted(self.seats) != sorted(seats):
            raise ValueError(expected("seats", f"{', '.join(seats)} in this game", ", ".join(self.seats)))
        for seat, names in self.seats.items():
            if isinstance(names, dict) and (not names or {LEARN, LEAGUE} & set(names) or min(names.values()) <= 0):
                raise ValueError(expected(f"seats.{seat}", "players with weights above 0", names))
        self._league_fits()
        return self

    def _league_fits(self) -> None:
        """Check that a league has a whole team, and that all of the other team learn, whose snapshots it plays."""
        its = self.league_seats
        if bool(its) != (self.league is not None):
            wanted = "settings, as a seat says league" if its else "null without a seat that says league"
            raise ValueError(expected("league", wanted, "null" if self.league is None else "settings"))
        teams = {self.spec.team_of(seat) for seat in its}
        for seat, who in self.seats.items() if its else ():
            wanted = LEAGUE if self.spec.team_of(seat) in teams else LEARN
            if who != wanted or len(teams) > 1:
                allowed = f"{LEAGUE} on all seats of one team and {LEARN} on all of the other"
                raise ValueError(expected(f"seats.{seat}", allowed, who))

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

        Of a league these are its anchors: its snapshots are a run's own.
        """
        if self.game is None:
            return {}
        anchors = self.league.anchors if self.league is not None else {}
        seats = {seat: anchors if who == LEAGUE else who for seat, who in self.seats.items()}
        rows = {seat: seats[seat] for seat in self.spec.seats if seats[seat] != LEARN}
        return {seat: names if isinstance(names, dict) else {names: 1.0} for seat, names in rows.items()}


class TrainConfig(_Part):
    """PPO and its batch. The meaning of each key stands beside its value in ``configs/train/ppo.yaml``."""

    until: int = Field(ge=1)
    stop_when_held: bool
    runner: Literal["batched", "stock"] = "batched"
    objective: str = "ppo"
    psi: Psi = "gae"
    standardise: bool = True
    num_envs: int = Field(ge=1)
    num_steps: int = Field(ge=1)
    epochs: int = Field(ge=1)
    pi_iters: int | None = Field(default=None, ge=1)
    v_iters: int | None = Field(default=None, ge=1)
    v_lr: float | None = Field(default=None, gt=0)
    recompute: bool = False
    target_kl: float | None = Field(default=None, gt=0)
    minibatch_size: int | None = Field(default=None, ge=1)
    lr: float = Field(gt=0)
    lr_final: float | None = Field(default=None, gt=0)
    gamma: float = Field(gt=0, le=1)
    lam: float = Field(ge=0, le=1)
    clip: float = Field(gt=0)
    clip_final: float | None = Field(default=None, gt=0)
    vf_coef: float = Field(ge=0)
    entropy_coef: float = Field(ge=0)
    entropy_final: float | None = Field(default=None, ge=0)
    entropy_decay: int = Field(ge=1)
    grad_clip: float = Field(gt=0)
    torch_threads: int = Field(ge=0)
    shaping: str | None = None
    bonus: dict[str, dict[str, float]] = {}
    checkpoint_every: int = Field(ge=1)
    keep_checkpoints: int = Field(default=3, ge=1)

    @field_validator("until", "entropy_decay", "checkpoint_every", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @property
    def batch_size(self) -> int:
        """Environment steps of one iteration: ``num_envs * num_steps``."""
        return self.num_envs * self.num_steps

    @property
    def minibatch(self) -> int:
        """Steps of one gradient step, of one agent; the whole batch where ``minibatch_size`` is null."""
        return self.minibatch_size or self.batch_size

    @property
    def passes(self) -> int:
        """Passes of the policy over a batch."""
        return self.epochs if self.pi_iters is None else self.pi_iters

    @property
    def lr_end(self) -> float:
        """Step size at ``until``."""
        return self.lr if self.lr_final is None else self.lr_final

    @property
    def clip_end(self) -> float:
        """Clip of the ratio at ``until``."""
        return self.clip if self.clip_final is None else self.clip_final

    @property
    def entropy_end(self) -> float:
        """Weight of the entropy bonus after ``entropy_decay`` steps."""
        return self.entropy_coef if self.entropy_final is None else self.entropy_final


class ModelConfig(_Part):
    """The network."""

    name: str
    hidden: tuple[int, ...] = Field(min_length=1, max_length=MAX_LAYERS)
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    norm: Literal["none", "layer"] = "none"
    normalise: bool = False
    scale_values: bool = False
    bound: Literal["clip", "tanh", "clip3"] = "clip"
    log_std: float = Field(default=0.0, ge=-5, le=2)

    @property
    def recurrent(self) -> bool:
        """Whether the network has memory."""
        return self.name in RECURRENT

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in NETWORKS and ":" not in value:
            raise ValueError(f"expected {', '.join(NETWORKS)}, or module:Class of a network of your own")
        return value

    @field_validator("hidden")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= units <= MAX_UNITS for units in value):
            raise ValueError(f"expected at least 1 unit and at most {MAX_UNITS} in each layer")
        return value


class ClusterConfig(_Part):
    """Where games are played and gradients computed. What each key means stands in ``configs/cluster/``."""

    address: str | None = None
    num_env_runners: int | Literal["all"] = 0
    num_learners: int = Field(default=0, ge=0, le=64)
    gpus_per_learner: float = Field(default=0, ge=0, le=1)
    sample_timeout_s: float = Field(default=120, gt=0)
    max_consecutive_failures: int = Field(default=5, ge=1)

    @field_validator("num_env_runners", mode="plain")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value == "all" or (type(value) is int and value >= 0):
            return value
        raise ValueError("expected a valid integer of at least 0, or all with a cluster.address")

    @property
    def runners(self) -> int:
        """Remote env runners, a number. Raises :class:`ConfigError` while it still says ``all``."""
        if isinstance(self.num_env_runners, str):
            wanted = "a number where no cluster was asked yet how many CPUs it has"
            raise ConfigError(expected("cluster.num_env_runners", wanted, self.num_env_runners))
        return self.num_env_runners


class StageConfig(_Part):
    """A stage of a curriculum, before the run's own scenario: its game and what ends it."""

    scenario: ScenarioConfig
    steps: int | None = Field(default=None, ge=1)
    held: bool = False

    @model_validator(mode="after")
    def _ends(self) -> StageConfig:
        if self.steps is None and not self.held:
            raise ValueError(f"expected steps: N, held: true, or both for the stage on {self.scenario.name}")
        if self.held and not self.scenario.gates:
            raise ValueError(expected("held", f"steps: N, as {self.scenario.name} has no gates", "held: true"))
        return self

    @field_validator("steps", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value


class RunConfig(_Part):
    """Everything that decides a run."""

    scenario: ScenarioConfig
    train: TrainConfig
    model: ModelConfig
    cluster: ClusterConfig
    curriculum: tuple[StageConfig, ...] = ()
    scheme: Literal["dtde", "ctde", "ctce"]
    shared: bool
    experiment: str | None = None
    seed: int = Field(ge=0, lt=2**31)
    run_dir: str | None = None
    checkpoints: str | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        train = self.train
        seats = self.scenario.seats
        _require(bool(self.scenario.learning), "scenario.seats", dict(seats), "learn on at least one seat")
        self._check_scheme()
        self._check_objective()
        self._check_runner()
        self._check_cluster()
        self._check_curriculum()
        _require(
            train.minibatch <= train.batch_size,
            "train.minibatch_size",
            train.minibatch_size,
            f"at most num_envs * num_steps = {train.batch_size}",
        )
        plain = self.model.name not in NETWORKS[1:] or self.model.activation == "tanh"
        _require(plain, "model.activation", self.model.activation, f"tanh with model={self.model.name}")
        if self.model.recurrent:
            whole = train.minibatch % train.num_steps == 0
            allowed = f"a multiple of num_steps={train.num_steps} for a network with memory"
            _require(whole, "train.minibatch_size", train.minibatch_size, allowed)
            _require(
                len(self.model.hidden) == 1, "model.hidden", list(self.model.hidden), "one size for a recurrent core"
            )
        return self

    def _check_scheme(self) -> None:
        if self.scheme == "ctde" and self.model.name not in ("mlp", *RECURRENT):
            _require(False, "model", self.model.name, "mlp, gru or lstm with scheme=ctde")
        scenario = self.scenario
        learning = list(scenario.learning.values())
        if self.scheme != "dtde":
            for team in dict.fromkeys(learning):
                if scenario.game is not None:
                    mates = [seat for seat in scenario.spec.seats if scenario.spec.team_of(seat) == team]
                else:
                    mates = list(scenario.learning)
                whole = all(seat in scenario.learning for seat in mates)
                _require(len(mates) > 1, "scheme", self.scheme, f"dtde, as {team} of {scenario.name} has one agent")
                _require(whole, "scheme", self.scheme, f"dtde, as not every agent of team {team} learns")
        if self.shared:
            _require(self.scheme != "ctce", "shared", self.shared, "false, as under ctce a team is one agent")
            several = any(learning.count(team) > 1 for team in learning)
            _require(several, "shared", self.shared, f"false, as no team of {scenario.name} has two agents that learn")

    def _check_objective(self) -> None:
        train = self.train
        if train.vf_coef == 0:
            allowed = f"{' or '.join(WITHOUT_VALUES)} with vf_coef=0: no value network is trained"
            _require(train.psi in WITHOUT_VALUES, "train.psi", train.psi, allowed)
            _require(train.v_iters is None, "train.v_iters", train.v_iters, "null with vf_coef=0")
        apart = train.v_iters is not None
        both = (train.pi_iters is None) == (train.v_iters is None) or train.vf_coef == 0
        _require(both, "train.v_iters", train.v_iters, "a number with pi_iters, null without")
        _require(train.v_lr is None or apart, "train.v_lr", train.v_lr, "null without v_iters")
        separate = not self.model.recurrent and self.model.name in NETWORKS[:1]
        _require(
            separate or not apart, "train.v_iters", train.v_iters, f"null with model={self.model.name}: not two towers"
        )
        memory = self.model.recurrent
        _require(not (train.recompute and memory), "train.recompute", True, f"false with model={self.model.name}")

    def _check_cluster(self) -> None:
        train, cluster = self.train, self.cluster
        asked = cluster.num_env_runners
        if isinstance(asked, str):
            _require(cluster.address is not None, "cluster.num_env_runners", asked, "a number without cluster.address")
        else:
            cpus = available_cpus()
            here = asked <= cpus or cluster.address is not None
            _require(here, "cluster.num_env_runners", asked, f"0 to {cpus}, the CPUs of this machine")
            shares = max(asked, 1)
            allowed = f"a multiple of {shares} env runners"
            _require(train.num_envs % shares == 0, "train.num_envs", train.num_envs, allowed)
        learners = max(cluster.num_learners, 1)
        rows = train.minibatch // train.num_steps if self.model.recurrent else train.minibatch
        allowed = f"what {learners} learners can share equally"
        _require(rows % learners == 0, "train.minibatch_size", train.minibatch_size, allowed)

    def _check_curriculum(self) -> None:
        mine = self.scenario
        league = [stage.scenario for stage in self.curriculum if stage.scenario.league is not None or mine.league]
        _require(not league, "curriculum", f"stages before scenario={mine.name}", "[] with a league")
        for k, stage in enumerate(self.curriculum):
            key, theirs = f"curriculum.{k}.scenario", stage.scenario
            _require(mine.game is not None, key, theirs.name, f"no curriculum with scenario={mine.name}")
            _require(theirs.game is not None, key, theirs.name, "a scenario of the red/blue-door game")
            same = theirs.learning == mine.learning
            listed = ", ".join(mine.learning)
            _require(same, key, theirs.name, f"a scenario in which {listed} learn, as in {mine.name}")

    def _check_runner(self) -> None:
        if self.train.runner == "stock":
            memory, runner = self.model.recurrent, self.train.runner
            _require(not self.curriculum, "train.runner", runner, "batched with a curriculum")
            _require(self.scenario.league is None, "train.runner", runner, "batched with a league")
            _require(self.scenario.package != "gymnasium", "train.runner", runner, "batched with scenario=gymnasium")
            for key, plain_value in _OF_STOCK.items():
                value = getattr(self.train, key)
                _require(value == plain_value, "train.runner", runner, f"batched with train.{key}={value}")
            plain = self.cluster.num_learners == 0 and self.cluster.address is None
            _require(plain, "train.runner", runner, "batched on a cluster or with remote learners")
            _require(not memory, "train.runner", runner, f"batched with model={self.model.name}, which has memory")
            _require(self.scheme != "ctde", "train.runner", runner, "batched with scheme=ctde")

    def checkpoint_root(self) -> Path:
        """Folder of frozen players."""
        return Path(self.checkpoints) if self.checkpoints else data_root() / "checkpoints"


def _require(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(expected(key, allowed, value))


def available_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
