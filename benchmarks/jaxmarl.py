"""Training against JaxMARL's IPPO, which only plays games of its own: a section of ``make bench``.

Nothing makes these tasks equal: each side plays its own game. Alike are two agents that both learn, environment steps
of a batch, epochs, rows of a minibatch and layers; the section says what is not. JaxMARL has an environment of its own
(``make bench-jaxmarl``); where that is not there, the section is left out.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.measure import BenchmarkError, Peers, alternate, ratios, spread, train_once
from benchmarks.tables import Report, range_of, table
from benchmarks.tuning import BATCH, EPOCHS, MINIBATCH, Setting, fixed, label, tuned
from multigrid_rl.cores import available_cpus

BOTH_SEATS = ["scenario=1v1", "scenario.seats.blue_0=learn"]
#: That learn in a game of either side.
AGENTS = 2
#: Of ours: JaxMARL has its best of one and two, and however busy the machine is.
THREADS = tuple(n for n in (1, 2) if n <= available_cpus())
OURS = "multigrid-rl, {} thread(s)"
THEIRS = "JaxMARL's IPPO"
#: As JaxMARL publishes it: the best of a sweep on two cores.
BEST: Setting = {"num_envs": 16, "batch": 2048, "threads": 2}
DIFFERS = (
    "Overcooked in its smallest layout, 520 numbers a view, one network for both agents; the trainer is written anew "
    "in the shape of JaxMARL's own (one compiled scan), which its package does not hold; compiling is not counted"
)


def settings(*, quick: bool) -> list[Setting]:
    """Return games side by side; what JaxMARL publishes has 16 games and half the batch."""
    many: list[Setting] = [{"num_envs": games} for games in (16, 64, 256, 1024)]
    return [{"num_envs": 64}] if quick else [*many, {"num_envs": 16, "batch": 2048}]


def speed_of(peers: Peers, iterations: int, setting: Setting) -> float:
    """Environment steps a second of JaxMARL's."""
    options = {"batch": BATCH, "minibatch": MINIBATCH, "epochs": EPOCHS, "iterations": iterations, **setting}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return float(peers.run("jaxmarl_ippo", arguments)["env_steps_per_s"])


def ours(overrides: list[str], warmup: int) -> float:
    """Environment steps a second of ours."""
    return train_once(overrides).speed(warmup)


def against(report: Report, options: argparse.Namespace) -> None:
    """Measure ours with both seats learning and JaxMARL's alternately, in environment steps and trained agent steps."""
    if options.skip_peers:
        return
    try:
        peers = Peers(options.jaxmarl, "jaxmarl", "make bench-jaxmarl makes it")
    except BenchmarkError as error:
        print(f"benchmarks: {THEIRS} is left out: {error}", file=sys.stderr)
        return
    measure = partial(speed_of, peers, options.peer_iterations)
    best = tuned(report, THEIRS, settings(quick=options.quick), measure) if options.sweep else BEST
    run = [*BOTH_SEATS, *fixed(options.iterations)]
    sides: dict[str, Callable[[], float]] = {
        OURS.format(n): partial(ours, [*run, f"train.threads={n}"], options.warmup) for n in THREADS
    }
    sides[THEIRS] = partial(measure, best)
    found = alternate(sides, options.rounds)
    faster = max(map(OURS.format, THREADS), key=lambda name: spread(found[name]).median)
    rounds = spread(ratios(found[faster], found[THEIRS]))
    rows: list[list[Any]] = [
        [name, (its := spread(values)).median, range_of(its), AGENTS * its.median] for name, values in found.items()
    ]
    rows.append(["ratio, round by round, of our faster", rounds.median, range_of(rounds), rounds.median])
    heads = ["", "env steps/s", "min to max", "trained agent steps/s"]
    note = (
        f"Unequal games. Alike: two agents that both learn, {BATCH} environment steps a batch if no other is named, "
        f"{EPOCHS} epochs, minibatches of {MINIBATCH} rows, tanh 64-64 in two towers, {options.rounds} alternating "
        f"rounds. Ours: {' '.join(BOTH_SEATS)}, a network for each seat. {THEIRS}: in its own environment, the best "
        f"of a sweep ({label(best)}); {DIFFERS}."
    )
    report.section(f"Against {THEIRS}", [*table(heads, rows), "", note], found)
    report.result["ratio_to_jaxmarl"] = round(rounds.median, 2)
