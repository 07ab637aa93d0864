"""Leaving in the middle of something that other processes take part in."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import typer


@contextmanager
def ended_by_signals(hint: str = "") -> Iterator[None]:
    """SIGTERM and a closed terminal end the block as Ctrl-C does: everything in it that cleans up does so.

    Args:
        hint: what to tell who ended it.
    """

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # a second one would end the cleaning up
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, leave)
    try:
        yield
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone
            typer.echo(f"multigrid-rl: interrupted{'; ' + hint if hint else ''}", err=True)
        raise typer.Exit(130) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
