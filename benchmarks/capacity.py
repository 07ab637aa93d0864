"""What a large cluster would need: bytes of a step, weights, where the learner saturates; scaling on two nodes.

    python -m benchmarks.capacity --output docs/results/capacity.json

Measures on this machine and prints one line of JSON; ``docs/results/capacity.md`` says what follows from it.
"""

import argparse
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import timing_parts, train_once
from multigrid_rl.config.compose import compose
from multigrid_rl.rllib.algorithm import engine
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.training.kernels import warm_up

WARMUP = 4
RUN = ("scenario=1v1", "train.stop_when_held=false")


def one_runner(seconds: float) -> dict[str, Any]:
    """Measure a runner by itself: what it plays a second, and how large a rollout of it and the weights are."""
    config = compose(list(RUN))
    torch.set_num_threads(1)
    warm_up(config)
    runner = BatchedEnvRunner(config=algorithm_config(config), worker_index=0)
    rollout = runner.sample()
    learned = sum(len(batch.obs) for batch in rollout.batches.values())
    weights = pickle.dumps(runner.get_state(), protocol=5)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        steps += runner.sample().env_steps
    rate = steps / (time.perf_counter() - begin)
    return {
        "steps_per_s": rate,
        "rollout_bytes": len(pickle.dumps(rollout, protocol=5)),
        "env_steps": rollout.env_steps,
        "learned_steps": learned,
        "bytes_per_env_step": len(pickle.dumps(rollout, protocol=5)) / rollout.env_steps,
        "weights_bytes": len(weights),
    }


def one_learner(iterations: int) -> dict[str, float]:
    """Measure a learner by itself: environment steps a second that it learns from, by median seconds of an update."""
    with ray_session():
        algorithm = engine(compose(list(RUN)))
        try:
            rows: list[dict[str, Any]] = []
            for _ in range(iterations):
                algorithm.train()
                rows.append(algorithm.row)
        finally:
            algorithm.stop()
    learn = float(np.median([row["timing/learn_s"] for row in rows[2:]]))
    steps = rows[1]["env_steps"] - rows[0]["env_steps"]
    return {"update_s": learn, "batch_steps": steps, "steps_per_s": steps / learn}


def on_two_nodes(runners: int, until: int) -> dict[str, float]:
    """Train with so many env runners on two raylets of this machine; speed without the first iterations."""
    overrides = [*RUN, f"cluster.num_env_runners={runners}", f"train.until={until}"]
    run = train_once(overrides, program=(sys.executable, "-m", "benchmarks.nodes", "2", str(max(1, -(-runners // 2)))))
    parts = timing_parts(run.rows, WARMUP)
    return {
        "env_runners": runners,
        "steps_per_s": run.speed(WARMUP),
        **{f"{part}_s": parts[part].median_s for part in ("sample", "learn", "sync")},
    }


def main() -> None:
    """Measure everything and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--until", type=int, default=200_000, help="environment steps of each run on two nodes")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"runner": one_runner(5.0), "learner": one_learner(30)}
    result["two_nodes"] = [on_two_nodes(count, args.until) for count in args.runners]
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
