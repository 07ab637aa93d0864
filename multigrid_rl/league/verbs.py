"""The ``exploit`` verb: train best responses to a player, and measure how often they beat it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, one_thread, refused
from multigrid_rl.files import json_text
from multigrid_rl.text import spread

if TYPE_CHECKING:
    from multigrid_rl.league.exact import Exact
    from multigrid_rl.league.exploit import Exploitability, Measure

#: Files of the folder: the request, and the results.
REQUEST, RESULT, GAMES = "request.json", "exploit.json", "games.json"


def exploit(
    player: Annotated[
        str,
        typer.Argument(help="A player of `multigrid-rl players`, its folder, or a run whose players take all seats."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides of the best responses: scenario=1v1 experiment=1v1-vs-master"),
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0, help="Environment steps of each best response; 0: with --exact none are trained.")
    ] = 1e6,
    seeds: Annotated[int, typer.Option(min=1, help="Best responses from each role.")] = 3,
    games: Annotated[int, typer.Option(min=100, help="Fresh games that measure what was reached.")] = 2000,
    folder: Annotated[
        Path | None, typer.Option(help="Folder, new or to go on with; runs/exploit/<player>-<scenario> by default.")
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="Write the result on the player's card, too.")] = False,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="The exact exploitability, too, in OpenSpiel's games of at most 1e6 positions."),
    ] = False,
) -> None:
    """Train best responses to a player from every role: a lower bound of how often, or by how much, it is beaten."""
    from multigrid_rl.config.compose import compose
    from multigrid_rl.league.exact import exact as exactly
    from multigrid_rl.league.exploit import curve_of, exploitability, open_roles, seat_player
    from multigrid_rl.players.cards import read_card, write_card
    from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
    from multigrid_rl.players.places import place_of
    from multigrid_rl.runs.players import is_run

    if budget != int(budget) or (budget < 1 and not exact):
        raise refused("--budget", "a whole number of environment steps", budget)
    if card and (player in BUILT_IN or is_run(player)):
        raise refused("--card", "a player with a card", player)
    base = list(overrides or ())
    config = compose(base)
    spec, seated = config.scenario.kind.spec, seat_player(player, config, base)  # refused in a second
    roles, best = open_roles(config, seated), exactly(spec, seated) if exact else None
    if best is not None:
        _show_exact(player, best)
    if not budget:
        return
    catalogue, first = Catalogue(config.checkpoint_root()), next(iter(seated.values()))
    # Folders of players are called alike: every snapshot of a run has a red_0.
    own = f"-{first.sha256[:8]}" if first.sha256 and player not in catalogue.entries else ""
    target = folder or Path("runs") / "exploit" / f"{Path(player).name}{own}-{config.scenario.name}"
    request = {"player": player, "overrides": base, "budget": int(budget), "seeds": seeds}
    _prepare_folder(target, {**request, **({"exact": True} if exact else {})})
    # OpenSpiel's best responses earn returns: what is learned is put beside them.
    measure: Measure = "win" if place_of(spec).who(spec).has_winner and not exact else "return"
    alone, runs = ["scenario.league=null"] if config.scenario.league is not None else [], []
    for seed in range(seeds):
        for team in roles:
            seats = {seat: "learn" if spec.team_of(seat) == team else seated[seat].name for seat in spec.seats}
            run = [*base, *(f"scenario.seats.{seat}={who}" for seat, who in seats.items()), *alone]
            run += ["scenario.gates=[]", "train.stop_when_held=false", f"train.until={int(budget)}", f"seed={seed}"]
            runs.append((trained(target / f"{team}-seed{seed}", run), team, seed))
    one_thread()
    curves = [curve_of(*run, games, measure) for run in runs]
    result = exploitability(curves, config.scenario.name, int(budget), games, best)
    _write(target, player, result, best)
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


def _write(target: Path, player: str, measured: Exploitability, exact: Exact | None) -> None:
    from multigrid_rl.files import write_whole
    from multigrid_rl.tables import PAGES, load

    curves = [{**curve.model_dump(), "half_steps": curve.half_steps} for curve in measured.curves]
    result = {"format": 1, "player": player, "best_response": measured.best.model_dump(), "curves": curves}
    result |= {} if exact is None else {"exact": exact.model_dump()}
    for name, content in ((RESULT, result), (GAMES, [game.model_dump() for game in measured.games])):
        write_whole(target / name, (json_text(content, indent=2) + "\n").encode())
    load(PAGES["exploit"])(target)


def _show(target: Path, player: str, result: Exploitability) -> None:
    best, table = result.best, Table("best response", box=None, pad_edge=False)
    wins = best.win is not None
    for title in ("won" if wins else "return", "with the likeliest actions", *(("half won after",) if wins else ())):
        table.add_column(title, justify="right")
    for curve in result.curves:
        half = "never" if curve.half_steps is None else f"{curve.half_steps:,} steps"
        cells = [*(_number(value, wins=wins) for value in curve.reached.values()), *([half] if wins else [])]
        table.add_row(f"{curve.team}, seed {curve.seed}", *cells)
    screen = console(120)
    screen.print(table)
    between = spread(best.low, best.high, ".1%" if wins else ".3f")
    by = f"the best of {best.runs} that trained {best.env_steps:,} steps"
    if wins:
        share = f"{_number(best.win, wins=True)} ({between}, {best.episodes} games)"
        screen.print(f"{player}: beaten in {share} by {by}")
    else:
        earned = f"{_number(best.return_mean, wins=False)} ({between}, {best.episodes} games a role)"
        screen.print(f"{player}: a return of {earned}, averaged over roles, is earned against it by {by}")
    screen.print("A lower bound: another recipe, or more steps, may find more.")
    screen.print(f"wrote {target}: {', '.join(sorted(file.name for file in target.iterdir() if file.is_file()))}")


def _number(value: float | None, *, wins: bool) -> str:
    return f"{value:.1%}" if wins else f"{value:.3f}"


def _show_exact(player: str, exact: Exact) -> None:
    perfect = ", ".join(f"{seat} {value:.4f}" for seat, value in exact.best.items())
    screen = console(120)
    how = f"NashConv / {len(exact.best)} by OpenSpiel, drawn actions"
    screen.print(f"{player}: exploitability {exact.exploitability:.4f} ({how})")
    screen.print(f"a perfect best response earns {exact.mean_best:.4f}, averaged over seats: {perfect}")
