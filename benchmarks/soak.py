"""A run whose env runners are killed at random, for as long as asked, must go on as before.

    python -m benchmarks.soak --minutes 30 --every 20 --output runs/soak.json

Says for every kill how long the runner was away and how fast the run was before and afterwards, how the memory of the
run's processes grew, and whether any process was left behind.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import processes, text_of

#: A look at the run's processes: second, bytes of the driver, of all processes by kind, zombies.
Look = tuple[float, int, dict[str, int], int]
MARK = "MULTIGRID_RL_SOAK"
#: Seconds of rows that a speed is the median of.
AROUND_S = 8.0


class Process(NamedTuple):
    """One of the run's processes."""

    pid: int
    command: str
    rss: int  # bytes


def marked(mark: str) -> list[Process]:
    """Living and dead processes whose environment carries ``mark``; of the dead only children of living ones."""
    return [
        Process(pid, command.replace("\0", " "), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
        for pid, (_, fields) in processes().items()
        if mark in text_of(pid, "environ") and (command := text_of(pid, "cmdline"))
    ]


def zombies(parents: set[int]) -> int:
    """Dead processes that one of ``parents`` has not taken leave of; a zombie has no environment to read."""
    return sum(state == "Z" and int(parent) in parents for _, (state, parent, *_) in processes().values())


def kind(command: str) -> str:
    """Return what a process is, in a word: an actor's class, or the name of a program."""
    first, *rest = command.split()
    if first.startswith("ray::"):
        return first.partition(".")[0]
    return Path(next((word for word in rest if word.endswith(".py")), first)).name


def soak(minutes: float, every: float, run: Path, seed: int) -> dict[str, Any]:
    """Train with two env runners and kill one of them every ``every`` seconds.

    Args:
        minutes: how long, from the first row on.
        every: seconds between kills.
        run: folder of the run.
        seed: of which runner is killed.
    """
    mark = f"{MARK}={os.getpid()}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", "scenario=1v1", f"run_dir={run}"]
    # An env runner killed while it starts has delivered nothing yet: that is no crash loop.
    command += ["cluster.num_env_runners=2", "cluster.max_consecutive_failures=20"]
    command += ["train.stop_when_held=false", "--until", "1e11"]
    log = (run.parent / "soak.log").open("w")
    driver = subprocess.Popen(command, env={**os.environ, name: value}, stdout=log, stderr=log, start_new_session=True)
    try:
        rows, kills, memory = _watch(driver, run, mark, minutes * 60, every, random.Random(seed))
        driver.send_signal(signal.SIGINT)
        code = driver.wait(timeout=120)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        log.close()
    time.sleep(5)
    left = [one.command[:80] for one in marked(mark)]
    return {**summary(rows, kills, memory), "exit_code": code, "left_behind": left}


def _watch(
    driver: subprocess.Popen[bytes], run: Path, mark: str, seconds: float, every: float, rng: random.Random
) -> tuple[list[tuple[float, dict[str, Any]]], list[float], list[Look]]:
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size < 2000:
        if driver.poll() is not None:
            raise RuntimeError(f"the run ended before it began: {(run.parent / 'soak.log').read_text()[-2000:]}")
        time.sleep(0.2)
    rows: list[tuple[float, dict[str, Any]]] = []
    kills: list[float] = []
    memory: list[Look] = []
    begin = time.monotonic()
    next_kill, next_look = begin + every, begin
    torn = ""
    with metrics.open() as lines:
        while (now := time.monotonic()) < begin + seconds:
            if driver.poll() is not None:
                raise RuntimeError(f"the run broke off: {(run.parent / 'soak.log').read_text()[-2000:]}")
            *complete, torn = (torn + lines.read()).split("\n")  # the last row may be half written
            rows += [(now - begin, json.loads(line)) for line in complete]
            alive = marked(mark) if now >= next_kill else []
            runners = [process.pid for process in alive if process.command.startswith("ray::BatchedEnvRunner")]
            if runners:  # none, where all are on their way at this moment
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(runners), signal.SIGKILL)
                kills.append(now - begin)
                next_kill += every
            if now >= next_look:
                processes = marked(mark)
                main = next(process.rss for process in processes if process.pid == driver.pid)
                kinds: dict[str, int] = {}
                for process in processes:
                    kinds[kind(process.command)] = kinds.get(kind(process.command), 0) + process.rss
                memory.append((now - begin, main, kinds, zombies({process.pid for process in processes})))
                next_look += 5.0
            time.sleep(0.05)
    return rows, kills, memory


