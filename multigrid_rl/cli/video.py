"""The ``video`` verb: which game is meant, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from multigrid_rl.cli.app import fail, one_thread

if TYPE_CHECKING:
    from multigrid_rl.judge.lineups import Sides

_SHORT_GIF = 3_000_000  # bytes from which an MP4 is the better choice


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
    from multigrid_rl.show.video import check_video, choose, find_games, read_games, write_video
    from multigrid_rl.text import expected

    check_video(output, fps=fps, tile=tile, force=force)
    file = find_games(Path(source))
    if file is not None:
        if overrides or opponent or side or checkpoint:
            raise fail(expected(file, "--game alone beside games that were played", "what says how to play some"))
        shown = choose(read_games(file), game, file)
    else:
        home = side or _home_side(source)
        one_thread()
        # Imported here: torch takes a second, and a file of games is shown without it.
        from multigrid_rl.cli.evaluate import find_target
        from multigrid_rl.judge.evaluation import evaluate, kept_games
        from multigrid_rl.judge.replays import record
        from multigrid_rl.players.match import play_games

        judged, sides = find_target(source, list(overrides or ()), checkpoint, opponent, home)
        if game is not None and game.isdecimal():
            lineup = judged.lineup(judged.teams(sides)[0], greedy=mode == "argmax")
            played = play_games(judged.spec, lineup.players(judged.spec), 1, seed=seed, first_game=int(game))
            label = f"{judged.name} ({mode}, {lineup.team})"
            shown = record(judged.spec, played, 0, seed=seed, players=lineup.names(), label=label)
        else:
            evaluation = evaluate(judged, episodes=episodes, seed=seed, modes=(mode,), sides=sides)
            shown = choose(kept_games(evaluation), game, f"{episodes} games of {judged.name}, or a game's number")
    written = write_video(shown, output, fps=fps, tile=tile, force=force)
    size = output.stat().st_size
    seats = ", ".join(f"{seat} {name}" for seat, name in shown.players.items())
    typer.echo(f"{shown.label}, game {shown.game} of seed {shown.seed}: {seats}")
    typer.echo(
        f"{output}: {shown.steps} steps, {written.frames} frames of {written.width} x {written.height} pixels, "
        f"{written.seconds:.1f} s, {size / 1000:,.0f} kB"
    )
    if output.suffix.lower() == ".gif" and size > _SHORT_GIF:
        typer.echo("note: an .mp4 of so long a game is a fraction of the size")


def _home_side(source: str) -> Sides:
    """Return the side on which a player is shown unless told otherwise: the one that it learned."""
    from multigrid_rl.config import data_root
    from multigrid_rl.players.cards import CARD_FILE, read_card
    from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
    from multigrid_rl.text import expected

    path = Path(source)
    if path.is_dir() and not any((path / name).is_file() for name in ("config.yaml", CARD_FILE)):
        raise fail(expected(source, "a folder with games.json, results.json, a run or a player", "none of them"))
    if not path.exists() and ("/" in source or path.suffix):
        raise fail(expected(source, "a file of games, a run folder or a player", "no such file or folder"))
    if source in BUILT_IN or (path / "config.yaml").is_file():
        return "own"
    seats = read_card(Catalogue(data_root() / "checkpoints").folder(source)).seats
    return "blue" if all(seat.startswith("blue") for seat in seats) else "red"
