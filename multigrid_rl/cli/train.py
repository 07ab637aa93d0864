"""The ``train`` verb."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from multigrid_rl.cli.app import LOST, refused
from multigrid_rl.cli.start import resume_training, run_training


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
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Of seeds=0..9: runs side by side; as many as there are cores by default.")
    ] = None,
) -> None:
    """Train the learning seats of a scenario and judge them by its gates."""
    given = list(overrides or [])
    many = [word.partition("=")[2] for word in given if word.startswith("seeds=")]
    given = [word for word in given if not word.startswith("seeds=")]
    if web:
        typed = [word for word in given if word.startswith("tracking=") and word != "tracking=null"]
        given.append(f"{typed[-1]},web" if typed else "tracking=web")
    if until is not None:
        if not math.isfinite(until) or until != int(until):
            raise refused("--until", "a whole number of environment steps", until)
        given.append(f"train.until={int(until)}")
    if many or (resume is not None and (resume / "seeds.json").exists()):
        _train_many(many, given, resume, web=web, require_gates=require_gates, jobs=jobs)
        return
    if jobs is not None:
        raise refused("--jobs", "seeds=0..9 beside it", f"--jobs {jobs} alone")
    verdict = run_training(given) if resume is None else resume_training(resume, given)
    if verdict["ended"] == "interrupted":
        raise typer.Exit(130)  # what a shell calls "ended by Ctrl-C"
    if require_gates and not verdict["held"]:
        raise typer.Exit(1)


def _train_many(
    many: list[str], given: list[str], folder: Path | None, *, web: bool, require_gates: bool, jobs: int | None
) -> None:
    """Train several seeds, those of a folder that goes on without ``seeds=``."""
    from multigrid_rl.cli.seeds import read_request, run_seeds, seeds_of

    if web:
        raise refused("--web", "one seed, which a page follows", f"seeds={many[-1] if many else ''}")
    if typed := [word for word in given if word.startswith("seed=")]:
        raise refused("seed", "nothing beside seeds=0..9", typed[-1])
    seeds = seeds_of(many[-1]) if many else []
    if folder is not None:
        if given:
            raise refused("--resume", "nothing but seeds=0..9 with a folder of seeds", given[0])
        overrides, known = read_request(folder)
        given, seeds = [*overrides, f"run_dir={folder}"], seeds or known
    states = run_seeds(given, seeds, jobs).values()
    if any(state.state == "failed" for state in states):
        raise typer.Exit(LOST)
    if not all(state.done for state in states):
        raise typer.Exit(130)
    if require_gates and any(state.state != "held" for state in states):
        raise typer.Exit(1)
