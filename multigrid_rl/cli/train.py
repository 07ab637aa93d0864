"""The ``train`` verb."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from multigrid_rl.cli.app import refused


def train(
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides: scenario=1v1 seed=3 train.lr=3e-4")] = None,
    until: Annotated[
        float | None, typer.Option(help="Environment steps; the run ends with the batch that reaches them.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Run folder to resume, from its newest whole checkpoint; from step 0 if it has none."),
    ] = None,
    require_gates: Annotated[
        bool, typer.Option("--require-gates", help="Leave with status 1 unless all gates were held.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="tracking=web: a page of this machine that follows the run.")
    ] = False,
) -> None:
    """Train the learning seats of a scenario and judge them by its gates."""
    from multigrid_rl.training.start import resume_training, run_training

    given = list(overrides or [])
    if web:
        typed = [word for word in given if word.startswith("tracking=")]
        given.append(f"{typed[-1]},web" if typed else "tracking=web")
    if until is not None:
        if not math.isfinite(until) or until != int(until):
            raise refused("--until", "a whole number of environment steps", until)
        given.append(f"train.until={int(until)}")
    verdict = run_training(given) if resume is None else resume_training(resume, given)
    if verdict["ended"] == "interrupted":
        raise typer.Exit(130)  # what a shell calls "ended by Ctrl-C"
    if require_gates and not verdict["held"]:
        raise typer.Exit(1)
