"""The ``search`` verb: preflight, one line a trial, the table and what it found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from multigrid_rl.cli.app import app, fail, one_line_errors
from multigrid_rl.cli.live import console
from multigrid_rl.config import ConfigError, RunConfig, compose
from multigrid_rl.types import RunError

if TYPE_CHECKING:
    from multigrid_rl.search.folder import SearchFolder
    from multigrid_rl.search.plans import Outcome
    from multigrid_rl.search.results import Found

#: Rows of the printed table; trials.csv has all.
ROWS = 15
#: Columns of the table where there is no terminal.
WIDTH = 160


@app.command()
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
    given = list(overrides or [])
    if resume is not None and (given or folder is not None):
        raise fail(f"--resume {resume}: goes on as it began; allowed are no overrides and no --folder beside it")
    with one_line_errors():
        place = reopened(resume) if resume is not None else created(given, folder)
        try:
            found, interrupted = run_search(place, address)
        except RunError as error:
            typer.echo(f"multigrid-rl: {error}", err=True)
            typer.echo(f"multigrid-rl: trials that have ended stay; go on: search --resume {place.path}", err=True)
            raise typer.Exit(3) from error
    if interrupted:
        raise typer.Exit(130)
    if found.winner is None:
        first = found.failed[0]
        typer.echo(f"multigrid-rl: all {len(found.failed)} trials failed; {first.spec.id}: {first.reason}", err=True)
        raise typer.Exit(1)
    if require_gates and not found.winner.confirmed:
        raise typer.Exit(1)


def created(given: list[str], path: Path | None) -> SearchFolder:
    """The folder of a new search.

    Raises:
        ConfigError, PlayerError: a mistake in what was asked for, before anything starts.
    """
    from multigrid_rl.search.folder import Asked, SearchFolder  # noqa: PLC0415
    from multigrid_rl.search.running import plan_of  # noqa: PLC0415
    from multigrid_rl.search.settings import load_settings  # noqa: PLC0415
    from multigrid_rl.search.space import load_space, space_of  # noqa: PLC0415

    name, changes, seed, base = sorted_out(given)
    settings = load_settings(name, changes)
    space_name, content = load_space(settings.space)
    space = space_of(space_name, content, base)
    plan_of(settings, space, seed)
    # One configuration out of the middle: what every trial would fail by is told before any of them starts.
    check_game(compose(space.overrides({variable.key: 0.5 for variable in space.variables})))
    scenario = space.config.scenario.name
    path = path or Path("runs") / "search" / f"{scenario}-{name}-{datetime.now():%Y%m%d-%H%M%S}"
    return SearchFolder.create(path, Asked(name, seed, settings, space, content))


def reopened(path: Path) -> SearchFolder:
    """The folder of an interrupted search.

    Raises:
        ConfigError: no folder of a search.
    """
    from multigrid_rl.search.folder import SearchFolder  # noqa: PLC0415

    return SearchFolder.reopen(path)


def sorted_out(given: list[str]) -> tuple[str, dict[str, str], int, list[str]]:
    """Name of the search, changes of its values, its seed, and the overrides that all trials share.

    Raises:
        ConfigError: what a search sets itself, or no override at all.
    """
    from multigrid_rl.search.space import OWN_KEYS  # noqa: PLC0415

    name, seed, changes, base = "three-stage", 0, {}, []
    for override in given:
        key, sign, value = override.partition("=")
        if not sign:
            raise ConfigError(f"{override}: not an override; allowed is key=value, for example search=asha")
        if key == "search":
            name = value
        elif key.startswith("search."):
            changes[key.removeprefix("search.")] = value
        elif key == "seed":
            if not value.isdecimal() or int(value) >= 2**31 - 1000:
                raise ConfigError(f"seed={value}: allowed is a whole number from 0, below 2**31 - 1000")
            seed = int(value)
        elif key in OWN_KEYS or key == "address" or key.partition(".")[0] == "cluster":
            instead = "; a cluster is named by --address" if key in ("address", "cluster", "cluster.address") else ""
            raise ConfigError(f"{override}: a search sets it itself; allowed are overrides without {key}{instead}")
        else:
            base.append(override)
    if not any(override.startswith("experiment=") for override in base):
        # A recipe is what a search is to find, not where it starts from.
        base.append("experiment=none")
    return name, changes, seed, base


def check_game(config: RunConfig) -> None:
    """Load the players, build a game and look at the gates once, before a dozen trials do.

    Raises:
        ConfigError, PlayerError: a mistake, or a scenario without gates.
    """
    from multigrid_rl.players.factories import env_factory  # noqa: PLC0415
    from multigrid_rl.players.goals import gates_of  # noqa: PLC0415

    factory = env_factory(config)
    try:
        factory.load()
        factory.build(1, 0)
        gates = gates_of(config, factory.specs)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not gates:
        raise ConfigError(f"scenario={config.scenario.name}: it has no gates to search for; allowed is one with gates")


def run_search(folder: SearchFolder, address: str | None) -> tuple[Found, bool]:
    """Search, print, write; returns what was found, and whether it was interrupted.

    Args:
        folder: of the search.
        address: of a Ray cluster; ``None``: this machine.

    Raises:
        ConfigError: the folder is in use, or damaged, or the cluster cannot search in it.
        RunError: the folder cannot be written, or Ray failed; what has ended is recorded.
    """
    from multigrid_rl.rllib.errors import RayError, StorageError, reason_of  # noqa: PLC0415

    try:
        return _searched(folder, address)
    except RayError as error:  # before OSError: a timeout of Ray's is one, too
        raise RunError(f"Ray: {reason_of(error)}") from error
    except OSError as error:
        raise StorageError(f"{error.filename or folder.path}: {error.strerror or error}") from error


def _searched(folder: SearchFolder, address: str | None) -> tuple[Found, bool]:
    from multigrid_rl.cli.training import interruption  # noqa: PLC0415
    from multigrid_rl.rllib.session import ray_session  # noqa: PLC0415
    from multigrid_rl.search.plots import write_plots  # noqa: PLC0415
    from multigrid_rl.search.report import REPORT, as_markdown  # noqa: PLC0415
    from multigrid_rl.search.running import search as run  # noqa: PLC0415

    screen = console()
    with ExitStack() as stack:
        # Ray before the signals: it takes one of them.
        told = stack.enter_context(on_cluster(folder, address)) if address else []
        stack.enter_context(ray_session())
        for line in [*preflight(folder, address), *told]:
            screen.print(line, markup=False)
        interrupted = stack.enter_context(interruption(screen))
        found = run(folder, lambda outcome: screen.print(outcome_line(folder, outcome), markup=False), interrupted)
        stopped = interrupted() and not found.complete
    pictures = write_plots(folder, found)
    folder.write_text(REPORT, as_markdown(folder, found, [path.name for path in pictures]))
    if found.winner is not None:
        screen.print(table(folder, found), width=None if screen.is_terminal else WIDTH)
    for line in closing(folder, found, pictures):
        screen.print(line, markup=False)
    return found, stopped


@contextmanager
def on_cluster(folder: SearchFolder, address: str) -> Iterator[list[str]]:
    """Connect to a cluster all of whose nodes can run trials of a search; lines to print.

    Raises:
        ConfigError: it does not answer, or a node cannot take part.
    """
    from multigrid_rl.rllib.cluster import Writers, look_over  # noqa: PLC0415
    from multigrid_rl.rllib.session import ray_session  # noqa: PLC0415
    from multigrid_rl.rllib.stages import stages_of  # noqa: PLC0415

    config = folder.asked.space.config
    cluster = config.cluster.model_copy(update={"address": address})
    with ray_session(config.model_copy(update={"cluster": cluster})):
        yield look_over(folder.path, stages_of(config), Writers(trials=True))


def preflight(folder: SearchFolder, address: str | None) -> list[str]:
    """What is searched, where, and what there is already."""
    from multigrid_rl.config import available_cpus  # noqa: PLC0415

    asked = folder.asked
    known = len(folder.outcomes())
    at_a_time = asked.settings.max_concurrent or ("as many as the cluster has CPUs" if address else available_cpus())
    names = ", ".join(variable.name for variable in asked.space.variables)
    lines = [
        f"multigrid-rl search {asked.name} on {asked.space.config.scenario.name}: {' '.join(asked.space.base)}",
        f"space:    {asked.space.name}: {names}",
        f"trials:   {at_a_time} at a time, one core each; seed {asked.seed}",
        f"folder:   {folder.path}",
    ]
    return [*lines, *([f"resumes:  {known} trials have ended already"] if known else [])]


def outcome_line(folder: SearchFolder, outcome: Outcome) -> str:
    """One line when a trial has ended."""
    spec, score = outcome.spec, outcome.score
    if score is None:
        return f"{spec.id:<14} FAILED after {outcome.seconds:.0f} s: {outcome.reason}"
    if score.env_steps_to_held is not None:
        said = f"HELD at {score.env_steps_to_held:>9,} steps"
    else:
        said = f"not held, margin {score.margin:>9.3f}"
    stopped = " (stopped)" if outcome.status == "stopped" else ""
    played = f"{outcome.env_steps:>9,} steps, {outcome.seconds:>4.0f} s{stopped}"
    return f"{spec.id:<14} {said} | {played} | {values_in_words(folder, outcome)}"


def values_in_words(folder: SearchFolder, outcome: Outcome) -> str:
    """A trial's values, rounded for reading; trials.csv has them in full."""
    values = folder.asked.space.values(outcome.spec.point)
    shown = {v.name: values[v.key] for v in folder.asked.space.variables}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()
    )


