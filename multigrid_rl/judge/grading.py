"""Grading a bundle or an agent by a rubric: hidden seeds and opponents, gates measured again by play, points."""

import math
import secrets
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from multigrid_rl.config import ConfigError, load_scenario
from multigrid_rl.files import read_plain_yaml
from multigrid_rl.judge.copies import Originals, find_similar
from multigrid_rl.judge.evaluation import Mode, results_of
from multigrid_rl.judge.seeds import Interval
from multigrid_rl.metrics import BEHAVIOUR, mean_interval, wilson_interval
from multigrid_rl.players.agents import folder_sha256, is_agent
from multigrid_rl.players.bundle import bundle_sha256, folder_kind, load_team
from multigrid_rl.players.cards import PlayerError, sha256_of
from multigrid_rl.players.catalogue import Catalogue, is_program
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.leftovers import kill_descendants
from multigrid_rl.players.match import play_episodes
from multigrid_rl.players.sandbox import bwrap_available
from multigrid_rl.scenario import CODE, Bound, Part, check_listed
from multigrid_rl.text import expected, first_error, unknown
from multigrid_rl.types import EpisodeTable, GameSpec, Policy, RunError, SeatView, UniformSource
from multigrid_rl.world.constants import EVENTS
from multigrid_rl.world.symmetry import other_seat

_OUTCOMES = {"win/*": 1, "draw/*": 0, "defeat/*": -1}
#: Metrics of checks; ``*`` stands for every seat (team, network) of the bundle.
METRICS = (
    "episode_len_mean",
    "return_mean/*",
    "team_return_mean/*",
    *_OUTCOMES,
    "entropy/*",
    *(f"behaviour/*/{name}" for name in BEHAVIOUR),
)


class Check(Bound):
    """A bound on a metric, and its points."""

    points: float = Field(ge=0)
    #: The whole 95 % interval must meet the bound, not the mean alone.
    beyond_doubt: bool = False

    @model_validator(mode="after")
    def _can_be_measured(self) -> "Check":
        if self.metric not in METRICS:
            raise ValueError(unknown("metric", self.metric, METRICS))
        if self.metric == "entropy/*" and self.beyond_doubt:
            raise ValueError(expected("beyond_doubt", "false with metric=entropy/*, which has no interval", "true"))
        return self

    def met(self, measured: Interval) -> bool:
        """Return whether a measured value meets the bound."""
        if self.comparison == "<=":
            return (measured.high if self.beyond_doubt else measured.value) <= self.bound
        return (measured.low if self.beyond_doubt else measured.value) >= self.bound

    def __str__(self) -> str:
        """For example ``win/* >= 0.9 beyond doubt``."""
        return f"{self.metric} {self.comparison} {self.bound:g}{' beyond doubt' if self.beyond_doubt else ''}"


class Exam(Part):
    """Games against one opponent, and the checks on them."""

    name: str
    opponent: str | None = None
    sides: Literal["own", "other", "both"] = "own"
    episodes: int = Field(default=1000, ge=100, le=1_000_000)
    checks: list[Check] = Field(min_length=1)


class Rubric(Part):
    """Rules by which a bundle is graded."""

    scenario: str
    mode: Mode = "stochastic"
    team: Literal["red", "blue"] = "red"
    seed: int = Field(default_factory=lambda: secrets.randbits(62), ge=0, lt=2**63)
    pass_points: float
    #: No points for a player of the catalogue, an earlier hand-in, or a near copy of one.
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
        """Sum of all points."""
        return sum(check.points for exam in self.exams for check in exam.checks)

    @property
    def sha256(self) -> str:
        """Hash of everything but the seed, and of whether copies are graded."""
        return sha256_of(self.model_dump_json(exclude={"seed", "refuse_known"}).encode())

    def teams_of(self, exam: Exam) -> list[str]:
        """Return the teams that the bundle plays for in an exam."""
        other = other_seat(self.team)
        return {"own": [str(self.team)], "other": [other], "both": [self.team, other]}[exam.sides]


