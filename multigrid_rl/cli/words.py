"""An option that takes several words, as a shell makes them out of a pattern."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

AGAINST = "--against"


class ManyAgainst(TyperCommand):
    """Lets ``--against`` take all words up to the next option, as a shell makes them out of a pattern."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``--against a b`` as ``--against a --against b``."""
        return list(super().parse_args(ctx, spread(args)))


def spread(args: list[str]) -> list[str]:
    """``--against`` before each of the words that follow it."""
    result: list[str] = []
    inside = False
    for word in args:
        if word.startswith("-"):
            inside = word == AGAINST
            result += [] if inside else [word]
        else:
            result += [AGAINST, word] if inside else [word]
    return result
