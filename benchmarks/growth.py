"""What more work costs: training steps a second and memory against games, env runners, agents, width and nodes.

    python -m benchmarks.growth --out docs/results/bench-growth

Every point is a run of ``multigrid-rl train scenario=1v1`` with one thing changed; the points of a table are measured
alternately.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.measure import Run, alternate, spread, timing_parts, train_once
from benchmarks.tables import Report, add_common, describe, measure_all, range_of, table
from benchmarks.training import matrix_limit, row_flop
from benchmarks.tuning import BATCH, EPOCHS
from multigrid_rl.cores import available_cpus

GAMES = (16, 64, 256, 1024, 4096)
WIDTHS = (32, 64, 128, 256, 512)
NODES = (1, 2)
STEPS, MINIBATCH = 16, 1024
KIB_PER_MIB = 1024
RUN_STEPS = 262_144


class Point(NamedTuple):
    """One row of a table: a run, and how many agents learn in it."""

    overrides: tuple[str, ...]
    batch: int = 4096
    agents: int = 1
    program: tuple[str, ...] = ()


CPUS = available_cpus()
BOTH = ("scenario.seats.blue_0=learn",)
TEAM = ("scenario=2v2", "scheme=dtde", "train.epochs=4")
PROGRAM = (sys.executable, "-m", "benchmarks.nodes")
#: Heading, points, and what else there is to say, by the name of a table.
TABLES: dict[str, tuple[str, dict[str, Point], str]] = {
    "games": (  # side by side; the batch grows with them
        "Games side by side",
        {
            f"{games:,} games": Point(
                (f"train.num_envs={games}", f"train.minibatch_size={min(MINIBATCH, games * STEPS)}"), games * STEPS
            )
            for games in GAMES
        },
        f"{STEPS} steps of every game a batch, minibatches of {MINIBATCH} or the whole batch if that is smaller.",
    ),
    "runners": (  # the driver itself, or remote Ray actors that share the games
        "Env runners",
        {f"{n} env runners": Point((f"cluster.num_env_runners={n}",)) for n in (0, 1, 2, 4, 8) if n <= CPUS},
        "256 games over all of them; each remote one is a process with one torch thread.",
    ),
    "agents": (  # that learn, each with a network of its own
        "Agents that learn",
        {
            "1v1, one seat": Point(()),
            "1v1, both seats": Point(BOTH, agents=2),
            "2v2, one team": Point(TEAM, agents=2),
            "2v2, both teams": Point((*TEAM, *BOTH, "scenario.seats.blue_1=learn"), agents=4),
        },
        "Trained agent steps a second are environment steps times the agents that learn.",
    ),
    "width": (  # units of each of two layers, in both towers
        "Network width",
        {f"2 x {width} units": Point((f"model.hidden=[{width},{width}]",)) for width in WIDTHS},
        "",
    ),
    "nodes": (  # on one node, and on a node each, of a cluster on this machine
        "Nodes of a local cluster, two env runners",
        {
            f"{nodes} node(s)": Point(
                ("cluster.num_env_runners=2",), program=(*PROGRAM, str(nodes), str(CPUS // nodes))
            )
            for nodes in (NODES if max(NODES) <= CPUS else ())
        },
        "Each node is a raylet with its share of the cores and an object store of its own.",
    ),
}


def overrides_of(point: Point, options: argparse.Namespace) -> list[str]:
    """Return the run of one point: so many environment steps, but at least some iterations after the warm-up."""
    until = max(options.steps, (options.warmup + options.least) * point.batch)
    scenario = [] if any(part.startswith("scenario=") for part in point.overrides) else ["scenario=1v1"]
    length = [f"train.until={until}", "train.stop_when_held=false", f"train.checkpoint_every={until + point.batch}"]
    return [*scenario, *point.overrides, *length]


def one_table(report: Report, name: str, options: argparse.Namespace) -> None:
    """Measure the points of one table alternately."""
    heading, points, note = TABLES[name]
    if options.quick:
        points = {key: points[key] for key in list(points)[-1:]}
    plans = {key: (overrides_of(point, options), point.program) for key, point in points.items()}
    runs: dict[str, list[Run]] = alternate(
        {key: partial(train_once, overrides, program=program) for key, (overrides, program) in plans.items()},
        options.rounds,
    )
    rows: list[list[Any]] = []
    data: list[dict[str, Any]] = []
    for key, its in runs.items():
        speed = spread([run.speed(options.warmup) for run in its])
        driver = spread([run.peak.driver_mib for run in its]).median
        # Looking at all processes takes time from them: a run of its own.
        tree = train_once(plans[key][0], program=plans[key][1], whole_tree=True).peak.tree_mib
        agents = points[key].agents
        rows.append([key, speed.median, range_of(speed), agents * speed.median, driver, tree])
        data.append({"point": key, "overrides": plans[key][0], "agents": agents, "env_steps_per_s": speed._asdict()})
        data[-1] |= {"driver_peak_mib": driver, "tree_peak_mib": tree}
    report.result[f"{name}_env_steps_per_s"] = {row["point"]: round(row["env_steps_per_s"]["median"]) for row in data}
    heads = ["1v1", "env steps/s", "min to max", "trained agent steps/s", "driver's peak, MiB", "whole tree's"]
    lines = [*table(heads, rows), *(["", note] if note else [])]
    if name == "games" and len(rows) > 1:
        kib = kib_per_game([(games, row[-2]) for games, row in zip(GAMES, rows, strict=True)])
        report.result["driver_kib_per_game"] = round(kib, 1)
        lines.append(
            f"Memory: {kib:.0f} KiB for each game more ({STEPS} steps of it in the batch, and their gradients)."
        )
    report.section(heading, lines, data)
    if name == "width":
        share_of_limit(report, runs, options.warmup)


def share_of_limit(report: Report, runs: dict[str, list[Run]], warmup: int) -> None:
    """Report what an update of each width computes against what the processor can."""
    rows: list[list[Any]] = []
    for key, its in runs.items():
        width = int(key.split()[2])
        seconds = spread([timing_parts(run.rows, warmup)["learn"].median_s for run in its])
        reached, limit = EPOCHS * BATCH * row_flop(width) / seconds.median / 1e9, matrix_limit(CPUS, width)
        rows.append([key, 1e3 * seconds.median, reached, limit, f"{reached / limit:.0%}"])
    heads = ["1v1", "an update, ms", "GFLOP/s", f"limit of {CPUS} thread(s)", "share"]
    note = (
        "Limit: torch's product of 1024 x width by width x width, measured after the runs. An update counts rows that "
        "look alike, which it computes once; it takes one thread where the other core is not free."
    )
    report.result["share_of_matrix_limit"] = {row[0]: row[-1] for row in rows}
    report.section("Share of the matrix limit", [*table(heads, rows), "", note], rows)


def kib_per_game(sizes: Sequence[tuple[int, float]]) -> float:
    """KiB for each game more, from (games, MiB) of the smallest and the largest run."""
    (few, small), (many, large) = sizes[0], sizes[-1]
    return (large - small) * KIB_PER_MIB / (many - few)


def parsed() -> argparse.Namespace:
    """Options, with the sizes that follow from ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common(parser)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=RUN_STEPS, help="environment steps of a run")
    options = parser.parse_args()
    options.warmup, options.least = 3, 5
    if options.quick:
        options.rounds, options.steps, options.warmup, options.least = 1, 1, 1, 2
    return options


def main() -> None:
    """Measure, print tables, end with one line of JSON."""
    options = parsed()
    report = Report("What more work costs", describe())
    measure_all(report, [partial(one_table, report, name, options) for name in options.only], options.out)


if __name__ == "__main__":
    main()