def read_rubric(path: Path) -> Rubric:
    """Read a rubric, and check that its games can be played.

    Raises:
        ConfigError: names key and value of whatever cannot be used, opponents included.
    """
    try:
        rubric = Rubric.model_validate(read_plain_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_error(error)}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(expected(path, "a rubric in yaml", getattr(error, "strerror", error))) from error
    spec = load_scenario(rubric.scenario).spec
    for number, exam in enumerate(rubric.exams):
        for team in rubric.teams_of(exam):
            if not spec.seats_of(team):
                there = "team with seats in " + rubric.scenario
                raise ConfigError(expected(f"{path}: exams.{number}.sides", f"a {there}", f"{exam.sides}: {team}"))
            _opponents(exam.opponent, other_seat(team), spec, path.parent)
    return rubric


def grade(bundle: Path, rubric_file: Path, rubric: Rubric, originals: Originals) -> dict[str, Any]:
    """Play all exams and count points.

    The result may be shown to the student: it has neither the seed nor a hash that could confirm a guess.

    Raises:
        PlayerError: the hand-in cannot be used, or is a known player and refused; see :func:`refused`.
    """
    spec = load_scenario(rubric.scenario).spec
    program = folder_kind(bundle) == "agent"
    if program and not bwrap_available():
        # Without a sandbox it could read the seed of the games.
        raise PlayerError(
            expected(bundle, "a bundle, as there is no bubblewrap for agents on this machine", "an agent")
        )
    if program and any(check.metric == "entropy/*" for exam in rubric.exams for check in exam.checks):
        raise PlayerError(expected(bundle, "a bundle, whose entropy/* can be measured", "an agent"))
    sha = folder_sha256(bundle) if program else bundle_sha256(bundle)
    load_team(bundle, spec, rubric.team)
    copies = find_similar(originals.fingerprint(bundle), originals.players)
    if copies and rubric.refuse_known:
        raise PlayerError(expected(bundle, "an original player", f"a copy of {copies[0]}"))
    began, folder = time.perf_counter(), rubric_file.parent
    with kill_descendants() if program else nullcontext():
        try:
            exams = [_play_exam(exam, k, bundle, rubric, spec, folder) for k, exam in enumerate(rubric.exams)]
        except RunError as error:  # of an agent
            raise PlayerError(str(error)) from error
    points = sum(check["points"] for exam in exams for check in exam["checks"])
    return {
        "format": 1,
        "bundle": bundle.name,
        "sha256": sha,
        "rubric_sha256": rubric.sha256,
        "same_as": [copy._asdict() for copy in copies],
        "passed": points >= rubric.pass_points,
        "points": points,
        "of": rubric.points,
        "pass_points": rubric.pass_points,
        "seconds": round(time.perf_counter() - began, 3),
        "problem": None,
        "exams": exams,
    }


def refused(bundle: Path, rubric: Rubric, problem: str) -> dict[str, Any]:
    """Return the result of a bundle that cannot be played: no points, and the reason."""
    return {
        "format": 1,
        "bundle": bundle.name,
        "passed": False,
        "points": 0.0,
        "of": rubric.points,
        "pass_points": rubric.pass_points,
        "problem": problem,
        "exams": [],
    }


def _opponents(name: str | None, team: str, spec: GameSpec, beside: Path) -> dict[str, Policy]:
    """Load players for the seats of ``team`` by name, or from the rubric's own folder, which students never see."""
    seats = spec.seats_of(team)
    if bool(seats) == (name is None):
        raise ConfigError(expected("opponent", "a player" if seats else "none in a scenario with one team", name))
    if name is None:
        return {}
    catalogue = Catalogue()
    if CODE.fullmatch(name) or is_agent(beside / name):
        check_listed("opponent", [name], "a player of this project")
    if is_program(name):
        return {seat: catalogue.seat(name, spec, seat).player for seat in seats}
    try:
        return load_team(catalogue.folder(name) if name in catalogue.entries else beside / name, spec, team)
    except PlayerError as error:
        raise ConfigError(f"opponent={name}: {error}") from error