def table(folder: SearchFolder, found: Found) -> Table:
    """The best trials, best first."""
    from multigrid_rl.search.plans import ranked  # noqa: PLC0415

    order = ranked(found.outcomes)
    title = f"best {min(ROWS, len(order))} of {len(found.outcomes)} trials"
    result = Table(title=title, title_justify="left")
    for name in ("trial", "seed", "held at", "margin", "steps"):
        result.add_column(name, justify="left" if name == "trial" else "right", no_wrap=True)
    result.add_column("values", overflow="fold")
    winners = found.winner.trials if found.winner else ()
    for outcome in order[:ROWS]:
        score = outcome.score
        at = f"{score.env_steps_to_held:,}" if score and score.env_steps_to_held is not None else "-"
        result.add_row(
            escape(outcome.spec.id),
            str(outcome.spec.seed),
            at,
            f"{score.margin:.3f}" if score else "-",
            f"{outcome.env_steps:,}",
            escape(values_in_words(folder, outcome)),
            style="bold green" if outcome.spec.id in winners else None,
        )
    return result


def closing(folder: SearchFolder, found: Found, pictures: list[Path]) -> list[str]:
    """What was found, and where it stands."""
    from multigrid_rl.search.report import REPORT  # noqa: PLC0415
    from multigrid_rl.search.results import RESULTS, TRIALS, WINNER, verdict_of, winning_command  # noqa: PLC0415

    lines = [f"failed:   {o.spec.id}: {o.reason}" for o in found.failed]
    if not found.complete:
        lines.append(f"interrupted: go on with multigrid-rl search --resume {folder.path}")
    lines.append(f"searched: {len(found.outcomes)} trials in {found.seconds:,.0f} s")
    if found.winner is not None:
        lines += [
            f"winner:   {', '.join(found.winner.trials)}. {verdict_of(folder, found.winner)}",
            f"train it: {winning_command(folder, found.winner)}",
        ]
    shares = [f"{key.rpartition('.')[2]} {share:.0%}" for key, share in found.importance.shares.items()]
    lines.append(f"matters:  {', '.join(shares[:6]) + '; ' if shares else ''}{found.importance.note}")
    files = [REPORT, RESULTS, TRIALS, *([WINNER] if found.winner else []), *(path.name for path in pictures)]
    return [*lines, f"written:  {folder.path}: {', '.join(files)}"]
