"""Grading a bundle or an agent by a rubric: hidden seeds and opponents, gates measured again by play, points."""

import secrets
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

from pydantic import Field, ValidationError, model_validator

from multigrid_rl.competition.agents import AgentPlayer, is_agent
from multigrid_rl.competition.bundle import bundle_sha256, folder_kind, load_team
from multigrid_rl.competition.copies import NOT_ORIGINAL, CopyError, Originals, ProbeAnswers, watch
from multigrid_rl.competition.folders import folder_sha256
from multigrid_rl.competition.hand_ins import Submission, reason_of
from multigrid_rl.competition.likeness import originals_of
from multigrid_rl.competition.measures import ENTROPY, EntropyMeter, known_metrics, measure
from multigrid_rl.competition.sandbox import Limits, bwrap_available, kill_descendants
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.scenario import Bound, Part, ScenarioConfig
from multigrid_rl.evaluation.evaluation import Mode
from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.files import read_plain_yaml
from multigrid_rl.metrics import groups
from multigrid_rl.players.cards import PlayerError, sha256_of
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.classes import code_of
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.players.no_opponents import game_of
from multigrid_rl.players.places import place_of, sides_of
from multigrid_rl.text import ConfigError, expected, first_error, unknown
from multigrid_rl.trust import agents_trusted, check_code, strangers
from multigrid_rl.types import EpisodeTable, Policy, RunError, Seats

