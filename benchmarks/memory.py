"""Peak memory of a process and of everything it started, from ``/proc`` (Linux).

Resident sizes cannot be added up: pages that processes share would count once for each. Of the tree the proportional
set size (PSS) is summed, in which a page that ``n`` processes share counts ``1/n`` for each.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

PROC = Path("/proc")
KIB_PER_MIB = 1024
#: Seconds between two looks: reading the tree costs some milliseconds for each process.
INTERVAL_S = {False: 0.2, True: 0.5}


class Peak(NamedTuple):
    """Largest memory of a run, in MiB."""

    driver_mib: float  # resident, as the kernel kept it
    tree_mib: float | None  # proportional, of the driver and all its descendants; None if only the driver was watched
    parts_mib: dict[str, float]  # by process name, when the tree was largest


class MemoryWatch:
    """Watches process ``pid`` in a thread while the ``with`` block runs; ``peak`` holds what it saw."""

    def __init__(self, pid: int, *, whole_tree: bool) -> None:
        if not PROC.exists():
            raise OSError("memory of processes is read from /proc, which only Linux has")
        self._pid = pid
        self._whole_tree = whole_tree
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = Peak(0.0, 0.0 if whole_tree else None, {})

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._look()
            if self._ended.wait(INTERVAL_S[self._whole_tree]):
                return

    def _look(self) -> None:
        high = kib_of(_text(self._pid, "status"), "VmHWM") / KIB_PER_MIB
        self.peak = self.peak._replace(driver_mib=max(self.peak.driver_mib, high))
        if self.peak.tree_mib is None:
            return
        parts: dict[str, float] = {}
        for pid in descendants(_parents(), self._pid):
            size = kib_of(_text(pid, "smaps_rollup"), "Pss") / KIB_PER_MIB
            if size:
                name = "driver" if pid == self._pid else name_of(_text(pid, "stat"))
                parts[name] = parts.get(name, 0.0) + size
        if sum(parts.values()) > self.peak.tree_mib:
            self.peak = self.peak._replace(tree_mib=sum(parts.values()), parts_mib=parts)


def _text(pid: int, name: str) -> str:
    # A process may end between two looks; what it cannot tell any more counts as nothing.
    try:
        return (PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _parents() -> dict[int, int]:
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return {pid: parent for pid in pids if (parent := parent_of(_text(pid, "stat"))) is not None}


def kib_of(text: str, key: str) -> float:
    """Number behind ``key:`` in a ``status`` or ``smaps_rollup`` file, in KiB; 0 if it is not there."""
    for line in text.splitlines():
        if line.startswith(f"{key}:"):
            return float(line.split()[1])
    return 0.0


def parent_of(stat: str) -> int | None:
    """Parent in a ``stat`` file. The name in brackets may hold anything, brackets and blanks too."""
    rest = stat.rpartition(")")[2].split()
    return int(rest[1]) if len(rest) > 1 else None


def name_of(stat: str) -> str:
    """Process name in a ``stat`` file; Ray writes what a worker does behind two colons."""
    return stat.partition("(")[2].rpartition(")")[0]


def descendants(parents: Mapping[int, int], root: int) -> list[int]:
    """``root`` and everything below it."""
    found = [root]
    for pid in found:  # grows while it is read: a breadth-first walk
        found += [child for child, parent in parents.items() if parent == pid]
    return found
