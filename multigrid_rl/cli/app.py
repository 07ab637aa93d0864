"""Shared parts of all verbs: exit statuses, consoles, and output files."""

import os
import re
import signal
import sys
import tempfile
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from multigrid_rl.files import atomic_path, discard_output, write_atomic
from multigrid_rl.tables import VERBS, find, has
from multigrid_rl.text import ConfigError, OneLineError, expected, one_line, reason, shown, unknown

Verb = TypeVar("Verb", bound=Callable[..., Any])

#: Exit statuses (docs/judging.md): failure of the machine or its disk, internal error. Python's own for both is 1,
#: which means "not passed" here.
LOST, CRASHED = 3, 70
#: Keys that may be written as options, too, and options that may be written as keys.
CHOICES = ("scenario", "scheme", "experiment", "model", "train", "cluster", "seed")
AGAINST = "--against"  # of ``compare``
#: Names of verbs in other programs -> ours.
_FOREIGN_VERBS = {
    "help": "--help", "resume": "train --resume RUN", "enjoy": "play, watch or video", "render": "video",
    "eval": "evaluate", "test": "evaluate", "benchmark": "evaluate", "run": "train", "learn": "train", "tune": "search",
    "list": "players or config", "plot": "report", "tournament": "cup", "check": "inspect",
    **dict.fromkeys(("overlay", "reference"), "report, which draws a run over its recipe's curves"),
}  # fmt: skip
#: Verbs of earlier versions, still accepted -> their names today.
_FORMER_VERBS = {
    "record": "data record", "import-policy": "data import-policy", "import-mlagents": "config import-mlagents",
    "freeze": "players freeze", "rate": "players rate",
}  # fmt: skip
#: Options of other programs -> the tool that does the same.
_FOREIGN_OPTIONS = {
    "--push": "hf upload USER/NAME FOLDER, of what is exported",
    "--parquet": "pandas.read_csv('episodes.csv').to_parquet('episodes.parquet')",
}
#: Environment variable: if set, internal errors print their traceback.
TRACEBACK = "MULTIGRID_RL_TRACEBACK"
#: Error of a wrong option or argument; newer versions of typer hold a copy of click without a public name for it.
_UsageError: Any = typer.BadParameter.__base__


class Commands(TyperGroup):
    """Imports a verb when it is called; prints a wrong verb, option or argument in one line, like other errors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # An add-on may be missing from this checkout.
        self.commands: dict[str, Any] = dict.fromkeys(name for name in VERBS if has(VERBS, name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a verb's command, ``None`` for any other word."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            verb = Verbs(add_completion=False)
            verb.command(name=cmd_name, cls=CompareCommand if cmd_name == "compare" else None)(find(VERBS, cmd_name))
            self.commands[cmd_name] = typer.main.get_command(verb)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a verb and its words; options and overrides are rewritten to the form that the verb takes."""
        first, two_words = _FORMER_VERBS.get(args[0], args[0]), " ".join(args[:2])
        args = [two_words, *args[2:]] if two_words in self.commands else [first, *args[1:]]
        name, command, words = super().resolve_command(ctx, args)
        return name, command, words if command is None else rewrite_words(command.params, words)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a verb and leave with its exit status."""
        extra = {"help_option_names": ["-h", "--help"], **extra}
        if not standalone_mode or not (sys.argv[1:] if args is None else args):  # the help
            return super().main(args, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            fail(_usage_message(error))
            status = error.exit_code
        except typer.Abort:
            status = 1
        sys.exit(status if isinstance(status, int) else 0)


class CompareCommand(TyperCommand):
    """Lets ``--against`` take all words up to the next option, for patterns that a shell expands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``--against a b`` as ``--against a --against b``."""
        expanded: list[str] = []
        inside = False
        for word in args:
            inside = word == AGAINST if word.startswith("-") else inside
            if word != AGAINST:
                expanded += [AGAINST, word] if inside else [word]
        return list(super().parse_args(ctx, expanded))


def rewrite_words(params: Sequence[Any], words: Sequence[str]) -> list[str]:
    """Return a verb's words with ``scenario=x`` for ``--scenario x`` or the reverse, whichever its ``params`` take."""
    names, options = {part.name for part in params}, {name for part in params for name in part.opts}
    valued = {name for part in params if not getattr(part, "is_flag", False) for name in part.opts}
    rewritten, appended, rest = list[str](), list[str](), iter(words)
    for word in rest:
        key, sign, value = word.removeprefix("--").partition("=")
        option, is_option = f"--{key}", word.startswith("--")
        accepted = {option, key, "overrides"} & {*options, *names}
        if sign and not is_option and option in valued:  # mode=argmax, until=2e5
            rewritten += [option, value]
            continue
        if key not in CHOICES or not accepted or not (sign or is_option) or (is_option and option in options):
            rewritten.append(word)
            continue
        value = value if sign else next(rest, "")
        if option in accepted:
            rewritten += [option, value]
        elif key in accepted:  # its one argument
            rewritten.append(value)
        else:
            appended.append(f"{key}={value}")
    return [*rewritten, *appended]  # overrides come after a player or run, which is the first word


