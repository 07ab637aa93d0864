"""Output of verbs: consoles, files that appear when they are complete, messages of wrong words; an end on signals."""

import math
import re
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table

from multigrid_rl.cli.app import fail, refused
from multigrid_rl.files import atomic_path, write_atomic
from multigrid_rl.text import ConfigError, expected, unknown

#: Names of verbs in other programs -> ours.
_FOREIGN_VERBS = {
    "help": "--help", "resume": "train --resume RUN", "enjoy": "play, watch or video", "render": "video",
    "eval": "evaluate", "test": "evaluate", "benchmark": "evaluate", "run": "train", "learn": "train", "tune": "search",
    "list": "players or config", "plot": "report", "tournament": "cup", "check": "inspect",
    **dict.fromkeys(("overlay", "reference"), "report, which draws a run over its recipe's curves"),
}  # fmt: skip
#: Options of other programs -> the tool that does the same.
_FOREIGN_OPTIONS = {
    "--push": "hf upload USER/NAME FOLDER, of what is exported",
    "--parquet": "pandas.read_csv('episodes.csv').to_parquet('episodes.parquet')",
}


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
    """Raise :class:`ConfigError` if ``path`` is a folder, exists, unless ``force``, or does not end with ``suffix``."""
    if not path.name.lower().endswith(suffix):
        raise ConfigError(expected("--output", f"a file that ends with {suffix}", path))
    if path.is_dir():
        raise ConfigError(expected(path, "a file", "a folder"))
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists already, expected a new file, or --force")


def console(width: int | None = None) -> Console:
    """Return a console; output to a file has no wrapped lines, and tables as wide as their content."""
    file = not sys.stdout.isatty()
    style: Any = {"soft_wrap": file, "width": width if file else None, "force_terminal": not file}  # FORCE_COLOR or not
    return Console(highlight=False, markup=False, **style)


def grid(left: Iterable[str], right: Iterable[str]) -> Table:
    """Return a table without lines: columns of text, then columns of numbers, which are aligned right."""
    return Table(*left, *(Column(title, justify="right") for title in right), box=None, pad_edge=False)


def one_thread() -> None:
    """Set torch to one thread: more do not speed up small networks, and slow them down much on busy cores."""
    import torch

    torch.set_num_threads(1)


def spread(low: float, high: float, form: str) -> str:
    """Return an interval as ``low to high``, or ``-`` if its bounds are NaN."""
    return "-" if math.isnan(low) else f"{low:{form}} to {high:{form}}"


def usage_message(error: Any) -> str:
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


def refuse_unread(context: typer.Context, what: str, read: Collection[str]) -> None:
    """Refuse an option of the command line that ``what`` does not read."""
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if option.name not in read and source is not None and source.name == "COMMANDLINE":
            raise refused(option.opts[0], f"nothing with {what}", context.params[str(option.name)])
