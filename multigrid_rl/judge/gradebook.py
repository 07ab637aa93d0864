"""Grading a class: a result and a page of feedback for each hand-in, one table; goes on where it was killed."""

import csv
import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from multigrid_rl.config import ConfigError
from multigrid_rl.files import write_whole
from multigrid_rl.judge.copies import Fingerprint, Originals, Similar
from multigrid_rl.judge.cup.entries import filed_name, reason_of
from multigrid_rl.judge.grading import Rubric, grade, refused
from multigrid_rl.players.agents import folder_sha256
from multigrid_rl.players.bundle import folder_kind
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.scenario import Strict
from multigrid_rl.text import expected, first_error, printable

#: With its seed the games can be played in advance: only the instructor should have it.
KEY_FILE = "keep-to-yourself.json"
RESULTS, FEEDBACK = "results", "feedback"


class _Key(Strict):
    """Rubric and seed of a class: the same games in every session."""

    format: int = Field(default=1, ge=1, le=1)
    rubric_sha256: str
    seed: int


def hand_ins(folder: Path) -> list[Path]:
    """Return the folders below ``folder``, one for each student, sorted; without files and hidden folders.

    Raises:
        PlayerError: no such folder, or none in it.
    """
    try:
        folders = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith((".", "_"))]
    except OSError as error:
        raise PlayerError(expected(folder, "a folder with hand-ins", error.strerror)) from error
    if not folders:
        raise PlayerError(expected(folder, "a folder with one folder for each student", "none in it"))
    return folders


def check_hand_in(path: Path) -> Path:
    """Return ``path`` if it holds something to grade; anything else is an error of the caller, not of a student.

    Raises:
        PlayerError, ConfigError: no folder, or one that holds other folders and nothing to grade itself.
    """
    if not path.is_dir():
        raise PlayerError(expected(path, "a folder with a bundle", "a file" if path.exists() else "nothing there"))
    try:
        folder_kind(path)
    except PlayerError:
        with suppress(PlayerError):  # none in it: a hand-in that cannot be played, and gets no points
            first = printable(hand_ins(path)[0].name)
            wanted = "a folder with a bundle or an agent; -o grades.csv grades each folder in it"
            raise ConfigError(expected(path, wanted, f"one with other folders, {first} first")) from None
    return path


