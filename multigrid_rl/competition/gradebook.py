"""Grading a class: a result and a feedback page for each hand-in, and one table; resumes after a kill."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from multigrid_rl.competition.bundle import folder_kind
from multigrid_rl.competition.copies import Fingerprint, Originals, Similar
from multigrid_rl.competition.folders import exclusive_lock, folder_sha256
from multigrid_rl.competition.grading import Examiner, Rubric
from multigrid_rl.competition.hand_ins import ZIP, Submission, filed_name
from multigrid_rl.config.scenario import Strict
from multigrid_rl.files import csv_text, json_text, safe_cell, write_atomic
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import ConfigError, expected, first_error, printable

#: Its seed reveals the games: only the instructor should have it.
KEY_FILE = "keep-to-yourself.json"
RESULTS, FEEDBACK = "results", "feedback"
#: In the feedback of a program.
LEFT_OUT = "Entropy cannot be measured for a program: its check is left out, and the"


class _Key(Strict):
    """Rubric and seed of a class: the same games in every session."""

    format: int = Field(default=1, ge=1, le=1)
    rubric_sha256: str
    seed: int


def check_hand_in(path: Path) -> None:
    """Check that ``path`` holds something to grade; otherwise the caller made an error, not a student.

    Raises:
        PlayerError, ConfigError: nothing there, another file, or a folder with other folders and nothing to grade.
    """
    if not path.is_dir() and (path.suffix.lower() != ZIP or not path.exists()):
        raise PlayerError(expected(path, "a folder with a bundle", "a file" if path.exists() else "nothing there"))
    if path.is_dir():
        try:
            folder_kind(path)
        except PlayerError:  # without folders: an unplayable hand-in, which gets no points
            if folders := [each for each in sorted(path.iterdir()) if each.is_dir() and each.name[0] not in "._"]:
                first = printable(folders[0].name)
                wanted = "a folder with a bundle or an agent; -o grades.csv grades each folder in it"
                raise ConfigError(expected(path, wanted, f"one with other folders, {first} first")) from None


def check_table(table: Path, folder: Path) -> None:
    """Check that the hand-ins are neither in the gradebook nor around it. Raises ``PlayerError``."""
    handed_in, home = folder.resolve(), table.with_suffix("").resolve()
    if handed_in.is_relative_to(home):
        wanted = f"another name: the folder beside it, {home.name}/, is for results, and holds what was handed in"
        raise PlayerError(expected("--output", wanted, table))
    if home.is_relative_to(handed_in):
        raise PlayerError(expected("--output", f"a place outside of {folder}, which holds what was handed in", table))


def grade_class(
    table: Path, hand_ins: list[Submission], examiner: Examiner, show: Callable[[str, dict[str, Any], bool], None]
) -> list[dict[str, Any]]:
    """Grade a class and write its table; unchanged hand-ins with a grade are not played again.

    A folder named after the CSV ``table`` holds all other files; a resumed class keeps its first seed. ``show`` gets
    each name, its result, and whether it was graded now. Raises ``PlayerError``: the folder has other content, another
    rubric or seed, or another grading uses it; ``OSError``.
    """
    home, results = table.with_suffix(""), []
    with exclusive_lock(home):
        examiner = replace(examiner, rubric=_seeded_rubric(home, examiner.rubric))
        for hand_in in hand_ins:
            earlier = _earlier_result(home, hand_in)
            results.append(_grade_hand_in(home, hand_in, examiner) if earlier is None else earlier)
            show(printable(hand_in.name), results[-1], earlier is None)
        copies = _copies(hand_ins, results, examiner.originals)
        write_atomic(table, _csv(hand_ins, results, examiner.rubric, copies).encode())
    return results


def _seeded_rubric(home: Path, rubric: Rubric) -> Rubric:
    """Return the rubric with the class's first seed."""
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


def _earlier_result(home: Path, hand_in: Submission) -> dict[str, Any] | None:
    """Return the result of an earlier session; ``None`` if the hand-in has changed or the file is damaged."""
    try:
        result = json.loads(_file(home, hand_in, RESULTS, ".json").read_bytes())
        unchanged = result["files_sha256"] == folder_sha256(hand_in.folder)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return result if unchanged else None


def _grade_hand_in(home: Path, hand_in: Submission, examiner: Examiner) -> dict[str, Any]:
    files = None
    with suppress(PlayerError):
        files = folder_sha256(hand_in.folder)  # hashed before grading: a later change is graded next time
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
    """Return, for each hand-in, the originals among other hand-ins and known players."""
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
    close = ", too close to call" if check["close"] else ""
    return check["check"], f"{check['value']:.3f}", interval, f"{check['points']:g} of {check['of']:g}{close}"


def _csv(hand_ins: list[Submission], results: list[dict[str, Any]], rubric: Rubric, copies: list[str]) -> str:
    checks, rows = [f"{exam.name}: {check}" for exam in rubric.exams for check in exam.checks], []
    for hand_in, result, copy in zip(hand_ins, results, copies, strict=True):
        points = [check["points"] for exam in result["exams"] for check in exam["checks"]] or [0.0] * len(checks)
        texts = {"student": hand_in.name, "problem": result["problem"] or "", "same_as": copy}
        row = {key: result.get(key) for key in ("student", "points", "of", "passed")}
        row |= dict(zip(checks, points, strict=True))
        row |= {key: safe_cell(printable(text)) for key, text in texts.items()}
        rows.append(row | {"feedback": f"{FEEDBACK}/{filed_name(hand_in.name)}.md"})
    return csv_text(rows)
