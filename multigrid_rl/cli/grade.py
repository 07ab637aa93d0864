"""The ``grade`` verb."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, one_thread, written_beside


def grade(
    bundle: Annotated[Path, typer.Argument(help="Folder with a bundle (see `export`).")],
    rubric: Annotated[Path, typer.Option(help="What it is graded by, for example configs/grade/1v1.yaml.")],
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of the games, instead of the rubric's own.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON to write, too.")] = None,
) -> None:
    """Grade a bundle by play: status 0 passed, 1 not passed, others: not graded (docs/judging.md). Ends with JSON."""
    from multigrid_rl.judge import grading
    from multigrid_rl.players.cards import PlayerError

    one_thread()
    rules = grading.read_rubric(rubric)
    if seed is not None:
        rules = rules.model_copy(update={"seed": seed})
    result = None
    try:
        with written_beside(output) if output is not None else nullcontext() as file:
            try:
                result = grading.grade(bundle, rubric, rules)
            except PlayerError as error:
                result = grading.refused(bundle, rules, str(error))
            if file is not None:
                file.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    finally:
        if result is not None:  # even if the disk is full
            _show(result)
    if not result["passed"]:
        raise typer.Exit(1)


def _show(result: dict[str, Any]) -> None:
    table = Table("exam", "check", box=None, pad_edge=False)
    for title in ("measured", "95 %", "points"):
        table.add_column(title, justify="right")
    for exam in result["exams"]:
        for k, check in enumerate(exam["checks"]):
            interval = "-" if check["interval"] is None else "{:.3f} to {:.3f}".format(*check["interval"])
            told = f"{check['points']:g} of {check['of']:g}"
            name = f"{exam['name']} ({exam['opponent']})" if k == 0 else ""
            table.add_row(name, check["check"], f"{check['value']:.3f}", interval, told)
    screen = console(120)
    screen.print(table)
    if result["problem"]:
        screen.print(f"cannot be played: {result['problem']}")
    verdict = "PASSED" if result["passed"] else "NOT PASSED"
    screen.print(f"{verdict}: {result['points']:g} of {result['of']:g} points, {result['pass_points']:g} are needed")
    typer.echo(json.dumps(result, allow_nan=False))
