"""The machine that a report was made on: what it is, and whether it was free."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from multigrid_rl.runs.folder import git_commit, versions
from multigrid_rl.schema import available_cpus

#: Share of all cores that others may use, now and in the last minute, before a report says that it was busy.
BUSY, BUSY_LAST_MINUTE = 0.1, 0.5


def describe() -> dict[str, Any]:
    """Machine, versions, commit and load at the start. Warns on stderr if others use the machine."""
    used, load, cores = cores_used(), os.getloadavg()[0], available_cpus()
    told: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "architecture": platform.machine(),
        "versions": versions(),
        "commit": git_commit(),
        "load_average_at_start": round(load, 2),
        "cores_used_by_others_at_start": round(used, 2),
        "busy": used > BUSY * cores or load > BUSY_LAST_MINUTE * cores,
    }
    if told["busy"]:
        print(
            f"benchmarks: others use {used:.1f} of {cores} cores (load {load:.1f}): expect a wide spread",
            file=sys.stderr,
        )
    return told


def cpu_model() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores_used(seconds: float = 1.0) -> float:
    """Cores that were busy while this process slept for ``seconds``; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    before = busy_ticks(stat.read_text(encoding="utf-8"))
    time.sleep(seconds)
    ticks = busy_ticks(stat.read_text(encoding="utf-8")) - before
    return ticks / os.sysconf("SC_CLK_TCK") / seconds


def busy_ticks(text: str) -> int:
    """Ticks of all cores in ``/proc/stat`` that were neither idle nor waiting for a disk."""
    fields = [int(field) for field in text.splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4]
