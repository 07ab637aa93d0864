"""An external agent's process: exchanges lines within a time limit, and ends without a trace.

Its time is the computing of its processes, and their sleep during a request; between requests they are stopped.

Limits of time, memory, processes, files and output guard against accidents, a sandbox against malice, see
``sandbox.py``: without network, and without this machine's files and processes.
"""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

from multigrid_rl.competition.folders import FolderPart, Scratch
from multigrid_rl.competition.sandbox import Limits, family_of, launch_command, parents_of_all, uses_sandbox
from multigrid_rl.cores import free_memory
from multigrid_rl.text import shown
from multigrid_rl.types import RunError

#: Maximum bytes of an answer, its end of line included: 50 times an answer for 200 games of a team of two.
MAX_LINE = 1_000_000
_NOTHING = memoryview(b"")
_CHUNK = 65_536
_STDERR_TAIL = 4_096  # stored bytes of stderr
_CHECK_S = 0.1  # between two checks of its usage, which take some milliseconds each
_LOOK_S = 0.02  # between two samples of whether it computes or sleeps
#: Maximum wall-clock time of an answer as a multiple of its time limit; then the machine was too busy.
WAITING = 5
_TICKS = os.sysconf("SC_CLK_TCK")
_GRACE_S = 0.5  # to exit by itself after "bye", and after its output ended
_BY_SIGNAL = 128
#: Maximum buffer of an open file, a socket or a pipe, which no process owns; number of files that do not count.
_FILE_BYTES, _FREE_FILES = 212_992, 64
#: Maximum of all its processes together: each of a thousand may stay within the limits of one.
MAX_PROCESSES, MAX_THREADS, MAX_FILES = 64, 1_024, 20_000


class ProcessError(RuntimeError):
    """The process failed or answered wrongly, in one line; ``words``: the end of it, which the process wrote."""

    def __init__(self, message: str = "", words: str = "") -> None:
        super().__init__(message + words)
        self.words = words


def unexpected(key: str, wanted: str, got: object) -> ProcessError:
    """Return the error of an answer that was not ``wanted``; ``got`` is the answer in one line."""
    return ProcessError(f"{key}: expected {wanted}", f", got {got}")


class TooSlowError(ProcessError):
    """The process did not answer within its time limit."""


class BusyError(RunError):
    """A process got too little computing time, as the machine was too busy. Nobody is at fault."""


