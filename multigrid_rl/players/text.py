"""Somebody else's text in our own lines."""

from __future__ import annotations


def shown(text: str | bytes, most: int = 80) -> str:
    """The beginning of ``text``, safe to print in one line: at most ``most`` characters and three dots."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode(errors="replace")
    line = " ".join(text[: 4 * most].split())
    printable = "".join(letter if letter.isprintable() else "?" for letter in line)
    return printable if len(printable) <= most else printable[:most] + "..."
