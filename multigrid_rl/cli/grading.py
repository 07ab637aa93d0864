"""The ``grade`` verb: what is printed of a grade."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from multigrid_rl.cli.outputs import written_beside
from multigrid_rl.judge.grading import Rubric, grade, read_rubric, refused
from multigrid_rl.players.cards import PlayerError


def run_grading(bundle: Path, rubric_file: Path, seed: int | None, output: Path | None) -> bool:
    """Grade a bundle, print why, and return whether it passed.

    Raises:
        ConfigError: a rubric that cannot be used, or an output file that exists or cannot be written.
        OSError: the disk is full. What was found has been printed.
    """
    rubric = read_rubric(rubric_file)
    if seed is not None:
        rubric = rubric.model_copy(update={"seed": seed})
    result = None
    try:
        with written_beside(output) if output is not None else nullcontext() as file:
            result = _graded(bundle, rubric_file, rubric)
            if file is not None:
                file.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    finally:
        if result is not None:
            _show(result)
    return bool(result["passed"])


def _graded(bundle: Path, rubric_file: Path, rubric: Rubric) -> dict[str, Any]:
    try:
        return grade(bundle, rubric_file, rubric)
    except PlayerError as error:
        return refused(bundle, rubric, str(error))


def _show(result: dict[str, Any]) -> None:
    file = not sys.stdout.isatty()
    console = Console(highlight=False, markup=False, soft_wrap=file, width=120 if file else None)
    console.print(_table(result))
    if result["problem"]:
        console.print(f"cannot be played: {result['problem']}")
    verdict = "PASSED" if result["passed"] else "NOT PASSED"
    console.print(f"{verdict}: {result['points']:g} of {result['of']:g} points, {result['pass_points']:g} are needed")
    typer.echo(json.dumps(result, allow_nan=False))


def _table(result: dict[str, Any]) -> Table:
    table = Table("exam", "check", box=None, pad_edge=False)
    for title in ("measured", "95 %", "points"):
        table.add_column(title, justify="right")
    for exam in result["exams"]:
        for k, check in enumerate(exam["checks"]):
            interval = "-" if check["interval"] is None else "{:.3f} to {:.3f}".format(*check["interval"])
            told = f"{check['points']:g} of {check['of']:g}"
            name = f"{exam['name']} ({exam['opponent']})" if k == 0 else ""
            table.add_row(name, check["check"], f"{check['value']:.3f}", interval, told)
    return table
