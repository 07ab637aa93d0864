"""How everything here is measured: in alternating rounds, with median and spread; training through the command line.

A training run is a process of its own, as a user starts it, in a temporary folder; its speed is read from the rows that
it wrote itself, without those of the warm-up.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from multigrid_rl.runs.reader import read_rows
from multigrid_rl.text import expected

T = TypeVar("T")
#: Seconds after which a run is ended.
RUN_LIMIT_S = 1800.0
#: How long a run may take to end itself once it was asked to.
GRACE_S = 30.0


class BenchmarkError(RuntimeError):
    """What cannot be measured; the message is one line."""


class Spread(NamedTuple):
    """Median, smallest and largest of some rounds."""

    median: float
    low: float
    high: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def alternate(measures: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Results of every measure, one a round; all of them once in each round.

    Every second round goes backwards, so that a machine that slows down favours no side.
    """
    results: dict[str, list[T]] = {name: [] for name in measures}
    for number in range(rounds):
        for name in list(measures)[:: -1 if number % 2 else 1]:
            results[name].append(measures[name]())
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours over theirs, round by round: what both sides of a round share cancels out."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


# --- peak memory, from /proc (Linux). Resident sizes cannot be added up: pages that processes share would count once
# for each. Of the tree the proportional set size (PSS) is summed: a page that n processes share counts 1/n for each.

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

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        self._look()
        while not self._ended.wait(INTERVAL_S[self._whole_tree]):
            self._look()

    def _look(self) -> None:
        high = kib_of(text_of(self._pid, "status"), "VmHWM") / KIB_PER_MIB
        self.peak = self.peak._replace(driver_mib=max(self.peak.driver_mib, high))
        if self.peak.tree_mib is None:
            return
        parts: dict[str, float] = {}
        running = processes()
        for pid in descendants({pid: int(fields[1]) for pid, (_, fields) in running.items()}, self._pid):
            size = kib_of(text_of(pid, "smaps_rollup"), "Pss") / KIB_PER_MIB
            if size:
                name = "driver" if pid == self._pid else running[pid][0]
                parts[name] = parts.get(name, 0.0) + size
        if sum(parts.values()) > self.peak.tree_mib:
            self.peak = self.peak._replace(tree_mib=sum(parts.values()), parts_mib=parts)


