"""The ``play`` verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from multigrid_rl.cli.app import fail, one_thread


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
    from multigrid_rl.config import compose
    from multigrid_rl.runs.reference import refuse_to_overwrite
    from multigrid_rl.text import expected

    if record is not None:
        refuse_to_overwrite(record, force=force)
    if delay is not None and not 0.05 <= delay <= 60:
        raise fail(expected("--delay", "0.05 to 60 seconds", f"{delay:g}"))
    config = compose(list(overrides or []))
    spec = config.scenario.spec
    one_thread()
    # Imported here: torch takes a second, which a mistake above need not cost.
    from multigrid_rl.players.catalogue import Catalogue
    from multigrid_rl.show.play import Session, find_other_players, find_seat, save_games
    from multigrid_rl.show.window import Options, Window

    place = find_seat(spec, side, seat)
    others = find_other_players(config.scenario, Catalogue(config.checkpoint_root()), place, opponent, mate)
    session = Session(spec, others, seed=seed)

    def game_over() -> None:
        typer.echo(f"game {session.game} of seed {session.seed}: {session.caption.result}")
        if record is not None:  # after every game: a window that is killed loses none
            save_games(session.records, record)

    window = Window(session, Options(tile, delay, whole_board), game_over)
    typer.echo(", ".join(f"{s} {name}" for s, name in others.names.items()) + "; press H for help")
    window.run()
    typer.echo(str(session.score))
    if record is not None:
        kept = len(session.records)
        typer.echo(f"{record}: {kept} game{'s'[: kept != 1]}" if kept else f"{record}: not written, no game was ended")
