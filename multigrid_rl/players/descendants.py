"""Processes that agents start and that hide: in sessions of their own, with parents that have left."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Of Linux alone; elsewhere the process group must do.
_PR_SET_CHILD_SUBREAPER = 36
#: Somebody who starts new processes faster than they are ended is left alone at last.
_PATIENCE_S = 5.0


@contextmanager
def none_left() -> Iterator[None]:
    """End, with the block, every process that was started in it, also by others on behalf of this one.

    Within the block a process whose parent leaves becomes a child of this one: no daemon gets out of sight.
    """
    before = _children(_parents())
    _adopt(yes=True)
    try:
        yield
    finally:
        _end_all(before)
        _adopt(yes=False)


def _adopt(*, yes: bool) -> None:
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def _end_all(spared: set[int]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        parents = _parents()
        new = _children(parents) - spared
        if not new:
            return
        for pid in _family(new, parents):
            with suppress(OSError):  # it left, or is somebody else's by now
                os.kill(pid, signal.SIGKILL)
        for pid in new:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _parents() -> dict[int, int]:
    """Parent of each process of this machine; nothing where there is no process table to read."""
    found = {}
    with suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - a thousand names, all that is wanted of them
            if name.isdigit():
                with suppress(OSError):
                    status = Path(f"/proc/{name}/stat").read_bytes()
                    found[int(name)] = int(status.rpartition(b")")[2].split()[1])
    return found


def _children(parents: dict[int, int]) -> set[int]:
    own = os.getpid()
    return {pid for pid, parent in parents.items() if parent == own}


def _family(pids: set[int], parents: dict[int, int]) -> set[int]:
    family: set[int] = set()
    young = pids
    while young:
        family |= young
        young = {pid for pid, parent in parents.items() if parent in young} - family
    return family