def _play_exam(exam: Exam, number: int, bundle: Path, rubric: Rubric, spec: GameSpec, beside: Path) -> dict[str, Any]:
    teams = rubric.teams_of(exam)
    tables: list[tuple[str, EpisodeTable]] = []
    meters: list[Metered] = []
    for team in teams:
        own: dict[str, Policy] = {
            seat: Metered(player) if isinstance(player, FrozenPlayer) else player
            for seat, player in load_team(bundle, spec, team, greedy=rubric.mode == "argmax").items()
        }
        opponents = _opponents(exam.opponent, other_seat(team), spec, beside)
        games = exam.episodes // len(teams)
        # Each exam has its own games; the two sides of one exam share them.
        tables.append((team, play_episodes(spec, {**own, **opponents}, games, seed=rubric.seed + number)))
        meters += [player for player in own.values() if isinstance(player, Metered)]
    return {
        "name": exam.name,
        "opponent": exam.opponent,
        "sides": exam.sides,
        "episodes": sum(table.episodes for _, table in tables),
        "checks": [_checked(check, _measured(check.metric, spec, tables, meters)) for check in exam.checks],
    }


def _checked(check: Check, values: list[Interval]) -> dict[str, Any]:
    met = all(check.met(value) for value in values)
    # Of several seats the worst one decides and is shown.
    worst = max(values, key=lambda v: v.value) if check.at_most is not None else min(values, key=lambda v: v.value)
    return {
        "check": str(check),
        "value": round(worst.value, 4),
        "interval": None if check.metric == "entropy/*" else [round(worst.low, 4), round(worst.high, 4)],
        "met": met,
        "points": check.points if met else 0.0,
        "of": check.points,
    }


def _measured(
    metric: str, spec: GameSpec, tables: list[tuple[str, EpisodeTable]], meters: "list[Metered]"
) -> list[Interval]:
    """Measure one of :data:`METRICS` over the games of all sides, for each seat (network) that ``*`` stands for."""
    if metric == "entropy/*":
        return [Interval(meter.mean, meter.mean, meter.mean) for meter in meters]
    if metric in _OUTCOMES:
        results = np.concatenate([results_of(table, team) for team, table in tables])
        count = int((results == _OUTCOMES[metric]).sum())
        return [Interval(count / len(results), *wilson_interval(count, len(results)))]
    columns = []  # (M, own seats), or (M, 1) of the team
    for team, table in tables:
        own = [spec.seats.index(seat) for seat in spec.seats_of(team)]
        if metric == "episode_len_mean":
            columns.append(table.length[:, None].astype(np.float64))
        elif metric.startswith("behaviour/"):
            columns.append(table.events[:, own, EVENTS.index(metric.rsplit("/", 1)[1])])
        else:
            returns = table.returns[:, own]
            columns.append(returns.sum(axis=1, keepdims=True) if metric.startswith("team_") else returns)
    return [Interval(*mean_interval(values)) for values in np.concatenate(columns).T]


class Metered:
    """A frozen player whose entropy is added up while it plays: in nats, of its own distribution, per decision.

    A team's joint action counts as one decision: the sum over its living seats, as in training (``entropy/<module>``).
    """

    def __init__(self, player: FrozenPlayer) -> None:
        self.player = player
        self.name = player.name
        self.initial_state, self.reset_state = player.initial_state, player.reset_state
        self.total = 0.0
        self.decisions = 0

    @property
    def mean(self) -> float:
        """Mean entropy of the decisions so far; NaN before the first."""
        return self.total / self.decisions if self.decisions else float("nan")

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[np.int8], torch.Tensor]:
        """Return actions (N,), of a team (N, C), exactly those of the player.

        Raises:
            PlayerError: network outputs that are no distribution, because of too large weights.
        """
        outputs, state = self.player.outputs(view, state)
        drawn = self.player.choose(outputs, rng)
        if view.board is not None:
            seats = slice(view.seat, view.seat + self.player.members)
            living = view.board.out[:, seats] == 0  # eliminated seats and finished games make no decision
            entropy = drawn.entropy.reshape(living.shape)
            added = float((entropy * living).sum())
            if not math.isfinite(added):
                raise PlayerError(
                    expected(self.name, "finite entropy in every decision", "network outputs without probabilities")
                )
            self.total += added
            self.decisions += int(living.any(axis=1).sum())
        actions = drawn.actions.astype(np.int8)
        return (actions[:, 0] if self.player.members == 1 else actions), state
