"""Grading by a rubric: hidden seeds and opponents, gates measured again by play, points; and a class's gradebook.

A class gets a result and a feedback page for each submission, and one table; an interrupted grading resumes.
"""

import json
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from pydantic import Field, ValidationError

from multigrid_rl.competition.agents import AgentPlayer
from multigrid_rl.competition.bundle import bundle_sha256, folder_kind, load_team
from multigrid_rl.competition.copies import NOT_ORIGINAL, Fingerprint, Originals, ProbeAnswers, Similar, watch
from multigrid_rl.competition.cup_folder import scenario_and_game
from multigrid_rl.competition.folders import exclusive_lock, folder_sha256
from multigrid_rl.competition.hand_ins import ZIP, Submission, filed_name, reason_of
from multigrid_rl.competition.likeness import originals_of
from multigrid_rl.competition.rubric import ENTROPY, EPISODES, EntropyMeter, Exam, Rubric, measure, rivals
from multigrid_rl.competition.sandbox import Limits, bwrap_available, kill_descendants
from multigrid_rl.config.scenario import Strict
from multigrid_rl.files import csv_text, json_text, safe_cell, write_atomic
from multigrid_rl.gates import value_text
from multigrid_rl.players.cards import PlayerError, sha256_of
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.players.places import place_of, sides_of
from multigrid_rl.text import ConfigError, expected, first_error, printable
from multigrid_rl.trust import agents_trusted, strangers
from multigrid_rl.types import EpisodeTable, RunError, Seats

#: Episodes of an exam: the maximum of programs, the default of other games than red/blue doors, and of games with one
#: team.
PROGRAM_EPISODES, GAMES, SOLO_EPISODES = 1_000, 1_000, 100
#: Limits of programs: one answer covers all games of an exam's side; the total, one opponent from one side.
LIMITS = Limits(step_s=10.0, total_s=300.0)
#: Its seed reveals the games: only the instructor should have it.
KEY_FILE = "keep-to-yourself.json"
RESULTS, FEEDBACK = "results", "feedback"
#: In the feedback of a program.
LEFT_OUT = "Entropy cannot be measured for a program: its check is left out, and the"


@dataclass(frozen=True)
class Examiner:
    """Grades submissions by a rubric.

    The result has neither the seed nor a hash that could confirm a guess. Its ``problem`` is for the instructor, as it
    may contain a failed agent's text; ``feedback_problem`` is for the student. Hidden opponents are in the rubric's
    ``folder``, and submissions are compared with ``originals``.
    """

    rubric: Rubric
    folder: Path
    originals: Originals
    limits: Limits = LIMITS

    @cached_property
    def spec(self) -> Seats:
        """The game."""
        return scenario_and_game(self.rubric.scenario)[1]

    @property
    def sides(self) -> tuple[str, ...]:
        """Its teams."""
        return sides_of(self.spec)

    def files_sha256(self, bundle: Path) -> str:
        """Return the hash of a submission, hidden opponents, and names of earlier ones. Raises ``PlayerError``."""
        hidden = {self.folder / str(exam.opponent) for exam in self.rubric.exams if exam.is_hidden}
        hashes = [folder_sha256(folder) for folder in [bundle, *sorted(hidden)] if folder.is_dir()]
        return sha256_of(json.dumps([hashes, sorted(self.originals.players.keys() - self.originals.known)]).encode())

    def episodes(self, exam: Exam) -> int:
        """Return the number of games of an exam, of all sides together."""
        by_default = EPISODES if place_of(self.spec).built_in else GAMES if len(self.sides) > 1 else SOLO_EPISODES
        return exam.episodes if "episodes" in exam.model_fields_set else by_default

    def grade(self, bundle: Path) -> dict[str, Any]:
        """Play all exams and count points.

        Raises ``PlayerError``: the submission cannot be used, or is a refused copy; see :meth:`refused`; ``RunError``:
        something else than the submission failed.
        """
        rubric = self.rubric
        program = self._checked_kind(bundle)
        scored = [check for exam in rubric.exams for check in exam.checks if not (program and check.metric == ENTROPY)]
        if not (measurable := sum(check.points for check in scored)):
            raise PlayerError(expected(bundle, f"a bundle, whose {ENTROPY} can be measured", "an agent"))
        sha256 = folder_sha256(bundle) if program else bundle_sha256(bundle)
        with strangers():
            load_team(bundle, self.spec, rubric.team)
        probes = self._probe(bundle) if program and self.originals.probes_agents else {}
        copies = self.originals.similar(self.originals.fingerprint(bundle), probes=probes)
        if copies and rubric.refuse_known:
            copied = f"a copy of {', '.join(map(str, copies))}"
            raise PlayerError(expected(bundle, "an original player", copied), NOT_ORIGINAL)
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
        """Return the result of a submission; of an unplayable one without points and with the reason."""
        try:
            if submission.problem is not None:
                raise PlayerError(submission.problem)
            return self.grade(submission.folder)
        except PlayerError as error:
            reason = reason_of(error, submission.folder, submission.name)
            return self.refused(submission.folder, reason, error.feedback)

    def refused(self, bundle: Path, problem: str, feedback: str | None = None) -> dict[str, Any]:
        """Return the result of an unplayable submission: no points, the problem, and the student's feedback."""
        return self._result(bundle, 0.0) | {"problem": problem, "feedback_problem": feedback or problem}

    def _result(self, bundle: Path, points: float) -> dict[str, Any]:
        rubric = self.rubric
        result = {"format": 2, "bundle": bundle.name, "passed": points >= rubric.pass_points, "points": points}
        result |= {"of": rubric.points, "pass_points": rubric.pass_points}
        return result | {"seconds": 0.0, "problem": None, "exams": []}

    def _checked_kind(self, bundle: Path) -> bool:
        """Return whether the submission is a program. Raises ``PlayerError``: this kind is not graded here."""
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
            "hidden": exam.is_hidden,
            "sides": exam.sides,
            "episodes": sum(table.episodes for _, table in tables),
            "checks": [
                check.row_of([] if check.metric == unmeasured else measure(check.metric, spec, tables, meters))
                for check in exam.checks
            ],
        }


