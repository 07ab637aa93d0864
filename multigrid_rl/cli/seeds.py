"""Several seeds of one run in parallel: a resumable folder with a run for each seed, one table, one page.

Worker processes call a function for one run after the other.
Each worker is its own process group, so Ctrl-C in a terminal does not reach it: the parent sends SIGTERM. A worker
without its parent ends by itself, with a checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from multigrid_rl.cli.output import grid
from multigrid_rl.cli.train import resume_training, run_training
from multigrid_rl.config.compose import check_budget, compose, default_run_dir
from multigrid_rl.cores import available_cpus, cpu_quota
from multigrid_rl.evaluation.seed_statistics import median_text
from multigrid_rl.files import write_atomic
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.runs.folder import lock_file
from multigrid_rl.runs.reader import read_verdict
from multigrid_rl.tables import PAGES, find, has, load
from multigrid_rl.text import ConfigError, expected, one_line, percent, program, reason
from multigrid_rl.training.screen import interruption, live_console
from multigrid_rl.training.stages import load_stages
from multigrid_rl.types import RunError

#: File that marks a folder of seeds: the seeds, and their common overrides.
SEEDS_FILE = "seeds.json"
#: Output of the runs, and of processes that die.
LOG_FILE = "processes.log"
#: More seeds are taken for a typing error.
MAX_SEEDS = 1000
#: Seconds between two notes of a run.
NOTE_S = 0.5
_WORD = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")
_WANTED = f"different seeds, at most {MAX_SEEDS}, the smaller one first, such as 0..9 or 3,5,7"
#: Seconds between two checks for an interruption.
POLL_S = 0.2
#: Name of a call; the kind: ``note``, ``returned`` or ``failed``; the note, the result or the reason.
CallEvent = tuple[str, str, Any]


class Seed(NamedTuple):
    """State of one seed. ``state``: waiting, running, held, not held, ended (no gates), interrupted, failed."""

    state: str
    row: Mapping[str, Any] = {}  # the newest of its metrics, or its verdict
    reason: str = ""  # why it failed

    @property
    def done(self) -> bool:
        """Whether its run is complete."""
        return self.state in ("held", "not held", "ended")


def seeds_of(text: str) -> list[int]:
    """Read ``0..9``, ``3,5,7`` or both. Raises ``ConfigError``."""
    parts = [_WORD.fullmatch(part.strip()) for part in text.strip("[]").split(",")]
    spans = [(int(part[1]), int(part[2] or part[1])) if part else (1, 0) for part in parts]
    seeds = [seed for first, last in spans for seed in range(first, min(last, first + MAX_SEEDS) + 1)]
    if any(first > last for first, last in spans) or len(set(seeds)) < len(seeds) or len(seeds) > MAX_SEEDS:
        raise ConfigError(expected("seeds", _WANTED, text))
    return seeds


def run_path(folder: Path, seed: int) -> Path:
    """Return the folder of one seed's run."""
    return folder / f"seed{seed}"


def state_of(run: Path) -> Seed:
    """Read the state of a seed from its run folder; waiting without a verdict. Raises ``ConfigError``: damaged."""
    if not (run / "verdict.json").exists():
        return Seed("waiting")
    verdict = read_verdict(run)
    if verdict["ended"] == "interrupted":
        return Seed("interrupted", verdict)
    return Seed("held" if verdict["held"] else "not held" if verdict["gates"] else "ended", verdict)


