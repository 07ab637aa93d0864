"""The commands as a whole: verbs by name, their words, and errors in one line with an exit status."""

import math
import os
import sys
import tempfile
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from multigrid_rl.files import discard_output
from multigrid_rl.tables import VERBS, find, has
from multigrid_rl.text import OneLineError, expected, one_line, reason, shown
from multigrid_rl.trust import user_code_place

Verb = TypeVar("Verb", bound=Callable[..., Any])

#: Exit statuses (docs/judging.md): failure of the machine or its disk, internal error. Python's own for both is 1,
#: which means "not passed" here.
LOST, CRASHED = 3, 70
#: Keys that may be written as options, too, and options that may be written as keys.
CHOICES = ("scenario", "scheme", "experiment", "model", "train", "cluster", "seed")
AGAINST = "--against"  # of ``compare``
#: Verbs of earlier versions, still accepted -> their names today.
_FORMER_VERBS = {
    "record": "data record", "import-policy": "data import-policy", "import-mlagents": "config import-mlagents",
    "freeze": "players freeze", "rate": "players rate",
}  # fmt: skip
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

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run a verb and leave with its exit status."""
        parent: Any = super()
        options = {"help_option_names": ["-h", "--help"], **options}
        if not standalone_mode or not (sys.argv[1:] if args is None else args):  # the help
            return parent.main(args, *rest, standalone_mode=standalone_mode, **options)
        try:
            status = parent.main(args, *rest, standalone_mode=False, **options)
        except _UsageError as error:
            from multigrid_rl.cli.output import usage_message

            fail(usage_message(error))
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
    plain = [word.lstrip("+") if "=" in word else word for word in words]  # Hydra's +key=value
    rewritten, appended, rest = list[str](), list[str](), iter(plain)
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
        _check_finite(options)
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


def _check_finite(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise refused(f"--{name.replace('_', '-')}", "a finite number", value)


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
    owner = f"{place} or of the program" if (place := user_code_place(error).strip(" ()")) else "the program"
    _report_failure(f"unexpected {type(error).__name__}: {error} (a fault of {owner}: {location})", error)
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