def examiner_of(rubric: Rubric, folder: Path, earlier: dict[str, Path], limits: Limits = LIMITS) -> Examiner:
    """Return an examiner that finds copies of the project's players and of ``earlier`` submissions."""
    return Examiner(rubric, folder, originals_of(*scenario_and_game(rubric.scenario), earlier), limits)


# --- a class


class _Key(Strict):
    """Rubric and seed of a class: the same games in every session."""

    format: int = Field(default=1, ge=1, le=1)
    rubric_sha256: str
    seed: int


def check_hand_in(path: Path) -> None:
    """Raise ``PlayerError`` or ``ConfigError`` where nothing is graded by the caller's mistake, not a student's."""
    if not path.is_dir() and (path.suffix.lower() != ZIP or not path.exists()):
        raise PlayerError(expected(path, "a folder with a bundle", "a file" if path.exists() else "nothing there"))
    if path.is_dir():
        try:
            folder_kind(path)
        except PlayerError:  # without folders: an unplayable submission, which gets no points
            if folders := [each for each in sorted(path.iterdir()) if each.is_dir() and each.name[0] not in "._"]:
                first = printable(folders[0].name)
                wanted = "a folder with a bundle or an agent; -o grades.csv grades each folder in it"
                raise ConfigError(expected(path, wanted, f"one with other folders, {first} first")) from None


def check_table(table: Path, folder: Path) -> None:
    """Check that the submissions are neither in the gradebook nor around it. Raises ``PlayerError``."""
    handed_in, home = folder.resolve(), table.with_suffix("").resolve()
    if handed_in.is_relative_to(home):
        wanted = f"another name: the folder beside it, {home.name}/, is for results, and holds what was handed in"
        raise PlayerError(expected("--output", wanted, table))
    if home.is_relative_to(handed_in):
        raise PlayerError(expected("--output", f"a place outside of {folder}, which holds what was handed in", table))


def grade_class(
    table: Path, hand_ins: list[Submission], examiner: Examiner, show: Callable[[str, dict[str, Any], bool], None]
) -> list[dict[str, Any]]:
    """Grade a class and write its table; unchanged submissions with a grade are not played again.

    A folder named after the CSV ``table`` holds all other files; a resumed class keeps its first seed. ``show`` gets
    each name, its result, and whether it was graded now. Raises ``PlayerError``: the folder has other content, another
    rubric or seed, or another grading uses it; ``OSError``.
    """
    home, results = table.with_suffix(""), []
    with exclusive_lock(home):
        examiner = replace(examiner, rubric=_seeded_rubric(home, examiner.rubric))
        for hand_in in hand_ins:
            earlier = _earlier_result(home, hand_in, examiner)
            results.append(_grade_hand_in(home, hand_in, examiner) if earlier is None else earlier)
            show(printable(hand_in.name), results[-1], earlier is None)
        copies = _copies(hand_ins, results, examiner.originals)
        write_atomic(table, _csv(hand_ins, results, examiner.rubric, copies).encode())
    return results


def _seeded_rubric(home: Path, rubric: Rubric) -> Rubric:
    path = home / KEY_FILE
    try:
        key = _Key.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError as error:
        raise PlayerError(expected(path, "a gradebook's own file", first_error(error))) from error
    if key is None:
        if any(home.iterdir()):
            raise PlayerError(expected(home, "a new folder, or grades to resume", "something else"))
        key = _Key(rubric_sha256=rubric.sha256, seed=rubric.seed)
        write_atomic(path, key.model_dump_json().encode())
        path.chmod(0o600)
    if "seed" not in rubric.model_fields_set:
        rubric = rubric.model_copy(update={"seed": key.seed})
    if (key.rubric_sha256, key.seed) != (rubric.sha256, rubric.seed):
        raise PlayerError(expected(home, "the rubric and seed it began with, or another -o", "other ones"))
    return rubric


