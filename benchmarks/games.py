"""Speed of training on a game of PettingZoo's kind against what one would take instead; the last line is JSON.

    python -m benchmarks.games --peers .venv-bench --out docs/results/bench-games

Ours, RLlib's own PPO and Stable-Baselines3 with SuperSuit train simple spread with the same batch, epochs, minibatch
and layers, each in one process, one after the other in each round. Two lengths of each are timed: their difference is
the training alone. Processor seconds count what a run itself computes, however busy the machine is; seconds are what
one waits.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import BenchmarkError, Peers, alternate, ratios
from benchmarks.tables import Report, add_common, describe, spread_rows, table
from multigrid_rl.text import expected

GAME, MODULE = "simple-spread", "mpe2.simple_spread_v3"
ENVS, STEPS, EPOCHS, MINIBATCH = 32, 96, 8, 1024
#: Iterations of the two runs of a pair.
SHORT, LONG = 2, 8
OURS, RLLIB, SB3 = "ours", "RLlib's own PPO", "Stable-Baselines3 with SuperSuit"
#: How many times as fast we have to be.
BARS = {RLLIB: 4.0, SB3: 2.5}


class Speed(NamedTuple):
    """Environment steps a second."""

    seconds: float
    processor: float  # of processor seconds


def settings(iterations: int) -> list[str]:
    """Return overrides of a run that is exactly so long."""
    until = iterations * ENVS * STEPS
    sizes = [f"train.num_envs={ENVS}", f"train.num_steps={STEPS}", f"train.epochs={EPOCHS}"]
    sizes += [f"train.minibatch_size={MINIBATCH}", "train.threads=1", "train.torch_threads=1"]
    return [f"scenario={GAME}", *sizes, f"train.until={until}", "train.stop_when_held=false"]


def ours(iterations: int, folder: Path) -> list[str]:
    """Return the command line of our run."""
    program = [str(Path(sys.executable).parent / "multigrid-rl"), "train"]
    return [*program, *settings(iterations), f"run_dir={folder}"]


def stock(iterations: int, _: Path) -> list[str]:
    """Return the command line of RLlib's own path in its own wrapper, with the same networks and settings."""
    options = ["--warmup=0", f"--iterations={iterations}", f"--zoo={MODULE}"]
    return [sys.executable, "-m", "benchmarks.stock", *options, *settings(iterations)]


def sb3(peers: Peers, iterations: int, _: Path) -> list[str]:
    """Return the command line of Stable-Baselines3."""
    sizes = [f"--num-envs={ENVS}", f"--batch={ENVS * STEPS}", f"--epochs={EPOCHS}", f"--minibatch={MINIBATCH}"]
    options = ["--workers=dummy", "--threads=1", "--warmup=0", f"--iterations={iterations}"]
    return [str(peers.python), "-m", "benchmarks.peers.sb3_ppo", f"--zoo={MODULE}", *sizes, *options]


def spent(command: Sequence[str]) -> tuple[float, float]:
    """Return seconds and processor seconds of a process. Raises ``BenchmarkError``: it failed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, worked


def speed(command: Callable[[int, Path], list[str]]) -> Speed:
    """Measure one program. Raises ``BenchmarkError``: it failed, or the longer run took no longer."""
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-bench-") as folder:
        short, long = (spent(command(count, Path(folder) / str(count))) for count in (SHORT, LONG))
    more = [after - before for before, after in zip(short, long, strict=True)]
    if min(more) <= 0:
        raise BenchmarkError(expected(f"{LONG} iterations", f"more time than {SHORT}", f"{min(more):.2f} s more"))
    return Speed(*((LONG - SHORT) * ENVS * STEPS / value for value in more))


def compare(report: Report, peers: Peers, options: argparse.Namespace) -> None:
    """Measure all three in alternating rounds."""
    programs: dict[str, Callable[[int, Path], list[str]]] = {OURS: ours, RLLIB: stock, SB3: partial(sb3, peers)}
    measures = {name: partial(speed, command) for name, command in programs.items()}
    found = alternate(measures, 1 if options.quick else options.rounds)
    for kind in Speed._fields:
        speeds = {name: [getattr(row, kind) for row in rows] for name, rows in found.items()}
        what = "a second" if kind == "seconds" else "a processor second"
        times = {f"{bar:g} x {name}": ratios(speeds[OURS], speeds[name]) for name, bar in BARS.items()}
        lines = table([f"environment steps {what}", "median", "min to max"], spread_rows(speeds))
        lines += ["", *table(["ours, times theirs; the bar is", "median", "min to max"], spread_rows(times))]
        report.section(f"Environment steps {what}", lines, {**speeds, **times})
        report.result[kind] = {name: round(spread_rows({name: values})[0][1], 2) for name, values in times.items()}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_common(parser)
    parser.add_argument("--peers", type=Path, default=Path(".venv-bench"), help="of make bench-setup")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report = Report("Speed of training on simple spread", describe())
    compare(report, Peers(options.peers, "supersuit"), options)
    report.write(options.out)


if __name__ == "__main__":
    main()
