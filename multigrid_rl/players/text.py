"""Somebody else's text in our own lines."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with a question mark for whatever would do more than stand there: ends of lines, escape codes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(text: str | bytes, most: int = 80) -> str:
    """The beginning of ``text``, safe to print in one line: at most ``most`` characters and three dots."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode(errors="replace")
    line = " ".join(text[: 4 * most].split())
    line = printable(line)
    return line if len(line) <= most else line[:most] + "..."