def _earlier_result(home: Path, hand_in: Submission, examiner: Examiner) -> dict[str, Any] | None:
    """Return the result of an earlier session; ``None`` if other files met, copies now count, or it is damaged."""
    try:
        result = json.loads(_file(home, hand_in, RESULTS, ".json").read_bytes())
        unchanged = result["files_sha256"] == examiner.files_sha256(hand_in.folder)
        is_refused = examiner.rubric.refuse_known and result["same_as"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return result if unchanged and not is_refused else None


def _grade_hand_in(home: Path, hand_in: Submission, examiner: Examiner) -> dict[str, Any]:
    files = None
    with suppress(PlayerError):
        files = examiner.files_sha256(hand_in.folder)  # hashed before grading: a later change is graded next time
    result = examiner.result(hand_in)
    if not result["problem"]:  # failures are played again
        result["files_sha256"] = files
    # The result is written last and marks a complete grade.
    write_atomic(_file(home, hand_in, FEEDBACK, ".md"), feedback(result).encode())
    write_atomic(_file(home, hand_in, RESULTS, ".json"), json_text(result).encode())
    return result


def _file(home: Path, hand_in: Submission, kind: str, suffix: str) -> Path:
    return home / kind / f"{filed_name(hand_in.name)}{suffix}"


def _copies(hand_ins: list[Submission], results: list[dict[str, Any]], originals: Originals) -> list[str]:
    """Return, for each submission, the originals among other submissions and known players."""
    fingerprints: dict[str, Fingerprint] = {}
    for hand_in in hand_ins:
        with suppress(PlayerError):
            fingerprints[hand_in.name] = originals.fingerprint(hand_in.folder)
    rows = []
    for name, result in zip((hand_in.name for hand_in in hand_ins), results, strict=True):
        copies = [Similar(**row) for row in result.get("same_as", [])]  # includes an agent's answers
        if name in fingerprints:
            others = {other: fingerprint for other, fingerprint in fingerprints.items() if other != name}
            copies += originals.similar(fingerprints[name], others)
        rows.append("; ".join(dict.fromkeys(map(str, copies))))
    return rows


def feedback(result: dict[str, Any]) -> str:
    """Return the feedback of a student in Markdown: each check, its measurement, and its points.

    It contains no text from an agent, and no name of a hidden opponent.
    """
    lines = [f"# {'Passed' if result['passed'] else 'Not passed'}: {result['points']:g} of {result['of']:g} points", ""]
    lines += [f"{result['pass_points']:g} points are needed. Graded by play, in games that were not seen before."]
    if result["problem"]:
        lines += ["", "It could not be played:", "", f"    {result['feedback_problem']}"]
    elif result["measurable"] < result["of"]:
        lines += ["", f"{LEFT_OUT} {result['measurable']:g} points of the other checks count as {result['of']:g}."]
    if result.get("close"):
        lines += ["", "Too close to call: other games of the same kind might decide otherwise whether it passes."]
    for exam in result["exams"]:
        lines += ["", f"## {exam['name']}", ""]
        opponent = "a hidden opponent" if exam["hidden"] else exam["opponent"]
        played = f"games against {opponent}, sides: {exam['sides']}" if opponent else "episodes"
        lines += [f"{exam['episodes']:,} {played}.", ""]
        lines += ["| check | measured | 95 % | points |", "|---|---:|---:|---:|"]
        for check in exam["checks"]:
            lines.append(f"| {' | '.join(check_cells(check)).replace('*', '&#42;')} |")
    return "\n".join(lines) + "\n"


def check_cells(check: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return a check's name, measurement, 95 % interval, and points."""
    if check["points"] is None:
        return check["check"], "not measured", "-", "left out"
    interval = "-" if check["interval"] is None else "{:.3f} to {:.3f}".format(*check["interval"])
    measured, close = value_text(check["value"], check["bound"]), ", too close to call" if check["close"] else ""
    return check["check"], measured, interval, f"{check['points']:g} of {check['of']:g}{close}"


def _csv(hand_ins: list[Submission], results: list[dict[str, Any]], rubric: Rubric, copies: list[str]) -> str:
    names, rows = [f"{exam.name}: {check}" for exam in rubric.exams for check in exam.checks], []
    checks = [f"{name} ({names[:k].count(name) + 1})" if name in names[:k] else name for k, name in enumerate(names)]
    for hand_in, result, copy in zip(hand_ins, results, copies, strict=True):
        points = [check["points"] for exam in result["exams"] for check in exam["checks"]] or [0.0] * len(checks)
        texts = {"student": hand_in.name, "problem": result["problem"] or "", "same_as": copy}
        row = {key: result.get(key) for key in ("student", "points", "of", "passed")}
        row |= dict(zip(checks, points, strict=True))
        row |= {key: safe_cell(printable(text)) for key, text in texts.items()}
        rows.append(row | {"feedback": f"{FEEDBACK}/{filed_name(hand_in.name)}.md"})
    return csv_text(rows)
