"""Cups and grades on the screen: a cup's progress, its tables at the end, its verification; grades."""

import json
import random
import secrets
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from rich.table import Table

from multigrid_rl.cli.output import console, exit_on_signals, grid, spread, temporary_output
from multigrid_rl.competition.cup import check_agents, play_cup, replay, unfounded_forfeits
from multigrid_rl.competition.cup_folder import (
    Pairing,
    existing_cup,
    forged_files,
    load_pairing,
    meetings,
    read_manifest,
    scenario_and_game,
    versions,
    write_results,
)
from multigrid_rl.competition.entries import CupConfig, Entry, find_copies, find_entries
from multigrid_rl.competition.folders import ScratchError, exclusive_lock
from multigrid_rl.competition.grading import FEEDBACK, LEFT_OUT, Examiner, check_cells, grade_class
from multigrid_rl.competition.hand_ins import Submission
from multigrid_rl.competition.likeness import originals_of
from multigrid_rl.competition.sandbox import check_not_bound
from multigrid_rl.competition.standings import tabulate
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.overrides import leaves, parse, written
from multigrid_rl.config.recipes import FILES
from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.evaluation.cup_results import FORMAT, RESULTS_FILE, CupResults, read_results
from multigrid_rl.files import json_text
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.runs.reader import check_of_games, run_config
from multigrid_rl.tables import PAGES, find, has
from multigrid_rl.text import ConfigError, expected, percent, reason
from multigrid_rl.training.screen import warnings_on_screen
from multigrid_rl.trust import agents_trusted
from multigrid_rl.types import RunError, Seats


def play(
    folder: Path, target: Path, played: ScenarioConfig, config: CupConfig, extra: list[str], *, allow_copies: bool
) -> None:
    """Play or resume a cup; a seed below 0 means the seed of the cup in ``target``, or a fresh one."""
    check_not_bound(folder, target)
    if (manifest := read_manifest(target)) is not None:  # a resumed cup keeps its key, and its seed unless one is given
        config = replace(config, agents_key=manifest.agents_key)
    if config.seed < 0:
        config = replace(config, seed=manifest.seed if manifest else secrets.randbits(63))
    players = parse(config.overrides).get("checkpoints")
    entries = find_entries(folder, extra, Catalogue(Path(players) if players else None), config)
    check_agents(entries)
    originals = originals_of(played, config.spec)
    try:
        if not originals.by_play:
            console(120).print(f"copies are found by content alone: {played.name} has too few positions for more")
        with exclusive_lock(target), warnings_on_screen():
            _play(find_copies(entries, originals, config, refuse=not allow_copies), config, target)
    except (ScratchError, OSError) as error:
        failure = RunError(reason(error, target)) if isinstance(error, OSError) else error
        failure.hint = "finished pairings are kept; the same command resumes the cup"
        raise failure from error


def game(folder: Path, scenario: str | None, overrides: list[str]) -> tuple[ScenarioConfig, Seats, list[str]]:
    """Return scenario, game, and the overrides for both; by default of the run ``folder``, or 1v1."""
    check_of_games(overrides)
    if scenario is None and not overrides:
        own = run_config(folder).scenario if (folder / "config.yaml").is_file() else load_scenario("1v1")
        scenario, usual = own.name, dict(leaves(load_scenario(own.name).model_dump(mode="json")))
        changed = {key: value for key, value in leaves(own.model_dump(mode="json")) if usual.get(key) != value}
        of_game = [key for key in changed if key.startswith(("game", "env_", "symmetric", "outcome", "teams"))]
        overrides = [f"scenario.{key}={written(changed[key])}" for key in of_game]
    if scenario is not None and (overrides or scenario.endswith(FILES)):
        overrides = [f"scenario={scenario}", *overrides]
    return *scenario_and_game(str(scenario), overrides), overrides


