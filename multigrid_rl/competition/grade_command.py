"""The ``grade`` verb: one hand-in, or a class of them, against a rubric."""

from __future__ import annotations

import json
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, ended_by_signals, one_thread, written_beside
from multigrid_rl.competition.folders import Scratch
from multigrid_rl.files import data_root, json_text
from multigrid_rl.text import ConfigError, unknown

if TYPE_CHECKING:
    from multigrid_rl.competition.grading import Examiner
    from multigrid_rl.competition.handed_in import HandedIn

#: Folders of our rubrics, which have names.
RUBRICS = ("configs/grade", "docs/assignments/rubrics")


def grade(
    bundle: Annotated[
        Path, typer.Argument(help="Folder or zip file with a bundle or an agent; with -o TABLE.csv, folder of a class.")
    ],
    rubric: Annotated[Path, typer.Option(help="What it is graded by: a file, or a name of ours, such as 1v1.")],
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of the games; by default the rubric's, or a fresh one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON to write, too; or the csv of a class, new or to resume.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option(help="Folder of earlier hand-ins, a folder each, to find copies of.")
    ] = None,
    allow_copies: Annotated[
        bool, typer.Option("--allow-copies", help="Grade copies, too, where the rubric says `refuse_known`.")
    ] = False,
    step_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds of an agent for an answer, all games of a step together.")
    ] = 10.0,
    total_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds of an agent for all answers, against one opponent from one side.")
    ] = 300.0,
) -> None:
    """Grade a bundle by play: status 0 passed, 1 not passed, others: not graded (docs/judging.md). Ends with JSON."""
    from multigrid_rl.competition import gradebook, grading, handed_in, sandbox

    one_thread()
    rubric = rubric_file(rubric)
    sandbox.check_not_bound(*filter(None, (rubric, bundle, output, earlier)))
    rules = grading.read_rubric(rubric)
    if seed is not None:
        rules = rules.model_copy(update={"seed": seed})
    if allow_copies:
        rules = rules.model_copy(update={"refuse_known": False})
    table = output if output is not None and output.suffix == ".csv" else None
    if table is None:
        gradebook.check_hand_in(bundle)
    else:
        gradebook.check_table(table, bundle)
    limits = replace(grading.LIMITS, step_s=step_s, total_s=total_s)
    with (
        ended_by_signals("the same command resumes the class" if table else ""),
        closing(Scratch()) as scratch,
    ):
        before = handed_in.hand_ins(earlier, scratch.path) if earlier is not None else []
        known = [each.folder for each in before if not each.problem]
        examiner = grading.examiner_of(rules, rubric.parent, known, limits)
        if table is not None:
            _grade_class(handed_in.hand_ins(bundle, scratch.path), examiner, table)
        else:
            _grade_one(handed_in.hand_in(bundle, scratch.path), examiner, output)


def rubric_file(named: Path) -> Path:
    """Return the file of a rubric. Raises ``ConfigError``: there is none of this path or name."""
    ours = {path.stem: path for folder in RUBRICS for path in sorted((data_root() / folder).glob("*.yaml"))}
    file = named if named.is_file() else ours.get(str(named))
    if file is None:
        raise ConfigError(unknown("--rubric", str(named), ours, "a file in yaml, {}"))
    return file


def _grade_one(found: HandedIn, examiner: Examiner, output: Path | None) -> None:
    if "seed" not in examiner.rubric.model_fields_set:
        typer.echo(f"games of a fresh seed: --seed {examiner.rubric.seed} plays them again", err=True)
    result = None
    try:
        with written_beside(output) if output is not None else nullcontext() as file:
            result = examiner.result(found)
            if file is not None:
                file.write_text(json_text(result, indent=2) + "\n", encoding="utf-8")
    finally:
        if result is not None:  # even if the disk is full
            _show_grade(result)
    if not result["passed"]:
        raise typer.Exit(1)


def _grade_class(hand_ins: list[HandedIn], examiner: Examiner, table: Path) -> None:
    from multigrid_rl.competition.gradebook import FEEDBACK, grade_class

    screen, began, rules = console(120), time.perf_counter(), examiner.rubric
    screen.print(f"{len(hand_ins)} hand-ins, {rules.points:g} points each, {rules.pass_points:g} are needed")

    def show(name: str, result: dict[str, Any], now: bool) -> None:
        verdict = result["problem"] or ("passed" if result["passed"] else "not passed")
        took = f" ({result['seconds']:.1f} s)" if now else " (graded before)"
        screen.print(f"  {name}: {result['points']:g} points, {verdict}{took}")

    results = grade_class(table, hand_ins, examiner, show)
    screen.print(f"wrote {table}, {table.with_suffix('') / FEEDBACK}")
    passed, refused = (sum(bool(result[key]) for result in results) for key in ("passed", "problem"))
    last = {"graded": len(results), "passed": passed, "refused": refused}
    typer.echo(json.dumps({**last, "seconds": round(time.perf_counter() - began, 3)}))


def _show_grade(result: dict[str, Any]) -> None:
    from multigrid_rl.competition.gradebook import LEFT_OUT, check_cells

    table = Table("exam", "check", box=None, pad_edge=False)
    for title in ("measured", "95 %", "points"):
        table.add_column(title, justify="right")
    for exam in result["exams"]:
        for k, check in enumerate(exam["checks"]):
            against = f" ({exam['opponent']})" if exam["opponent"] else ""
            table.add_row(f"{exam['name']}{against}" if k == 0 else "", *check_cells(check))
    screen = console(120)
    screen.print(table)
    if result["problem"]:
        screen.print(f"cannot be played: {result['problem']}")
    elif result["measurable"] < result["of"]:
        screen.print(f"{LEFT_OUT} {result['measurable']:g} points of the other checks count as {result['of']:g}")
    if result.get("close"):
        low, high = result["points_interval"]
        screen.print(f"too close to call: other games might give {low:g} to {high:g} points")
    verdict = "PASSED" if result["passed"] else "NOT PASSED"
    screen.print(f"{verdict}: {result['points']:g} of {result['of']:g} points, {result['pass_points']:g} are needed")
    typer.echo(json_text(result))
