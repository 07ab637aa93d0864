"""Verbs for bundles, what a student hands in: ``export`` and ``inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multigrid_rl.cli.app import ended_by_signals, fail, one_thread


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    seat: Annotated[str, typer.Option(help="Whose player: a seat, for example red_0, or a whole team, red.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; never an existing one.")],
    name: Annotated[str | None, typer.Option(help="What it is called; the folder's name by default.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of the run; the latest by default.")] = None,
) -> None:
    """Write a trained player as a small folder that plays anywhere, without Ray and without the run."""
    from multigrid_rl.players import bundle
    from multigrid_rl.runs.players import players_for

    for part, card in bundle.export(players_for(run, seat, checkpoint), output, name=name).items():
        typer.echo(f"exported {output / part}: {card.bytes} bytes, sha256 {card.sha256}")


def inspect(
    folder: Annotated[Path, typer.Argument(help="A bundle, or an agent (docs/agents.md).")],
    scenario: Annotated[
        str | None, typer.Option(help="Game that it is to play; a bundle's own by default, 1v1 for an agent.")
    ] = None,
) -> None:
    """Show what a bundle or an agent is, check everything and play a few games; the last line says ok."""
    from multigrid_rl.players.inspection import inspect_folder
    from multigrid_rl.players.leftovers import ScratchError, remove_leftovers

    one_thread()
    remove_leftovers()
    with ended_by_signals():
        try:
            for line in inspect_folder(folder, scenario):
                typer.echo(line)
        except ScratchError as error:
            raise fail(error) from error
