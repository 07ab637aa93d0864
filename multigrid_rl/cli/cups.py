"""The ``cup`` verb: who takes part, how far it is, who won."""

from __future__ import annotations

import io
import json
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from multigrid_rl.cli.training import warnings_on_screen
from multigrid_rl.config import ConfigError, data_root, load_scenario, scenario_id
from multigrid_rl.judge.cup.cup import Progress, play_cup
from multigrid_rl.judge.cup.entries import CupConfig, Entry, find_entries
from multigrid_rl.judge.cup.folder import alone_in, read_manifest, versions, write_results
from multigrid_rl.judge.cup.results import CupResults
from multigrid_rl.judge.cup.standings import results
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.leftovers import ScratchError, remove_leftovers
from multigrid_rl.players.sandbox import Limits
from multigrid_rl.show.report import write_cup_report
from multigrid_rl.types import GameSpec, RunError


class Request(NamedTuple):
    """What was asked for on the command line."""

    folder: Path
    scenario: str
    names: tuple[str, ...]
    games: int
    seed: int | None  # drawn by default
    limits: Limits
    output: Path | None


def run_cup(request: Request) -> CupResults:
    """Play a cup, or go on with it, and write its tables and its page.

    Raises:
        ConfigError, PlayerError: an unknown scenario or player, no entries, another cup in the output folder.
        RunError: this machine has no room for it, or no rights to write it.
    """
    spec = load_scenario(request.scenario).spec
    if spec.blue != spec.red:
        raise ConfigError(
            f"--scenario {request.scenario}: {spec.red} red and {spec.blue} blue; allowed is a scenario with two teams "
            "of the same size"
        )
    scenario = scenario_id(request.scenario)
    folder = request.output or Path("runs") / "cups" / f"{request.folder.resolve().name}-{scenario}"
    config = _config(request, scenario, spec, folder)
    entries = find_entries(request.folder, list(request.names), Catalogue(data_root() / "checkpoints"), config)
    remove_leftovers()
    try:
        with alone_in(folder), warnings_on_screen():
            return _played(entries, config, folder)
    except (ScratchError, OSError) as error:
        where = (error.filename or folder) if isinstance(error, OSError) else ""
        said = f"{where}: {error.strerror}" if isinstance(error, OSError) else str(error)
        failure = RunError(said)
        failure.hint = "pairings that were played stay; the same command goes on with the rest"
        raise failure from error


def _config(request: Request, scenario: str, spec: GameSpec, folder: Path) -> CupConfig:
    """What is played: as the cup in ``folder`` says, where it has begun and nothing else was asked for."""
    before = read_manifest(folder)
    seed = before.seed if before else secrets.randbits(63)
    config = CupConfig(scenario, spec, request.games, seed if request.seed is None else request.seed, request.limits)
    return replace(config, agents_key=before.agents_key) if before else config


def _played(entries: list[Entry], config: CupConfig, folder: Path) -> CupResults:
    console = _console()
    began = time.perf_counter()
    _announce(console, entries, config, folder)
    pairings = play_cup(entries, config, folder, lambda progress: _show(console, progress))
    found = results(entries, pairings, config, versions())
    files = write_results(found, pairings, folder)
    page = write_cup_report(folder, found=found)
    for line in closing(found):
        console.print(line)
    console.print(standings_table(found))
    console.print(f"wrote {', '.join(str(file) for file in [*files, page])}")
    typer.echo(json.dumps(last_line(found, time.perf_counter() - began)))
    return found


def _console() -> Console:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # what an agent says of itself may lack in a terminal's letters
    file = not sys.stdout.isatty()
    return Console(highlight=False, markup=False, soft_wrap=file, width=120 if file else None)


def _announce(console: Console, entries: list[Entry], config: CupConfig, folder: Path) -> None:
    pairings = f"{len(entries) * (len(entries) - 1)} pairings, {config.games} games each"
    console.print(f"cup of {len(entries)} entries in {config.scenario}: {pairings}, in {folder}")
    for entry in entries:
        console.print(f"  {entry.name}: {entry.problem or entry.about}" + (" (forfeits)" if entry.problem else ""))


def _show(console: Console, progress: Progress) -> None:
    pairing = progress.pairing
    if not progress.played:
        result = "played before"
    else:
        result = f"{pairing.count('Rb')} / {pairing.count('D')} / {pairing.count('Br')}"
    told = f"[{progress.number}/{progress.of}] {pairing.red} (red) - {pairing.blue} (blue): {result}"
    lost = pairing.count("rb")
    console.print(told + (f"; {pairing.at_fault} forfeits {lost}: {pairing.reason}" if lost else ""))


def closing(found: CupResults) -> list[str]:
    """Who won, and what is odd about it."""
    first = [row.name for row in found.standings if row.rank == 1]
    lines = [f"winner: {', '.join(first)}"]
    lines += [f"circle: {' beats '.join([*circle, circle[0]])}" for circle in found.cycles]
    return lines


def standings_table(found: CupResults) -> Table:
    """One row for each entry, best first."""
    grid = Table("rank", "entry", box=None, pad_edge=False)
    for title in ("rating (95 %)", "points", "games", "win", "draw", "loss", "forfeited", "margin"):
        grid.add_column(title, justify="right")
    for row in found.standings:
        rating = f"{row.rating:.0f} ({row.low:.0f} to {row.high:.0f})"
        counts = (row.games, row.win, row.draw, row.loss, row.forfeited)
        grid.add_row(str(row.rank), row.name, rating, f"{row.points:g}", *map(str, counts), f"{row.margin:+.2f}")
    return grid


def last_line(found: CupResults, seconds: float) -> dict[str, object]:
    """The closing line of JSON."""
    return {
        "entries": len(found.entries),
        "pairings": len(found.sides),
        "games": sum(side.games for side in found.sides),
        "forfeited": sum(side.forfeited for side in found.sides),
        "seconds": round(seconds, 3),
        "ranking": [row.name for row in found.standings],
    }
