"""What all verbs share: how they end, where they print, and the files that they write."""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, TypeVar, cast

import typer
from rich.console import Console

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
        # Standard output may be closed, or know few letters: other ones are written as their numbers.
        if sys.stdout is None:
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  to the end
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
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
            raise _refused(error) or _crashed(error) from error

    return cast(Verb, guarded)


def _refused(error: Exception) -> typer.Exit | None:
    """Tell a mistake in what the user gave, or a run that broke off; ``None`` for every other error."""
    from multigrid_rl.config import ConfigError
    from multigrid_rl.players.cards import PlayerError
    from multigrid_rl.types import RunError

    if isinstance(error, (ConfigError, PlayerError)):
        return fail(error)
    if not isinstance(error, RunError):
        return None
    for line in filter(None, (str(error), error.hint)):
        fail(line)
    return typer.Exit(LOST)


def reason(error: OSError, place: object = "") -> str:
    """Return in one line what the machine or its disk refused, and where: at ``place`` if the system does not say."""
    where = error.filename or place
    return f"{where}: {error.strerror or error}" if where else str(error.strerror or error)


def _lost(error: OSError) -> typer.Exit:
    """Tell of a full disk, or a folder that is gone, in one line."""
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
        if isinstance(error, BrokenPipeError):  # whoever read has seen enough: `multigrid-rl players | head -3`
            return typer.Exit(LOST)
    _tell(reason(error), error)
    return typer.Exit(LOST)


def silence(stream: TextIO) -> None:
    """Send what a stream still holds, and cannot write, nowhere: at its end Python would try once more and complain."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _crashed(error: Exception) -> typer.Exit:
    """Tell of a fault of the program in one line; what its authors need goes into a file."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="multigrid-rl-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
        where = file.name
    except OSError:
        where = f"{TRACEBACK}=1 shows where"
    _tell(f"unexpected {type(error).__name__}: {error} (a fault of the program: {where})", error)
    return typer.Exit(CRASHED)


def _tell(message: str, error: Exception) -> None:
    from multigrid_rl.text import shown

    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    fail(shown(message, 500))


def fail(message: object) -> typer.Exit:
    """Print one line to stderr; raise the result to leave with status 2."""
    from multigrid_rl.text import one_line

    typer.echo(f"multigrid-rl: {one_line(message)}", err=True)
    return typer.Exit(2)


def refused(key: object, wanted: str, got: object) -> typer.Exit:
    """Print what is wrong with an option or argument; raise the result to leave with status 2."""
    from multigrid_rl.text import expected

    return fail(expected(key, wanted, got))


@contextmanager
def ended_by_signals(hint: str = "") -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the block as Ctrl-C does: everything in it that cleans up does so.

    Args:
        hint: what to tell who ended it.
    """

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # a second one would end the cleaning up
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, leave)
    try:
        yield
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone
            fail(f"interrupted{'; ' + hint if hint else ''}")
        raise typer.Exit(130) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def written_beside(output: Path, what: str = "file") -> Iterator[Path]:
    """Give a path to write ``output`` to, which gets its name when it is whole; else nothing of it stays.

    Raises:
        Exit: at once, if it exists already or cannot be made there.
        OSError: it cannot be written or renamed in the end; names a file.
    """
    from multigrid_rl.files import unfinished

    with ExitStack() as stack:
        try:
            if output.exists():
                raise refused("--output", f"a new {what}", f"{output}, which exists already")
            beside = stack.enter_context(unfinished(output))
        except OSError as error:
            raise refused("--output", f"a {what} that can be made", f"{output}: {error.strerror}") from error
        try:
            yield beside
            stack.close()
        except OSError as error:
            error.filename = error.filename or str(output)  # of a full disk the system does not say which
            raise


def console(width: int | None = None) -> Console:
    """Return a console; where the output goes into a file, lines stay whole and tables are as wide as they need."""
    file = not sys.stdout.isatty()
    return Console(highlight=False, markup=False, soft_wrap=file, width=width if file else None)


def one_thread() -> None:
    """Play with one torch thread: small networks gain nothing from more, and lose most of their speed on busy cores."""
    import torch

    torch.set_num_threads(1)
