"""The ``grade`` verb: what is printed of a grade."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from multigrid_rl.config import ConfigError
from multigrid_rl.judge.grading import grade, read_rubric, refused
from multigrid_rl.players.cards import PlayerError


def run_grading(bundle: Path, rubric_file: Path, seed: int | None, output: Path | None) -> bool:
    """Grade a bundle, print why, and return whether it passed.

    Raises:
        ConfigError: a rubric that cannot be used, or an output file that exists.
    """
    if output is not None and output.exists():
        raise ConfigError(f"--output {output}: exists already; allowed is a new file")
    rubric = read_rubric(rubric_file)
    if seed is not None:
        rubric = rubric.model_copy(update={"seed": seed})
    try:
        result = grade(bundle, rubric_file, rubric)
    except PlayerError as error:
        result = refused(bundle, rubric, str(error))
    file = not sys.stdout.isatty()
    console = Console(highlight=False, markup=False, soft_wrap=file, width=120 if file else None)
    console.print(_table(result))
    if result["problem"]:
        console.print(f"cannot be played: {result['problem']}")
    verdict = "PASSED" if result["passed"] else "NOT PASSED"
    console.print(f"{verdict}: {result['points']:g} of {result['of']:g} points, {result['pass_points']:g} are needed")
    if output is not None:
        output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    typer.echo(json.dumps(result))
    return bool(result["passed"])


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
