"""The ``multigrid-rl`` command: parse, load, call. Heavy rooms are imported by the verb that needs them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from typer.models import CommandInfo

from multigrid_rl.cli import bundles, doctor, judging, reports, searching, shows
from multigrid_rl.cli.app import app, fail, one_line_errors, one_thread

#: Verbs of other modules: importing them puts them on the application.
VERBS = (bundles, doctor, judging, reports, searching, shows)
#: The order of the help: what one does first comes first.
ORDER = (
    *("train", "search", "explain", "overlay", "evaluate", "report", "video", "play", "compare"),
    *("export", "inspect", "grade", "cup", "players", "freeze", "rate", "reference", "verify-trace", "doctor"),
)


@app.command()
def train(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Hydra overrides: scenario=1v1 seed=3 train.lr=3e-4")
    ] = None,
    until: Annotated[float | None, typer.Option(help="Environment steps at which the run ends at the latest.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Run folder to go on with, from its newest whole checkpoint.")
    ] = None,
    require_gates: Annotated[
        bool, typer.Option("--require-gates", help="Leave with status 1 unless all gates were held.")
    ] = False,
) -> None:
    """Train the learning seats of a scenario and judge them by its gates."""
    from multigrid_rl.cli.training import resume_training, run_training  # noqa: PLC0415
    from multigrid_rl.types import RunError  # noqa: PLC0415

    given = list(overrides or [])
    if until is not None:
        if not math.isfinite(until) or until != int(until):
            raise fail(f"--until {until}: allowed is a whole number of environment steps")
        given.append(f"train.until={int(until)}")
    with one_line_errors():
        try:
            verdict = run_training(given) if resume is None else resume_training(resume, given)
        except RunError as error:
            typer.echo(f"multigrid-rl: {error}", err=True)
            if error.hint:
                typer.echo(f"multigrid-rl: {error.hint}", err=True)
            raise typer.Exit(3) from error
    if verdict["ended"] == "interrupted":
        raise typer.Exit(130)  # what a shell calls "ended by Ctrl-C"
    if require_gates and not verdict["held"]:
        raise typer.Exit(1)


@app.command()
def explain(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Hydra overrides, as for train: scenario=coop train.epochs=8")
    ] = None,
) -> None:
    """Say what the sizes of a run are and mean, without starting it."""
    from multigrid_rl.cli.explain import explain as explain_run  # noqa: PLC0415

    with one_line_errors():
        explain_run(list(overrides or []))


@app.command()
def players(
    measure: Annotated[
        int, typer.Option(help="Play so many games against random now instead of quoting the catalogue.")
    ] = 0,
    scenario: Annotated[str, typer.Option(help="Scenario of the games played now.")] = "1v1",
    checkpoints: Annotated[Path | None, typer.Option(help="Folder of frozen players.")] = None,
) -> None:
    """List the players with their measured strength."""
    from multigrid_rl.cli.listing import list_players  # noqa: PLC0415

    if measure < 0:
        raise fail(f"--measure {measure}: allowed is 0 or more games")
    if measure:
        one_thread()
    with one_line_errors():
        list_players(checkpoints, measure, scenario)


@app.command()
def rate(
    scenario: Annotated[str, typer.Argument(help="Scenario whose frozen players meet.")],
    episodes: Annotated[int, typer.Option(min=100, help="Games for each pair, half from each side.")] = 1000,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder of frozen players.")] = None,
) -> None:
    """Measure every frozen player of a scenario against random, scripted and frozen players; rewrites their cards."""
    from multigrid_rl.cli.listing import rate_players  # noqa: PLC0415

    one_thread()
    with one_line_errors():
        rate_players(checkpoints, episodes, scenario)


@app.command()
def freeze(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    seat: Annotated[str, typer.Option(help="Seat to freeze, for example blue_0; a team if one network plays it.")],
    name: Annotated[str, typer.Option(help="Name in the catalogue, for example blue-rookie.")],
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of the run; the latest by default.")] = None,
    episodes: Annotated[int, typer.Option(min=100, help="Games that measure its strength.")] = 1000,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder of frozen players.")] = None,
) -> None:
    """Turn a trained seat into a frozen player: model, card and catalogue entry. Never overwrites."""
    from multigrid_rl.config import data_root  # noqa: PLC0415
    from multigrid_rl.players.catalogue import Catalogue  # noqa: PLC0415
    from multigrid_rl.players.freeze import freeze as freeze_player  # noqa: PLC0415
    from multigrid_rl.runs.players import run_player  # noqa: PLC0415

    one_thread()
    with one_line_errors():
        catalogue = Catalogue(checkpoints or data_root() / "checkpoints")
        card = freeze_player(run_player(run, seat, checkpoint), name, catalogue, episodes)
    typer.echo(f"froze {catalogue.root / name}: {card.bytes} bytes, sha256 {card.sha256}")
    if card.env is not None:
        typer.echo(f"plays {card.env.env_id}; how well: multigrid-rl evaluate {name}")
        return
    won, base = card.strength[0], card.baseline[0]
    typer.echo(
        f"{won.episodes} games against {won.opponent}: win {won.win:.1%}, draw {won.draw:.1%}, loss {won.loss:.1%} "
        f"(random itself: win {base.win:.1%}, draw {base.draw:.1%}, loss {base.loss:.1%})"
    )


@app.command()
def overlay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    reference: Annotated[
        str | None, typer.Option(help="Recipe with reference curves, or their file; the run's own recipe by default.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("overlay.png"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the PNG if it exists.")] = False,
) -> None:
    """Draw a run over its recipe's reference curves and say how they compare."""
    from multigrid_rl.cli.curves import overlay as draw  # noqa: PLC0415

    with one_line_errors():
        draw(run, reference, output, force=force)


@app.command()
def reference(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs that differ only in the seed.")],
    name: Annotated[str, typer.Option(help="Recipe whose curves these are.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the JSON if it exists.")] = False,
) -> None:
    """Make reference curves out of finished runs of one recipe with different seeds."""
    from multigrid_rl.cli.curves import make_reference  # noqa: PLC0415

    with one_line_errors():
        make_reference(runs, name, output, force=force)


@app.command("verify-trace")
def verify_trace(files: Annotated[list[Path], typer.Argument(help="Recorded episodes, .npz")]) -> None:
    """Replay recorded episodes and compare every array that the rules determine."""
    from multigrid_rl.world.traces import TraceError  # noqa: PLC0415
    from multigrid_rl.world.traces import verify_trace as verify  # noqa: PLC0415

    bad = False
    for file in files:
        try:
            report = verify(file)
        except TraceError as error:
            bad = True
            typer.echo(f"{file}: {error}")
            continue
        outcome = "identical" if report.divergence is None else f"{report.divergence}"
        bad |= report.divergence is not None
        typer.echo(
            f"{file}: {outcome} ({report.config}, {report.episodes} episodes, {report.steps} steps)"
            if report.divergence is None
            else f"{file}: {outcome}"
        )
    if bad:
        raise typer.Exit(1)


def _place(command: CommandInfo) -> int:
    name = command.name or getattr(command.callback, "__name__", "")
    return ORDER.index(name) if name in ORDER else len(ORDER)


app.registered_commands.sort(key=_place)

if __name__ == "__main__":
    app()