#: Episodes of an exam: the default of bundles at red/blue doors, the maximum of programs, the default of other games,
#: and of games with one team.
EPISODES, PROGRAM_EPISODES, GAMES, SOLO_EPISODES = 20_000, 1_000, 1_000, 100
#: Limits of programs: one answer covers all games of an exam's side; the total, one opponent from one side.
LIMITS = Limits(step_s=10.0, total_s=300.0)


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
            return round(self.points * min(max(share, 0.0), 1.0), 2)
        is_met = value <= self.bound if self.comparison == "<=" else value >= self.bound
        return self.points if is_met else 0.0

    def row_of(self, values: list[Interval]) -> dict[str, Any]:
        """Return a row of the result; ``None`` marks missing measurements."""
        row: dict[str, Any] = {"check": str(self), "of": self.points}
        if not values:
            return row | dict.fromkeys(("value", "interval", "met", "points", "least", "most"))
        # The worst of several seats decides and is shown.
        worst = max(values, key=lambda v: v.value) if self.comparison == "<=" else min(values, key=lambda v: v.value)
        unknown = self.metric == ENTROPY or worst.high == float("inf")
        least, most = sorted(map(self.worth, (worst.low, worst.high)))
        points = min(self.worth(value.value) for value in values)
        return row | {
            "value": round(worst.value, 4),
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


class Rubric(Part):
    """Rules for grading a bundle."""

    scenario: str
    mode: Mode = "stochastic"
    #: The bundle's team; the first one of a game without red.
    team: str = "red"
    seed: int = Field(default_factory=lambda: secrets.randbits(62), ge=0, lt=2**63)
    pass_points: float
    hand_in: Literal["bundle", "agent", "both"] = "both"
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

    def teams_of(self, exam: Exam, sides: Sequence[str]) -> list[str]:
        """Return the bundle's teams among a game's ``sides`` in an exam."""
        others = [side for side in sides if side != self.team]
        return {"own": [self.team], "other": others, "both": [self.team, *others]}[exam.sides]


def read_rubric(path: Path) -> Rubric:
    """Read a rubric and check its games. Raises ``ConfigError`` with key and value of an unusable setting."""
    try:
        rubric = Rubric.model_validate(read_plain_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_error(error)}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(expected(path, "a rubric in yaml", getattr(error, "strerror", error))) from error
    for number, exam in enumerate(rubric.exams):
        _check_exam(rubric, exam, f"{path}: exams.{number}")
    spec = _game(rubric)[1]
    sides = sides_of(spec)
    if rubric.team not in sides:
        if "team" in rubric.model_fields_set:
            raise ConfigError(expected(f"{path}: team", " or ".join(sides), rubric.team))
        rubric = rubric.model_copy(update={"team": sides[0]})
    for exam in rubric.exams:
        for team in rubric.teams_of(exam, sides):
            rivals(exam.opponent, team, spec, path.parent)
    return rubric


def _check_exam(rubric: Rubric, exam: Exam, key: str) -> None:
    """Raise ``ConfigError`` for an opponent, side or metric that the exam's game does not have."""
    scenario, spec = _game(rubric)
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


def _game(rubric: Rubric) -> tuple[ScenarioConfig, Seats]:
    scenario = load_scenario(rubric.scenario)
    return scenario, game_of(scenario, [f"scenario={rubric.scenario}"])


@dataclass(frozen=True)
class Examiner:
    """Grades hand-ins by a rubric.

    The result has neither the seed nor a hash that could confirm a guess. Its ``problem`` is for the instructor, as it
    may contain a failed agent's text; ``feedback_problem`` is for the student. Hidden opponents are in the rubric's
    ``folder``, and hand-ins are compared with ``originals``.
    """

    rubric: Rubric
    folder: Path
    originals: Originals
    limits: Limits = LIMITS

    @cached_property
    def spec(self) -> Seats:
        """The game."""
        return _game(self.rubric)[1]

    @property
    def sides(self) -> tuple[str, ...]:
        """Its teams."""
        return sides_of(self.spec)

    def episodes(self, exam: Exam) -> int:
        """Return the number of games of an exam, of all sides together."""
        by_default = EPISODES if place_of(self.spec).built_in else GAMES if len(self.sides) > 1 else SOLO_EPISODES
        return exam.episodes if "episodes" in exam.model_fields_set else by_default

    def grade(self, bundle: Path) -> dict[str, Any]:
        """Play all exams and count points.

        Raises ``PlayerError``: the hand-in cannot be used, or is a refused copy; see :meth:`refused`; ``RunError``:
        something else than the hand-in failed.
        """
        rubric = self.rubric
        program = self._checked_kind(bundle)
        scored = [check for exam in rubric.exams for check in exam.checks if not (program and check.metric == ENTROPY)]
        measurable = sum(check.points for check in scored)
        if not measurable:
            raise PlayerError(expected(bundle, f"a bundle, whose {ENTROPY} can be measured", "an agent"))
        sha256 = folder_sha256(bundle) if program else bundle_sha256(bundle)
        with strangers():
            load_team(bundle, self.spec, rubric.team)
        probes = self._probe(bundle) if program and self.originals.probes_agents else {}
        copies = self.originals.similar(self.originals.fingerprint(bundle), probes=probes)
        if copies and rubric.refuse_known:
            raise CopyError(expected(bundle, "an original player", f"a copy of {', '.join(map(str, copies))}"))
        began = time.perf_counter()
        try:
            with kill_descendants() if program else nullcontext():
                exams = [self._play_exam(bundle, exam, k, program) for k, exam in enumerate(rubric.exams)]
        except PlayerFaultError as fault:
            player = f"player {fault.name}: "
            if fault.name != bundle.resolve().name:
                raise RunError(f"{player}{fault}") from fault
            spent = {"seconds": round(time.perf_counter() - began, 3)}
            return self.refused(bundle, f"{player}{fault}", fault.without_words) | spent
        # Unmeasurable checks are left out, and the rest counts for all points.
        scale = rubric.points / measurable
        checks = [check for exam in exams for check in exam["checks"] if check["points"] is not None]
        points, low, high = (round(scale * sum(row[key] for row in checks), 2) for key in ("points", "least", "most"))
        return self._result(bundle, points) | {
            "sha256": sha256,
            "rubric_sha256": rubric.sha256,
            "same_as": [copy._asdict() for copy in copies],
            "measurable": measurable,
            "points_interval": [low, high],
            "close": low < rubric.pass_points <= high,
            "seconds": round(time.perf_counter() - began, 3),
            "exams": exams,
        }

    def result(self, submission: Submission) -> dict[str, Any]:
        """Return the result of a hand-in; of an unplayable one without points and with the reason."""
        try:
            if submission.problem is not None:
                raise PlayerError(submission.problem)
            return self.grade(submission.folder)
        except PlayerError as error:
            feedback = NOT_ORIGINAL if isinstance(error, CopyError) else None
            return self.refused(submission.folder, reason_of(error, submission.folder, submission.name), feedback)

    def refused(self, bundle: Path, problem: str, feedback: str | None = None) -> dict[str, Any]:
        """Return the result of an unplayable hand-in: no points, the problem, and the student's feedback."""
        student_problem = problem if feedback is None else feedback
        return self._result(bundle, 0.0) | {"problem": problem, "feedback_problem": student_problem}

    def _result(self, bundle: Path, points: float) -> dict[str, Any]:
        rubric = self.rubric
        result = {"format": 2, "bundle": bundle.name, "passed": points >= rubric.pass_points, "points": points}
        result |= {"of": rubric.points, "pass_points": rubric.pass_points}
        return result | {"seconds": 0.0, "problem": None, "exams": []}

    def _checked_kind(self, bundle: Path) -> bool:
        """Return whether the hand-in is a program. Raises ``PlayerError``: this kind is not graded here."""
        program = folder_kind(bundle) == "agent"
        kind = "an agent" if program else "a bundle"
        if self.rubric.hand_in == ("bundle" if program else "agent"):
            raise PlayerError(expected(f"{bundle}: hand-in", self.rubric.hand_in, kind))
        if program and (agents_trusted() or not bwrap_available()):
            # Without a sandbox it could read the seed of the games.
            wanted = "a bundle, as there is no bubblewrap for agents on this machine"
            raise PlayerError(expected(bundle, wanted, kind))
        return program

    def _probe(self, agent: Path) -> dict[str, ProbeAnswers | None]:
        """Let an agent play the first steps of the first exam's number of games, for each graded team."""
        rubric, first = self.rubric, self.rubric.exams[0]
        games = min(self.episodes(first), PROGRAM_EPISODES) // len(rubric.teams_of(first, self.sides))
        answers = {}
        for team in {team for exam in rubric.exams for team in rubric.teams_of(exam, self.sides)}:
            (player,) = load_team(agent, self.spec, team, limits=self.limits.probe_limits).values()
            with kill_descendants(), cast("AgentPlayer", player):
                answers[team] = watch(self.spec, team, player, games, rubric.seed ^ 1)
        return answers

    def _play_exam(self, bundle: Path, exam: Exam, number: int, program: bool) -> dict[str, Any]:
        spec, rubric = self.spec, self.rubric
        teams = rubric.teams_of(exam, self.sides)
        tables: list[tuple[str, EpisodeTable]] = []
        meters: list[EntropyMeter] = []
        entropy = any(check.metric == ENTROPY for check in exam.checks)
        episodes = min(self.episodes(exam), PROGRAM_EPISODES) if program else self.episodes(exam)
        for team in teams:
            with strangers():
                players = load_team(bundle, spec, team, greedy=rubric.mode == "argmax", limits=self.limits)
            for seat, player in players.items():
                if isinstance(player, FrozenPlayer):
                    players[seat] = EntropyMeter(player, required=entropy)
            others = rivals(exam.opponent, team, spec, self.folder)
            # Each exam has its own games; the two sides of one exam share them.
            games = play_games(spec, {**players, **others}, episodes // len(teams), seed=rubric.seed + number)
            tables.append((team, games.full_table()))
            meters += [player for player in players.values() if isinstance(player, EntropyMeter)]
        unmeasured = ENTROPY if program else None
        return {
            "name": exam.name,
            "opponent": exam.opponent,
            "hidden": exam.opponent is not None and exam.opponent not in (*BUILT_IN, *Catalogue().entries),
            "sides": exam.sides,
            "episodes": sum(table.episodes for _, table in tables),
            "checks": [
                check.row_of([] if check.metric == unmeasured else measure(check.metric, spec, tables, meters))
                for check in exam.checks
            ],
        }


def examiner_of(rubric: Rubric, folder: Path, earlier: list[Path], limits: Limits = LIMITS) -> Examiner:
    """Return an examiner that finds copies of the project's players and of ``earlier`` hand-ins."""
    return Examiner(rubric, folder, originals_of(*_game(rubric), earlier), limits)


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
        return load_team(catalogue.folder(name) if name in catalogue.entries else folder / name, spec, team)
    except PlayerError as error:
        raise ConfigError(f"opponent={name}: {error}") from error