def summary(rows: list[tuple[float, dict[str, Any]]], kills: list[float], memory: list[Look]) -> dict[str, Any]:
    """Return what a soak has shown.

    Args:
        rows: second at which each row of metrics was seen, and the row.
        kills: seconds of the kills.
        memory: looks at the run's processes.
    """
    when = np.array([at for at, _ in rows])
    steps = np.array([row["env_steps"] for _, row in rows], np.float64)
    there = np.array([row["env_runners"] for _, row in rows])
    away, ratios = list[float](), list[float]()
    #: A speed is measured while all are there: a kill may follow closely on the return from the one before.
    whole_since = 0.0
    for k, at in enumerate(kills):
        until = kills[k + 1] if k + 1 < len(kills) else when[-1]
        alone = np.flatnonzero((when > at) & (when < until) & (there < there.max()))
        back = np.flatnonzero((when > at) & (when < until) & (there == there.max()))
        back = back[back > alone[-1]] if len(alone) else back
        before = (when > max(at - AROUND_S, whole_since)) & (when <= at)
        whole_since = when[back[0]] if len(back) else until
        if len(back) < 2:
            continue
        after = (when >= when[back[0]]) & (when < until)
        speed = [_speed(when[part], steps[part]) for part in (before, after)]
        away.append(float(when[back[0]] - at))
        if all(speed):
            ratios.append(speed[1] / speed[0])
    # The first minute loads and compiles; of a soak that is hardly longer, there is nothing else.
    late = [row for row in memory if row[0] > 60]
    late = late if len(late) > 2 else memory
    minutes = np.array([row[0] for row in late]) / 60

    def slope(values: list[int]) -> float:
        return float(np.polyfit(minutes, values, 1)[0]) / 2**20

    kinds = sorted({name for row in late for name in row[2]})
    grown = {name: round(slope([row[2].get(name, 0) for row in late]), 3) for name in kinds}
    return {
        "minutes": when[-1] / 60,
        "env_steps": steps[-1] - steps[0],
        "rows": len(rows),
        "kills": len(kills),
        "recovered": len(away),
        "losses_in_metrics": rows[-1][1]["env_runner_restarts"],
        "away_s": _quantiles(away),
        "speed_after_over_before": _quantiles(ratios),
        "driver_mib": [late[0][1] / 2**20, late[-1][1] / 2**20],
        "driver_mib_a_minute": slope([row[1] for row in late]),
        "mib_a_minute_by_process": dict(sorted(grown.items(), key=lambda pair: -abs(pair[1]))),
        "zombies_most": max(row[3] for row in memory),
        "zombies_at_end": memory[-1][3],
    }


def _speed(when: np.ndarray[Any, Any], steps: np.ndarray[Any, Any]) -> float:
    return float((steps[-1] - steps[0]) / (when[-1] - when[0])) if len(when) > 1 and when[-1] > when[0] else 0.0


def _quantiles(values: list[float]) -> dict[str, float]:
    """Smallest, quartiles and largest."""
    names = ("min", "q25", "median", "q75", "max")
    found = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).round(4).tolist() if values else []
    return dict(zip(names, found, strict=False))


def faults(result: dict[str, Any]) -> list[str]:
    """Return what a soak has shown that must not be; speed and memory are for people to judge."""
    # The last kill may come too close to the end to see the runner return.
    unrecovered = result["kills"] - 1 - result["recovered"]
    checks = {
        f"the run ended with status {result['exit_code']}": result["exit_code"] != 130,  # as Ctrl-C ends a run
        f"{unrecovered} killed runners did not come back": unrecovered > 0,
        f"{result['zombies_at_end']} zombies": result["zombies_at_end"] > 0,
        f"left behind: {result['left_behind']}": bool(result["left_behind"]),
    }
    return [line for line, true in checks.items() if true]


def main() -> None:
    """Soak and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=20, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-soak-") as folder:
        result = soak(args.minutes, args.every, Path(folder) / "run", args.seed)
    result = {"command": f"python -m benchmarks.soak --minutes {args.minutes:g} --every {args.every:g}", **result}
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    if found := faults(result):
        sys.exit(f"soak: {'; '.join(found)}")


if __name__ == "__main__":
    main()
