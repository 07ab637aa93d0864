"""The number of threads that share the passes of networks: as many as there are free cores.

A thread that waits for a core delays the others by many times the duration of a pass. So idle cores and the duration
of iterations with one and with more threads are measured during a run. No result depends on it.
"""

import math
import os
import statistics
import time
from collections import deque
from pathlib import Path

import torch

from multigrid_rl import jit
from multigrid_rl.jit import most_threads, use_threads

#: Threads that a pass has work for, as ``train.threads`` allows them: on the way back a network has two towers.
MAX_USEFUL = 2
#: Seconds between two looks, at least: Linux counts in hundredths.
PERIOD_S = 0.2
#: Share of a core that others may use of those that count as free.
SPARE = 0.15
#: Seconds before more threads are tried (again): doubled, up to the second, whenever they were slower.
WAIT_S, LONGEST_S = 1.0, 60.0
#: Seconds after which the duration of iterations with one thread is measured again.
LASTING_S = 10.0
#: Iterations to compare, and the factor of slowdown at which two are enough.
COMPARISONS, CLEAR_SLOWDOWN = 3, 1.3


def set_threads(count: int) -> None:
    """Share passes out to ``count`` threads; torch keeps the number of threads that it has."""
    before = torch.get_num_threads()
    use_threads(count)
    torch.set_num_threads(before)


def idle_seconds(cpus: set[int], root: Path = Path("/proc")) -> float:
    """Return the seconds that ``cpus`` had nothing to do, added up since the machine started; nan but on Linux."""
    try:
        lines = (root / "stat").read_text().splitlines()
    except OSError:
        return float("nan")
    rows = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
    return sum(int(row[4]) + int(row[5]) for row in rows if int(row[0][3:]) in cpus) / os.sysconf("SC_CLK_TCK")


class ThreadTuner:
    """Shares passes out to threads: as many as are set or, with ``auto``, as there are free cores.

    Args:
        others: processes of this run that take a core each.
        single: one thread: other processes compute gradients.

    Attributes:
        limit: largest number of threads.
        count: current number of threads.
    """

    def __init__(self, threads: int | str, cores: float, *, others: int = 0, single: bool = False) -> None:
        self._cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._cores = cores
        self._sampled = self._idle()
        self._auto = threads == "auto"
        allowed = min(MAX_USEFUL, int(cores) - others) if isinstance(threads, str) else threads
        self.limit = 1 if single else max(1, min(allowed, most_threads()))
        self._wait, self._changed_s = 0.0, time.monotonic()
        self._last_update, self._free, self._single_thread_s = math.nan, math.nan, math.nan
        self._paces: deque[float] = deque(maxlen=COMPARISONS)
        self.count = 1 if self._auto else self.limit

    def __enter__(self) -> "ThreadTuner":
        set_threads(self.count)
        return self

    def __exit__(self, *_: object) -> None:
        set_threads(1)

    def _idle(self) -> tuple[float, float]:
        return time.monotonic(), idle_seconds(self._cpus) + time.process_time()

    def _free_cores(self) -> float:
        """Return how many cores were idle, or this process's own, since the last call; nan if unknown."""
        before, self._sampled = self._sampled, self._idle()
        share = (self._sampled[1] - before[1]) / max(self._sampled[0] - before[0], 1e-9)
        return min(share, self._cores)

    def _use(self, count: int, now: float) -> None:
        set_threads(count)
        self.count, self._changed_s = count, now
        self._paces.clear()

    def describe(self) -> str:
        """Describe the number of threads, and the reason."""
        if not self._auto or self.limit == 1:
            return f"{self.limit} thread(s)"
        time.sleep(max(0.0, self._sampled[0] + PERIOD_S / 2 - time.monotonic()))
        idle = f"{self._free_cores():.1f} of {self._cores:g} cores idle now"
        return f"up to {self.limit} threads while cores are idle ({idle})"

    def update(self) -> None:
        """Take more threads or fewer; to be called before every iteration."""
        now = time.monotonic()
        seconds, self._last_update = now - self._last_update, now
        if not self._auto or self.limit == 1 or jit.state.busy():
            return
        if now - self._sampled[0] >= PERIOD_S:
            self._free = self._free_cores()
        if not math.isnan(seconds):
            self._adjust(seconds, self._free, now)

    def _adjust(self, seconds: float, free: float, now: float) -> None:
        """Do what :meth:`update` does after an iteration of so many ``seconds``, with so many cores ``free``."""
        self._paces.append(seconds)
        if self.count == 1:
            self._single_thread_s = statistics.median(self._paces)
            if len(self._paces) == COMPARISONS and now - self._changed_s >= self._wait and free >= self.limit - SPARE:
                self._use(self.limit, now)
        elif (
            len(self._paces) > 1
            and min(self._paces) > (1 if len(self._paces) == COMPARISONS else CLEAR_SLOWDOWN) * self._single_thread_s
        ):
            self._wait = min(max(2 * self._wait, WAIT_S), LONGEST_S)
            self._use(1, now)
        elif now - self._changed_s > LASTING_S:
            self._wait = 0.0
            self._use(1, now)
