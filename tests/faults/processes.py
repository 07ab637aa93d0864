"""Real ``multigrid-rl train`` processes for fault tests: started, watched, found in the process table, cleaned up."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 240
SMALL = [
    "train.num_envs=32", "train.num_steps=16", "train.minibatch_size=256", "train.epochs=1", "model.hidden=[16,16]",
    "train.stop_when_held=false",
]  # fmt: skip


def marked(mark: str) -> list[tuple[int, str]]:
    """Number and command line of every living process whose environment carries ``mark``."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # gone meanwhile, or not ours
        if mark.encode() in environment:
            found.append((int(process.name), command))
    return found


class Training:
    """One training process and everything that it started."""

    def __init__(self, folder: Path, *arguments: str, cores: int = 4, before: str = "") -> None:
        self.mark = f"FAULT_TEST={folder}-{os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        # As many cores as a test needs, whatever the machine has: the check of the configuration is not what is tested.
        program = (
            f"import multigrid_rl.config.schema as schema; schema.available_cpus = lambda: {cores}\n{before}\n"
            "from multigrid_rl.cli.main import app\napp()\n"
        )
        self._output = folder / f"output-{time.monotonic_ns()}.txt"
        with self._output.open("w") as output:
            self.process = self._start(program, arguments, output, {**os.environ, name: value})

    def _start(self, program, arguments, output, environment):
        return subprocess.Popen(
            [sys.executable, "-c", program, "train", *arguments],
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ours(self, name: str = "") -> list[int]:
        """Living processes that it started, and itself, whose command line begins with ``name``."""
        return [pid for pid, command in marked(self.mark) if command.startswith(name)]

    def until(self, condition, what: str) -> None:
        """Wait until ``condition()``; the process must live meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"ended before {what}: {self._output.read_text()}"
            assert time.monotonic() < deadline, f"{what} did not come"
            time.sleep(0.05)

    def end(self) -> str:
        """Everything that it printed, once it has ended by itself."""
        self.process.wait(timeout=PATIENCE_S)
        return self._output.read_text()

    def interrupt(self) -> str:
        """End it as Ctrl-C does; what it printed."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def kill(self) -> None:
        """kill -9 of the driver; Ray's own processes notice and leave."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE_S)

    def gone(self, seconds: float = 90) -> bool:
        """Whether nothing of it is left after some time."""
        deadline = time.monotonic() + seconds
        while self.ours() and time.monotonic() < deadline:
            time.sleep(0.2)
        return not self.ours()

    def clean(self) -> None:
        """Kill whatever is left."""
        for pid in self.ours():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE_S)


def rows_of(run: Path) -> list[dict]:
    """Whole rows of metrics so far; none before the first."""
    file = run / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def clear_lines(output: str) -> list[str]:
    """Our own lines of an output; there must be no traceback in it."""
    assert "Traceback" not in output, output
    return [line for line in output.splitlines() if line.startswith("multigrid-rl: ")]
