"""Speed of training against what one would take instead. ``make bench``; the last line printed is JSON.

    python -m benchmarks.training --out runs/pages/bench-training
    python -m benchmarks.training --only stock held        # some of the sections; other values are null

Every run is a process of its own with the command line that users have. Both sides of a pair use the same scenario,
network, batch, epochs and minibatch, and are measured alternately. Peers have the best settings of a
sweep on two cores.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    RUN_LIMIT_S,
    BenchmarkError,
    Peers,
    Run,
    alternate,
    overhead_share,
    ratios,
    spread,
    timing_parts,
    train_once,
)
from benchmarks.tables import Report, add_common, describe, measure_all, range_of, spread_rows, table

ONE_SEAT = ["scenario=1v1"]
BOTH_SEATS = ["scenario=1v1", "scenario.seats.blue_0=learn"]
ALONE = ["scenario=single"]
MEMORY = ["scenario=single-obstacle"]
WARMUP = 5
#: What of a run is not measured: compilation, first allocations.
PEER_WARMUP = 2
BATCH, MINIBATCH, EPOCHS = 4096, 1024, 4
Setting = dict[str, Any]
#: Found by a sweep on two cores.
BEST_STOCK: Setting = {"num_env_runners": 2, "num_envs": 128, "threads": 1}
BEST_SB3: Setting = {"num_envs": 128, "workers": "dummy", "threads": 2}
KEYS = (
    "env_steps_per_s",
    "ratio_to_stock_rllib",
    "ratio_to_sb3",
    "agent_steps_per_s_both_learning",
    "update_2_threads_ratio",
    "gru_env_steps_per_s",
    "seconds_to_held",
    "seconds_process_to_held",
    "peak_rss_mib",
    "peak_rss_driver_mib",
    "overhead_share",
)
PEAK_TARGET_MIB = 1536


def label(setting: Setting) -> str:
    """``num_envs 64, workers dummy``."""
    return ", ".join(f"{name} {value}" for name, value in setting.items())


def fixed(iterations: int) -> list[str]:
    """Return overrides of a run that is exactly so long and writes one checkpoint, at its end."""
    until = iterations * BATCH
    return [f"train.until={until}", "train.stop_when_held=false", f"train.checkpoint_every={until}"]


def versus(
    report: Report, options: argparse.Namespace, peer: str, ours: list[str], theirs: Callable[[], float], how: str
) -> float:
    """One pair, measured alternately; returns the median ratio."""
    overrides = [*ours, *fixed(options.iterations)]
    rows = alternate({"ours": lambda: train_once(overrides).speed(options.warmup), "theirs": theirs}, options.rounds)
    rounds = ratios(rows["ours"], rows["theirs"])
    lines = spread_rows({"multigrid-rl": rows["ours"], peer: rows["theirs"], "ratio, round by round": rounds})
    note = (
        f"{' '.join(ours)}, {BATCH} steps a batch, {EPOCHS} epochs, minibatches of {MINIBATCH}, tanh 64-64 in two "
        f"towers on one-hot tokens, {options.rounds} alternating rounds. Ours: the default recipe, the driver samples "
        f"256 games, threads as many as are free. {peer}: {how}."
    )
    report.section(f"Against {peer}", [*table(["", "env steps/s", "min to max"], lines), "", note], rows)
    return round(spread(rounds).median, 2)


def stock_speed(setting: Setting, iterations: int) -> float:
    """Environment steps a second of RLlib's own PPO in 1v1."""
    envs = setting["num_envs"]
    overrides = ["scenario=1v1", f"train.num_envs={envs}", f"train.num_steps={BATCH // envs}"]
    overrides += [f"cluster.num_env_runners={setting['num_env_runners']}", f"train.torch_threads={setting['threads']}"]
    command = [sys.executable, "-m", "benchmarks.stock", f"--iterations={iterations}", f"--warmup={PEER_WARMUP}"]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
    return float(json.loads(done.stdout.splitlines()[-1])["env_steps_per_s"])


