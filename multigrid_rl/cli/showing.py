"""The ``video`` and ``play`` verbs: which game is meant, who sits where, what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import typer

from multigrid_rl.cli.app import one_thread
from multigrid_rl.config import ConfigError, compose
from multigrid_rl.judge.replays import GameRecord
from multigrid_rl.players.cards import CARD_FILE, read_card
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.runs.reference import refuse_to_overwrite
from multigrid_rl.schema import data_root
from multigrid_rl.show.video import VideoError, check_video, choose, find_games, read_games, write_video

Side = Literal["red", "blue"]

_SHORT_GIF = 3_000_000  # bytes from which an MP4 is the better choice


class Wanted(NamedTuple):
    """Games that are played to be shown."""

    overrides: tuple[str, ...]
    opponent: str | None
    seed: int
    side: Side | None
    mode: Literal["stochastic", "argmax"]
    episodes: int
    checkpoint: str | None


class Look(NamedTuple):
    """How a video looks."""

    output: Path
    fps: float
    tile: int
    force: bool


def make_video(source: str, which: str | None, wanted: Wanted, look: Look) -> None:
    """Write a video of one game and say what it shows.

    Raises:
        ConfigError, PlayerError: no such source, game or player; a file that cannot be written.
    """
    check_video(look.output, fps=look.fps, tile=look.tile, force=look.force)
    file = find_games(Path(source))
    if file is None:
        game = _played(source, which, wanted)
    else:
        if wanted.overrides or wanted.opponent or wanted.side or wanted.checkpoint:
            raise VideoError(f"{file}: holds games already; allowed beside it is --game alone")
        game = choose(read_games(file), which, file)
    written = write_video(game, look.output, fps=look.fps, tile=look.tile, force=look.force)
    size = look.output.stat().st_size
    seats = ", ".join(f"{seat} {name}" for seat, name in game.players.items())
    typer.echo(f"{game.label}, game {game.game} of seed {game.seed}: {seats}")
    typer.echo(
        f"{look.output}: {game.steps} steps, {written.frames} frames of {written.width} x {written.height} pixels, "
        f"{written.seconds:.1f} s, {size / 1000:,.0f} kB"
    )
    if look.output.suffix.lower() == ".gif" and size > _SHORT_GIF:
        typer.echo("note: an .mp4 of so long a game is a fraction of the size")


def _played(source: str, which: str | None, wanted: Wanted) -> GameRecord:
    _check_source(source)
    one_thread()
    # Imported here: torch takes a second, and a file of games is shown without it.
    from multigrid_rl.cli.evaluating import Request, find_judged  # noqa: PLC0415
    from multigrid_rl.judge.evaluation import evaluate, kept_games  # noqa: PLC0415
    from multigrid_rl.judge.replays import record  # noqa: PLC0415
    from multigrid_rl.players.games import play_games  # noqa: PLC0415

    request = Request(
        source, wanted.overrides, wanted.episodes, wanted.seed, wanted.opponent, wanted.side or _home_side(source),
        wanted.mode, wanted.checkpoint, None, False,
    )  # fmt: skip
    judged, sides = find_judged(request)
    if which is not None and which.isdecimal():
        lineup = judged.lineup(judged.teams(sides)[0], greedy=wanted.mode == "argmax")
        played = play_games(judged.spec, lineup.players(judged.spec), 1, seed=wanted.seed, first_game=int(which))
        label = f"{judged.name} ({wanted.mode}, {lineup.team})"
        return record(judged.spec, played, 0, seed=wanted.seed, players=lineup.names(), label=label)
    evaluation = evaluate(judged, episodes=wanted.episodes, seed=wanted.seed, modes=(wanted.mode,), sides=sides)
    return choose(kept_games(evaluation), which, f"{wanted.episodes} games of {judged.name}, or a game's number")


def _check_source(source: str) -> None:
    path = Path(source)
    if path.is_dir() and not any((path / name).is_file() for name in ("config.yaml", CARD_FILE)):
        raise VideoError(f"{source}: no games.json, results.json, run or player in it; allowed is a folder with one")
    if not path.exists() and ("/" in source or path.suffix):
        raise VideoError(f"{source}: no such file or folder; allowed is a file of games, a run folder or a player")


def _home_side(source: str) -> Literal["own", "red", "blue"]:
    # A frozen player is shown on the side that it learned, unless told otherwise.
    if source in BUILT_IN or (Path(source) / "config.yaml").is_file():
        return "own"
    seats = read_card(Catalogue(data_root() / "checkpoints").folder(source)).seats
    return "blue" if all(seat.startswith("blue") for seat in seats) else "red"


class Table(NamedTuple):
    """Who plays with whom."""

    overrides: tuple[str, ...]
    opponent: str | None
    mate: str | None
    side: Side | None
    seat: str | None
    seed: int
    record: Path | None
    force: bool


def play_games_by_hand(table: Table, *, tile: int, delay: float | None, whole_board: bool) -> None:
    """Open a window, let a person play, and print the score.

    Raises:
        ConfigError, PlayerError: unknown scenario or player, a seat that is not there, no screen, a file that exists.
    """
    if table.record is not None:
        refuse_to_overwrite(table.record, force=table.force)
    if delay is not None and not 0.05 <= delay <= 60:
        raise ConfigError(f"--delay {delay:g}: allowed is 0.05 to 60 seconds")
    config = compose(list(table.overrides))
    spec = config.scenario.spec
    one_thread()
    # Imported here: torch takes a second, which a mistake above need not cost.
    from multigrid_rl.show.play import Session, find_other_players, find_seat, save_games  # noqa: PLC0415
    from multigrid_rl.show.window import Options, Window  # noqa: PLC0415

    seat = find_seat(spec, table.side, table.seat)
    company = find_other_players(config.scenario, Catalogue(config.checkpoint_root()), seat, table.opponent, table.mate)
    session = Session(spec, company, seed=table.seed)
    keep = table.record

    def game_over() -> None:
        typer.echo(f"game {session.game} of seed {session.seed}: {session.caption.result}")
        if keep is not None:  # after every game: a window that is killed loses none
            save_games(session.records, keep)

    window = Window(session, Options(tile, delay, whole_board), game_over)
    typer.echo(", ".join(f"{s} {name}" for s, name in company.names.items()) + "; press H for help")
    window.run()
    typer.echo(str(session.score))
    if keep is not None:
        kept = len(session.records)
        typer.echo(f"{keep}: {kept} game{'s'[: kept != 1]}" if kept else f"{keep}: not written, no game was ended")