class AgentProcess:
    """A running agent in a temporary, writable copy of the files ``parts`` of its folder.

    Memory and files are limited here, time in :meth:`ask`. ``seed``: of Python's hash function. ``pid``: of the
    process that starts all others. ``took_s``: the agent's seconds for the last answer. Raises ``PlayerError``: there
    is no sandbox, and the agent is not trusted; ``ScratchError``: there is no room for a copy.
    """

    def __init__(self, command: Sequence[str], parts: Iterable[FolderPart], limits: Limits, seed: int) -> None:
        scratch = Scratch()  # first: the test of the sandbox needs room, too
        in_sandbox = uses_sandbox()
        with ExitStack() as stack:
            stack.callback(scratch.close)
            folder, home = scratch.filled("agent", parts), scratch.filled("home")
            self._process = subprocess.Popen(
                launch_command(command, folder, limits, in_sandbox=in_sandbox),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=folder,
                env=_environment(str(home), seed, in_sandbox=in_sandbox),
                start_new_session=True,
            )
            stack.pop_all()
        self.pid = self._process.pid
        self.took_s = 0.0
        self._in_sandbox = in_sandbox
        self._usage = Usage(self.pid, limits)
        pipes: tuple[Any, Any, Any] = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = pipes
        self._selector = selectors.DefaultSelector()
        for pipe in pipes:
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)
        self._inbox = bytearray()
        self._stderr_tail = b""
        # Also called when this object is garbage-collected, or Python ends.
        self._end = weakref.finalize(self, _end, self._process, self._selector, scratch, self._usage)

    def ask(self, message: bytes, seconds: float) -> bytes:
        """Write ``message`` and return the answer's line without its end; then stop the process.

        Raises ``TooSlowError``: no answer within ``seconds`` of the agent's time; ``BusyError``: none within
        :data:`WAITING` times as many by the clock; ``ProcessError``: a too long answer, several lines, or an exit.
        """
        self._signal(signal.SIGCONT)
        before, asleep = self._usage.computed_s, 0.0
        try:
            self._pump(_NOTHING, 0.0)
            if self._inbox:
                raise unexpected("output", "nothing before it is asked", shown(bytes(self._inbox)))
            rest, begin, answered = memoryview(message), time.monotonic(), False
            while not answered:
                look_s = time.monotonic()
                if look_s - begin >= WAITING * seconds:
                    raise BusyError(f"no answer within {WAITING * seconds:g} s, as the machine was too busy")
                rest = self._pump(rest, _LOOK_S)
                sleeps = (rest or b"\n" not in self._inbox) and not self._usage.computes()
                if sleeps:
                    rest = self._pump(rest, 0.0)  # an answer may have just arrived
                answered = not rest and b"\n" in self._inbox
                if (excess := self._usage.excess()) is not None:
                    raise ProcessError(excess)
                if len(self._inbox) > MAX_LINE:
                    raise unexpected("answer", f"at most {MAX_LINE} bytes", "more")
                asleep += time.monotonic() - look_s if sleeps and not answered else 0.0
                if not answered and self._usage.computed() - before + asleep >= seconds:
                    raise TooSlowError
        finally:
            self._signal(signal.SIGSTOP)
            self.took_s = self._usage.computed() - before + asleep
        if self.took_s >= seconds:
            raise TooSlowError
        line, _, more = bytes(self._inbox).partition(b"\n")
        if more:
            raise unexpected("answer", "one line", f"{shown(more)} behind it")
        self._inbox.clear()
        return line

    def _signal(self, number: int) -> None:
        """Send a signal to all its processes: none can leave their group, see ``launch.py``."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def close(self, farewell: bytes = b"") -> None:
        """End the process and everything that it started. After a ``farewell`` it has time to exit by itself."""
        if farewell and self._end.alive:
            self._send_shutdown(farewell)
        self._end()

    def _send_shutdown(self, farewell: bytes) -> None:
        deadline = time.monotonic() + _GRACE_S
        self._signal(signal.SIGCONT)
        try:
            if not self._pump(memoryview(farewell), 0.0):
                self._stdin.close()
            while (left := deadline - time.monotonic()) > 0:
                self._pump(_NOTHING, left)
                self._inbox.clear()
        except ProcessError:
            return  # it exited

    def _pump(self, rest: memoryview, seconds: float) -> memoryview:
        """Write a part of ``rest`` and read output, waiting at most ``seconds``; returns the unwritten rest."""
        if rest:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        ready = {key.fileobj for key, _ in self._selector.select(seconds)}
        if rest:
            self._selector.unregister(self._stdin)
        if self._stderr in ready and not self._read_stderr():
            self._selector.unregister(self._stderr)
        if self._stdout in ready:
            data = self._stdout.read(_CHUNK)  # None for nothing yet, empty at the end
            if data == b"":
                raise self._exit_reason()
            self._inbox += data or b""
        if rest and self._stdin in ready:
            try:
                rest = rest[self._stdin.write(rest) or 0 :]
            except BrokenPipeError as error:
                raise self._exit_reason() from error
        return rest

    def _read_stderr(self) -> bool:
        """Store the end of its stderr; returns whether there was new text."""
        data = self._stderr.read(_CHUNK) or b""
        self._stderr_tail = (self._stderr_tail + data)[-_STDERR_TAIL:]
        return bool(data)

    def _exit_reason(self) -> ProcessError:
        if self._usage.fault is not None:
            return ProcessError(self._usage.fault)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        status: int | None = self._process.returncode
        while self._read_stderr():
            pass
        if self._in_sandbox and status is not None and status > _BY_SIGNAL:
            status = _BY_SIGNAL - status  # the sandbox reports signals like a shell
        if status is None:
            reason = "closed its output"
        elif status < 0:
            names = {number.value: number.name for number in signal.Signals}
            reason = f"was killed by {names.get(-status, f'signal {-status}')}"
        else:
            reason = f"exited with status {status}"
        lines = [line for line in self._stderr_tail.splitlines() if line.strip()]
        return ProcessError(reason, f": {shown(lines[-1], 200)}" if lines else "")


def _environment(home: str, seed: int, *, in_sandbox: bool) -> dict[str, str]:
    # First the folder of this interpreter: an agent's `python3` then has the packages of this project.
    # A sandbox has only the system's folders, and its PATH reveals no others.
    path_folders = "/usr/local/bin:/usr/bin:/bin" if in_sandbox else os.environ.get("PATH", os.defpath)
    path = os.pathsep.join([str(Path(sys.executable).parent), path_folders])
    return {
        "PATH": path,
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": str(seed % 2**32),
        "PYTHONDONTWRITEBYTECODE": "1",  # keeps the folder's hash
    }


def _end(process: subprocess.Popen[bytes], selector: selectors.BaseSelector, scratch: Scratch, usage: "Usage") -> None:
    """Kill the process group, close pipes, wait for the process, remove its folder."""
    usage.running.discard(usage)
    with process, suppress(ProcessLookupError):  # all processes exited already
        os.killpg(process.pid, signal.SIGKILL)
    selector.close()
    scratch.close()


class Usage:
    """Watches the processes of one agent, all started from ``pid``, and the files in its sandbox.

    Attributes:
        fault: the exceeded limit in words, or ``None``.
        computed_s: the last result of :meth:`computed`.
        running: the instances of all running agents.
    """

    running: ClassVar[set["Usage"]] = set()

    def __init__(self, pid: int, limits: Limits) -> None:
        self.pid, self.limits = pid, limits
        self.fault: str | None = None
        self._next = 0.0
        self._pids = {pid}
        self._total, self.computed_s = 0.0, 0.0
        self._reserve = (free_memory() or 0) // 10
        self.running.add(self)

    def excess(self) -> str | None:
        """Return the exceeded limit in words, or ``None``; checks at most every ``_CHECK_S`` seconds."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _CHECK_S
            self.fault = self.fault or self._excess()
            if (free_memory() or 0) < self._reserve and not any(usage.fault for usage in self.running):
                self._end_largest()
        return self.fault

    def computed(self) -> float:
        """Return the computing seconds of its processes; those of unawaited ended processes are lost."""
        total = sum(map(_computed_seconds, self._pids))
        self.computed_s += max(total - self._total, 0.0)
        self._total = total
        return self.computed_s

    def computes(self) -> bool:
        """Return whether one of its threads computes or waits for a core."""
        return any(b") R " in status for pid in self._pids for status in _statuses(pid))

    def _excess(self) -> str | None:
        pids = self._pids = self._processes()
        if len(pids) > MAX_PROCESSES:
            return f"more than {MAX_PROCESSES} processes"
        if sum(len(_list_of_process(pid, "task")) for pid in pids) > MAX_THREADS:
            return f"more than {MAX_THREADS} threads"
        waiting = _FILE_BYTES * max(sum(len(_list_of_process(pid, "fd")) for pid in pids) - _FREE_FILES, 0)
        if sum(map(_memory, pids)) + waiting > self.limits.memory_mb * 2**20:
            return f"more than {self.limits.memory_mb} MB of memory in all processes"
        size, files = _disk_usage(pids, self.limits.disk_mb * 2**20)
        if size > self.limits.disk_mb * 2**20:
            return f"more than {self.limits.disk_mb} MB of files"
        return f"more than {MAX_FILES} files" if files > MAX_FILES else None

    def _end_largest(self) -> None:
        """End the agent with the most memory before the kernel kills any process, such as the referee."""
        held, _, largest = max((sum(map(_memory, usage._processes())), usage.pid, usage) for usage in self.running)
        largest.fault = f"the machine runs out of memory, and of all agents this one holds the most: {held >> 20} MB"
        with suppress(ProcessLookupError):
            os.killpg(largest.pid, signal.SIGKILL)

    def _processes(self) -> set[int]:
        return family_of({self.pid}, parents_of_all())