def text_of(pid: int, name: str) -> str:
    """Return a file of a process; one that may have ended between two looks gives an empty text."""
    try:
        return (PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def processes() -> dict[int, tuple[str, list[str]]]:
    """Return every process by its number: its name and further fields, as :func:`fields_of` reads them."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return {pid: fields_of(stat) for pid in pids if (stat := text_of(pid, "stat"))}


def fields_of(stat: str) -> tuple[str, list[str]]:
    """Return name and further fields (state, parent, ...) of a ``stat`` file.

    The name in brackets may hold anything, brackets and blanks too; Ray writes what a worker does behind two colons.
    """
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return name, rest.split()


def kib_of(text: str, key: str) -> float:
    """Return number behind ``key:`` in a ``status`` or ``smaps_rollup`` file, in KiB; 0 if it is not there."""
    for line in text.splitlines():
        if line.startswith(f"{key}:"):
            return float(line.split()[1])
    return 0.0


def descendants(parents: Mapping[int, int], root: int) -> list[int]:
    """``root`` and everything below it."""
    pids = [root]
    for pid in pids:  # grows while it is read: a breadth-first walk
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


class Run(NamedTuple):
    """One finished training run."""

    rows: list[dict[str, Any]]
    verdict: dict[str, Any]
    process_s: float  # wall time of the whole process
    peak: Peak

    def speed(self, warmup: int) -> float:
        """Environment steps a second from the end of iteration ``warmup`` to the end of the last, whatever lay between.

        Raises:
            BenchmarkError: no iteration is left after the warm-up.
        """
        if not 0 < warmup < len(self.rows):
            raise BenchmarkError(expected("iterations", f"more than the warm-up's {warmup}", len(self.rows)))
        first, last = self.rows[warmup - 1], self.rows[-1]
        return float(last["env_steps"] - first["env_steps"]) / float(last["seconds"] - first["seconds"])


def train_once(overrides: Sequence[str], *, whole_tree: bool = False) -> Run:
    """Run ``multigrid-rl train`` to its end.

    Args:
        overrides: of the configuration, without ``run_dir``.
        whole_tree: watch the memory of all its processes, not of the driver alone; costs it a little speed.

    Raises:
        BenchmarkError: the run failed, or took too long.
    """
    command = [str(Path(sys.executable).parent / "multigrid-rl"), "train"]
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-bench-") as folder:
        path = Path(folder) / "run"
        _, peak, seconds = run_process([*command, *overrides, f"run_dir={path}"], whole_tree=whole_tree)
        verdict: dict[str, Any] = json.loads((path / "verdict.json").read_text(encoding="utf-8"))
        return Run(read_rows(path / "metrics.jsonl"), verdict, seconds, peak)


def run_process(command: list[str], *, whole_tree: bool = False, limit: float = RUN_LIMIT_S) -> tuple[str, Peak, float]:
    """Return what a process printed, its memory and its seconds. Raises ``BenchmarkError``: it failed, or took long."""
    began = time.perf_counter()
    text = " ".join(part for part in command[1:] if not part.startswith("run_dir="))  # it may stand in a report
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        try:
            with MemoryWatch(process.pid, whole_tree=whole_tree) as watch:
                status = process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{text}: took longer than {limit:.0f} s") from error
        finally:
            end(process)
        if status != 0:
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()]
            raise BenchmarkError(f"{text}: status {status}: {lines[-1] if lines else 'no message'}")
        seconds = time.perf_counter() - began
        output.seek(0)
        return output.read(), watch.peak, seconds


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process that still runs to end, then make it: Ray's processes go with their driver if it may end itself."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Part(NamedTuple):
    """One ``timing`` column of a run."""

    median_s: float
    share: float  # of the iteration


PREFIX, SUFFIX = "timing/", "_s"


def timing_parts(rows: Sequence[Mapping[str, Any]], warmup: int) -> dict[str, Part]:
    """Every ``timing/<part>_s`` column that the rows have: its median, and its share of all iterations' time."""
    counted = rows[warmup:]
    total = float(rows[-1]["seconds"] - rows[warmup - 1]["seconds"]) if warmup else float(rows[-1]["seconds"])
    names = dict.fromkeys(name for row in counted for name in row if name.startswith(PREFIX) and name.endswith(SUFFIX))
    parts = {}
    for name in names:
        values = [float(row[name]) for row in counted if row.get(name) is not None]
        parts[name.removeprefix(PREFIX).removesuffix(SUFFIX)] = Part(statistics.median(values), sum(values) / total)
    return parts


def overhead_share(rows: Sequence[Mapping[str, Any]], warmup: int) -> float | None:
    """Median of ``timing/overhead_share``; ``None`` where the run does not report it."""
    values = [row["timing/overhead_share"] for row in rows[warmup:] if row.get("timing/overhead_share") is not None]
    return float(statistics.median(values)) if values else None


class Peers:
    """The environment of ``make bench-setup``. Raises ``BenchmarkError``: it is not there, or lacks the peer."""

    def __init__(self, venv: Path) -> None:
        self.python = venv / "bin" / "python"
        probe = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('stable_baselines3') else 1)"
        there = self.python.exists() and subprocess.run([self.python, "-c", probe], check=False).returncode == 0
        if not there:
            raise BenchmarkError(f"no stable_baselines3 in {venv}: run make bench-setup, or leave it out: --skip-peers")

    def run(self, module: str, arguments: Sequence[str], limit: float = RUN_LIMIT_S) -> dict[str, Any]:
        """Run a module of ``benchmarks.peers`` there and return the JSON of its last line.

        Raises:
            BenchmarkError: it failed, or took too long.
        """
        command = [str(self.python), "-m", f"benchmarks.peers.{module}", *arguments]
        result: dict[str, Any] = json.loads(run_process(command, limit=limit)[0].splitlines()[-1])
        return result