def verify(folder: Path, most: int | None) -> None:
    """Compare a cup's tables and page with its pairings, and replay ``most`` or all; status 1: differences."""
    config, entries = existing_cup(folder)
    check_agents(entries)
    stored = read_results(folder / RESULTS_FILE)
    if stored.format < FORMAT:
        wanted = f"format {FORMAT}, or multigrid-rl as of then, which verifies this cup"
        raise ConfigError(expected(folder / RESULTS_FILE, wanted, f"format {stored.format}"))
    made_with = stored.versions
    pairings = [load_pairing(folder, meeting, config.games) for meeting in meetings(entries, config)]
    recomputed = tabulate(entries, pairings, config, made_with)
    screen, different = console(120), 0
    if made_with != versions():
        screen.print(f"played with {_join(made_with)}; here are {_join(versions())}: the page and games may differ")
    with TemporaryDirectory() as fresh:
        try:
            wrong_files = forged_files(folder, write_files(recomputed, pairings, Path(fresh)), entries, config)
        except ConfigError as error:
            raise ConfigError(str(error).replace(fresh, str(folder))) from error
    for line in wrong_files or [f"tables and page: as cup.json and the {len(pairings)} pairings give"]:
        screen.print(line)
    agents = {entry.name for entry in entries if entry.kind == "external"}
    # An agent's forfeits depend on its time.
    replayable = [pairing for pairing in pairings if pairing.reason is None or not agents & pairing.names]
    for pairing in unfounded_forfeits(pairings, entries, config):
        different += 1
        screen.print(f"{_pair_title(pairing, config)}: {pairing.reason}, which the other pairings do not show")
    for pairing in pairings:
        if not pairing.out and pairing.reason is not None and agents & pairing.names:
            screen.print(f"{_pair_title(pairing, config)}: cannot be replayed, an agent forfeited: {pairing.reason}")
    with exit_on_signals():
        number = len(replayable) if most is None else min(most, len(replayable))
        for before in random.SystemRandom().sample(replayable, number):
            difference = replay(before, entries, config)
            different += bool(difference)
            note = "; an agent may draw in its own way" if difference and agents & before.names else ""
            screen.print(f"{_pair_title(before, config)}: {difference or 'the same'}{note}")
    summary = {
        "pairings": number,
        "games": number * config.games,
        "different": different,
        "not_repeatable": len(pairings) - len(replayable),
        "files_different": len(wrong_files),
        "sha256": recomputed.sha256,
    }
    typer.echo(json.dumps(summary))
    if different or wrong_files:
        raise typer.Exit(1)


def write_files(results: CupResults, pairings: list[Pairing], folder: Path) -> list[Path]:
    """Write the tables of a cup, and its page where that add-on is installed."""
    files = write_results(results, pairings, folder)
    return [*files, find(PAGES, "cup")(folder)] if has(PAGES, "cup") else files


def _join(made_with: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in made_with.items())


def _pair_title(pairing: Pairing, config: CupConfig) -> str:
    if not pairing.blue:
        return pairing.red
    other = "others" if pairing.side else config.sides[1]
    return f"{pairing.red} ({pairing.side or config.sides[0]}) - {pairing.blue} ({other})"


def _play(entries: list[Entry], config: CupConfig, folder: Path) -> None:
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
        screen.print("agents run without a sandbox: they could read and change what you can (docs/instructors.md)")
    reported: set[str | None] = {None}

    def show(number: int, of: int, pairing: Pairing, fresh: bool) -> None:
        # One line for all forfeits of an entry that is out.
        if not pairing.out or pairing.at_fault not in reported:
            screen.print(_pairing_line(f"[{number}/{of}] {_pair_title(pairing, config)}", pairing, config, now=fresh))
        if pairing.out:
            reported.add(pairing.at_fault)

    played = play_cup(entries, config, folder, show)
    outcome = tabulate(entries, played, config, versions())
    files = write_files(outcome, played, folder)
    screen.print(f"winner: {', '.join(row.name for row in outcome.table if row.rank == 1) or 'none'}")
    screen.print(_standings_table(outcome) if outcome.rated else _returns_table(outcome))
    for result in outcome.entries:
        if result.name in outcome.unranked:
            screen.print(f"not ranked, no finished game: {result.name}: {result.reason}")
    for pair in outcome.surprises:
        shares = f"{percent(pair.share)} of the points for {pair.one}"
        shares += f", {percent(pair.expected)} expected from all other games"
        screen.print(f"contradicts the ratings: {pair.one} - {pair.two}: {shares}")
    screen.print(f"wrote {folder}: {', '.join(file.name for file in files)}")
    summary = {
        "entries": len(outcome.entries),
        "pairings": len(outcome.sides),
        "games": sum(side.games for side in outcome.sides),
        "forfeited": sum(side.forfeited for side in outcome.sides),
        "seconds": round(time.perf_counter() - began, 3),
        "ranking": [row.name for row in outcome.table],
        "unranked": outcome.unranked,
        "sha256": outcome.sha256,
    }
    typer.echo(json.dumps(summary))


