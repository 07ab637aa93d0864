"""Verbs of competitions: ``export`` what is handed in, play a ``cup``."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, ended_by_signals, one_thread, refused
from multigrid_rl.tables import CHECKPOINTS, PAGES, find, has, load
from multigrid_rl.text import ConfigError, expected, reason, spread
from multigrid_rl.trust import agents_trusted, trusting_agents

if TYPE_CHECKING:
    from rich.console import Console

    from multigrid_rl.competition.cup.entries import CupConfig, Entry
    from multigrid_rl.competition.cup.folder import Pairing
    from multigrid_rl.config.scenario import ScenarioConfig
    from multigrid_rl.evaluation.cup_results import CupResults
    from multigrid_rl.types import Seats


#: What is said where agents are trusted.
UNCONFINED = "agents run without a sandbox: they could read and change what you can (docs/instructors.md)"
FOLDER = (
    "Folder with one folder for each entry, a bundle or an agent; or a run with a league. Behind it overrides may say "
    "what is played: env_id=pettingzoo:... After verify, the folder of a cup: its tables are computed again, some of "
    "its pairings are replayed, and all is compared."
)
#: Pairings that ``cup verify`` replays.
AGAIN = 10
Trusted = Annotated[
    bool, typer.Option("--trusted", help="Run agents without a sandbox, as programs that can do what you can.")
]


def cup(
    folders: Annotated[list[Path], typer.Argument(metavar="[verify] FOLDER [OVERRIDES]", help=FOLDER)],
    scenario: Annotated[str | None, typer.Option(help="What is played; 1v1, or the run's own, by default.")] = None,
    games: Annotated[int, typer.Option(min=1, help="Games for each pair and side.")] = 200,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the games, random by default; keep it secret.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--with", help="A player, by name or folder, or a run, that takes part; repeat it."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the cup, new or to resume; runs/cups/... by default."),
    ] = None,
    start_s: Annotated[float, typer.Option(min=0.1, help="Seconds in which an external agent must be ready.")] = 20.0,
    step_s: Annotated[float, typer.Option(min=0.01, help="Seconds for an answer, all games of a step together.")] = 5.0,
    total_s: Annotated[float, typer.Option(min=0.1, help="Seconds for all answers of a pairing.")] = 120.0,
    cup_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds for all starts and answers of an agent in the cup; then it is out.")
    ] = 600.0,
    memory_mb: Annotated[int, typer.Option(min=16, help="Memory of an external agent.")] = 2048,
    allow_copies: Annotated[
        bool, typer.Option("--allow-copies", help="Let copies of the catalogue's players play.")
    ] = False,
    trusted: Trusted = False,
    every: Annotated[bool, typer.Option("--all", help="With verify: replay every pairing.")] = False,
) -> None:
    """Round robin of all entries from all sides; resumes, and takes late entries; the last line is JSON."""
    from multigrid_rl.competition.cup.cup import check_agents
    from multigrid_rl.competition.cup.entries import CupConfig, find_copies, find_entries
    from multigrid_rl.competition.cup.folder import read_manifest
    from multigrid_rl.competition.folders import ScratchError, exclusive_lock
    from multigrid_rl.competition.likeness import originals_of
    from multigrid_rl.competition.sandbox import Limits, check_not_bound
    from multigrid_rl.players.catalogue import Catalogue
    from multigrid_rl.training.screen import warnings_on_screen
    from multigrid_rl.types import RunError

    one_thread()
    if len(folders) == 2 and str(folders[0]) == "verify":
        with trusting_agents(trusted):
            verify(folders[1], None if every else AGAIN)
        return
    folder, overrides = _only(folders)
    with ended_by_signals("the same command resumes the cup"), trusting_agents(trusted):
        played, spec, overrides = _game(folder, scenario, overrides)
        name = played.name
        place = output or Path("runs") / "cups" / f"{folder.resolve().name}-{name}"
        check_not_bound(folder, place)
        before = read_manifest(place)  # a resumed cup keeps its settings, unless others are given
        if seed is None:
            seed = before.seed if before else secrets.randbits(63)
        limits = Limits(start_s, step_s, total_s, memory_mb)
        config = CupConfig(name, spec, games, seed, limits, cup_s=cup_s, overrides=tuple(overrides))
        if before:
            config = replace(config, agents_key=before.agents_key)
        entries = find_entries(folder, list(also or ()), Catalogue(), config)
        check_agents(entries)
        originals = originals_of(played, spec)
        try:
            if not originals.by_play:
                console(120).print(f"copies are found by content alone: {name} has too few positions for more")
            with exclusive_lock(place), warnings_on_screen():
                _play(find_copies(entries, originals, config, refuse=not allow_copies), config, place)
        except (ScratchError, OSError) as error:
            failure = RunError(reason(error, place)) if isinstance(error, OSError) else error
            failure.hint = "finished pairings are kept; the same command resumes the cup"
            raise failure from error


def _game(folder: Path, scenario: str | None, overrides: list[str]) -> tuple[ScenarioConfig, Seats, list[str]]:
    """Return what is played, its game, and the overrides that say so; by default as in the run ``folder``, or 1v1."""
    from multigrid_rl.competition.cup.folder import scenario_of
    from multigrid_rl.config.recipes import FILES
    from multigrid_rl.players.alone import game_of
    from multigrid_rl.runs.reader import run_config

    if scenario is None and not overrides:
        scenario = run_config(folder).scenario.name if (folder / "config.yaml").is_file() else "1v1"
    if scenario is not None and (overrides or scenario.endswith(FILES)):
        overrides = [f"scenario={scenario}", *overrides]
    played = scenario_of(str(scenario), overrides)
    return played, game_of(played, overrides or [f"scenario={scenario}"]), overrides


def _only(folders: list[Path]) -> tuple[Path, list[str]]:
    folder, *rest = folders
    overrides = [str(override) for override in rest]
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "scenario" and value:
            raise refused("FOLDER", f"one folder of entries (did you mean --{key} {value}?)", override)
        if not value:
            wanted = "one folder of entries, or verify and the folder of a cup"
            raise refused("FOLDER", wanted, " ".join(map(str, folders)))
    return folder, overrides


def verify(folder: Path, most: int | None) -> None:
    """Compare a cup's tables and page with its pairings, and replay pairings; leaves with status 1 if they differ.

    Args:
        folder: of a finished cup.
        most: pairings to replay, drawn at random; ``None`` replays all.

    Raises:
        PlayerError, ConfigError: no cup, an unfinished or a damaged one.
    """
    from multigrid_rl.competition.cup.cup import check_agents, play_again, repeatable, unfounded
    from multigrid_rl.competition.cup.folder import forged, kept_cup, load_pairing, meetings, versions
    from multigrid_rl.competition.cup.standings import results
    from multigrid_rl.evaluation.cup_results import FORMAT, RESULTS_FILE, read_results

    config, entries = kept_cup(folder)
    check_agents(entries)
    kept = read_results(folder / RESULTS_FILE)
    if kept.format < FORMAT:
        wanted = f"format {FORMAT}, or multigrid-rl as of then, which verifies this cup"
        raise ConfigError(expected(folder / RESULTS_FILE, wanted, f"format {kept.format}"))
    made_with = kept.versions
    pairings = [load_pairing(folder, meeting, config.games) for meeting in meetings(entries, config)]
    found = results(entries, pairings, config, made_with)
    screen, replayed, different = console(120), 0, 0
    if made_with != versions():
        screen.print(f"played with {_listed(made_with)}; here are {_listed(versions())}: the page and games may differ")
    with TemporaryDirectory() as fresh:
        try:
            wrong_files = forged(folder, _write_files(found, pairings, Path(fresh)), entries, config)
        except ConfigError as error:
            raise ConfigError(str(error).replace(fresh, str(folder))) from error
    for line in wrong_files or [f"tables and page: as cup.json and the {len(pairings)} pairings give"]:
        screen.print(line)
    agents = {entry.name for entry in entries if entry.kind == "external"}
    again = [pairing for pairing in pairings if repeatable(pairing, entries)]
    for pairing in unfounded(pairings, entries, config):
        different += 1
        screen.print(f"{_pair(pairing, config)}: {pairing.reason}, which the other pairings do not show")
    for pairing in pairings:
        if not pairing.out and not repeatable(pairing, entries):
            screen.print(f"{_pair(pairing, config)}: cannot be replayed, an agent forfeited: {pairing.reason}")
    with ended_by_signals():
        for before, wrong in play_again(entries, config, again, most):
            replayed, different = replayed + 1, different + bool(wrong)
            drawn = "; an agent may draw in its own way" if wrong and agents & before.names else ""
            screen.print(f"{_pair(before, config)}: {wrong or 'the same'}{drawn}")
    last = {
        "pairings": replayed,
        "games": replayed * config.games,
        "different": different,
        "not_repeatable": len(pairings) - len(again),
        "files_different": len(wrong_files),
        "sha256": found.sha256,
    }
    typer.echo(json.dumps(last))
    if different or wrong_files:
        raise typer.Exit(1)


def _write_files(found: CupResults, pairings: list[Pairing], folder: Path) -> list[Path]:
    """Write the tables of a cup and its page; no page where the add-on that writes it was left out."""
    from multigrid_rl.competition.cup.folder import write_results

    files = write_results(found, pairings, folder)
    return [*files, find(PAGES, "cup")(folder)] if has(PAGES, "cup") else files


def _listed(made_with: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in made_with.items())


def _pair(pairing: Pairing, config: CupConfig) -> str:
    if not pairing.blue:
        return pairing.red
    other = "others" if pairing.side else config.sides[1]
    return f"{pairing.red} ({pairing.side or config.sides[0]}) - {pairing.blue} ({other})"


def _play(entries: list[Entry], config: CupConfig, folder: Path) -> None:
    from multigrid_rl.competition.cup.cup import play_cup
    from multigrid_rl.competition.cup.folder import meetings, versions
    from multigrid_rl.competition.cup.standings import results

    screen, began = console(120), time.perf_counter()
    pairings = f"{len(meetings(entries, config))} {'pairings' if len(config.sides) > 1 else 'play'}"
    screen.print(
        f"cup of {len(entries)} entries in {config.scenario}: {pairings}, {config.games} games each, in {folder}"
    )
    for entry in entries:
        screen.print(f"  {entry.name}: {entry.about if entry.problem is None else f'cannot play: {entry.problem}'}")
        if entry.same_as:
            screen.print(f"    like {'; '.join(entry.same_as)}")
    if agents_trusted() and any(entry.kind == "external" for entry in entries):
        screen.print(UNCONFINED)
    out: set[str | None] = {None}

    def show(number: int, of: int, pairing: Pairing, now: bool) -> None:
        # One line for all that an entry forfeits when it is out.
        if not pairing.out or pairing.at_fault not in out:
            screen.print(_pairing_line(f"[{number}/{of}] {_pair(pairing, config)}", pairing, config, now=now))
        if pairing.out:
            out.add(pairing.at_fault)

    played = play_cup(entries, config, folder, show)
    outcome = results(entries, played, config, versions())
    files = _write_files(outcome, played, folder)
    _show_results(outcome, screen)
    screen.print(f"wrote {folder}: {', '.join(file.name for file in files)}")
    last = {
        "entries": len(outcome.entries),
        "pairings": len(outcome.sides),
        "games": sum(side.games for side in outcome.sides),
        "forfeited": sum(side.forfeited for side in outcome.sides),
        "seconds": round(time.perf_counter() - began, 3),
        "ranking": [row.name for row in outcome.table],
        "unranked": outcome.unranked,
        "sha256": outcome.sha256,
    }
    typer.echo(json.dumps(last))


def _show_results(outcome: CupResults, screen: Console) -> None:
    screen.print(f"winner: {', '.join(row.name for row in outcome.table if row.rank == 1) or 'none'}")
    screen.print(_standings(outcome) if outcome.rated else _earned(outcome))
    for entry in outcome.entries:
        if entry.name in outcome.unranked:
            screen.print(f"not ranked, no finished game: {entry.name}: {entry.reason}")
    for pair in outcome.surprises:
        shares = f"{pair.share:.0%} of the points for {pair.one}, {pair.expected:.0%} expected from all other games"
        screen.print(f"contradicts the ratings: {pair.one} - {pair.two}: {shares}")


def _pairing_line(pair: str, pairing: Pairing, config: CupConfig, *, now: bool) -> str:
    wins = " / ".join(str(pairing.count(letters)) for letters in ("Rb", "D", "Br"))
    counts = wins if config.rated else f"{pairing.count('D')} games"
    lost = pairing.count("rb")
    more = " (and all its other games that are left)" if pairing.out else ""
    forfeits = f"; {pairing.at_fault} forfeits {lost}{more}: {pairing.reason}" if lost else ""
    return f"{pair}: {counts if now else 'played before'}{forfeits}"


def _standings(results: CupResults) -> Table:
    grid = Table("rank", "entry", box=None, pad_edge=False)
    for title in ("rating (95 %)", "points", "games", "win", "draw", "loss", "forfeited", "margin"):
        grid.add_column(title, justify="right")
    for row in results.standings:
        rating = f"{row.rating:.0f} ({row.low:.0f} to {row.high:.0f})"
        counts = (row.games, row.win, row.draw, row.loss, row.forfeited)
        grid.add_row(str(row.rank), row.name, rating, f"{row.points:g}", *map(str, counts), f"{row.margin:+.2f}")
    return grid


def _earned(results: CupResults) -> Table:
    grid = Table("rank", "entry", box=None, pad_edge=False)
    sides = list(dict.fromkeys(side for row in results.returns for side in row.sides))
    for title in ("return (95 %)", *(f"as {side}" for side in sides), "games", "forfeited", "length"):
        grid.add_column(title, justify="right")
    for row in results.returns:
        more = str(row.games), str(row.forfeited), f"{row.length_mean:.4g}"
        by_side = (f"{row.sides[side]:.4g}" if side in row.sides else "-" for side in sides)
        mean = f"{row.mean:.4g} ({spread(row.low, row.high, '.4g')})"
        grid.add_row(str(row.rank), row.name, mean, *by_side, *more)
    return grid


def export(
    run: Annotated[
        Path, typer.Argument(help="Run folder, or a checkpoint of RLlib's own algorithms; with --onnx a bundle, too.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder or file to write.")],
    seat: Annotated[
        str | None,
        typer.Option(help="Whose player: a seat, such as red_0 or player_1, or a whole team, red; a bundle has one."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it is called; the folder's name by default.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of the run; the latest by default.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Of a checkpoint of RLlib's, whose environment has a name of your own.")
    ] = None,
    agent: Annotated[
        bool,
        typer.Option("--agent", help="Write a program that plays a network of your own, its class's file included."),
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write one file for onnxruntime instead, for programs without torch.")
    ] = False,
) -> None:
    """Write a trained player as a small folder that plays anywhere, without Ray and without the run."""
    from multigrid_rl.competition import bundle, onnx_file
    from multigrid_rl.players.cards import CARD_FILE
    from multigrid_rl.runs.players import seat_folders

    if onnx:
        if agent or name is not None:
            raise refused("--onnx", "nothing of --agent and --name: it is one file", output)
        with TemporaryDirectory() as scratch:
            at_hand = (run / CARD_FILE).exists() or bool(seat_folders(run))
            sources = bundle.bundle_folders(run) if at_hand else _sources(run, seat, checkpoint, scenario, scratch)
            checked = onnx_file.write_onnx(onnx_file.one_of(sources, seat), output)
        typer.echo(f"exported {output}: {output.stat().st_size} bytes; {checked}")
        return
    with TemporaryDirectory() as scratch:
        sources = _sources(run, seat, checkpoint, scenario, scratch)
        cards = bundle.export(sources, output, name=name, agent=agent)
    if agent:
        typer.echo(f"exported {output}, an agent; multigrid-rl inspect {output} shows whether it plays by itself")
        return
    for part, card in cards.items():
        plays = ", ".join(card.seats)
        typer.echo(f"exported {output / part}: {card.bytes} bytes, sha256 {card.sha256}, plays {plays}")
    if needs := bundle.needs_module(card):
        typer.echo(f"warning: {needs}")


def _sources(
    run: Path, seat: str | None, checkpoint: str | None, scenario: str | None, scratch: str
) -> dict[str, Path]:
    """Return the folders of players of a run, or of a checkpoint of RLlib's, as ``players_for`` does."""
    from multigrid_rl.runs.players import is_run, players_for

    if seat is None and not is_run(str(run)):
        raise refused("--seat", "a seat, such as red_0, or a whole team", "nothing")
    found = next((reader for file, reader in CHECKPOINTS.items() if (run / file).is_file()), None)
    if found is None and scenario is not None:
        raise refused("--scenario", "nothing with a run's folder", scenario)
    if found is None:
        return players_for(run, seat or "nothing", checkpoint)  # no seat: the refusal lists who was trained
    if checkpoint is not None:
        raise refused("--checkpoint", "nothing with a checkpoint of RLlib's", checkpoint)
    folders: dict[str, Path] = load(found)(run, seat, Path(scratch), scenario)
    return folders
