"""The application that verbs register on, and what they share."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar, cast

import typer

from multigrid_rl.config import ConfigError

Verb = TypeVar("Verb", bound=Callable[..., Any])

#: Statuses (docs/judging.md): the machine or its disk failed; a fault of the program. Python's own for both is 1, which
#: means "not passed" here.
LOST, CRASHED = 3, 70
#: Set to anything, it shows where a fault of the program lies.
TRACEBACK = "MULTIGRID_RL_TRACEBACK"


class Verbs(typer.Typer):
    """Ends every verb with one line and a status that says what happened, whatever happens."""

    def command(self, *arguments: Any, **options: Any) -> Callable[[Verb], Verb]:
        """Register a verb."""
        register = super().command(*arguments, **options)
        return lambda verb: register(_guarded(verb))


def _guarded(verb: Verb) -> Verb:
    @wraps(verb)
    def guarded(*arguments: Any, **options: Any) -> Any:
        _can_be_written()
        try:
            return verb(*arguments, **options)
        except typer.Exit:
            raise
        except SystemExit as error:
            # Rich's way out when whoever read the output has left, with status 1.
            if isinstance(error.__context__, BrokenPipeError):
                raise typer.Exit(LOST) from error
            raise
        except OSError as error:
            raise _lost(error) from error
        except Exception as error:
            raise _crashed(error) from error

    return cast(Verb, guarded)


def _can_be_written() -> None:
    """Let standard output be one that is closed, or knows few letters: other ones are written as their numbers."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  to the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _lost(error: OSError) -> typer.Exit:
    """A full disk, a folder that is gone: one line."""
    silent = False
    try:
        sys.stdout.flush()
    except OSError:
        # What is still to be written cannot be; without this, Python would try once more in the end and complain.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        silent = isinstance(error, BrokenPipeError)  # whoever read has seen enough: `multigrid-rl players | head -3`
    if not silent:
        where = "" if error.filename is None else f"{error.filename}: "
        _tell(f"{where}{error.strerror or error}", error)
    return typer.Exit(LOST)


def _crashed(error: Exception) -> typer.Exit:
    """A fault of the program: one line, and what its authors need in a file."""
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="multigrid-rl-", suffix=".txt", delete=False) as file:
            file.write(text)
        where = file.name
    except OSError:
        where = f"{TRACEBACK}=1 shows where"
    _tell(f"unexpected {type(error).__name__}: {error} (a fault of the program: {where})", error)
    return typer.Exit(CRASHED)


def _tell(message: str, error: Exception) -> None:
    from multigrid_rl.text import shown  # noqa: PLC0415

    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    typer.echo(f"multigrid-rl: {shown(message, 500)}", err=True)


app = Verbs(
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