def read_request(folder: Path) -> tuple[list[str], list[int]]:
    """Read the overrides and the seeds of a folder of seeds. Raises ``ConfigError``."""
    try:
        content = json.loads((folder / SEEDS_FILE).read_text(encoding="utf-8"))
        return [str(word) for word in content["overrides"]], [int(seed) for seed in content["seeds"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(expected(folder, f"a folder of seeds, with {SEEDS_FILE}", error)) from error


def run_seeds(overrides: Sequence[str], seeds: Sequence[int], at_once: int | None = None) -> dict[int, Seed]:
    """Train the seeds that are not done, in parallel on all cores; returns the state of each seed.

    Args:
        overrides: of ``train``. An existing ``run_dir`` must be a folder of seeds with the same overrides.
        at_once: number of processes; by default one for each core that no env runner takes.

    Raises ``ConfigError``, ``PlayerError``: before anything runs, with one line.
    """
    words = [word for word in overrides if not word.startswith("run_dir=")]
    config = compose([*overrides, f"seed={seeds[0]}"])
    check_budget(config.train)
    folder = Path(config.run_dir or default_run_dir(config, datetime.now()))
    if not config.run_dir:
        folder = folder.with_name(folder.name.replace(f"-seed{config.seed}", f"-{len(seeds)}-seeds", 1))
    if folder.exists() and (not (folder / SEEDS_FILE).exists() or read_request(folder)[0] != words):
        raise ConfigError(expected("run_dir", "a new folder, or one of seeds with these overrides", folder))
    load_stages(config, None)
    cores = min(available_cpus(), cpu_quota() or math.inf)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / "seeds.lock"):
        known = sorted({*seeds, *(read_request(folder)[1] if (folder / SEEDS_FILE).exists() else ())})
        write_atomic(folder / SEEDS_FILE, json.dumps({"format": 1, "overrides": words, "seeds": known}).encode())
        return _run(words, folder, seeds, at_once or max(1, int(cores // (1 + config.cluster.runners))))


def _run(words: list[str], folder: Path, seeds: Sequence[int], at_once: int) -> dict[int, Seed]:
    began, states = time.monotonic(), {seed: state_of(run_path(folder, seed)) for seed in seeds}
    to_run = [seed for seed in seeds if not states[seed].done]
    at_once = min(at_once, len(to_run))
    # Threads of one run would take the cores of the others; no result depends on them.
    extra = [
        f"train.{key}=1" for key in ("threads", "torch_threads") if at_once > 1 and f"train.{key}=" not in str(words)
    ]
    arguments = {str(seed): {"words": [*words, *extra], "seed": seed, "run": run_path(folder, seed)} for seed in to_run}
    screen = live_console()
    processes = Processes(f"{__name__}:train_seed", arguments, at_once, folder / LOG_FILE)
    live = Live(console=screen, get_renderable=lambda: _table(states)) if screen.is_terminal else None
    with live or nullcontext(), interruption(screen) as interrupted:
        screen.print(
            f"seeds:    {len(to_run)} of {len(seeds)} to train, {at_once} at a time, into {folder}", markup=False
        )
        for name, kind, value in filter(None, processes.results(interrupted)):
            seed, row = int(name), states[int(name)].row
            if kind == "note":  # some rows carry no episode metrics: the newest of each is shown
                states[seed] = Seed("running", {**row, **value})
            else:
                run = run_path(folder, seed)
                states[seed] = Seed("failed", row, str(value)) if kind == "failed" else state_of(run)
                if live is None:
                    screen.print(f"seed {', '.join(filter(None, _cells(seed, states[seed])))}", markup=False)
    states = {n: state if state.reason else state_of(run_path(folder, n)) for n, state in states.items()}
    for line in _closing(folder, states, time.monotonic() - began):
        screen.print(line)
    return states


def train_seed(job: Mapping[str, Any], send_note: Callable[[Any], None]) -> None:
    """Train one seed, or resume it, in a process of :class:`Processes`.

    ``job``: ``words`` (overrides), ``seed``, and the folder of its ``run``.
    """
    run, last = Path(job["run"]), 0.0

    def note(row: dict[str, Any]) -> None:
        nonlocal last
        if time.monotonic() - last >= NOTE_S:
            last = time.monotonic()
            send_note({name: value for name, value in row.items() if not name.startswith(("timing/", "learner/"))})

    words = [*job["words"], f"seed={job['seed']}", f"run_dir={run}"]
    sys.argv = ["multigrid-rl", "train", *words]  # provenance records the command that repeats the run
    if (run / "provenance.json").exists():
        resume_training(run, [], note)
    else:
        shutil.rmtree(run, ignore_errors=True)  # killed before the run wrote anything
        run_training(words, note)


def _table(states: Mapping[int, Seed]) -> Table:
    table = grid(("seed", "state"), ("steps", "held at", "result", "seconds"))
    colours = {"held": "green", "failed": "red", "not held": "yellow", "running": "bold"}
    for seed, state in states.items():
        table.add_row(*map(escape, _cells(seed, state)), style=colours.get(state.state))
    return table


def _cells(seed: int, state: Seed) -> list[str]:
    row = {**state.row, **state.row.get("last_report", {})}
    wins = [f"wins {percent(row[name])}" for name in row if name.startswith("win/")]
    returns = [f"return {row[name]:,.2f}" for name in row if name.startswith("return_mean/")]
    held = row.get("env_steps_to_held")
    steps, seconds = (format(row[key], form) if row else "" for key, form in (("env_steps", ","), ("seconds", ".1f")))
    return [
        str(seed),
        state.state + (f": {state.reason}" if state.reason else ""),
        steps and f"{steps} steps",
        "" if held is None else f"held at {held:,}",
        *(wins or returns or [""])[:1],
        seconds and f"{seconds} s",
    ]


def _closing(folder: Path, states: Mapping[int, Seed], seconds: float) -> Iterator[str]:
    """Write the page; yield lines on how many seeds held their gates, after how many steps, and the next command."""
    done = [state for state in states.values() if state.done]
    if any(state.row["gates"] for state in done):
        yield f"[bold]{held_summary([state.row['env_steps_to_held'] for state in done])}[/]"
    yield f"played:   {len(done)} of {len(states)} seeds are done; this took {seconds:.1f} s"
    if done and has(PAGES, "seeds"):
        try:
            yield escape(f"saved:    {find(PAGES, 'seeds')(folder)}")
        except ConfigError as error:  # runs too short for a report
            yield escape(f"no page:  {error}")
    if len(done) < len(states):
        yield escape(f"next:     {program()} train --resume {shlex.quote(str(folder))}")


def held_summary(steps: Sequence[int | None]) -> str:
    """Return how many seeds held all gates, and after how many steps; ``None``: never, later than all others."""
    held = np.array([math.inf if value is None else value for value in steps])
    count = int(np.isfinite(held).sum())
    text = f"Held on {count} of {len(held)} seeds."
    return f"{text} Environment steps to held: {median_text(held, ',.0f')}." if 2 * count > len(held) else text


class Processes:
    """Calls of one function, a few at a time.

    Args:
        function: ``module:name``; it takes an argument, and a function that sends notes.
        arguments: by name of the call; they are pickled.
        log: file to which the output of the calls is appended.
    """

    def __init__(self, function: str, arguments: Mapping[str, Any], at_once: int, log: Path) -> None:
        self._function, self._log, self._is_stopping = function, log, False
        self._waiting = deque(arguments.items())
        self._events: queue.Queue[CallEvent | None] = queue.Queue()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._threads = [threading.Thread(target=self._feed_process, daemon=True) for _ in range(at_once)]

    def results(self, interrupted: Callable[[], bool]) -> Iterator[CallEvent | None]:
        """Yield the events of calls, and ``None`` if there was none for a moment.

        When ``interrupted()``, no further call starts, and running ones get SIGTERM; leaving the loop kills them.
        """
        for thread in self._threads:
            thread.start()
        running = len(self._threads)
        try:
            while running:
                if interrupted() and not self._is_stopping:
                    self._end(signal.SIGTERM)
                try:
                    event = self._events.get(timeout=POLL_S)
                except queue.Empty:
                    yield None
                    continue
                running -= event is None
                if event is not None:
                    yield event
        finally:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        self._is_stopping = True
        for child in tuple(self._children):
            with suppress(ProcessLookupError):  # it has ended
                child.send_signal(number)

    def _feed_process(self) -> None:
        """Send a process one call after the other; start a new process if it dies."""
        child: subprocess.Popen[bytes] | None = None
        while not self._is_stopping and self._waiting:
            with suppress(IndexError):  # another thread has taken the last one
                name, argument = self._waiting.popleft()
                child = child or self._start_process()
                if not self._run_call(child, name, argument):
                    child = None
        if child is not None:
            self._close(child)
        self._events.put(None)

    def _start_process(self) -> subprocess.Popen[bytes]:
        # The same session as this process: Linux schedules by session, and the user may have changed its priority.
        code = f"import os; os.setpgrp(); from {__name__} import serve; serve({self._function!r})"
        environment, pipe = {"OMP_NUM_THREADS": "1", **os.environ}, subprocess.PIPE
        with self._log.open("ab") as log:
            child = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=log, env=environment)
        self._children.add(child)
        if self._is_stopping:  # meanwhile
            child.kill()
        return child

    def _run_call(self, child: subprocess.Popen[bytes], name: str, argument: Any) -> bool:
        """Run a call and queue its events; returns whether its process is still alive."""
        assert child.stdin
        assert child.stdout
        try:
            child.stdin.write(pickle.dumps(argument))
            child.stdin.flush()
            kind = "note"
            while kind == "note":
                kind, value = pickle.load(child.stdout)
                self._events.put((name, kind, value))
            return True
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self._close(child)
            if not self._is_stopping:
                self._events.put((name, "failed", f"its process ended with status {status}; see {self._log}"))
            return False

    def _close(self, child: subprocess.Popen[bytes]) -> int:
        for pipe in filter(None, (child.stdin, child.stdout)):
            with suppress(OSError):
                pipe.close()
        self._children.discard(child)
        return child.wait()


def serve(function: str) -> None:
    """Run the calls that arrive on standard input, and write their events to standard output."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # printed text goes to the log
    calls, busy, input_closed = queue.Queue[Any](), threading.Event(), threading.Event()

    def send(kind: str, value: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is gone: `listen` ends the call
            out.write(pickle.dumps((kind, value)))

    def listen() -> None:
        try:
            with suppress(EOFError):
                while True:
                    calls.put((pickle.load(sys.stdin.buffer),))
        finally:  # an unreadable call also ends the process
            calls.put(None)
            input_closed.set()
        if busy.is_set():  # the parent is gone: end as after its SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    call = load(function)
    while (argument := calls.get()) is not None:
        busy.set()
        if input_closed.is_set():  # while the function was loaded, or during the last call
            break
        try:
            event = "returned", call(*argument, lambda note: send("note", note))
        except (ConfigError, PlayerError, RunError) as error:
            event = "failed", one_line(error)
        except OSError as error:
            event = "failed", reason(error)
        busy.clear()
        send(*event)
    listener.join()  # so that its error for an unreadable call is complete in the log
