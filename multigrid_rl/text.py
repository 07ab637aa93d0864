"""One-line messages from untrusted text and from library errors."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_MAX_NAMED, _NEAREST = 12, 6  # most names in a message; number of nearest names if there are more
NAME = "multigrid-rl"  # of the program


def program() -> str:
    """Return the command of this program: its name, or its path if a shell finds no or another program by the name."""
    started = sys.argv[0]
    has_path = Path(started).name == NAME and os.sep in started
    executable = Path(started) if has_path else Path(sys.executable).with_name(NAME)
    found = shutil.which(NAME)
    by_name = not executable.exists() or (found is not None and Path(found).resolve() == executable.resolve())
    return NAME if by_name else shlex.quote(str(executable))


def reason(error: OSError, place: object = "") -> str:
    """Return an ``OSError`` as one line, with its path, or ``place`` if it has none."""
    where = error.filename or place
    return f"{where}: {error.strerror or error}" if where else str(error.strerror or error)


class OneLineError(Exception):
    """An error with a complete message for users; notebooks show it without a traceback."""

    hint = ""
    status = 2  # exit status of a command

    def _render_traceback_(self) -> list[str]:  # called by IPython
        return [f"{type(self).__name__}: {self}", *filter(None, [self.hint])]


class ConfigError(OneLineError, ValueError):
    """A mistake in the user's request; the message is one line, ``KEY: expected X, got Y``."""


class PlayerError(OneLineError, ValueError):
    """A player that cannot be used; the message is one line. ``feedback``: what its author reads in its place."""

    def __init__(self, message: str, feedback: str | None = None) -> None:
        self.feedback = feedback
        # Names of files and keys are untrusted, and terminals print them.
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return ``text`` with a question mark for every unprintable character: ends of lines, escape codes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(text: str | bytes, limit: int = 80) -> str:
    """Return the beginning of ``text``, safe to print in one line: at most ``limit`` characters and three dots."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode(errors="replace")
    line = printable(one_line(text[: 4 * limit]))
    return line if len(line) <= limit else line[:limit] + "..."


def one_line(text: object) -> str:
    """Return a text, or an error's message, without line breaks and errno numbers."""
    return re.sub(r"\[Errno -?\d+\] ", "", " ".join(str(text).split()))


def expected(key: object, wanted: str, got: object) -> str:
    """Return ``KEY: expected WANTED, got GOT``, the form of all error messages to a user."""
    return one_line(f"{key}: expected {wanted}, got {got}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` with the nearest of ``known``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def unknown(key: object, word: str, known: Iterable[str], what: str = "{}") -> str:
    """Return the message for an unknown name; ``what`` is the expectation, with braces for the known names."""
    names = list(known)
    return expected(key, what.format(listed(word, names)), word + suggestion(word, names))


def listed(word: str, names: Sequence[str]) -> str:
    """Return names in a row; of many names, the nearest to ``word`` and the number of the others."""
    if len(names) <= _MAX_NAMED:
        return ", ".join(names) or "none"
    near = difflib.get_close_matches(word, names, n=_NEAREST, cutoff=0.4) or names[:_NEAREST]
    return f"{', '.join(near)} and {len(names) - len(near)} more"


def percent(share: float, digits: int = 0) -> str:
    """Return ``95%``; shares strictly between 0 and 1 are never rounded to 0% or 100%."""
    text, least = f"{share:.{digits}%}", 10**-digits
    if 0 < share < 1 and float(text[:-1]) in (0, 100):
        return f"<{least:g}%" if share < 0.5 else f">{100 - least:g}%"
    return text


def check_integer(key: str, value: object, least: int, why: str = "") -> None:
    """Raise :class:`ConfigError` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(expected(key, f"a whole number of at least {least}{why}", shown(repr(value))))


#: Expectations by pydantic's type of error; braces are filled with the value and the bounds.
_WANTED = {
    "float_parsing": "a number", "float_type": "a number", "int_parsing": "a whole number",
    "int_type": "a whole number", "int_from_float": "a whole number", "bool_parsing": "true or false",
    "bool_type": "true or false", "tuple_type": "a list, such as [{got}]", "list_type": "a list, such as [{got}]",
    "dict_type": "a mapping", "string_type": "a string", "int_parsing_size": "a whole number within 64 bits",
    "model_type": "a mapping", "model_attributes_type": "a mapping", "missing": "a value, got none",
    "too_short": "a list of at least {min_length}", "too_long": "a list of at most {max_length}",
    "string_too_long": "at most {max_length} characters", "string_too_short": "at least {min_length} characters",
}  # fmt: skip


def first_error(error: ValidationError, place: str = "") -> str:
    """Return the first validation error as ``key: expected what, got value``, below ``place``."""
    errors = error.errors()  # two for a name or a mapping, of what each should be
    first = max(errors[:2], key=lambda each: len(each["loc"])) if errors[0]["loc"][-1:] == ("str",) else errors[0]
    parts = [part for part in map(str, (place, *first["loc"])) if part and not re.match(r"str$|dict\[", part)]
    key = shown(".".join(parts))
    message = shown(first["msg"], 600).removeprefix("Value error, ").replace("Input should be", "expected")
    if first["type"] in _WANTED:
        words = _WANTED[first["type"]].format(**{"got": shown(str(first["input"] or "")), **first.get("ctx", {})})
        message = f"expected {words}"
    message = message.split(" or instance of ")[0]  # a class name means nothing to users
    if not isinstance(first["input"], dict) and first["type"] != "json_invalid" and ", got " not in message:
        message = f"{message}, got {shown(str(first['input']), 200)}"
    # A validator's message may begin with a key inside the part: cluster + num_env_runners: expected ...
    joint = "." if re.match(r"[\w.]+: expected", message) else ": "
    return f"{key}{joint}{message}" if key else message
