"""The application that verbs register on, and what they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from multigrid_rl.config import ConfigError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="The ``multigrid-rl`` command"
)


def fail(message: object) -> typer.Exit:
    """Print one line to stderr; raise the result to leave with status 2."""
    typer.echo(f"multigrid-rl: {message}", err=True)
    return typer.Exit(2)


def one_thread() -> None:
    """Play with one torch thread: small networks gain nothing from more, and lose most of their speed on busy cores."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn mistakes in what the user gave into one line and status 2."""
    from multigrid_rl.players.cards import PlayerError  # noqa: PLC0415

    try:
        yield
    except (ConfigError, PlayerError) as error:
        raise fail(error) from error