def _pairing_line(pair: str, pairing: Pairing, config: CupConfig, *, now: bool) -> str:
    wins = " / ".join(str(pairing.count(letters)) for letters in ("Rb", "D", "Br"))
    counts = wins if config.rated else f"{pairing.count('D')} games"
    lost = pairing.count("rb")
    rest = " (and all its other games that are left)" if pairing.out else ""
    forfeits = f"; {pairing.at_fault} forfeits {lost}{rest}: {pairing.reason}" if lost else ""
    return f"{pair}: {counts if now else 'played before'}{forfeits}"


def _standings_table(results: CupResults) -> Table:
    counted = ("rating (95 %)", "points", "games", "win", "draw", "loss", "forfeited", "margin")
    table = grid(("rank", "entry"), counted)
    for row in results.standings:
        rating = f"{row.rating:.0f} ({row.low:.0f} to {row.high:.0f})"
        counts = (row.games, row.win, row.draw, row.loss, row.forfeited)
        table.add_row(str(row.rank), row.name, rating, f"{row.points:g}", *map(str, counts), f"{row.margin:+.2f}")
    return table


def _returns_table(results: CupResults) -> Table:
    sides = list(dict.fromkeys(side for row in results.returns for side in row.sides))
    titles = ("return (95 %)", *(f"as {side}" for side in sides), "games", "forfeited", "length")
    table = grid(("rank", "entry"), titles)
    for row in results.returns:
        counts = str(row.games), str(row.forfeited), f"{row.length_mean:.4g}"
        by_side = (f"{row.sides[side]:.4g}" if side in row.sides else "-" for side in sides)
        mean = f"{row.mean:.4g} ({spread(row.low, row.high, '.4g')})"
        table.add_row(str(row.rank), row.name, mean, *by_side, *counts)
    return table


# --- grades


def show_grade(hand_in: Submission, examiner: Examiner, output: Path | None) -> None:
    """Grade one submission; status 1: not passed."""
    if "seed" not in examiner.rubric.model_fields_set:
        typer.echo(f"games of a fresh seed: --seed {examiner.rubric.seed} plays them again", err=True)
    result = None
    try:
        with temporary_output(output) if output is not None else nullcontext() as file:
            result = examiner.result(hand_in)
            if file is not None:
                file.write_text(json_text(result, indent=2) + "\n", encoding="utf-8")
    finally:
        if result is not None:  # even if the disk is full
            _show_grade(result)
    if not result["passed"]:
        raise typer.Exit(1)


def show_class(hand_ins: list[Submission], examiner: Examiner, table: Path) -> None:
    """Grade a class."""
    screen, began, rules = console(120), time.perf_counter(), examiner.rubric
    screen.print(f"{len(hand_ins)} submissions, {rules.points:g} points each, {rules.pass_points:g} are needed")

    def show(name: str, result: dict[str, Any], graded_now: bool) -> None:
        verdict = result["problem"] or ("passed" if result["passed"] else "not passed")
        duration = f" ({result['seconds']:.1f} s)" if graded_now else " (graded before)"
        screen.print(f"  {name}: {result['points']:g} points, {verdict}{duration}")

    results = grade_class(table, hand_ins, examiner, show)
    screen.print(f"wrote {table}, {table.with_suffix('') / FEEDBACK}")
    passed, refused = (sum(bool(result[key]) for result in results) for key in ("passed", "problem"))
    summary = {"graded": len(results), "passed": passed, "refused": refused}
    typer.echo(json.dumps({**summary, "seconds": round(time.perf_counter() - began, 3)}))


def _show_grade(result: dict[str, Any]) -> None:
    table = grid(("exam", "check"), ("measured", "95 %", "points"))
    for exam in result["exams"]:
        for k, check in enumerate(exam["checks"]):
            against = f" ({exam['opponent']})" if exam["opponent"] else ""
            table.add_row(f"{exam['name']}{against}" if k == 0 else "", *check_cells(check))
    screen = console(120)
    screen.print(table)
    if result["problem"]:
        screen.print(f"cannot be played: {result['problem']}")
    elif result["measurable"] < result["of"]:
        screen.print(f"{LEFT_OUT} {result['measurable']:g} points of the other checks count as {result['of']:g}")
    if result.get("close"):
        low, high = result["points_interval"]
        screen.print(f"too close to call: other games might give {low:g} to {high:g} points")
    verdict = "PASSED" if result["passed"] else "NOT PASSED"
    screen.print(f"{verdict}: {result['points']:g} of {result['of']:g} points, {result['pass_points']:g} are needed")
    typer.echo(json_text(result))
