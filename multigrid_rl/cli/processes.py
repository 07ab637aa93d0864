"""Calls side by side, in processes of their own: each takes the next call when it is done with one.

A process that has loaded everything plays the next run, too. Processes are a group of their own each, which Ctrl-C in a
terminal does not reach: who started them asks them to end. One whose starter is gone ends by itself, with a checkpoint.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from multigrid_rl.players.cards import PlayerError
from multigrid_rl.tables import load
from multigrid_rl.text import ConfigError, one_line, reason
from multigrid_rl.types import RunError

#: Seconds between two looks at what asks for the end.
LOOK_S = 0.2
#: Name of a call; whether this is a ``note``, what it ``returned``, or why it ``failed``; the value.
Told = tuple[str, str, Any]


class Processes:
    """Calls of one function, a few at a time.

    Args:
        function: ``module:name``; it takes an argument, and what it tells notes with.
        arguments: by name of the call; they are pickled.
        at_once: processes.
        log: file to which everything is added that calls print.
    """

    def __init__(self, function: str, arguments: Mapping[str, Any], at_once: int, log: Path) -> None:
        self._function, self._log, self._asked = function, log, False
        self._waiting = deque(arguments.items())
        self._told: queue.Queue[Told | None] = queue.Queue()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._threads = [threading.Thread(target=self._keep, daemon=True) for _ in range(at_once)]

    def results(self, interrupted: Callable[[], bool]) -> Iterator[Told | None]:
        """Yield what calls say, and ``None`` when none has said anything for a moment.

        When ``interrupted()``, nothing more begins, and what goes on is asked to end; leaving the loop kills it.
        """
        for thread in self._threads:
            thread.start()
        going = len(self._threads)
        try:
            while going:
                if interrupted() and not self._asked:
                    self._end(signal.SIGTERM)
                try:
                    told = self._told.get(timeout=LOOK_S)
                except queue.Empty:
                    yield None
                    continue
                going -= told is None
                if told is not None:
                    yield told
        finally:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        self._asked = True
        for child in tuple(self._children):
            with suppress(ProcessLookupError):  # it has ended
                child.send_signal(number)

    def _keep(self) -> None:
        """Hand a process one call after the other, and start another one where it dies."""
        child: subprocess.Popen[bytes] | None = None
        while not self._asked and self._waiting:
            with suppress(IndexError):  # another thread has taken the last one
                name, argument = self._waiting.popleft()
                child = child or self._started()
                if not self._carried_out(child, name, argument):
                    child = None
        if child is not None:
            self._close(child)
        self._told.put(None)

    def _started(self) -> subprocess.Popen[bytes]:
        # No session of its own: Linux shares cores out to sessions, and this one's priority may have been changed.
        code = f"import os; os.setpgrp(); from {__name__} import serve; serve({self._function!r})"
        environment, pipe = {"OMP_NUM_THREADS": "1", **os.environ}, subprocess.PIPE
        with self._log.open("ab") as log:
            child = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=log, env=environment)
        self._children.add(child)
        if self._asked:  # meanwhile
            child.kill()
        return child

    def _carried_out(self, child: subprocess.Popen[bytes], name: str, argument: Any) -> bool:
        """Pass on what a call says; returns whether its process goes on."""
        assert child.stdin
        assert child.stdout
        try:
            child.stdin.write(pickle.dumps(argument))
            child.stdin.flush()
            kind = "note"
            while kind == "note":
                kind, value = pickle.load(child.stdout)
                self._told.put((name, kind, value))
            return True
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self._close(child)
            if not self._asked:
                self._told.put((name, "failed", f"its process ended with status {status}; see {self._log}"))
            return False

    def _close(self, child: subprocess.Popen[bytes]) -> int:
        for pipe in filter(None, (child.stdin, child.stdout)):
            with suppress(OSError):
                pipe.close()
        self._children.discard(child)
        return child.wait()


def serve(function: str) -> None:
    """Carry out the calls that come by standard input, and tell on standard output what comes of them."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what is printed goes into the log
    calls, busy, left = queue.Queue[Any](), threading.Event(), threading.Event()

    def tell(kind: str, value: Any) -> None:
        with suppress(BrokenPipeError):  # nobody listens: `listen` ends the call
            out.write(pickle.dumps((kind, value)))

    def listen() -> None:
        try:
            with suppress(EOFError):
                while True:
                    calls.put((pickle.load(sys.stdin.buffer),))
        finally:  # a call that cannot be read ends the process, too
            calls.put(None)
            left.set()
        if busy.is_set():  # whoever started this is gone: end as if asked to
            os.kill(os.getpid(), signal.SIGTERM)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    call = load(function)
    while (argument := calls.get()) is not None:
        busy.set()
        if left.is_set():  # while the function was loaded, or the last call went on
            break
        try:
            told = "returned", call(*argument, lambda note: tell("note", note))
        except (ConfigError, PlayerError, RunError) as error:
            told = "failed", one_line(error)
        except OSError as error:
            told = "failed", reason(error)
        busy.clear()
        tell(*told)
    listener.join()  # or the log would lack the end of what it says of a call that cannot be read
