"""The machine that a report was made on: what it is, whether it was free, and what its arithmetic allows."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multigrid_rl.runs.folder import git_commit, versions
from multigrid_rl.schema import available_cpus

#: Share of all cores that others may use, now and in the last minute, before a report says that it was busy.
BUSY, BUSY_LAST_MINUTE = 0.1, 0.5
#: Sizes of the matrix products: a minibatch of the default network, and one that a core is busy with for long.
NETWORK_GEMM = (1024, 64, 64)
LARGE_GEMM = (2048, 2048, 2048)
COPY_BYTES = 256 * 2**20
FLOAT_BYTES = 4


def describe(*, quick: bool = False) -> dict[str, Any]:
    """Machine, versions, commit, load at the start, and measured limits. Warns on stderr if others use the machine."""
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
        "limits": limits(0.02 if quick else 0.3),
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


def limits(seconds: float) -> list[dict[str, float]]:
    """Measured speed of matrix products and of copying memory, with one thread and with one for each core."""
    threads = torch.get_num_threads()
    rows = []
    for used in sorted({1, available_cpus()}):
        torch.set_num_threads(used)
        row = {
            "threads": used,
            "gemm_network_gflops": gemm_gflops(*NETWORK_GEMM, seconds),
            "gemm_large_gflops": gemm_gflops(*LARGE_GEMM, seconds),
            "copy_gb_s": copy_gb_s(seconds),
        }
        rows.append({name: round(value, 1) for name, value in row.items()})
    torch.set_num_threads(threads)
    return rows


def gemm_gflops(rows: int, inner: int, columns: int, seconds: float) -> float:
    """float32 (rows, inner) times (inner, columns)."""
    left, right = torch.rand(rows, inner), torch.rand(inner, columns)
    result = torch.empty(rows, columns)
    return 2e-9 * rows * inner * columns * _rate(lambda: torch.mm(left, right, out=result), seconds)


def copy_gb_s(seconds: float) -> float:
    """Copying an array that no cache holds; each byte is read and written."""
    source = torch.from_numpy(np.ones(COPY_BYTES // FLOAT_BYTES, np.float32))
    target = torch.empty_like(source)
    return 2e-9 * COPY_BYTES * _rate(lambda: target.copy_(source), seconds)


def _rate(work: Callable[[], Any], seconds: float, rounds: int = 5) -> float:
    """Calls a second: the median round."""
    work()
    rates = []
    for _ in range(rounds):
        calls, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            work()
            calls += 1
        rates.append(calls / spent if spent else 0.0)
    return statistics.median(rates)


def flops_per_env_step(hidden: Sequence[int], actions: int, epochs: int) -> int:
    """Floating point operations of the matrix products that one learned environment step needs.

    One forward pass to act; three passes' worth (forward, and backward for inputs and weights) in every epoch. Two
    towers; the first layer is a sum of table rows and no product. The opponent's network is not counted.
    """
    inner = sum(before * after for before, after in pairwise(hidden))
    forward = 2 * (2 * inner + hidden[-1] * (actions + 1))
    return forward * (1 + 3 * epochs)


def table_bytes_per_env_step(tokens: int, width: int, epochs: int) -> int:
    """Bytes of first-layer table rows that one learned environment step reads or writes (both towers, float32).

    Read once to act and once in every epoch; in every epoch their gradient is read and written back.
    """
    return tokens * 2 * width * FLOAT_BYTES * (1 + 3 * epochs)
