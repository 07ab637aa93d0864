"""Somebody else's text, and a library's errors, in one line of our own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def printable(text: str) -> str:
    """Return ``text`` with a question mark for whatever would do more than stand there: ends of lines, escape codes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(text: str | bytes, most: int = 80) -> str:
    """Return the beginning of ``text``, safe to print in one line: at most ``most`` characters and three dots."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode(errors="replace")
    line = printable(one_line(text[: 4 * most]))
    return line if len(line) <= most else line[:most] + "..."


def one_line(said: object) -> str:
    """Return a text, or an error's message, without ends of lines and the numbers that only a system knows."""
    return re.sub(r"\[Errno -?\d+\] ", "", " ".join(str(said).split()))


def expected(key: object, wanted: str, got: object) -> str:
    """Return the line of a refusal, ``KEY: expected WANTED, got GOT``: the one form of every message to a user."""
    return one_line(f"{key}: expected {wanted}, got {got}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` with the nearest of ``known``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def unknown(key: object, word: str, known: Iterable[str], what: str = "{}") -> str:
    """Return the line of a refusal of a name: ``what`` was expected, with all that are known for its braces."""
    names = list(known)
    return expected(key, what.format(", ".join(names) or "none"), word + suggestion(word, names))


def first_error(error: ValidationError, place: str = "", *, quoting: bool = False) -> str:
    """Return the first thing that is wrong, as ``key: expected what``, below ``place``; quotes the value if asked."""
    first = error.errors()[0]
    key = shown(".".join(map(str, [*([place] if place else []), *first["loc"]])))
    said = shown(first["msg"], 600).removeprefix("Value error, ").replace("Input should be", "expected")
    said = said.split(" or instance of ")[0]  # a class of ours
    if quoting and not isinstance(first["input"], dict):
        said = f"{said}, got {one_line(first['input'])}"
    # A message about one key of a part names that key itself: cluster + num_env_runners: expected ...
    joint = "." if re.match(r"[\w.]+: expected", said) else ": "
    return f"{key}{joint}{said}" if key else said
