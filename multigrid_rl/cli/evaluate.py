"""The ``evaluate`` and ``grade`` verbs: finding the target, printing and writing results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from multigrid_rl.cli.app import console, ended_by_signals, one_thread, refused, written_beside

if TYPE_CHECKING:
    from multigrid_rl.competition.gradebook import Gradebook
    from multigrid_rl.competition.grading import Rubric
    from multigrid_rl.competition.handed_in import HandIn
    from multigrid_rl.evaluation.environments import EnvTarget
    from multigrid_rl.evaluation.evaluation import Evaluation, Mode
    from multigrid_rl.evaluation.lineups import EvalTarget, Sides


def evaluate(
    who: Annotated[str, typer.Argument(help="A player of `multigrid-rl players`, a folder with one, or a run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Hydra overrides: scenario=1v1 scenario.seats.blue_0=blue-master. By default a run's own."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Games in each mode.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Decides the games: the same seed, the same table.")] = 10_000,
    opponent: Annotated[str | None, typer.Option(help="Player on every seat of the other team.")] = None,
    sides: Annotated[
        Literal["own", "other", "red", "blue", "both"] | None,
        typer.Option(help="Whom it plays for; a player by default both, a run the side it learned."),
    ] = None,
    mode: Annotated[
        Literal["stochastic", "argmax", "both"],
        typer.Option(help="Draw actions as in training, take the likeliest, or both one after the other."),
    ] = "both",
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of a run; the latest by default.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write; runs/evaluations/... by default.")
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write episodes.parquet, too.")] = False,
) -> None:
    """Play fresh games and say how it did, with intervals; the last line is JSON."""
    from multigrid_rl.evaluation import environments, evaluation

    one_thread()
    override_list = list(overrides or ())
    modes = evaluation.MODES if mode == "both" else (mode,)
    target = find_env_target(who, override_list, checkpoint, {"--opponent": opponent, "--sides": sides})
    if target is None:
        judged, played_sides = find_target(who, override_list, checkpoint, opponent, sides)
        if episodes < len(judged.teams(played_sides)):
            raise refused("--episodes", "at least one for each side that is played", episodes)
    name = judged.name if target is None else target.name
    folder = output or Path("runs") / "evaluations" / f"{name.replace(':', '.')}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    report, heading = None, [f"{name}: seed {seed}"]
    try:
        with written_beside(folder, "folder") as unfinished:
            unfinished.mkdir()
            files, games = [], None
            if target is not None:
                report = environments.report(target, episodes=episodes, seed=seed, modes=modes)
            else:
                result = evaluation.evaluate(judged, episodes=episodes, seed=seed, modes=modes, sides=played_sides)
                for part in (part for part in result.parts if part.mode == modes[0]):
                    seats = ", ".join(f"{seat} {player}" for seat, player in part.lineup.names().items())
                    heading.append(f"as {part.lineup.team}: {seats}")
                report = _report(result, modes)
                files = evaluation.write_episodes(evaluation.episode_columns(result), unfinished, parquet=parquet)
                games = json.dumps([game.model_dump() for game in evaluation.kept_games(result)])
            for file, text in (("summary.json", json.dumps(report, indent=2)), ("games.json", games)):
                if text is not None:
                    files.append(unfinished / file)
                    files[-1].write_text(text + "\n", encoding="utf-8")
    finally:
        if report is not None:  # even if the disk is full
            screen = console(130 if target is None else None)
            for line in heading:
                screen.print(line)
            screen.print(_table(report))
    screen.print(f"wrote {', '.join(str(folder / file.name) for file in files)}")
    typer.echo(json.dumps(_last_line(report, modes)))  # whole, however narrow the terminal is


def find_env_target(
    who: str, overrides: list[str], checkpoint: str | None, options: Mapping[str, object]
) -> EnvTarget | None:
    """Return the player or run ``who`` if it plays an environment of another package, else ``None``.

    ``options`` are those that do not apply there, by their names; ``None``: not given.

    Raises:
        ConfigError, PlayerError: no such player or run, one that does not fit, or such an option.
    """
    from multigrid_rl.evaluation import environments
    from multigrid_rl.runs.players import is_run, of_other_package

    if checkpoint is not None and not is_run(who):
        raise refused("--checkpoint", f"nothing for {who}, which is no run", checkpoint)
    if not of_other_package(who):
        return None
    for option, value in options.items():
        if value is not None:
            raise refused(option, f"nothing for {who}, whose environment has no opponents", value)
    return environments.env_target(who, overrides, checkpoint)


def find_target(
    who: str, overrides: list[str], checkpoint: str | None, opponent: str | None, sides: Sides | None
) -> tuple[EvalTarget, Sides]:
    """Return the player or run ``who``, and the sides it plays.

    Raises:
        ConfigError, PlayerError: no such player or run, or one that does not fit.
    """
    from multigrid_rl.config.compose import compose
    from multigrid_rl.evaluation import lineups
    from multigrid_rl.runs.players import config_of, is_run

    default: Sides = "own"
    if is_run(who):
        judged = lineups.run_target(Path(who), compose(overrides) if overrides else None, checkpoint)
    else:
        judged = lineups.player_target(who, config_of(who, overrides))
        default = "both" if judged.spec.blue == judged.spec.red else "own"
    if opponent is not None:
        judged = lineups.against(judged, opponent)
    return judged, sides or default


def _report(result: Evaluation, modes: tuple[Mode, ...]) -> dict[str, Any]:
    """Return everything but the single episodes: ``summary.json``."""
    from multigrid_rl.evaluation.evaluation import seat_returns, summary

    return {
        "format": 1,
        "player": result.name,
        "seed": result.seed,
        "seconds": round(result.seconds, 3),
        "parts": [
            {
                "mode": part.mode,
                "side": part.lineup.team,
                "players": part.lineup.names(),
                "sha256": {seat: [row.sha256 for row in rows] for seat, rows in part.lineup.seated.items()},
                **summary([part], result.spec),
                "return_by_seat": seat_returns(part, result.spec),
            }
            for part in result.parts
        ],
        "modes": {mode: summary([part for part in result.parts if part.mode == mode], result.spec) for mode in modes},
    }


def _last_line(report: dict[str, Any], modes: tuple[Mode, ...]) -> dict[str, Any]:
    """Return the closing line: of all games if there is one mode, else of the stochastic ones, the others beside."""
    keys = ("episodes", "win", "draw", "loss", "return_mean", "length_mean")
    rows = {mode: {key: round(row[key], 6) for key in keys if key in row} for mode, row in report["modes"].items()}
    first = rows[modes[0]]
    line = {"episodes": first["episodes"], "seconds": report["seconds"], **first, "mode": modes[0]}
    return line | {mode: rows[mode] for mode in modes[1:]}


def _table(report: dict[str, Any]) -> Table:
    """Lay out one row for each mode and side, and one for both sides together; without sides, one for each mode."""
    parts = report.get("parts", [])
    table = Table("mode", *(["side"] if parts else []), box=None, pad_edge=False)
    outcomes = ("win (95 %)", "draw", "loss") if parts else ()
    for title in ("episodes", *outcomes, "return (95 %)", "length (95 %)"):
        table.add_column(title, justify="right")
    for mode, whole in report["modes"].items():
        if not parts:
            table.add_row(mode, f"{whole['episodes']:,}", *_means(whole))
            continue
        rows = [(part["side"], part) for part in parts if part["mode"] == mode]
        for side, row in [*rows, *([("both", whole)] if len(rows) > 1 else [])]:
            table.add_row(mode, side, *_shares(row), *_means(row))
        for name, row in whole["against"].items():
            table.add_row(mode, f"against {name}", *_shares(row), "", "")
    return table


def _shares(row: dict[str, Any]) -> list[str]:
    low, high = row.get("win_interval", (0.0, 1.0))
    win = f"{row['win']:.1%} ({low:.1%} to {high:.1%})"
    return [f"{row['episodes']:,}", win, f"{row['draw']:.1%}", f"{row['loss']:.1%}"]


def _means(row: dict[str, Any]) -> list[str]:
    cells = []
    for name, digits in (("return", 3), ("length", 1)):
        low, high = row[f"{name}_interval"]
        cells.append(f"{row[f'{name}_mean']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
    return cells


def grade(
    bundle: Annotated[
        Path, typer.Argument(help="Folder or zip file with a bundle or an agent; with -o TABLE.csv, folder of a class.")
    ],
    rubric: Annotated[Path, typer.Option(help="What it is graded by, for example configs/grade/1v1.yaml.")],
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of the games; by default the rubric's, or a fresh one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON to write, too; or the csv of a class, to go on with.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option(help="Folder of earlier hand-ins, a folder each, to find copies of.")
    ] = None,
    allow_copies: Annotated[
        bool, typer.Option("--allow-copies", help="Grade copies, too, where the rubric says `refuse_known`.")
    ] = False,
    step_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds of an agent for an answer, all games of a step together.")
    ] = 10.0,
    total_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds of an agent for all answers, against one opponent from one side.")
    ] = 300.0,
) -> None:
    """Grade a bundle by play: status 0 passed, 1 not passed, others: not graded (docs/judging.md). Ends with JSON."""
    from multigrid_rl.competition import gradebook, grading, handed_in
    from multigrid_rl.competition.agents import Scratch, ScratchError
    from multigrid_rl.competition.copies import Originals
    from multigrid_rl.competition.sandbox import check_not_bound
    from multigrid_rl.config.compose import data_root, load_scenario
    from multigrid_rl.players.catalogue import Catalogue
    from multigrid_rl.types import RunError

    one_thread()
    check_not_bound(*filter(None, (rubric, bundle, output, earlier)))
    rules = grading.read_rubric(rubric)
    if seed is not None:
        rules = rules.model_copy(update={"seed": seed})
    if allow_copies:
        rules = rules.model_copy(update={"refuse_known": False})
    table = output if output is not None and output.suffix == ".csv" else None
    if table is None:
        gradebook.check_hand_in(bundle)
    else:
        gradebook.check_table(table, bundle)
    limits = replace(grading.LIMITS, step_s=step_s, total_s=total_s)
    try:
        with (
            ended_by_signals("the same command goes on with the class" if table else ""),
            closing(Scratch()) as scratch,
        ):
            before = handed_in.hand_ins(earlier, scratch.path) if earlier is not None else []
            catalogue, known = (
                Catalogue(data_root() / "checkpoints"),
                [each.folder for each in before if not each.problem],
            )
            originals = Originals(load_scenario(rules.scenario).spec, catalogue, known)
            if table is not None:
                book = partial(gradebook.Gradebook, table, rubric, rules, originals, limits)
                _grade_class(handed_in.hand_ins(bundle, scratch.path), rules, table, book)
                return
            found = handed_in.hand_in(bundle, scratch.path)
            _grade_one(found, rules, output, lambda: grading.grade(found.folder, rubric, rules, originals, limits))
    except ScratchError as error:
        raise RunError(str(error)) from error


def _grade_one(found: HandIn, rules: Rubric, output: Path | None, grade: Callable[[], dict[str, Any]]) -> None:
    from multigrid_rl.competition import grading
    from multigrid_rl.players.cards import PlayerError

    if "seed" not in rules.model_fields_set:
        typer.echo(f"games of a fresh seed: --seed {rules.seed} plays them again", err=True)
    result = None
    try:
        with written_beside(output) if output is not None else nullcontext() as file:
            try:
                if found.problem is not None:
                    raise PlayerError(found.problem)
                result = grade()
            except PlayerError as error:
                result = grading.refused(found.folder, rules, str(error))
            if file is not None:
                file.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    finally:
        if result is not None:  # even if the disk is full
            _show_grade(result)
    if not result["passed"]:
        raise typer.Exit(1)


def _grade_class(hand_ins: list[HandIn], rules: Rubric, table: Path, book: Callable[[], Gradebook]) -> None:
    from multigrid_rl.competition.agents import exclusive_lock
    from multigrid_rl.competition.gradebook import FEEDBACK

    screen, began = console(120), time.perf_counter()
    screen.print(f"{len(hand_ins)} hand-ins, {rules.points:g} points each, {rules.pass_points:g} are needed")

    def show(name: str, result: dict[str, Any], now: bool) -> None:
        verdict = result["problem"] or ("passed" if result["passed"] else "not passed")
        took = f" ({result['seconds']:.1f} s)" if now else " (graded before)"
        screen.print(f"  {name}: {result['points']:g} points, {verdict}{took}")

    with exclusive_lock(table.with_suffix("")):
        results = book().grade_all(hand_ins, show)
    screen.print(f"wrote {table}, {table.with_suffix('') / FEEDBACK}")
    passed, refused = (sum(bool(result[key]) for result in results) for key in ("passed", "problem"))
    last = {"graded": len(results), "passed": passed, "refused": refused}
    typer.echo(json.dumps({**last, "seconds": round(time.perf_counter() - began, 3)}))


def _show_grade(result: dict[str, Any]) -> None:
    from multigrid_rl.competition.gradebook import LEFT_OUT, check_cells

    table = Table("exam", "check", box=None, pad_edge=False)
    for title in ("measured", "95 %", "points"):
        table.add_column(title, justify="right")
    for exam in result["exams"]:
        for k, check in enumerate(exam["checks"]):
            table.add_row(f"{exam['name']} ({exam['opponent']})" if k == 0 else "", *check_cells(check))
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
    typer.echo(json.dumps(result, allow_nan=False))