def _usage_message(error: Any) -> str:
    """Return the message of a usage error, with the known options, or the override that was probably meant."""
    from multigrid_rl.config import compose, overrides, recipes

    option = getattr(error, "option_name", None)
    if option is None or not getattr(error, "ctx", None):
        message = _reworded(str(error.format_message()))
        suggested = next((hint for verb, hint in _FOREIGN_VERBS.items() if message == f"No such command '{verb}'."), "")
        return f"{message} Did you mean {suggested}?" if suggested else message
    if option in _FOREIGN_OPTIONS:
        return expected(option, f"no option (did you mean {_FOREIGN_OPTIONS[option]}?)", option)
    key, parameters = option.lstrip("-").replace("-", "_"), error.ctx.command.params
    seeds = ["seeds"] if key in ("m", "multirun") else []
    candidates = [key] if key in recipes.GROUPS else seeds or overrides.our_keys_for(key)
    with suppress(ConfigError):
        candidates = candidates or [compose.whole_key(key)]
    if candidates and any(part.name == "overrides" for part in parameters):
        return expected(option, f"no option but an override (did you mean {candidates[0]}=...?)", option)
    names = [name for part in parameters for name in part.opts if name.startswith("--")]
    return unknown(option, option, [*names, "--help"])


def _reworded(message: str) -> str:
    """Return a message of typer or pydantic about an option's value in the form of our messages."""
    if missing := re.match(r"Missing (?:option|argument) '([^']*)'", message):
        return expected(missing[1], "a value", "none")
    if not (invalid := re.match(r"Invalid value for '([^']*)': (?:Value error, )?(.*)", message)):
        return message
    if choice := re.match(r"'(.*)' is not one of (.*)\.", invalid[2]):
        return expected(invalid[1], choice[2].replace("'", ""), choice[1])
    text = invalid[2].replace("Input should be a valid", "expected a").replace("Input should be", "expected")
    text = text.replace("a integer", "a whole number")
    return f"{invalid[1]}: {text.partition(', unable')[0]}"


class Verbs(typer.Typer):
    """Commands that report every kind of error in one line and exit with a status."""

    def command(self, *arguments: Any, **options: Any) -> Callable[[Verb], Verb]:
        """Register a verb."""
        register = super().command(*arguments, **options)
        return lambda verb: register(_guarded(verb))


def _guarded(verb: Verb) -> Verb:
    @wraps(verb)
    def guarded(*arguments: Any, **options: Any) -> Any:
        _prepare_output()
        try:
            return verb(*arguments, **options)
        except typer.Exit:
            raise
        except BdbQuit as error:  # `q` in a debugger
            raise typer.Exit(LOST) from error
        except SystemExit as error:
            # Rich exits with status 1 when the reader of a pipe has closed it.
            if isinstance(error.__context__, BrokenPipeError):
                raise typer.Exit(LOST) from error
            raise
        except OSError as error:
            raise _io_error(error) from error
        except OneLineError as error:
            for line in filter(None, (str(error), error.hint)):
                fail(line)
            raise typer.Exit(error.status) from error
        except Exception as error:  # a command reports any error in one line
            raise _internal_error(error) from error

    return cast(Verb, guarded)