class Gradebook:
    """A class's grades: ``TABLE.csv``, and beside it the folder ``TABLE`` with all that belongs to it.

    Args:
        table: the CSV.
        rubric_file: file of the rubric; hidden opponents are in its folder.
        rubric: its content. A resumed class keeps its first seed.
        originals: players that hand-ins are compared with, besides each other.

    Raises:
        PlayerError: the folder has other content, or another rubric or seed.
        OSError: it cannot be written.
    """

    def __init__(self, table: Path, rubric_file: Path, rubric: Rubric, originals: Originals) -> None:
        self.table, self.home, self.rubric_file = table, table.with_suffix(""), rubric_file
        self.originals = originals
        path = self.home / KEY_FILE
        try:
            key = _Key.model_validate_json(path.read_bytes()) if path.exists() else None
        except ValidationError as error:
            raise PlayerError(expected(path, "a gradebook's own file", first_error(error))) from error
        if key is None:
            if any(self.home.iterdir()):
                raise PlayerError(expected(self.home, "a new folder, or grades to go on with", "something else"))
            key = _Key(rubric_sha256=rubric.sha256, seed=rubric.seed)
            write_whole(path, key.model_dump_json().encode())
            path.chmod(0o600)
        if "seed" not in rubric.model_fields_set:
            rubric = rubric.model_copy(update={"seed": key.seed})
        if (key.rubric_sha256, key.seed) != (rubric.sha256, rubric.seed):
            raise PlayerError(expected(self.home, "the rubric and seed it began with, or another -o", "other ones"))
        self.rubric = rubric

    def grade_all(self, folders: list[Path], show: Callable[[str, dict[str, Any], bool], None]) -> list[dict[str, Any]]:
        """Grade hand-ins and write the table; unchanged hand-ins that were graded before are not played again.

        Args:
            folders: see :func:`hand_ins`.
            show: called with each name, its result, and whether it was graded now.
        """
        results = []
        for folder in folders:
            kept = self._kept(folder)
            results.append(self._graded(folder) if kept is None else kept)
            show(printable(folder.name), results[-1], kept is None)
        write_whole(self.table, _csv(folders, results, self.rubric, self._copies(folders, results)).encode())
        return results

    def _copies(self, folders: list[Path], results: list[dict[str, Any]]) -> list[str]:
        """Return, for each hand-in, the other hand-ins and known players that it is a copy of."""
        fingerprints: dict[str, Fingerprint] = {}
        for folder in folders:
            with suppress(PlayerError):
                fingerprints[folder.name] = self.originals.fingerprint(folder)
        rows = []
        for name, result in zip((folder.name for folder in folders), results, strict=True):
            found = [Similar(**row) for row in result.get("same_as", [])]  # also by what an agent answered
            if name in fingerprints:
                others = {other: its for other, its in fingerprints.items() if other != name}
                found += self.originals.similar(fingerprints[name], others)
            rows.append("; ".join(dict.fromkeys(map(str, found))))
        return rows

    def _kept(self, folder: Path) -> dict[str, Any] | None:
        """Return the result of an earlier session; ``None`` if the hand-in has changed or the file is damaged."""
        try:
            result = json.loads(self._file(folder, RESULTS, ".json").read_bytes())
            same = result["files_sha256"] == folder_sha256(folder)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return result if same else None

    def _graded(self, folder: Path) -> dict[str, Any]:
        try:
            files = folder_sha256(folder)  # before it is read: what changes meanwhile is graded again next time
            result = {**grade(folder, self.rubric_file, self.rubric, self.originals), "files_sha256": files}
        except PlayerError as error:
            result = refused(folder, self.rubric, reason_of(error, folder, folder.name))
        # The result comes last: where there is one, there is everything.
        for kind, suffix, text in ((FEEDBACK, ".md", feedback(result)), (RESULTS, ".json", json.dumps(result))):
            write_whole(self._file(folder, kind, suffix), text.encode())
        return result

    def _file(self, folder: Path, kind: str, suffix: str) -> Path:
        return self.home / kind / f"{filed_name(folder.name)}{suffix}"


def feedback(result: dict[str, Any]) -> str:
    """Return the feedback of a student, in Markdown: each check, what was measured, and what it is worth."""
    lines = [f"# {'Passed' if result['passed'] else 'Not passed'}: {result['points']:g} of {result['of']:g} points", ""]
    lines += [f"{result['pass_points']:g} points are needed. Graded by play, in games that were not seen before."]
    if result["problem"]:
        lines += ["", "It could not be played:", "", f"    {result['problem']}"]
    for exam in result["exams"]:
        lines += ["", f"## {exam['name']}", ""]
        lines += [f"{exam['episodes']:,} games against {exam['opponent'] or 'none'}, sides: {exam['sides']}.", ""]
        lines += ["| check | measured | 95 % | points |", "|---|---:|---:|---:|"]
        for check in exam["checks"]:
            between = "-" if check["interval"] is None else "{:.3f} to {:.3f}".format(*check["interval"])
            points = f"{check['points']:g} of {check['of']:g}"
            lines.append(f"| {check['check'].replace('*', '&#42;')} | {check['value']:.3f} | {between} | {points} |")
    return "\n".join(lines) + "\n"


def _csv(folders: list[Path], results: list[dict[str, Any]], rubric: Rubric, copies: list[str]) -> str:
    checks = [f"{exam.name}: {check}" for exam in rubric.exams for check in exam.checks]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["student", "points", "of", "passed", *checks, "problem", "same_as", "feedback"])
    for folder, result, copy in zip(folders, results, copies, strict=True):
        points = [check["points"] for exam in result["exams"] for check in exam["checks"]] or [0.0] * len(checks)
        row = [result["points"], result["of"], result["passed"], *points, _cell(result["problem"] or ""), _cell(copy)]
        writer.writerow([_cell(folder.name), *row, f"{FEEDBACK}/{filed_name(folder.name)}.md"])
    return buffer.getvalue()


def _cell(text: str) -> str:
    """Return text that a spreadsheet does not read as a formula."""
    plain = printable(text)
    return f"'{plain}" if plain[:1] in ("=", "+", "-", "@") else plain
