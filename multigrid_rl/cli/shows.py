"""Verbs that show games and compare runs: ``video``, ``play``, ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from multigrid_rl.cli.app import app, one_line_errors
from multigrid_rl.cli.words import AGAINST, ManyAgainst


@app.command()
def video(
    source: Annotated[
        str, typer.Argument(help="A file or folder with games (games.json, a cup's results.json), a run or a player.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Of games played now: scenario=1v1 scenario.seats.blue_0=blue-master")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="GIF or MP4 to write.")] = Path("game.gif"),
    game: Annotated[
        str | None, typer.Option(help="best, median, worst, another label of the file, or a number from 0.")
    ] = None,
    fps: Annotated[float, typer.Option(help="Steps a second.")] = 4.0,
    tile: Annotated[int, typer.Option(help="Width of one cell in pixels.")] = 32,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    opponent: Annotated[str | None, typer.Option(help="Of games played now: who fills the other team.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of games played now.")] = 0,
    side: Annotated[
        Literal["red", "blue"] | None, typer.Option(help="Of games played now: whom the player or run plays for.")
    ] = None,
    mode: Annotated[
        Literal["stochastic", "argmax"], typer.Option(help="Of games played now: draw actions, or take the likeliest.")
    ] = "stochastic",
    episodes: Annotated[int, typer.Option(min=1, help="Games played now, to choose one from.")] = 100,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of a run; the latest by default.")] = None,
) -> None:
    """Show one game as a GIF or MP4, with captions. Never overwrites."""
    from multigrid_rl.cli.showing import Look, Wanted, make_video  # noqa: PLC0415

    wanted = Wanted(tuple(overrides or ()), opponent, seed, side, mode, episodes, checkpoint)
    with one_line_errors():
        make_video(source, game, wanted, Look(output, fps, tile, force))


@app.command()
def play(
    overrides: Annotated[list[str] | None, typer.Argument(help="Hydra overrides, as for train: scenario=1v1")] = None,
    opponent: Annotated[
        str | None, typer.Option(help="A player, run folder or bundle on every seat of the other team.")
    ] = None,
    side: Annotated[Literal["red", "blue"] | None, typer.Option(help="Your side; red by default.")] = None,
    seat: Annotated[str | None, typer.Option(help="Your seat, for example red_1; the first of your side.")] = None,
    mate: Annotated[str | None, typer.Option(help="Who plays the other seats of your team.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides the games.")] = 0,
    delay: Annotated[
        float | None, typer.Option(help="Seconds after which a step is played without a key; waits for keys without.")
    ] = None,
    tile: Annotated[int, typer.Option(min=16, max=120, help="Width of one cell in pixels.")] = 48,
    whole_board: Annotated[
        bool, typer.Option("--whole-board", help="Begin with the whole board instead of what your agent sees.")
    ] = False,
    record: Annotated[Path | None, typer.Option(help="File that keeps the games, for `multigrid-rl video`.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file if it exists.")] = False,
) -> None:
    """Play a game yourself, in a window, against players."""
    from multigrid_rl.cli.showing import Table, play_games_by_hand  # noqa: PLC0415

    table = Table(tuple(overrides or ()), opponent, mate, side, seat, seed, record, force)
    with one_line_errors():
        play_games_by_hand(table, tile=tile, delay=delay, whole_board=whole_board)


@app.command(cls=ManyAgainst)
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="Runs: folders, folders of some, patterns. Two: the first against the second."),
    ],
    against: Annotated[
        list[str] | None, typer.Option(AGAINST, help="Runs of the other side; takes all words up to the next option.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("compare.png"),
    json_file: Annotated[Path | None, typer.Option("--json", help="JSON to write, too.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite these files if they exist.")] = False,
    reps: Annotated[int, typer.Option(min=1000, help="Bootstrap samples.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
) -> None:
    """Say what two sets of runs over seeds differ in, and how surely: IQM, intervals, share of pairs."""
    from multigrid_rl.cli.comparing import Request, compare_runs, split  # noqa: PLC0415

    with one_line_errors():
        ours, theirs = split(runs, list(against or []))
        compare_runs(Request(ours, theirs, output, json_file, force, reps, seed))