def _prepare_output() -> None:
    """Open standard output if it is closed; characters outside its encoding are written as escapes."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  to the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _io_error(error: OSError) -> typer.Exit:
    """Report a full disk, or a missing folder, in one line."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output(sys.stdout)
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe: `multigrid-rl players | head -3`
            return typer.Exit(LOST)
    _report_failure(reason(error), error)
    return typer.Exit(LOST)


def _internal_error(error: Exception) -> typer.Exit:
    """Report an internal error in one line; the traceback goes into a file."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="multigrid-rl-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
        location = file.name
    except OSError:
        location = f"{TRACEBACK}=1 shows where"
    _report_failure(f"unexpected {type(error).__name__}: {error} (a fault of the program: {location})", error)
    return typer.Exit(CRASHED)


def _report_failure(message: str, error: Exception) -> None:
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    fail(shown(message, 500))


def fail(message: object) -> typer.Exit:
    """Print one line to stderr; raise the result to leave with status 2."""
    typer.echo(f"multigrid-rl: {one_line(message)}", err=True)
    return typer.Exit(2)


def refused(key: object, wanted: str, got: object) -> typer.Exit:
    """Print the error of an option or argument; raise the result to leave with status 2."""
    return fail(expected(key, wanted, got))


@contextmanager
def exit_on_signals(hint: str = "") -> Iterator[None]:
    """End the block on SIGTERM and on a closed terminal as on Ctrl-C: it cleans up, then exits with status 130.

    ``hint``: printed when the block is interrupted.
    """

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for other in handlers:
            signal.signal(other, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, leave)
    try:
        yield
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone
            fail(f"interrupted{'; ' + hint if hint else ''}")
        raise typer.Exit(130) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def temporary_output(output: Path, what: str = "file") -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``output`` when the block succeeds, and removed otherwise.

    Raises:
        Exit: at once, if ``output`` exists already or cannot be made.
        OSError: it cannot be written or renamed; the error names a file.
    """
    with ExitStack() as stack:
        try:
            if output.exists():
                raise refused("--output", f"a new {what}", f"{output}, which exists already")
            temporary_path = stack.enter_context(atomic_path(output))
        except OSError as error:
            raise refused("--output", f"a {what} that can be made", f"{output}: {error.strerror}") from error
        try:
            yield temporary_path
            stack.close()
        except OSError as error:
            error.filename = error.filename or str(output)  # errors of a full disk have no file name
            raise


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and make its folder if needed; an old file stays until the new one is complete.

    Raises ``ConfigError``: it cannot be written.
    """
    try:
        write_atomic(path, content)
    except OSError as error:
        raise ConfigError(expected(path, "a file that can be written", error.strerror)) from error


def refuse_to_overwrite(path: Path, *, force: bool, suffix: str = "") -> None:
    """Raise :class:`ConfigError` if ``path`` exists, unless ``force``, or does not end with ``suffix``."""
    if not path.name.lower().endswith(suffix):
        raise ConfigError(expected("--output", f"a file that ends with {suffix}", path))
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists already, expected a new file, or --force")


def console(width: int | None = None) -> Console:
    """Return a console; output to a file has no wrapped lines, and tables as wide as their content."""
    file = not sys.stdout.isatty()
    style: Any = {"soft_wrap": file, "width": width if file else None, "force_terminal": not file}  # FORCE_COLOR or not
    return Console(highlight=False, markup=False, **style)


def one_thread() -> None:
    """Set torch to one thread: more do not speed up small networks, and slow them down much on busy cores."""
    import torch

    torch.set_num_threads(1)
