"""Training against trainers that only play games of their own: JaxMARL's IPPO, PufferLib's. Sections of ``make bench``.

Nothing makes these tasks equal: each side plays its own game. Alike are two agents that both learn, environment steps
of a batch, epochs, rows of a minibatch and layers; each section of a report says what is not. Each peer has an
environment of its own (``make bench-jaxmarl``, ``make bench-pufferlib``), and one that is not there is left out.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.measure import BenchmarkError, Peers, alternate, ratios, spread, train_once
from benchmarks.tables import Report, range_of, table
from benchmarks.tuning import BATCH, EPOCHS, MINIBATCH, Setting, fixed, label, tuned
from multigrid_rl.cores import available_cpus

BOTH_SEATS = ["scenario=1v1", "scenario.seats.blue_0=learn"]
#: That learn in a game of either side.
AGENTS = 2
#: Of ours: as each peer has its best of one and two, and however busy the machine is.
THREADS = tuple(n for n in (1, 2) if n <= available_cpus())
OURS = "multigrid-rl, {} thread(s)"


class Peer(NamedTuple):
    """A trainer of others, in an environment of its own."""

    name: str
    package: str  # also the option that says where its environment is, and the verb that makes it
    module: str  # of benchmarks.peers
    settings: Callable[[bool], list[Setting]]  # of a sweep; of a quick one
    best: Setting  # found by a sweep on two cores
    differs: str


def jax_settings(quick: bool) -> list[Setting]:
    """Return games side by side; what JaxMARL publishes has 16 games and half the batch."""
    many = [{"num_envs": games} for games in (16, 64, 256, 1024)]
    return [{"num_envs": 64}] if quick else [*many, {"num_envs": 16, "batch": 2048}]


def puffer_settings(quick: bool) -> list[Setting]:
    """Return worlds side by side, and processes that play them."""
    return [
        {"num_envs": games, "workers": workers}
        for games, workers in ([(256, 0)] if quick else [(32, 0), (64, 0), (256, 0), (1024, 0), (64, 2), (256, 2)])
    ]


JAXMARL = Peer(
    "JaxMARL's IPPO",
    "jaxmarl",
    "jaxmarl_ippo",
    jax_settings,
    {"num_envs": 16, "batch": 2048, "threads": 2},  # as JaxMARL publishes it
    "Overcooked in its smallest layout, 520 numbers a view, one network for both agents; the trainer is written anew "
    "in the shape of JaxMARL's own (one compiled scan), which its package does not hold; compiling is not counted",
)
PUFFERLIB = Peer(
    "PufferLib's trainer",
    "pufferlib",
    "pufferlib_ppo",
    puffer_settings,
    {"num_envs": 1024, "workers": 0, "threads": 1},
    "Snake, written in C, two snakes a world and views of 5 x 5 cells, one-hot 200 numbers, one network for both; "
    "without its dashboard, with Adam for Muon",
)


def speed_of(peers: Peers, peer: Peer, iterations: int, setting: Setting) -> float:
    """Environment steps a second of a peer."""
    options = {"batch": BATCH, "minibatch": MINIBATCH, "epochs": EPOCHS, "iterations": iterations, **setting}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return float(peers.run(peer.module, arguments)["env_steps_per_s"])


def ours(overrides: list[str], warmup: int) -> float:
    """Environment steps a second of ours."""
    return train_once(overrides).speed(warmup)


def against(peer: Peer, report: Report, options: argparse.Namespace) -> None:
    """Measure ours with both seats learning and a peer alternately, in environment steps and trained agent steps."""
    if options.skip_peers:
        return
    try:
        peers = Peers(getattr(options, peer.package), peer.package, f"make bench-{peer.package} makes it")
    except BenchmarkError as error:
        print(f"benchmarks: {peer.name} is left out: {error}", file=sys.stderr)
        return
    measure = partial(speed_of, peers, peer, options.peer_iterations)
    best = tuned(report, peer.name, peer.settings(options.quick), measure) if options.sweep else peer.best
    run = [*BOTH_SEATS, *fixed(options.iterations)]
    sides: dict[str, Callable[[], float]] = {
        OURS.format(n): partial(ours, [*run, f"train.threads={n}"], options.warmup) for n in THREADS
    }
    sides[peer.name] = partial(measure, best)
    found = alternate(sides, options.rounds)
    faster = max(map(OURS.format, THREADS), key=lambda name: spread(found[name]).median)
    rounds = spread(ratios(found[faster], found[peer.name]))
    rows: list[list[Any]] = [
        [name, (its := spread(values)).median, range_of(its), AGENTS * its.median] for name, values in found.items()
    ]
    rows.append(["ratio, round by round, of our faster", rounds.median, range_of(rounds), rounds.median])
    heads = ["", "env steps/s", "min to max", "trained agent steps/s"]
    note = (
        f"Unequal games. Alike: two agents that both learn, {BATCH} environment steps a batch if no other is named, "
        f"{EPOCHS} epochs, minibatches of {MINIBATCH} rows, tanh 64-64 in two towers, {options.rounds} alternating "
        f"rounds. Ours: {' '.join(BOTH_SEATS)}, a network for each seat. {peer.name}: in its own environment, the best "
        f"of a sweep ({label(best)}); {peer.differs}."
    )
    report.section(f"Against {peer.name}", [*table(heads, rows), "", note], found)
    report.result[f"ratio_to_{peer.package}"] = round(rounds.median, 2)
