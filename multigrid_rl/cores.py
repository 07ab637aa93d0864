"""How many cores this process may use, as the system and a container's quota say."""

import os
from pathlib import Path


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Read how many CPUs a container's quota gives, by either version of control groups; ``None`` without a quota."""
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
