"""Rubrics: exams, checks and points, the measurements of checks in played games, and the players of exams."""

import math
import re
import secrets
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from multigrid_rl.competition.agents import is_agent
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.competition.cup_folder import scenario_and_game
from multigrid_rl.competition.sandbox import check_not_bound
from multigrid_rl.config.scenario import Bound, Part, ScenarioConfig
from multigrid_rl.evaluation.evaluation import Mode, interval_over_sides
from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.files import read_plain_yaml
from multigrid_rl.metrics import groups, samples_of
from multigrid_rl.players.cards import PlayerError, sha256_of
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.classes import code_of
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.places import place_of, sides_of
from multigrid_rl.runs.reader import reading
from multigrid_rl.text import ConfigError, expected, unknown
from multigrid_rl.trust import check_code
from multigrid_rl.types import EpisodeTable, Policy, Seats, SeatView, UniformSource

#: Not measurable for a program, which answers only with actions.
ENTROPY = "entropy/*"
#: Episodes of an exam by default, in bundles' grades at red/blue doors.
EPISODES = 20_000


def known_metrics() -> list[str]:
    """Return the metrics of checks; ``*`` means every seat (team, network) of the bundle."""
    names = [name for group in groups("metrics") for name in group.names if "<player>" not in name]
    return [ENTROPY, *(re.sub("<[a-z]+>", "*", name) for name in names)]


def measure(
    metric: str, spec: Seats, tables: list[tuple[str, EpisodeTable]], meters: "list[EntropyMeter]"
) -> list[Interval]:
    """Measure one of :func:`known_metrics` over the games of all sides, for each seat (team) of ``*``."""
    if metric == ENTROPY:
        return [Interval(meter.mean, meter.mean, meter.mean) for meter in meters]
    sides = []  # for each side the values (M,) of every seat of the bundle
    for team, table in tables:
        samples = samples_of(table, place_of(spec).who(spec), (*spec.seats_of(team), team))
        sides.append([sample.values for name, sample in samples.items() if fnmatchcase(name, metric)])
    rows = ([side[k % len(side)] for side in sides] for k in range(max(map(len, sides))))  # a smaller side's repeat
    intervals = [Interval(*interval_over_sides(values)) for values in rows]
    return [Interval(each.value, -math.inf, math.inf) if math.isnan(each.low) else each for each in intervals]


class EntropyMeter:
    """Adds up a frozen player's entropy while it plays: in nats, of its distribution, per decision.

    A team's joint action counts as one decision: the sum over its living seats, as in training (``entropy/<module>``).
    ``required``: a check names the entropy; otherwise a head without probabilities plays, too.
    """

    def __init__(self, player: FrozenPlayer, *, required: bool = True) -> None:
        self.player = player
        self.entropic = required or getattr(player.distribution, "density", True)
        self.name = player.name
        self.initial_state, self.reset_state = player.initial_state, player.reset_state
        self.total = 0.0
        self.decisions = 0

    @property
    def mean(self) -> float:
        """Mean entropy of the decisions so far; NaN before the first."""
        return self.total / self.decisions if self.decisions else float("nan")

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[Any], torch.Tensor]:
        """Return the player's actions (N,), of a team (N, C).

        Raises ``PlayerError``: network outputs that are no distribution, from too large weights or the head.
        """
        outputs, state = self.player.outputs(view, state)
        sample = self.player.choose(outputs, rng)
        seats = slice(view.seat, view.seat + self.player.members)
        deciding = view.turn  # no decision: eliminated seats, finished games, others' turns
        if deciding is None:
            deciding = np.ones((len(view.tokens), 1), np.bool_) if view.board is None else view.board.out[:, seats] == 0
        entropy = float((sample.entropy.reshape(len(deciding), -1) * deciding).sum())
        if not math.isfinite(entropy if self.entropic else sample.actions.sum()):
            wanted = f"finite {'entropy' if self.entropic else 'numbers'} in every decision"
            raise PlayerError(expected(self.name, wanted, "network outputs without probabilities"))
        self.total += entropy
        self.decisions += int(deciding.any(axis=1).sum())
        return self.player.native_actions(sample.actions), state


