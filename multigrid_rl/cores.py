"""Cores and memory of this process, by the system and a container's limits."""

import os
from contextlib import suppress
from pathlib import Path


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return a container's quota in CPUs, from either version of control groups; ``None`` without a quota."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((root / "cpu" / f"cpu.cfs_{part}_us").read_text() for part in ("quota", "period"))
        except OSError:
            return None
    if not quota.strip().isdigit() or int(period) <= 0:  # "max", or -1
        return None
    return int(quota) / int(period)


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes available without swapping, within a container's limit; ``None``: unknown on this system."""
    free, groups = [], root / "sys/fs/cgroup"
    for limit, used, parts in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        with suppress(OSError, ValueError, StopIteration):  # another version of control groups, or "max"
            unused = int((groups / limit).read_text()) - int((groups / used).read_text())
            # The system counts files that it keeps in memory as used, and drops them where memory is needed.
            free.append(unused + sum(_number_after(f"{kind}_file", groups / parts) for kind in ("active", "inactive")))
    with suppress(OSError, StopIteration):  # no Linux
        free.append(1024 * _number_after("MemAvailable:", root / "proc/meminfo"))
    return min(free, default=None)


def _number_after(name: str, path: Path) -> int:
    """Return the number of the line ``name``. Raises ``StopIteration``: no such line."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{name} "))
