"""Commands to watch games: ``report`` writes a page, ``video`` a film, ``play`` lets a person play."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from multigrid_rl.cli.app import refused
from multigrid_rl.cli.output import one_thread, refuse_to_overwrite
from multigrid_rl.config.compose import compose
from multigrid_rl.runs.reader import check_of_games
from multigrid_rl.show import EPISODES, GAMES

_SHORT_GIF = 3_000_000  # bytes above which an MP4 is the better choice
#: Games of which `video` shows one.
GAMES_TO_CHOOSE_FROM = 100


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_OR_CUP", help="Folder of a training run or of a cup.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML to write; report.html in the folder by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"Fresh games of a run's policy in each mode; {GAMES} by default, {EPISODES} of Gymnasium, 0: none.",
        ),
    ] = None,
    films: Annotated[
        bool, typer.Option("--films/--no-films", help="Draw three episodes of Gymnasium; 15 s of MuJoCo without a GPU.")
    ] = True,
) -> None:
    """Write one HTML file about a run or a cup: results, curves, games to look at. It needs no network."""
    from multigrid_rl.show.report import write_report

    one_thread()
    written = write_report(folder, output, force=force, games=episodes, films=films)
    typer.echo(f"wrote {written} ({written.stat().st_size / 1000:,.0f} kB)")


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page that follows the run, to this machine alone.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the page; the first free one from 8765 on by default.")
    ] = None,
) -> None:
    """Look at a run while it runs: its newest report as text, or a page that follows it (``--web``)."""
    from multigrid_rl.show import live

    if web:
        one_thread()
        live.watch_run(folder, port)
        return
    if port is not None:
        raise refused("--port", "nothing without --web", port)
    from multigrid_rl.show.run_page import newest_report

    for line in newest_report(folder):
        typer.echo(line)


def video(
    source: Annotated[
        str, typer.Argument(help="A file or folder with games (games.json, a cup's results.json), a run or a player.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Of games played now: scenario=1v1 scenario.seats.blue_0=blue-master")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="GIF or MP4 to write.")] = Path("game.gif"),
    game: Annotated[
        str | None,
        typer.Option(
            help="best, median, worst, another label of the file, or a number from 0; of Gymnasium by default median."
        ),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(help="Steps a second; 4 by default, of Gymnasium as the environment says.")
    ] = None,
    tile: Annotated[int | None, typer.Option(min=16, max=96, help="Pixels of a board's cell; 32 by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    opponent: Annotated[str | None, typer.Option(help="Of games played now: who fills the other team.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of games played now.")] = 0,
    side: Annotated[str | None, typer.Option(help="Of games played now: whom the player or run plays for.")] = None,
    mode: Annotated[
        Literal["stochastic", "argmax"], typer.Option(help="Of games played now: draw actions, or take the likeliest.")
    ] = "stochastic",
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help=f"Games played now, to choose one from; 100 by default, {EPISODES} of Gymnasium."),
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of a run; the latest by default.")] = None,
) -> None:
    """Show one game, or one episode of Gymnasium, as a GIF or MP4, with captions. Never overwrites."""
    from multigrid_rl.evaluation import replays
    from multigrid_rl.show import films, video

    if (file := video.find_games(Path(source))) is not None:
        if overrides or opponent or side or checkpoint or seed or mode != "stochastic" or episodes:
            raise refused(file, "--game alone beside games that were played", "what says how to play some")
        record = replays.choose(replays.read_games(file), game, file)
    else:
        game = game and replays.check_game(game)
        if episodes and game and game.isdecimal():
            raise refused("--episodes", "nothing beside the number of one --game", episodes)
    video.check_video(output, fps=fps, force=force)
    if file is None:
        one_thread()
        # Imported here: torch takes a second, and a file of games needs none.
        from multigrid_rl.evaluation.targets import find_target

        default_side: Any = side or films.usual_side(source)
        target = find_target(source, list(overrides or ()), checkpoint, opponent)
        if side and not target.rivals:
            raise refused("--side", f"nothing for {source}, whose environment has no opponents", side)
        episodes = episodes or (GAMES_TO_CHOOSE_FROM if target.rivals else EPISODES)
        record = films.pick(target, game, episodes, seed=seed, mode=mode, side=default_side)
    if tile and not isinstance(record, replays.GameRecord):
        raise refused("--tile", "nothing for an environment without cells", tile)
    written = video.write_video(record, output, fps=fps, tile=tile or 32, force=force)
    seats = ", ".join(f"{seat} {name}" for seat, name in record.players.items())
    returns = "".join(f", return {total:.6g}" for total in getattr(record, "returns", {}).values())
    size = output.stat().st_size
    typer.echo(f"{record.label}, game {record.game} of seed {record.seed}: {seats}{returns}")
    typer.echo(
        f"{output}: {record.steps} steps, {written.frames} frames of {written.width} x {written.height} pixels, "
        f"{written.seconds:.1f} s, {size / 1000:,.0f} kB"
    )
    if output.suffix.lower() == ".gif" and size > _SHORT_GIF:
        typer.echo("note: an .mp4 of so long a game is a fraction of the size")


def play(
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, as for train: scenario=1v1")] = None,
    opponent: Annotated[
        str | None, typer.Option(help="A player, or the folder of a run, bundle or agent, on the other team's seats.")
    ] = None,
    seat: Annotated[str | None, typer.Option(help="Your seat, for example blue_0; red_0 by default.")] = None,
    mate: Annotated[str | None, typer.Option(help="Who plays the other seats of your team.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides the games.")] = 0,
    record: Annotated[Path | None, typer.Option(help="File that keeps the games, for `multigrid-rl video`.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file if it exists.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the page; the first free one from 8765 on.")
    ] = None,
) -> None:
    """Play a game yourself against players, in a browser; in the terminal where the game is text."""
    if record is not None:
        refuse_to_overwrite(record, force=force)
    check_of_games(overrides or ())
    config = compose(list(overrides or []))
    if port is not None and not config.scenario.kind.board:
        raise refused("--port", f"nothing for {config.scenario.name}, played in the terminal", port)
    spec = config.scenario.kind.spec
    one_thread()
    # Imported here: torch takes a second, which a mistake above need not cost.
    from multigrid_rl.players.catalogue import Catalogue
    from multigrid_rl.show.browser import browser
    from multigrid_rl.show.play import find_other_players, find_seat, save_games
    from multigrid_rl.show.terminal import terminal

    others = find_other_players(
        config.scenario, Catalogue(config.checkpoint_root()), find_seat(spec, seat), opponent, mate
    )

    def game_over(session: Any) -> None:
        typer.echo(f"game {session.game} of seed {session.seed}: {session.result}")
        if record is not None:  # after every game: a killed process loses none
            save_games(session.records, record)

    session, run, help_shown = (
        browser(spec, others, game_over, seed=seed, port=port)
        if config.scenario.kind.board
        else terminal(spec, others, game_over, seed=seed)
    )
    typer.echo(", ".join(f"{s} {name}" for s, name in others.names.items()) + f"; {help_shown}")
    run()
    typer.echo(str(session.score))
    if record is not None:
        n = len(session.records)
        typer.echo(f"{record}: {n} game{'s'[: n != 1]}" if n else f"{record}: not written, no game was ended")
