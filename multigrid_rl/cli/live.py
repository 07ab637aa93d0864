"""The live table of a run; plain lines where there is no terminal; and what is printed on may go away."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from multigrid_rl.gates import GateKeeper, GateState
from multigrid_rl.metrics import STAGES

#: Seconds between two plain lines.
PLAIN_EVERY = 5.0


class Output(io.TextIOBase):
    """Standard output that never ends a run: it may be closed, a pipe without a reader, or know few letters.

    Attributes:
        lost: whoever read is gone: a terminal that was closed, ``| head``. Nothing is written any more.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        self.lost = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream: boxes are drawn with what it can show."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether there is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write what can be written, other letters as their numbers."""
        if self._stream is not None and not self.lost:
            known = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
            try:
                self._stream.write(known)
            except OSError:
                self._lose(self._stream)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        if self._stream is not None and not self.lost:
            try:
                self._stream.flush()
            except OSError:
                self._lose(self._stream)

    def _lose(self, stream: TextIO) -> None:
        self.lost = True
        # What the stream still holds goes nowhere: at its end Python would fail to write it once more.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def console(width: int | None = None) -> Console:
    """A console on standard output that outlives it."""
    output = Output(sys.stdout)
    return Console(file=cast("TextIO", output), soft_wrap=not output.isatty(), highlight=False, width=width)


class Progress:
    """Shows the last row and the gates while a run goes on."""

    def __init__(self, console: Console, until: int) -> None:
        self._console = console
        self._until = until
        self._last_line = 0.0
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        #: The newest value of every metric: some rows carry no episode metrics.
        self._known: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, row: dict[str, Any], keeper: GateKeeper) -> None:
        """Take one iteration's row."""
        self._known |= row
        if self._live:
            self._live.update(Group(Text(headline(self._known, self._until)), gate_table(keeper)))
        elif keeper.held or time.monotonic() - self._last_line >= PLAIN_EVERY:
            self._last_line = time.monotonic()
            self._console.print(f"{headline(self._known, self._until)} | {plain_gates(keeper)}")


def headline(row: dict[str, Any], until: int) -> str:
    """Steps, speed, what the time goes into, and the win rate, in one line."""
    parts = {name: row[f"timing/{name}_s"] for name in (*STAGES, "other")}
    total = sum(parts.values()) or 1.0
    bound = "learner" if parts["learn"] > parts["sample"] else "sampler"
    wins = [f"{name.split('/')[1]} wins {value:.0%}" for name, value in row.items() if name.startswith("win/")]
    return " | ".join(
        [
            f"{row['env_steps']:>9,} of {until:,} steps",
            f"{row['env_steps_per_s']:>6,.0f}/s ({bound}-bound, {max(parts['learn'], parts['sample']) / total:.0%})",
            *wins,
        ]
    )


def gate_state(state: GateState, now: int) -> tuple[str, str, str]:
    """Colour, word and steps still to hold of one gate."""
    left = max(0, state.gate.window - state.held_steps(now))
    if state.held:
        return "green", "held", "0"
    if state.streak_from is not None:
        return "yellow", "met", f"{left:,}"
    return "red", "not met", f"{left:,}"


def gate_table(keeper: GateKeeper) -> Table:
    """One row for each gate."""
    table = Table(box=None, pad_edge=False)
    for title, justify in (("gate", "left"), ("now", "right"), ("state", "left"), ("steps still to hold", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    if keeper.last is None:
        table.add_row(f"(waiting for {len(keeper.states)} gates' first 100 episodes)", "", "", "")
        return table
    for state in keeper.states:
        colour, word, left = gate_state(state, keeper.last.env_steps)
        table.add_row(str(state.gate), f"{state.value:.3f}", Text(word, style=colour), left)
    return table


def plain_gates(keeper: GateKeeper) -> str:
    """All gates in one line."""
    if keeper.last is None:
        return "gates: waiting for 100 finished episodes"
    parts = []
    for state in keeper.states:
        _, word, left = gate_state(state, keeper.last.env_steps)
        parts.append(f"{state.gate} now {state.value:.3f} {word}" + ("" if state.held else f" ({left} to hold)"))
    return "; ".join(parts) or "no gates"
