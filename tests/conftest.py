"""Puts this folder on the path, so that every test file can say ``from games import ...``; how many work at a time."""

from __future__ import annotations

import os

# Before anybody imports torch, for subprocesses and Ray's workers, too: threads of several at a time only fight.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray starts a process for every core beforehand; tests that need one at all need one or two.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

#: More at a time would wait for one another's Ray sessions, however many cores there are.
MOST_WORKERS = 4
#: More than cores: half of the time a test waits for a process that starts or ends.
MORE_THAN_CORES = 1
#: What one worker may take with its Ray session: the driver, two env runners and Ray's own processes.
WORKER_BYTES = 3 * 2**30


def workers(cpus: int, memory: int) -> int:
    """Test processes for a machine; 0: no process but this one."""
    fitting = min(cpus + MORE_THAN_CORES, MOST_WORKERS, memory // WORKER_BYTES)
    return fitting if fitting > 1 else 0


def pytest_collection_modifyitems(items) -> None:
    """``make faults`` asks for them by their mark."""
    for item in items:
        if item.path.parent.name == "faults":
            item.add_marker("fault")


def pytest_xdist_auto_num_workers(config) -> int:
    """What ``-n auto`` means here."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return workers(cpus, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
