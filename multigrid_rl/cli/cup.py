"""The ``cup`` verb: entries, progress and results of a cup."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, ended_by_signals, fail, one_thread, reason, refused

if TYPE_CHECKING:
    from multigrid_rl.judge.cup.entries import CupConfig, Entry
    from multigrid_rl.judge.cup.results import CupResults, Pairing


FOLDER = (
    "Folder with one folder for each entry, a bundle or an agent; or a run with a league. After verify, that of a cup: "
    "some of its pairings are played again and compared."
)
#: Pairings that ``cup verify`` plays again.
AGAIN = 10


def cup(
    folders: Annotated[list[Path], typer.Argument(metavar="[verify] FOLDER", help=FOLDER)],
    scenario: Annotated[
        str | None, typer.Option(help="What is played: a scenario with two teams; 1v1, or the run's own, by default.")
    ] = None,
    games: Annotated[int, typer.Option(min=1, help="Games for each pair and side.")] = 200,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the games, instead of a random one; keep it to yourself.")
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
    allow_copies: Annotated[
        bool, typer.Option("--allow-copies", help="Let copies of the catalogue's players play.")
    ] = False,
    isolate: Annotated[
        bool | None, typer.Option(help="Run agents in sandboxes; by default where bubblewrap is available.")
    ] = None,
) -> None:
    """Round robin of all entries from both sides; goes on where it was interrupted; the last line is JSON."""
    from multigrid_rl.cli.live import warnings_on_screen
    from multigrid_rl.config import data_root, load_scenario
    from multigrid_rl.judge.copies import Originals
    from multigrid_rl.judge.cup.entries import CupConfig, find_copies, find_entries
    from multigrid_rl.judge.cup.folder import read_manifest
    from multigrid_rl.players.bubblewrap import check_not_bound
    from multigrid_rl.players.catalogue import Catalogue
    from multigrid_rl.players.leftovers import ScratchError, exclusive_lock
    from multigrid_rl.players.sandbox import Limits, bwrap_available
    from multigrid_rl.runs.reader import run_config
    from multigrid_rl.types import RunError

    one_thread()
    if len(folders) == 2 and str(folders[0]) == "verify":
        verify(folders[1])
        return
    if len(folders) > 1:
        raise refused("FOLDER", "one folder of entries, or verify and the folder of a cup", " ".join(map(str, folders)))
    folder = folders[0]
    with ended_by_signals("the same command goes on with the cup"):
        if scenario is None:
            scenario = run_config(folder).scenario.name if (folder / "config.yaml").is_file() else "1v1"
        chosen = load_scenario(scenario)
        spec, name = chosen.spec, chosen.name
        if spec.blue != spec.red:
            teams = f"{scenario} with {spec.red} red and {spec.blue} blue"
            raise refused("--scenario", "one with two teams of the same size", teams)
        place = output or Path("runs") / "cups" / f"{folder.resolve().name}-{name}"
        if isolate is not False and bwrap_available():
            check_not_bound(folder, place)
        before = read_manifest(place)  # a resumed cup keeps its settings, unless others are given
        if seed is None:
            seed = before.seed if before else secrets.randbits(63)
        if isolate and not bwrap_available():
            raise refused("--isolate", "bubblewrap that works on this machine (docs/instructors.md)", "none")
        fence = bwrap_available() if isolate is None else isolate
        config = CupConfig(name, spec, games, seed, Limits(start_s, step_s, total_s, memory_mb, fence=fence))
        if before:
            config = replace(config, agents_key=before.agents_key)
        entries = find_entries(folder, list(also or ()), Catalogue(), config)
        entries = find_copies(entries, Originals(spec, Catalogue(data_root() / "checkpoints")), refuse=not allow_copies)
        try:
            with exclusive_lock(place), warnings_on_screen():
                _play(entries, config, place)
        except (ScratchError, OSError) as error:
            failure = RunError(reason(error, place) if isinstance(error, OSError) else str(error))
            failure.hint = "pairings that were played stay; the same command goes on with the rest"
            raise failure from error


def verify(folder: Path) -> None:
    """Replay some pairings of a cup with the entries kept in its folder; leaves with status 1 if they differ.

    Raises:
        PlayerError, ConfigError: no cup, or a changed one.
    """
    from multigrid_rl.judge.cup.cup import play_again
    from multigrid_rl.judge.cup.folder import kept_cup
    from multigrid_rl.players.leftovers import ScratchError
    from multigrid_rl.players.sandbox import bwrap_available

    config, entries = kept_cup(folder, fence=bwrap_available())
    agents = {entry.name for entry in entries if entry.kind == "external"}
    screen, pairings, different = console(120), 0, 0
    try:
        with ended_by_signals():
            for before, wrong in play_again(entries, config, folder, AGAIN):
                pairings, different = pairings + 1, different + bool(wrong)
                result = f"{len(wrong)} of {config.games} games differ, game {wrong[0]} first" if wrong else "the same"
                if wrong and agents & {before.red, before.blue}:
                    result += "; an agent may draw in its own way"
                screen.print(f"{before.red} (red) - {before.blue} (blue): {result}")
    except ScratchError as error:
        raise fail(error) from error
    typer.echo(json.dumps({"pairings": pairings, "games": pairings * config.games, "different": different}))
    if different:
        raise typer.Exit(1)


def _play(entries: list[Entry], config: CupConfig, folder: Path) -> None:
    from multigrid_rl.judge.cup.cup import play_cup
    from multigrid_rl.judge.cup.folder import versions, write_results
    from multigrid_rl.judge.cup.standings import results
    from multigrid_rl.show.cup_page import history_sentence
    from multigrid_rl.show.report import write_cup_report

    screen, began = console(120), time.perf_counter()
    pairings = f"{len(entries) * (len(entries) - 1)} pairings, {config.games} games each"
    screen.print(f"cup of {len(entries)} entries in {config.scenario}: {pairings}, in {folder}")
    for entry in entries:
        screen.print(f"  {entry.name}: {entry.problem or entry.about}" + (" (forfeits)" if entry.problem else ""))
        if entry.same_as:
            screen.print(f"    like {'; '.join(entry.same_as)}")
    if not config.limits.fence and any(entry.kind == "external" for entry in entries):
        screen.print("agents run without a sandbox: they could read and change what you can (docs/instructors.md)")
    played = play_cup(entries, config, folder, lambda *done: screen.print(_pairing_line(*done)))
    outcome = results(entries, played, config, versions())
    files = [*write_results(outcome, played, folder), write_cup_report(folder, results=outcome)]
    screen.print(f"winner: {', '.join(row.name for row in outcome.standings if row.rank == 1) or 'none'}")
    for circle in outcome.cycles:
        screen.print(f"circle: {' beats '.join([*circle, circle[0]])}")
    screen.print(_standings(outcome))
    if outcome.unranked:
        screen.print(f"not ranked, without a finished game: {', '.join(outcome.unranked)}")
    if outcome.history:
        screen.print(f"history: {history_sentence(outcome.history)}")
    screen.print(f"wrote {', '.join(map(str, files))}")
    last = {
        "entries": len(outcome.entries),
        "pairings": len(outcome.sides),
        "games": sum(side.games for side in outcome.sides),
        "forfeited": sum(side.forfeited for side in outcome.sides),
        "seconds": round(time.perf_counter() - began, 3),
        "ranking": [row.name for row in outcome.standings],
        "unranked": outcome.unranked,
    }
    typer.echo(json.dumps(last))


def _pairing_line(number: int, of: int, pairing: Pairing, now: bool) -> str:
    counts = f"{pairing.count('Rb')} / {pairing.count('D')} / {pairing.count('Br')}"
    line = f"[{number}/{of}] {pairing.red} (red) - {pairing.blue} (blue): {counts if now else 'played before'}"
    lost = pairing.count("rb")
    return line + (f"; {pairing.at_fault} forfeits {lost}: {pairing.reason}" if lost else "")


def _standings(results: CupResults) -> Table:
    grid = Table("rank", "entry", box=None, pad_edge=False)
    for title in ("rating (95 %)", "points", "games", "win", "draw", "loss", "forfeited", "margin"):
        grid.add_column(title, justify="right")
    for row in results.standings:
        rating = f"{row.rating:.0f} ({row.low:.0f} to {row.high:.0f})"
        counts = (row.games, row.win, row.draw, row.loss, row.forfeited)
        grid.add_row(str(row.rank), row.name, rating, f"{row.points:g}", *map(str, counts), f"{row.margin:+.2f}")
    return grid
