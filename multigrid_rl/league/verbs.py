"""The ``exploit`` verb: train best responses to a player, and measure how often they beat it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, one_thread, refused

if TYPE_CHECKING:
    from multigrid_rl.league.exploit import Exploitability

#: Files of the folder: the request, and the results.
REQUEST, RESULT, GAMES = "request.json", "exploit.json", "games.json"


def exploit(
    player: Annotated[str, typer.Argument(help="A player of `multigrid-rl players`, or its folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides of the best responses: scenario=1v1 experiment=1v1-vs-master"),
    ] = None,
    budget: Annotated[float, typer.Option(min=1, help="Environment steps of each best response.")] = 1e6,
    seeds: Annotated[int, typer.Option(min=1, help="Best responses from each side of the board.")] = 3,
    games: Annotated[int, typer.Option(min=100, help="Fresh games that measure what was reached.")] = 2000,
    folder: Annotated[
        Path | None, typer.Option(help="Folder, new or to go on with; runs/exploit/<player>-<scenario> by default.")
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="Write the result on the player's card, too.")] = False,
) -> None:
    """Train best responses to a player from both sides: a lower bound of how often it can be beaten."""
    from multigrid_rl.config.compose import compose
    from multigrid_rl.league.exploit import curve_of, exploitability
    from multigrid_rl.players.cards import read_card, write_card
    from multigrid_rl.players.catalogue import BUILT_IN, Catalogue

    if budget != int(budget):
        raise refused("--budget", "a whole number of environment steps", budget)
    if card and player in BUILT_IN:
        raise refused("--card", "a player with a card", player)
    base = list(overrides or ())
    spec = (config := compose(base)).scenario.spec
    if spec.blue != spec.red:
        raise refused("scenario", "one with two teams of the same size", config.scenario.name)
    catalogue = Catalogue(config.checkpoint_root())
    loaded = catalogue.seat(player, spec, "blue_0")  # refused in a second, not after a minute
    # Folders of players are called alike: every snapshot of a run has a red_0.
    own = f"-{loaded.sha256[:8]}" if loaded.sha256 and player not in catalogue.entries else ""
    target = folder or Path("runs") / "exploit" / f"{Path(player).name}{own}-{config.scenario.name}"
    _prepare_folder(target, {"player": player, "overrides": base, "budget": int(budget), "seeds": seeds})
    runs = []
    for seed in range(seeds):
        for team in ("red", "blue"):
            seats = [
                f"scenario.seats.{seat}={'learn' if spec.team_of(seat) == team else player}" for seat in spec.seats
            ]
            run = [*base, *seats, "scenario.gates=[]", "train.stop_when_held=false", f"train.until={int(budget)}"]
            runs.append((trained(target / f"{team}-seed{seed}", [*run, f"seed={seed}"]), team, seed))
    one_thread()
    result = exploitability([curve_of(*run, games) for run in runs], config.scenario.name, int(budget), games)
    _write(target, player, result)
    if card:
        source = catalogue.folder(player)
        write_card(source, read_card(source).model_copy(update={"best_response": result.best}))
    _show(target, player, result)


def _prepare_folder(target: Path, request: dict[str, Any]) -> None:
    """Make the folder, or check that an existing one has the same request."""
    from multigrid_rl.files import write_whole

    file, text = target / REQUEST, json.dumps(request) + "\n"
    if not target.exists():
        target.mkdir(parents=True)
        write_whole(file, text.encode())
    elif not file.is_file() or file.read_text(encoding="utf-8") != text:
        old = file.read_text(encoding="utf-8").strip() if file.is_file() else "another one"
        raise refused(
            "--folder", f"a new folder, or one where the same was asked for ({text.strip()})", f"{target}: {old}"
        )


def trained(run: Path, overrides: list[str]) -> Path:
    """Train a best response, or resume it; returns its folder.

    Raises:
        Exit: it was interrupted.
        ConfigError, PlayerError, RunError: as ``train``.
    """
    from multigrid_rl.runs.reader import read_verdict
    from multigrid_rl.training.start import resume_training, run_training

    if (run / "verdict.json").exists() and (verdict := read_verdict(run))["ended"] != "interrupted":
        return run
    if (run / "checkpoints" / "latest").exists():
        verdict = resume_training(run, [])
    else:
        shutil.rmtree(run, ignore_errors=True)  # killed before its first checkpoint
        verdict = run_training([*overrides, f"run_dir={run}"])
    if verdict["ended"] == "interrupted":
        typer.echo("multigrid-rl: interrupted; the same command goes on", err=True)
        raise typer.Exit(130)
    return run


def _write(target: Path, player: str, measured: Exploitability) -> None:
    from multigrid_rl.files import write_whole
    from multigrid_rl.tables import PAGES, load

    curves = [{**curve.model_dump(), "half_steps": curve.half_steps} for curve in measured.curves]
    result = {"format": 1, "player": player, "best_response": measured.best.model_dump(), "curves": curves}
    for name, content in ((RESULT, result), (GAMES, [game.model_dump() for game in measured.games])):
        write_whole(target / name, (json.dumps(content, indent=2) + "\n").encode())
    load(PAGES["exploit"])(target)


def _show(target: Path, player: str, result: Exploitability) -> None:
    table = Table("best response", box=None, pad_edge=False)
    for title in ("won", "with the likeliest actions", "half won after"):
        table.add_column(title, justify="right")
    for curve in result.curves:
        half = "never" if curve.half_steps is None else f"{curve.half_steps:,} steps"
        table.add_row(f"{curve.team}, seed {curve.seed}", *(f"{win:.1%}" for win in curve.wins.values()), half)
    screen = console(120)
    screen.print(table)
    best = result.best
    share = f"{best.win:.1%} ({best.low:.1%} to {best.high:.1%}, {best.episodes} games)"
    by = f"the best of {best.runs} that trained {best.env_steps:,} steps"
    screen.print(f"{player}: beaten in {share} by {by}")
    screen.print("A lower bound: another recipe, or more steps, may find more.")
    screen.print(f"wrote {target}: {', '.join(sorted(file.name for file in target.iterdir() if file.is_file()))}")