def sb3_speed(peers: Peers, arguments: Sequence[str], setting: Setting, limit: float = RUN_LIMIT_S) -> float:
    """Environment steps a second of Stable-Baselines3's PPO; ``arguments``: what is trained, for how long."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in setting.items()]
    return float(peers.run("sb3_ppo", [*arguments, *options], limit)["env_steps_per_s"])


def speed(report: Report, options: argparse.Namespace) -> None:
    """Return the default recipe of 1v1 and the same with both seats learning; where the default's time goes."""
    runs = alternate(
        {
            "one seat learns": partial(train_once, [*ONE_SEAT, *fixed(options.iterations)]),
            "both seats learn": partial(train_once, [*BOTH_SEATS, *fixed(options.iterations)]),
            "a network with memory": partial(train_once, [*MEMORY, *fixed(options.iterations)]),
        },
        options.rounds,
    )
    speeds = {name: [run.speed(options.warmup) for run in group] for name, group in runs.items()}
    one, both, gru = (spread(values) for values in speeds.values())
    report.result["env_steps_per_s"] = round(one.median)
    report.result["agent_steps_per_s_both_learning"] = round(2 * both.median)
    report.result["gru_env_steps_per_s"] = round(gru.median)
    heads = ["default recipes, 1v1 and single-obstacle", "env steps/s", "min to max", "trained agent steps/s"]
    rows = [
        ["one seat learns", one.median, range_of(one), one.median],
        ["both seats learn", both.median, range_of(both), 2 * both.median],
        ["alone, a network with memory", gru.median, range_of(gru), gru.median],
    ]
    report.section("Speed of training", table(heads, rows), speeds)
    where_time_goes(report, runs["one seat learns"], options.warmup)


def where_time_goes(report: Report, runs: list[Run], warmup: int) -> None:
    """Every ``timing/*`` column of the default run, over its rounds."""
    parts = [timing_parts(run.rows, warmup) for run in runs]
    lines, data = [], {}
    for name in parts[0]:
        seconds, share = (spread([row[name][k] for row in parts if name in row]) for k in range(2))
        lines.append([name, 1e3 * seconds.median, f"{share.median:.1%}", f"{share.low:.1%} to {share.high:.1%}"])
        data[name] = {"median_s": seconds.median, "share": share.median}
    shares = [value for run in runs if (value := overhead_share(run.rows, warmup)) is not None]
    report.result["overhead_share"] = round(spread(shares).median, 4) if shares else None
    note = "Share: of the time of all iterations. A part may hold others, so shares need not add up to 100 %."
    heads = ["part", "median, ms", "share of iteration", "min to max"]
    report.section("Where the time goes", [*table(heads, lines), "", note], data)


def threads(report: Report, options: argparse.Namespace) -> None:
    """Measure updates of 1v1 with two threads against those with one."""
    runs = alternate(
        {str(n): partial(train_once, [*ONE_SEAT, f"train.threads={n}", *fixed(options.iterations)]) for n in (1, 2)},
        options.rounds,
    )
    updates = {n: [timing_parts(run.rows, options.warmup)["learn"].median_s for run in rs] for n, rs in runs.items()}
    rows = {f"{n} thread(s)": [1e3 * value for value in values] for n, values in updates.items()}
    rows["ratio, round by round"] = ratios(updates["1"], updates["2"])
    report.result["update_2_threads_ratio"] = round(spread(rows["ratio, round by round"]).median, 2)
    note = "The machine's line above says whether a second core was free; results do not depend on it."
    heads = ["1v1", "an update, ms", "min to max"]
    report.section("Two threads", [*table(heads, spread_rows(rows)), "", note], updates)


def stock(report: Report, options: argparse.Namespace) -> None:
    """Against RLlib's own PPO on a plain MultiAgentEnv, 1v1."""
    how = f"`benchmarks.stock`, the best of a sweep ({label(BEST_STOCK)}; env runners have one thread each)"
    peer = partial(stock_speed, BEST_STOCK, options.peer_iterations)
    report.result["ratio_to_stock_rllib"] = versus(report, options, "RLlib's own PPO", ONE_SEAT, peer, how)


def sb3(report: Report, options: argparse.Namespace) -> None:
    """Against Stable-Baselines3's PPO on the Gymnasium face of ``single``."""
    if options.skip_peers:
        return
    arguments = ["--scenario=single", f"--iterations={options.peer_iterations}", f"--warmup={PEER_WARMUP}"]
    arguments += [f"--batch={BATCH}", f"--minibatch={MINIBATCH}", f"--epochs={EPOCHS}"]
    how = f"in its own environment, the best of a sweep ({label(BEST_SB3)}), its monitor and vector environments"
    peer = partial(sb3_speed, Peers(options.peers), arguments, BEST_SB3)
    report.result["ratio_to_sb3"] = versus(report, options, "Stable-Baselines3", ALONE, peer, how)


