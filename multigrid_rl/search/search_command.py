"""The ``search`` verb: parse, load, search; prints a line for each trial and the winner."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from multigrid_rl.cli.app import fail, refused
from multigrid_rl.cores import available_cpus
from multigrid_rl.files import installing
from multigrid_rl.text import ConfigError, expected, program, reason
from multigrid_rl.training.screen import interruption, live_console
from multigrid_rl.types import RunError

if TYPE_CHECKING:
    from multigrid_rl.search.plans import Outcome
    from multigrid_rl.search.search_folder import SearchFolder
    from multigrid_rl.search.search_results import SearchResult


def search(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="scenario=1v1 search=three-stage, search.KEY=VALUE, and overrides that all trials share"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder to write; runs/search/<scenario>-<search>-<time> by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the interrupted search in this folder.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster whose nodes run trials: auto, or HOST:6379. Else this machine.")
    ] = None,
    require_gates: Annotated[
        bool, typer.Option("--require-gates", help="Leave with status 1 unless the winner held all gates.")
    ] = False,
) -> None:
    """Search for values that hold a scenario's gates: three-stage, asha or pbt."""
    if resume is not None and (overrides or folder is not None):
        raise refused("--resume", "no overrides and no --folder beside it, for it goes on as it began", "some")
    result, interrupted = run_search(opened(overrides or [], folder, resume), address)
    if interrupted:
        raise typer.Exit(130)
    if result.winner is None:
        first = result.failed[0]
        fail(f"all {len(result.failed)} trials failed; {first.spec.id}: {first.reason}")
    if result.winner is None or (require_gates and not result.winner.confirmed):
        raise typer.Exit(1)


def opened(overrides: list[str], path: Path | None, resume: Path | None) -> SearchFolder:
    """Make the folder of a new search, or open that of an interrupted one. Raises ``ConfigError``, ``PlayerError``."""
    if find_spec("optuna") is None:
        raise ConfigError(expected("search", f"the extra search ({installing('search')})", "no optuna"))
    from multigrid_rl.search import search_folder, search_settings

    if resume is not None:
        return search_folder.SearchFolder.reopen(resume)
    request = search_settings.SearchRequest.parse(overrides)
    scenario = request.space.config.scenario.name
    default = Path("runs") / "search" / f"{scenario}-{request.name}-{datetime.now():%Y%m%d-%H%M%S}"
    return search_folder.SearchFolder.create(path or default, request)


def run_search(folder: SearchFolder, address: str | None) -> tuple[SearchResult, bool]:
    """Search and print; returns the result, and whether it was interrupted.

    Raises:
        ConfigError: the folder is in use, or damaged, or the cluster cannot search in it.
        RunError: the folder cannot be written, or Ray failed; finished trials are recorded.
    """
    from multigrid_rl.rllib.session import RayError, ray_session, reason_of
    from multigrid_rl.search.tuning import on_cluster, search

    screen, request, space = live_console(), folder.request, folder.request.space
    try:
        with ExitStack() as stack:
            # Ray before the signals: it takes one of them.
            lines = stack.enter_context(on_cluster(folder, address)) if address else []
            stack.enter_context(ray_session())
            cpus, known = "as many as the cluster has CPUs" if address else available_cpus(), len(folder.outcomes())
            head = [
                f"multigrid-rl search {request.name} on {space.config.scenario.name}: {' '.join(space.base)}",
                f"space:    {space.name}: {', '.join(variable.name for variable in space.variables)}",
                f"trials:   {request.settings.max_concurrent or cpus} at a time, one core each; seed {request.seed}",
                f"folder:   {folder.path}",
                *([f"resumes:  {known} trials have ended already"] if known else []),
            ]
            for line in [*head, *lines]:
                screen.print(line, markup=False)
            interrupted = stack.enter_context(interruption(screen))
            result = search(folder, lambda o: screen.print(outcome_line(folder, o), markup=False), interrupted)
            stopped = interrupted() and not result.complete
    except (RayError, OSError, RunError) as error:
        # RayError before OSError: a timeout of Ray's is one, too.
        message = f"Ray: {reason_of(error)}" if isinstance(error, RayError) else str(error)
        if isinstance(error, OSError) and not isinstance(error, RayError):
            message = reason(error, folder.path)
        failure = RunError(message)
        failure.hint = f"trials that have ended stay; go on: {program()} search --resume {quote(str(folder.path))}"
        raise failure from error
    for line in closing(folder, result):
        screen.print(line, markup=False)
    return result, stopped


def outcome_line(folder: SearchFolder, outcome: Outcome) -> str:
    """Describe the outcome of a trial in one line."""
    spec, score = outcome.spec, outcome.score
    if score is None:
        return f"{spec.id:<14} FAILED after {outcome.seconds:.0f} s: {outcome.reason}"
    verdict = f"HELD at {score.env_steps_to_held:>9,} steps" if score.held else f"not held, margin {score.margin:>9.3f}"
    stopped = " (stopped)" if outcome.status == "stopped" else ""
    played = f"{outcome.env_steps:>9,} steps, {outcome.seconds:>4.0f} s{stopped}"
    space = folder.request.space
    values = zip(space.variables, space.in_short(spec.params or {}), strict=True)
    return f"{spec.id:<14} {verdict} | {played} | {', '.join(f'{variable.name} {text}' for variable, text in values)}"


def closing(folder: SearchFolder, result: SearchResult) -> list[str]:
    """Return the closing lines: the winner, and the files."""
    from multigrid_rl.search.search_results import FILES, verdict_of, winning_command

    lines = [f"failed:   {outcome.spec.id}: {outcome.reason}" for outcome in result.failed]
    if not result.complete:
        lines.append(f"interrupted: go on with {program()} search --resume {quote(str(folder.path))}")
    lines.append(f"searched: {len(result.outcomes)} trials in {result.seconds:,.0f} s")
    if result.winner is not None:
        lines.append(f"winner:   {', '.join(result.winner.trials)}. {verdict_of(folder, result.winner)}")
        lines.append(f"train it: {winning_command(folder, result.winner)}")
    shares = [f"{key.rpartition('.')[2]} {share:.0%}" for key, share in result.importance.shares.items()]
    lines.append(f"matters:  {', '.join(shares[:6]) + '; ' if shares else ''}{result.importance.note}")
    files = ", ".join(name for name in FILES if (folder.path / name).exists())
    return [*lines, f"written:  {folder.path}: {files}"]
