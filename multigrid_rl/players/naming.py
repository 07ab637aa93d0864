"""Ways to name a player beside the catalogue's own: what an entry of ``tables.PLAYERS`` is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from multigrid_rl import tables
from multigrid_rl.types import GameSpec, Policy


class Program(Protocol):
    """A player that is no folder with a card: a class, a program, a team of folders."""

    @property
    def title(self) -> str:
        """What it calls itself. Raises ``PlayerError``: damaged."""

    @property
    def folder(self) -> Path | None:
        """Its folder, if it has one."""

    def packed(self) -> "Program":
        """Return the same with its files in memory, for processes that do not see its folder."""

    def seat(self, spec: GameSpec, seat: str) -> Policy:
        """Load it for a seat. Raises ``PlayerError`` or ``ConfigError``."""


class Naming(NamedTuple):
    """A way to name a player."""

    #: What such a name looks like, for messages.
    form: str
    #: Finds the player of a name: the folder of a card, or a program; ``None`` for a name of another form.
    find: Callable[[str], "Path | Program | None"]
    #: Whether what it finds is code that is not ours, and is run.
    runs_code: bool = False
    #: Names that it knows, for messages.
    known: Callable[[], list[str]] = list


def namings() -> Iterator[Naming]:
    """Yield the ways to name a player, but for those of add-ons that are left out."""
    for name in tables.PLAYERS:
        if tables.has(tables.PLAYERS, name):
            yield tables.find(tables.PLAYERS, name)


def runs_code(name: str) -> bool:
    """Return whether a player of this name would be code that is not ours, such as a class or a program."""
    return any(naming.find(name) is not None for naming in namings() if naming.runs_code)
