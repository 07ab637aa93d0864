"""Verbs that judge players by play: ``evaluate``, ``cup``, ``grade``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from multigrid_rl.cli.app import app, one_line_errors, one_thread
from multigrid_rl.cli.leaving import ended_by_signals


@app.command()
def evaluate(
    who: Annotated[str, typer.Argument(help="A player of `multigrid-rl players`, its folder, or a run folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Hydra overrides: scenario=1v1 scenario.seats.blue_0=blue-master. By default a run's own."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Games in each mode.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Decides the games: the same seed, the same table.")] = 10_000,
    opponent: Annotated[str | None, typer.Option(help="Player on every seat of the other team.")] = None,
    sides: Annotated[
        Literal["own", "other", "red", "blue", "both"] | None,
        typer.Option(help="Whom it plays for; a player by default both, a run the side it learned."),
    ] = None,
    mode: Annotated[
        Literal["stochastic", "argmax", "both"],
        typer.Option(help="Draw actions as in training, take the likeliest, or both one after the other."),
    ] = "both",
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of a run; the latest by default.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write; runs/evaluations/... by default.")
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write episodes.parquet, too.")] = False,
) -> None:
    """Play fresh games and say how it did, with intervals; the last line is JSON."""
    from multigrid_rl.cli.evaluating import Request, run_evaluation  # noqa: PLC0415

    one_thread()
    request = Request(who, tuple(overrides or ()), episodes, seed, opponent, sides, mode, checkpoint, output, parquet)
    with one_line_errors():
        run_evaluation(request)


@app.command()
def cup(
    folder: Annotated[Path, typer.Argument(help="Folder with one folder for each entry: a bundle or an agent.")],
    scenario: Annotated[str, typer.Option(help="What is played: a scenario with two teams.")] = "1v1",
    games: Annotated[int, typer.Option(min=1, help="Games for each pair and side.")] = 200,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the games, instead of one that nobody can guess; keep it to yourself.")
    ] = None,
    also: Annotated[
        list[str] | None, typer.Option("--with", help="A player of `multigrid-rl players` who takes part; repeat it.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the cup, new or to go on with; runs/cups/... by default."),
    ] = None,
    start_s: Annotated[float, typer.Option(min=0.1, help="Seconds in which an external agent must be ready.")] = 20.0,
    step_s: Annotated[float, typer.Option(min=0.01, help="Seconds for an answer, all games of a step together.")] = 5.0,
    total_s: Annotated[float, typer.Option(min=0.1, help="Seconds for all answers of a pairing.")] = 120.0,
    memory_mb: Annotated[int, typer.Option(min=16, help="Memory of an external agent.")] = 2048,
) -> None:
    """Everybody against everybody from both sides; goes on where it was interrupted; the last line is JSON."""
    from multigrid_rl.cli.cups import Request, run_cup  # noqa: PLC0415
    from multigrid_rl.players.sandbox import Limits  # noqa: PLC0415
    from multigrid_rl.types import RunError  # noqa: PLC0415

    one_thread()
    limits = Limits(start_s, step_s, total_s, memory_mb)
    with one_line_errors(), ended_by_signals("the same command goes on with the cup"):
        try:
            run_cup(Request(folder, scenario, tuple(also or ()), games, seed, limits, output))
        except RunError as error:
            typer.echo(f"multigrid-rl: {error}", err=True)
            typer.echo(f"multigrid-rl: {error.hint}", err=True)
            raise typer.Exit(3) from error


@app.command()
def grade(
    bundle: Annotated[Path, typer.Argument(help="Folder with a bundle (see `export`).")],
    rubric: Annotated[Path, typer.Option(help="What it is graded by, for example configs/grade/1v1.yaml.")],
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of the games, instead of the rubric's own.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON to write, too.")] = None,
) -> None:
    """Grade a bundle by play: status 0 passed, 1 not passed, others: not graded (docs/judging.md). Ends with JSON."""
    from multigrid_rl.cli.grading import run_grading  # noqa: PLC0415

    one_thread()
    with one_line_errors():
        passed = run_grading(bundle, rubric, seed, output)
    if not passed:
        raise typer.Exit(1)