class Check(Bound):
    """A bound on a metric, and its points: all or none, or with ``from`` and ``full`` in proportion between them."""

    points: float = Field(ge=0)
    #: The value ``from`` for 0 points. The bound is then ``full``, and the comparison follows from their order.
    start: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _ramp(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not {"from", "full", "start"} & values.keys():
            return values
        fields = {key: value for key, value in values.items() if key not in ("from", "full", "at_least", "at_most")}
        ends = (values.get("from"), values.get("full"))
        numbers = [end for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
        if fields.keys() | {"from", "full"} != values.keys() or "start" in fields or len({*numbers}) != 2:
            raise ValueError(
                expected("from, full", "two numbers, and neither at_least nor at_most", f"{ends[0]}, {ends[1]}")
            )
        return {**fields, "start": ends[0], "at_least" if numbers[0] < numbers[1] else "at_most": ends[1]}

    @model_validator(mode="after")
    def _can_be_measured(self) -> "Check":
        if self.metric not in known_metrics():
            raise ValueError(unknown("metric", self.metric, known_metrics()))
        return self

    def worth(self, value: float) -> float:
        """Return the points for a value."""
        if self.start is not None:
            share = (value - self.start) / (self.bound - self.start)
            return round(self.points * min(max(0.0, share), 1.0), 2)  # in this order NaN is worth nothing
        is_met = value <= self.bound if self.comparison == "<=" else value >= self.bound
        return self.points if is_met else 0.0

    def row_of(self, values: list[Interval]) -> dict[str, Any]:
        """Return a row of the result; ``None`` marks missing measurements."""
        row: dict[str, Any] = {"check": str(self), "of": self.points, "bound": self.bound}
        if not values:
            return row | dict.fromkeys(("value", "interval", "met", "points", "least", "most"))
        # The worst of several seats decides and is shown.
        worst = max(values, key=lambda v: v.value) if self.comparison == "<=" else min(values, key=lambda v: v.value)
        unknown = self.metric == ENTROPY or worst.high == float("inf")
        least, most = sorted(map(self.worth, (worst.low, worst.high)))
        points = min(self.worth(value.value) for value in values)
        return row | {
            "value": round(worst.value, 6),
            "interval": None if unknown else [round(worst.low, 4), round(worst.high, 4)],
            "met": points == self.points,
            "points": points,
            "least": min(least, points),
            "most": most,
            # All points or none, and the interval holds the bound: other games might decide otherwise.
            "close": self.start is None and least < most,
        }

    def __str__(self) -> str:
        """Return for example ``win/* >= 0.9``, or ``win/* from 0.3 to 0.5``."""
        bound = f"{self.comparison} {self.bound:g}" if self.start is None else f"from {self.start:g} to {self.bound:g}"
        return f"{self.metric} {bound}"


class Exam(Part):
    """Games against one opponent, and the checks on them."""

    name: str
    opponent: str | None = None
    sides: Literal["own", "other", "both"] = "own"
    episodes: int = Field(default=EPISODES, ge=100, le=1_000_000)
    checks: list[Check] = Field(min_length=1)

    @property
    def is_hidden(self) -> bool:
        """Whether students do not know the opponent."""
        return self.opponent is not None and self.opponent not in (*BUILT_IN, *Catalogue().entries)


class Rubric(Part):
    """Rules for grading a bundle."""

    scenario: str
    mode: Mode = "stochastic"
    #: The bundle's team; the first one of a game without red.
    team: str = "red"
    seed: int = Field(default_factory=lambda: secrets.randbits(62), ge=0, lt=2**63)
    pass_points: Annotated[float, AfterValidator(lambda points: round(points, 2))]  # as points are
    hand_in: Literal["bundle", "agent", "both"] = "both"
    #: No points for a player of the catalogue, an earlier submission, or a near copy of one.
    refuse_known: bool = False
    exams: list[Exam] = Field(min_length=1)

    @model_validator(mode="after")
    def _can_be_passed(self) -> "Rubric":
        if not 0 < self.pass_points <= self.points:
            raise ValueError(
                expected("pass_points", f"above 0 to {self.points:g}, all there are", f"{self.pass_points:g}")
            )
        return self

    @property
    def points(self) -> float:
        """Sum of all points, to two decimals as points are: of ten checks of .1 it is 1."""
        return round(sum(check.points for exam in self.exams for check in exam.checks), 2)

    @property
    def sha256(self) -> str:
        """Hash of everything but the seed, and of whether copies are graded."""
        return sha256_of(self.model_dump_json(exclude={"seed", "refuse_known"}).encode())

    def teams_of(self, exam: Exam, sides: Sequence[str]) -> list[str]:
        """Return the bundle's teams among a game's ``sides`` in an exam."""
        others = [side for side in sides if side != self.team]
        return {"own": [self.team], "other": others, "both": [self.team, *others]}[exam.sides]


def read_rubric(path: Path) -> Rubric:
    """Read a rubric and check its games. Raises ``ConfigError`` with key and value of an unusable setting."""
    with reading(path, "a rubric in yaml"):
        rubric = Rubric.model_validate(read_plain_yaml(path))
    scenario, spec = scenario_and_game(rubric.scenario)
    for number, exam in enumerate(rubric.exams):
        _check_exam(rubric, exam, scenario, spec, f"{path}: exams.{number}")
    sides = sides_of(spec)
    if rubric.team not in sides:
        if "team" in rubric.model_fields_set:
            raise ConfigError(expected(f"{path}: team", " or ".join(sides), rubric.team))
        rubric = rubric.model_copy(update={"team": sides[0]})
    for exam in rubric.exams:
        for team in rubric.teams_of(exam, sides):
            rivals(exam.opponent, team, spec, path.parent)
    return rubric


def _check_exam(rubric: Rubric, exam: Exam, scenario: ScenarioConfig, spec: Seats, key: str) -> None:
    """Raise ``ConfigError`` for an opponent, side or metric that the exam's game does not have."""
    for name, wanted in ({"opponent": None, "sides": "own"} if len(sides_of(spec)) == 1 else {}).items():
        if getattr(exam, name) != wanted:
            requirement = f"{wanted or 'null'}, as in scenario={rubric.scenario} nobody meets"
            raise ConfigError(expected(f"{key}.{name}", requirement, getattr(exam, name)))
    config, specs = SimpleNamespace(scenario=scenario), place_of(spec).who(spec)
    absent = {name: reason for group in groups("metrics") for name, reason in group.absent(config, specs).items()}
    for check in exam.checks:
        if check.metric in absent:
            raise ConfigError(
                expected(f"{key}.checks", "a metric of this scenario", f"{check.metric}: {absent[check.metric]}")
            )


def rivals(name: str | None, team: str, spec: Seats, folder: Path) -> dict[str, Policy]:
    """Load players for the seats of all teams except ``team``; see :func:`opponents`. Raises ``ConfigError``."""
    others = [other for other in sides_of(spec) if other != team]
    if bool(others) == (name is None):
        raise ConfigError(expected("opponent", "a player" if others else "none in a scenario with one team", name))
    return {seat: player for other in others for seat, player in opponents(str(name), other, spec, folder).items()}


def opponents(name: str, team: str, spec: Seats, folder: Path) -> dict[str, Policy]:
    """Load players for the seats of ``team`` by name, or from the rubric's ``folder``, hidden from students."""
    catalogue = Catalogue()
    if code_of(name) is not None or is_agent(folder / name):
        check_code("opponent", [name], "a player of this project")
    if name in BUILT_IN or code_of(name) is not None:
        return {seat: catalogue.seat(name, spec, seat).player for seat in spec.seats_of(team)}
    try:
        if name in catalogue.entries:
            return load_team(catalogue.folder(name), spec, team)
        check_not_bound(folder / name)
        return load_team(folder / name, spec, team)
    except PlayerError as error:
        raise ConfigError(f"opponent={name}: {error}") from error