def _computed_seconds(pid: int) -> float:
    """Return the computing seconds of a process and its awaited children."""
    with suppress(OSError):  # it exited
        times = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:15]
        return sum(map(int, times)) / _TICKS
    return 0.0


def _list_of_process(pid: int, kind: str) -> list[str]:
    """Return the threads (``task``) or open files (``fd``) of a process."""
    with suppress(OSError):  # it exited
        return os.listdir(f"/proc/{pid}/{kind}")  # noqa: PTH208 - thousands of them
    return []


def _statuses(pid: int) -> Iterator[bytes]:
    with suppress(OSError):  # it exited
        for task in _list_of_process(pid, "task"):
            yield Path(f"/proc/{pid}/task/{task}/stat").read_bytes()


def _memory(pid: int) -> int:
    """Return the bytes of a process: private ones, and its share of shared ones, without files."""
    with suppress(OSError, ValueError, IndexError):  # it exited
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            return 1024 * sum(map(int, re.findall(r"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+)", text, re.MULTILINE)))
        except PermissionError:  # it hides from its user: all its memory counts
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _disk_usage(pids: Iterable[int], room: int) -> tuple[int, int]:
    """Return used bytes and files of a sandbox's file system of ``room`` bytes, through one of its processes."""
    for pid in pids:
        with suppress(OSError):  # it exited
            status = os.statvfs(f"/proc/{pid}/root/tmp")
            if status.f_blocks * status.f_frsize == room:
                # A full file system counts as one byte too much: the one that did not fit.
                full = status.f_bavail == 0
                return room + full - status.f_bavail * status.f_frsize, status.f_files - status.f_ffree
    return 0, 0
