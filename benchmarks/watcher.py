"""What a page that is open costs a run: the same run with and without, in alternating pairs.

``python -m benchmarks.watcher --pairs 4`` writes docs/results/watcher.md. Processor seconds of the run's own process
say whether it does more; the server's, which is another process and steps back (``nice`` 19), stand beside them.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from multigrid_rl.files import markdown_table
from multigrid_rl.runs.reader import read_rows

PAGE = Path(__file__).parents[1] / "docs" / "results" / "watcher.md"
PROGRAM = [sys.executable, "-m", "multigrid_rl.cli.main"]
RUN = ["scenario=1v1", "scenario.gates=[]", "train.threads=1"]
PORT = 8791


class Cost(NamedTuple):
    """Of one run."""

    steps_per_s: float  # by its own clock, without set-up
    own: float  # processor seconds of the run's process
    server: float  # and of the page's
    pages: int  # that were fetched


def one_run(steps: int, seed: int, *, watched: bool) -> Cost:
    """Train, with a page open from the first second to the last, or without."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        command = [*PROGRAM, "train", *RUN, f"seed={seed}", f"run_dir={folder}", "--until", str(steps)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server, fetched, ended = None, [0], threading.Event()
        if watched:
            while not (folder / "config.yaml").exists():
                time.sleep(0.05)
            show = [*PROGRAM, "watch", str(folder), "--web", "--port", str(PORT)]
            server = subprocess.Popen(show, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            threading.Thread(target=browse, args=(fetched, ended), daemon=True).start()
        _, status, usage = os.wait4(process.pid, 0)
        ended.set()
        if status:
            raise SystemExit(f"{' '.join(command)}: expected exit status 0")
        last = read_rows(folder / "metrics.jsonl")[-1]
        spent = 0.0
        if server is not None:
            server.terminate()
            used = os.wait4(server.pid, 0)[2]
            spent = used.ru_utime + used.ru_stime
        return Cost(last["env_steps"] / last["seconds"], usage.ru_utime + usage.ru_stime, spent, fetched[0])


def browse(fetched: list[int], ended: threading.Event) -> None:
    """Do what a browser does: follow the stream, and fetch the page whenever it says that there is a newer one."""
    while not ended.is_set():
        with suppress(OSError, http.client.HTTPException):
            stream = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
            stream.request("GET", "/events")
            answer = stream.getresponse()
            while not ended.is_set() and (line := answer.readline()):
                if line.startswith(b"event"):
                    page = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
                    page.request("GET", "/")
                    page.getresponse().read()
                    fetched[0] += 1
        time.sleep(0.2)


def page(pairs: list[tuple[Cost, Cost]], steps: int, machine: str) -> str:
    """Write the page of the results: pairs of a run without and with a watcher."""
    rows = [
        [str(number), f"{alone.own:.2f}", f"{seen.own:.2f}", f"{seen.own / alone.own - 1:+.1%}", f"{seen.server:.2f}",
         str(seen.pages), f"{alone.steps_per_s:,.0f}", f"{seen.steps_per_s:,.0f}"]
        for number, (alone, seen) in enumerate(pairs)
    ]  # fmt: skip
    more = statistics.median(seen.own / alone.own - 1 for alone, seen in pairs)
    faster = statistics.median(seen.steps_per_s / alone.steps_per_s - 1 for alone, seen in pairs)
    heads = [
        "pair",
        "alone, processor s",
        "watched",
        "more",
        "the server's",
        "pages",
        "alone, steps a second",
        "watched",
    ]
    command = f"`python -m benchmarks.watcher --pairs {len(pairs)} --steps {steps}`"
    return f"""# What watching costs

{command}: `multigrid-rl train {" ".join(RUN)}`, seeds 100 and on, each once alone and once with
`multigrid-rl watch RUN --web` and a client that follows its stream and fetches every page. {machine}.

{chr(10).join(markdown_table(heads, rows, left=()))}

Median: {more:+.1%} processor time of the run's own process, {faster:+.1%} steps a second by its own clock, which other
work on the machine moves by more. The target was at most 1 %. The run knows nothing of the server, which reads its
folder. What watching costs is what the server's process takes from cores that the run would use: about three seconds
once, to start, and after that with `nice` 19 at most a seventieth of a core where cores are short, nothing where one is
free. Where cores are short, a run as short as these misses the target by its page's start; one of ten minutes keeps it.
"""


def main() -> None:
    """Measure pairs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--machine", default=f"{os.cpu_count()} cores")
    parser.add_argument("--write", type=Path, default=PAGE)
    asked = parser.parse_args()
    pairs = []
    for number in range(asked.pairs):
        order = (False, True) if number % 2 == 0 else (True, False)
        by = {watched: one_run(asked.steps, 100 + number, watched=watched) for watched in order}
        pairs.append((by[False], by[True]))
        print(number, pairs[-1], flush=True)
        asked.write.write_text(page(pairs, asked.steps, asked.machine), encoding="utf-8")


if __name__ == "__main__":
    main()
