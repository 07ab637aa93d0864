"""The ``evaluate`` verb: who is judged, what is printed and written."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from multigrid_rl.cli.outputs import written_beside
from multigrid_rl.config import ConfigError, compose, data_root
from multigrid_rl.judge import environments
from multigrid_rl.judge.environments import EnvTarget, player_target, run_target
from multigrid_rl.judge.evaluation import MODES, Evaluation, Mode, Part, evaluate, kept_games, seat_returns, summary
from multigrid_rl.judge.lineups import Judged, Sides, against, judged_player, judged_run
from multigrid_rl.judge.tables import episode_columns, write_episodes
from multigrid_rl.players.cards import read_card
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.runs.reader import run_config


class Request(NamedTuple):
    """What was asked for on the command line."""

    who: str
    overrides: tuple[str, ...]
    episodes: int
    seed: int
    opponent: str | None
    sides: Sides | None
    mode: Literal["stochastic", "argmax", "both"]
    checkpoint: str | None
    output: Path | None
    parquet: bool


def run_evaluation(request: Request) -> None:
    """Play, print a table and a line of JSON, and write the folder.

    Raises:
        ConfigError, PlayerError: something that cannot be played or written; found before anything is played.
        OSError: the disk is full; nothing stays of what was written.
    """
    modes: tuple[Mode, ...] = MODES if request.mode == "both" else (request.mode,)
    target = find_env_target(request)
    if target is not None:
        _evaluate_environment(target, request, modes)
        return
    judged, sides = find_judged(request)
    folder = request.output or _default_folder(judged.name)
    if request.episodes < len(judged.teams(sides)):
        raise ConfigError(f"--episodes {request.episodes}: allowed is at least one for each side that is played")
    file = not sys.stdout.isatty()
    console = Console(highlight=False, markup=False, soft_wrap=file, width=130 if file else None)
    report = None
    try:
        with written_beside(folder, "folder") as unfinished:
            evaluation = evaluate(judged, episodes=request.episodes, seed=request.seed, modes=modes, sides=sides)
            report = evaluation_report(evaluation, modes)
            files = write_evaluation(evaluation, report, unfinished, parquet=request.parquet)
    finally:
        if report is not None:  # even if the disk is full
            for line in heading(evaluation):
                console.print(line)
            console.print(summary_table(report))
    console.print(f"wrote {', '.join(str(folder / file.name) for file in files)}")
    typer.echo(json.dumps(last_line(report, modes)))  # whole, however narrow the terminal is


def find_env_target(request: Request) -> EnvTarget | None:
    """Return the player or run that is meant if it plays an environment of another package, else ``None``.

    Raises:
        ConfigError, PlayerError: a run that cannot be read, or options that say nothing here.
    """
    folder = Path(request.who)
    if (folder / "config.yaml").is_file():
        if run_config(folder).scenario.game is not None:
            return None
        _refuse_opponents(request, request.who)
        config = compose(list(request.overrides)) if request.overrides else None
        return run_target(folder, config, request.checkpoint)
    catalogue = Catalogue(data_root() / "checkpoints")
    if request.who in BUILT_IN or not (request.who in catalogue.entries or folder.is_dir()):
        return None
    home = catalogue.folder(request.who)
    env = read_card(home).env
    if env is None:
        return None
    _refuse_opponents(request, request.who)
    own = [f"scenario={env.package}", f"scenario.env_id={env.env_id}", f"scenario.agents={env.agents}"]
    own += [f"scenario.env_args.{key}={json.dumps(value)}" for key, value in env.env_args.items()]
    return player_target(home, compose(list(request.overrides) or own))


def _refuse_opponents(request: Request, who: str) -> None:
    for option, value in (("--opponent", request.opponent), ("--sides", request.sides)):
        if value is not None:
            raise ConfigError(f"{option}: expected nothing for {who}, whose environment has no opponents, got {value}")


def _evaluate_environment(target: EnvTarget, request: Request, modes: tuple[Mode, ...]) -> None:
    folder = request.output or _default_folder(target.name)
    with written_beside(folder, "folder") as unfinished:
        told = environments.report(target, episodes=request.episodes, seed=request.seed, modes=modes)
        unfinished.mkdir(parents=True, exist_ok=True)
        (unfinished / "summary.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    table = Table("mode", box=None, pad_edge=False)
    for title in ("episodes", "return (95 %)", "length (95 %)"):
        table.add_column(title, justify="right")
    for mode, row in told["modes"].items():
        table.add_row(mode, f"{row['episodes']:,}", *_cells(row, outcomes=False))
    console = Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())
    console.print(f"{target.name}: seed {request.seed}")
    console.print(table)
    console.print(f"wrote {folder / 'summary.json'}")
    keys = ("episodes", "return_mean", "length_mean")
    rows = {mode: {key: round(told["modes"][mode][key], 6) for key in keys} for mode in modes}
    line = {"seconds": told["seconds"], **rows[modes[0]], "mode": modes[0]}
    typer.echo(json.dumps(line | {mode: rows[mode] for mode in modes[1:]}))


def find_judged(request: Request) -> tuple[Judged, Sides]:
    """The player or run that is meant, and the sides it plays.

    Raises:
        ConfigError, PlayerError: no such player or run, or one that does not fit.
    """
    folder = Path(request.who)
    if (folder / "config.yaml").is_file():
        config = compose(list(request.overrides)) if request.overrides else None
        judged = judged_run(folder, config, request.checkpoint)
        usual: Sides = "own"
    else:
        if request.checkpoint is not None:
            raise ConfigError(f"--checkpoint {request.checkpoint}: {request.who} is no run; allowed is a run folder")
        judged = _player(request)
        usual = "both" if judged.spec.blue == judged.spec.red else "own"
    if request.opponent is not None:
        judged = against(judged, request.opponent)
    return judged, request.sides or usual


def _player(request: Request) -> Judged:
    given = list(request.overrides)
    if not any(override.startswith(("scenario=", "experiment=")) for override in given):
        given.insert(0, f"scenario={_home(request.who)}")
    return judged_player(request.who, compose(given))


def _home(who: str) -> str:
    # A frozen player is judged where it was made, unless told otherwise.
    if who in BUILT_IN:
        return "1v1"
    return read_card(Catalogue(data_root() / "checkpoints").folder(who)).scenario


def _default_folder(name: str) -> Path:
    return Path("runs") / "evaluations" / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"


def evaluation_report(evaluation: Evaluation, modes: tuple[Mode, ...]) -> dict[str, Any]:
    """Everything but the single episodes: ``summary.json``."""
    return {
        "format": 1,
        "player": evaluation.name,
        "seed": evaluation.seed,
        "seconds": round(evaluation.seconds, 3),
        "parts": [
            {
                "mode": part.mode,
                "side": part.lineup.team,
                "players": part.lineup.names(),
                "sha256": {seat: [row.sha256 for row in rows] for seat, rows in part.lineup.seated.items()},
                **summary([part], evaluation.spec),
                "return_by_seat": seat_returns(part, evaluation.spec),
            }
            for part in evaluation.parts
        ],
        "modes": {mode: summary(_of(evaluation, mode), evaluation.spec) for mode in modes},
    }


def _of(evaluation: Evaluation, mode: Mode) -> list[Part]:
    return [part for part in evaluation.parts if part.mode == mode]


def write_evaluation(evaluation: Evaluation, report: dict[str, Any], folder: Path, *, parquet: bool) -> list[Path]:
    """Write ``episodes.csv``, ``summary.json`` and ``games.json`` into a new folder. Raises ``FileExistsError``."""
    folder.mkdir()
    files = write_episodes(episode_columns(evaluation), folder, parquet=parquet)
    for name, content in (
        ("summary.json", json.dumps(report, indent=2)),
        ("games.json", json.dumps([game.model_dump() for game in kept_games(evaluation)])),
    ):
        (folder / name).write_text(content + "\n", encoding="utf-8")
        files.append(folder / name)
    return files


def last_line(report: dict[str, Any], modes: tuple[Mode, ...]) -> dict[str, Any]:
    """The closing line: of all games if there is one mode, else of the stochastic ones, with the others beside."""
    keys = ("episodes", "win", "draw", "loss", "return_mean", "length_mean")
    rows = {mode: {key: round(report["modes"][mode][key], 6) for key in keys} for mode in modes}
    first = rows[modes[0]]
    line = {"episodes": first["episodes"], "seconds": report["seconds"], **first, "mode": modes[0]}
    return line | {mode: rows[mode] for mode in modes[1:]}


def heading(evaluation: Evaluation) -> list[str]:
    """Who sat where."""
    lines = [f"{evaluation.name}: seed {evaluation.seed}"]
    for part in evaluation.parts:
        if part.mode == evaluation.parts[0].mode:
            seats = ", ".join(f"{seat} {name}" for seat, name in part.lineup.names().items())
            lines.append(f"as {part.lineup.team}: {seats}")
    return lines


def summary_table(report: dict[str, Any]) -> Table:
    """One row for each mode and side, and one for both sides together."""
    table = Table("mode", "side", box=None, pad_edge=False)
    for title in ("episodes", "win (95 %)", "draw", "loss", "return (95 %)", "length (95 %)"):
        table.add_column(title, justify="right")
    parts = report["parts"]
    for mode, whole in report["modes"].items():
        rows = [(part["side"], part) for part in parts if part["mode"] == mode]
        for side, row in [*rows, *([("both", whole)] if len(rows) > 1 else [])]:
            table.add_row(mode, side, f"{row['episodes']:,}", *_cells(row))
        for name, row in whole["against"].items():
            low, high = row.get("win_interval", (0.0, 1.0))
            win = f"{row['win']:.1%} ({low:.1%} to {high:.1%})"
            cells = (win, f"{row['draw']:.1%}", f"{row['loss']:.1%}", "", "")
            table.add_row(mode, f"against {name}", f"{row['episodes']:,}", *cells)
    return table


def _cells(row: dict[str, Any], *, outcomes: bool = True) -> list[str]:
    cells = []
    if outcomes:
        low, high = row["win_interval"]
        cells = [f"{row['win']:.1%} ({low:.1%} to {high:.1%})", f"{row['draw']:.1%}", f"{row['loss']:.1%}"]
    for name, digits in (("return", 3), ("length", 1)):
        low, high = row[f"{name}_interval"]
        cells.append(f"{row[f'{name}_mean']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
    return cells
