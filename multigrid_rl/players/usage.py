"""What an agent uses in all: it may start a thousand processes of which each keeps within the limits of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from multigrid_rl.players.leftovers import family_of, parents_of_all

if TYPE_CHECKING:
    from multigrid_rl.players.sandbox import Limits

#: Seconds between two looks: one takes some milliseconds.
_PACE_S = 0.1
MAX_PROCESSES = 64
MAX_FILES = 20_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Watches the processes and folders of one agent.

    Args:
        pid: the process that all others come from.
        folders: where it may write; a sandbox's own are found through its processes.
        limits: what it may use.
    """

    def __init__(self, pid: int, folders: Iterable[Path], limits: Limits) -> None:
        self.pid, self.folders, self.limits = pid, tuple(folders), limits
        self._next = 0.0

    def excess(self) -> str | None:
        """Return what there is too much of, in words; looks only if some time has passed."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _PACE_S
        parents = parents_of_all()
        pids = family_of({self.pid, *self._astray(parents)}, parents)
        if len(pids) > MAX_PROCESSES:
            return f"more than {MAX_PROCESSES} processes"
        if sum(map(_memory, pids)) > self.limits.memory_mb * 2**20:
            return f"more than {self.limits.memory_mb} MB of memory in all processes"
        size, files = _within(pids, self.limits.disk_mb * 2**20) if self.limits.fence else _below(self.folders)
        if size > self.limits.disk_mb * 2**20:
            return f"more than {self.limits.disk_mb} MB of files"
        return f"more than {MAX_FILES} files" if files > MAX_FILES else None

    def _astray(self, parents: dict[int, int]) -> set[int]:
        """Return processes that left their parents and were adopted by this one; told by their scratch folder."""
        marks = [b"=" + os.fsencode(folder) for folder in self.folders]
        found, own = set(), os.getpid()
        for pid in [] if self.limits.fence else [pid for pid, parent in parents.items() if parent == own != self.pid]:
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                found |= {pid} if any(mark in environment for mark in marks) else set()
        return found


def _memory(pid: int) -> int:
    try:
        size, resident, shared = map(int, Path(f"/proc/{pid}/statm").read_bytes().split()[:3])
    except (OSError, ValueError):
        return 0  # it left
    return max(resident - shared, 0) * _PAGE if size else 0


def _within(pids: Iterable[int], room: int) -> tuple[int, int]:
    """Return bytes and files of a sandbox's own file system of ``room`` bytes, seen through a process in it."""
    for pid in pids:
        with suppress(OSError):  # it left
            found = os.statvfs(f"/proc/{pid}/root/tmp")
            if found.f_blocks * found.f_frsize == room:
                # What is full is too much, if only by the byte that did not fit.
                full = found.f_bavail == 0
                return room + full - found.f_bavail * found.f_frsize, found.f_files - found.f_ffree
    return 0, 0


def _below(folders: Iterable[Path]) -> tuple[int, int]:
    size = files = 0
    for folder in folders:
        for here, _, names in os.walk(folder):
            files += len(names) + 1
            if files > MAX_FILES:
                return size, files
            for name in names:
                with suppress(OSError):
                    size += os.lstat(os.path.join(here, name)).st_size  # noqa: PTH118 - thousands of them
    return size, files