def held(report: Report, options: argparse.Namespace) -> None:
    """Seconds until the default recipe of 1v1 holds all gates."""
    rows, data = [], []
    for seed in options.seeds:
        run = train_once([*ONE_SEAT, f"seed={seed}", *([] if not options.quick else fixed(3))])
        verdict = run.verdict
        steps, seconds = (verdict[key] if verdict["held"] else None for key in ("env_steps_to_held", "seconds_to_held"))
        rows.append([f"seed {seed}", steps, seconds, verdict["seconds"], run.process_s])
        data.append({"seed": seed, "env_steps": steps, "seconds": seconds, "process_s": run.process_s})
    seconds_held = [row["seconds"] for row in data if row["seconds"] is not None]
    if len(seconds_held) == len(data):
        report.result["seconds_to_held"] = round(spread(seconds_held).median, 2)
        report.result["seconds_process_to_held"] = round(spread([row["process_s"] for row in data]).median, 2)
    heads = [
        "1v1, default recipe",
        "env steps to held",
        "seconds to held",
        "seconds of training",
        "seconds of the process",
    ]
    note = "Seconds to held: by the run's own clock. Process: with imports, Ray's start and end, kernels, checkpoint."
    report.section("Seconds until all gates are held", [*table(heads, rows), "", note], data)


def memory(report: Report, options: argparse.Namespace) -> None:
    """Peak memory of the default run: the driver, and everything it started."""
    iterations = [] if not options.quick else fixed(10)
    peaks = [train_once([*ONE_SEAT, *iterations], whole_tree=True).peak for _ in range(options.rounds)]
    tree, driver = [peak.tree_mib or 0.0 for peak in peaks], [peak.driver_mib for peak in peaks]
    largest = max(peaks, key=lambda peak: peak.tree_mib or 0.0)
    report.result["peak_rss_mib"] = round(spread(tree).median)
    report.result["peak_rss_driver_mib"] = round(spread(driver).median)
    rows = spread_rows({"driver alone, resident": driver, "driver and all it started, proportional": tree})
    rows += [
        [f"of which {name}", size, None] for name, size in sorted(largest.parts_mib.items(), key=lambda item: -item[1])
    ]
    met = "reached" if spread(tree).median < PEAK_TARGET_MIB else "NOT reached"
    note = (
        f"1v1 until its gates are held. Target: under {PEAK_TARGET_MIB:,} MiB ({met}). A page that n processes share "
        "counts 1/n for each of them, so the sum counts every page once."
    )
    data = [peak._asdict() for peak in peaks]
    report.section("Peak memory", [*table(["MiB", "median", "min to max"], rows), "", note], data)


SECTIONS: dict[str, Callable[[Report, argparse.Namespace], None]] = {
    "speed": speed,
    "threads": threads,
    "stock": stock,
    "sb3": sb3,
    "held": held,
    "memory": memory,
}


def parsed() -> argparse.Namespace:
    """Options, with the sizes that follow from ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common(parser)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the runs until gates are held")
    parser.add_argument("--iterations", type=int, default=100, help="of our runs; those of peers are slower and fewer")
    parser.add_argument("--peer-iterations", type=int, default=8)
    parser.add_argument("--peers", type=Path, default=Path(".venv-bench"), help="what make bench-setup made")
    parser.add_argument("--skip-peers", action="store_true", help="leave out what is not RLlib; its ratio is null")
    options = parser.parse_args()
    options.warmup = WARMUP
    if options.quick:
        options.rounds, options.iterations, options.peer_iterations = 1, 8, PEER_WARMUP + 1
        options.warmup, options.seeds = 2, [0]
    return options


def main() -> None:
    """Measure, print tables, end with one line of JSON."""
    options = parsed()
    try:
        if "sb3" in options.only and not options.skip_peers:
            Peers(options.peers)  # better now than after a quarter of an hour
    except BenchmarkError as error:
        sys.exit(f"benchmarks: {error}")
    report = Report("Speed of training", describe(), dict.fromkeys(KEYS))
    measure_all(report, [partial(SECTIONS[name], report, options) for name in options.only], options.out)


if __name__ == "__main__":
    main()
