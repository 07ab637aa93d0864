"""What more cores and a GPU bring, in at most six minutes. ``make bench-device``; the last line printed is JSON.

    python -m benchmarks.device --out runs/pages/bench-device     # a GPU, and 16 cores at best
    python -m benchmarks.device --device cpu --budget 120         # any machine: torch on the CPU in the GPU's place

Training runs are processes of their own, as users start them. What the budget does not reach is left out, and named.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gymnasium.spaces import MultiDiscrete

from benchmarks.measure import BenchmarkError, run_process
from benchmarks.tables import Report, describe, table
from multigrid_rl.cores import available_cpus
from multigrid_rl.learn.batches import Batch
from multigrid_rl.learn.update import Update
from multigrid_rl.learn.update_settings import UpdateConfig
from multigrid_rl.models.registry import build
from multigrid_rl.runs.reader import read_rows
from multigrid_rl.types import Schedule

PROGRAM = str(Path(sys.executable).parent / "multigrid-rl")
BUDGET_S = 360.0
#: A run that would have less is not begun, as Ray alone takes some seconds; iterations before a run's speed counts.
LEAST_S, WARMUP = 12.0, 3
COUNTS = (1, 2, 4, 8, 16)
GAMES = (256, 1024, 4096, 16_384)
WIDTHS = (64, 128, 256, 512, 1024, 2048)
DOORS, DOORS_BATCH = ["scenario=1v1", "train.stop_when_held=false"], 16
#: An environment that is slow in Python: env runners are for these.
SLOW, SLOW_BATCH = ["env_id=Acrobot-v1", "train.num_envs=64", "train.num_steps=32"], 2048
#: What the red of 1v1 sees, what it may do, and rows of a batch.
CATEGORIES, ACTIONS, ROWS = (23,) * 25 + (4, 4), 7, 4096
#: How near weights are after one update on either device.
RTOL, ATOL = 1e-3, 2e-4


class Budget:
    """Seconds for everything; what was left out for want of them, and what failed."""

    def __init__(self, seconds: float) -> None:
        self._share, self._last = seconds / BUDGET_S, time.monotonic() + seconds
        self._end = self._last
        self.left_out: list[str] = []
        self.failed: list[str] = []

    def begin(self, share: float) -> None:
        """Begin a part, which has a share of the seconds that are left."""
        now = time.monotonic()
        self._end = now + share * (self._last - now)

    def measured(self, name: str, measure: Callable[[float], Any], least: float = LEAST_S) -> Any:
        """Return what ``measure`` finds within the seconds that it is told; ``None`` where it does not."""
        left = self._end - time.monotonic()
        if left < least:
            self.left_out.append(name)
            return None
        try:
            return measure(left)
        except BenchmarkError as error:
            late = time.monotonic() > self._end
            (self.left_out if late else self.failed).append(name if late else f"{name}: {error}")
            return None

    def until(self, steps: int, batch: int) -> str:
        """Return the override for a run of ``steps`` steps in the whole budget, fewer in a smaller one."""
        return f"train.until={max(round(steps * self._share), (WARMUP + 4) * batch)}"


def speed(overrides: Sequence[str], limit: float) -> float:
    """Return environment steps a second of a run, or of all its seeds together."""
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-bench-") as folder:
        run_process([PROGRAM, "train", *overrides, f"run_dir={folder}/run"], limit=limit)
        runs = [read_rows(file) for file in Path(folder).rglob("metrics.jsonl")]
    ends = [(rows[WARMUP - 1], rows[-1]) for rows in runs]
    return float(sum((b["env_steps"] - a["env_steps"]) / (b["seconds"] - a["seconds"]) for a, b in ends))


def side_by_side(report: Report, budget: Budget) -> None:
    """Measure env runners of a slow environment, and seeds of a fast one, up to the machine's cores."""
    budget.begin(share=0.5)
    rows = []
    for count in [count for count in COUNTS if count <= available_cpus()]:
        runners = [*SLOW, f"cluster.num_env_runners={count}", budget.until(40_000 * count, SLOW_BATCH)]
        which = "seed=0" if count == 1 else f"seeds=0..{count - 1}"
        seeds = [*DOORS, which, budget.until(1_500_000, DOORS_BATCH * 256)]
        row: dict[str, Any] = {"side by side": str(count)}
        for name, overrides in (("env runners, Acrobot-v1", runners), ("seeds, 1v1", seeds)):
            row[name] = budget.measured(f"{count} {name}", partial(speed, overrides))
        rows.append(row)
    section(report, "Env runners and seeds, environment steps a second", rows)


def games(report: Report, budget: Budget) -> None:
    """Measure games side by side in one process."""
    budget.begin(share=0.4)
    rows = []
    for count in GAMES:
        overrides = [*DOORS, f"train.num_envs={count}", budget.until(1_500_000, DOORS_BATCH * count)]
        found = budget.measured(f"{count} games", partial(speed, overrides))
        rows.append({"games of 1v1": f"{count:,}", "environment steps a second": found})
    section(report, "Games", rows)


def learner(report: Report, budget: Budget, device: str) -> None:
    """Measure an update by its default path, by torch on the CPU and on the device, and compare their weights."""
    budget.begin(share=1.0)
    rows, took = [], 0.0
    for width in WIDTHS:
        began = time.monotonic()
        paths = {"default": ("cpu", True), "torch, cpu": ("cpu", False), f"torch, {device}": (device, False)}
        found = {
            name: budget.measured(f"width {width}, {name}", partial(updated, width, *how), least=2 * took)
            for name, how in paths.items()
        }
        took = max(took, time.monotonic() - began)  # none is broken off; twice the units take up to four times as long
        weights = [one[0] for one in found.values() if one is not None]
        off = max((float((other - weights[0]).abs().max()) for other in weights[1:]), default=None)
        near = [torch.allclose(other, weights[0], rtol=RTOL, atol=ATOL) for other in weights[1:]]
        times = {f"{name}, ms": None if one is None else one[1] for name, one in found.items()}
        rows.append({"units": f"{width:,}", **times, "largest difference": off, "equal": all(near) if near else None})
        if not all(near):
            budget.failed.append(f"width {width}: weights differ by {off:.2g}")
    section(report, f"An update of {ROWS:,} rows, four passes", rows)


def updated(width: int, device: str, compiled: bool, limit: float) -> tuple[torch.Tensor, float]:  # noqa: ARG001
    """Return a network's weights after one update, and the milliseconds of the next one."""
    net = build({"name": "mlp", "hidden": [width, width], "activation": "tanh"}, CATEGORIES, ACTIONS, seed=3).to(device)
    lr, entropy_coef, clip = (Schedule(value, value, 1) for value in (1e-3, 0.01, 0.2))
    settings = UpdateConfig("ppo", 4, ROWS // 4, lr, entropy_coef, clip, vf_coef=0.5, grad_clip=0.5, seed=0)
    update = Update({"a": net}, {"a": MultiDiscrete([ACTIONS])}, settings, device=torch.device(device))
    batch = {"a": batch_of(seed=0)}
    path = nullcontext() if compiled else patch("multigrid_rl.learn.update.compile_network", lambda _: None)
    with path:
        update.learn(batch, 0)
        weights = torch.cat([one.detach().cpu().flatten() for one in net.parameters()])
        began = time.perf_counter()
        update.learn(batch, 0)
        if device == "cuda":
            torch.cuda.synchronize()
    return weights, 1e3 * (time.perf_counter() - began)


def batch_of(seed: int) -> Batch:
    """Return rows such as 1v1 gives, no two alike."""
    rng = np.random.default_rng(seed)
    values, advantages, targets = rng.normal(size=(3, ROWS)).astype(np.float32)
    return Batch(
        obs=rng.integers(0, CATEGORIES, (ROWS, len(CATEGORIES))).astype(np.uint8),
        actions=rng.integers(0, ACTIONS, (ROWS, 1)),
        mask=np.ones((ROWS, 1), np.bool_),
        logp=np.full(ROWS, -np.log(ACTIONS), np.float32),
        values=values,
        advantages=advantages,
        targets=targets,
        entropy=np.full(ROWS, np.log(ACTIONS), np.float32),
        memory=np.empty((ROWS, 0), np.float32),
        starts=np.empty((ROWS, 0), np.bool_),
    )


def whole_runs(report: Report, budget: Budget, device: str) -> None:
    """Measure training with the learner on the device and on the CPU."""
    budget.begin(share=0.5)
    rows = []
    for width in (64, 1024):
        row: dict[str, Any] = {"units": f"{width:,}"}
        for name, gpus in (("cpu", 0), *([("cuda", 1)] if device == "cuda" else [])):
            overrides = [*DOORS, f"model.hidden=[{width},{width}]", f"cluster.gpus_per_learner={gpus}"]
            until = budget.until(64 * 1_500_000 // width, DOORS_BATCH * 256)
            row[f"learner on {name}"] = budget.measured(
                f"run of width {width}, {name}", partial(speed, [*overrides, until])
            )
        rows.append(row)
    section(report, "Training 1v1, environment steps a second", rows)


def section(report: Report, heading: str, rows: list[dict[str, Any]]) -> None:
    """Add a table; every row has the same keys."""
    report.section(heading, table(list(rows[0]), [list(row.values()) for row in rows]), rows)


def main() -> None:
    """Measure what the budget allows; status 1 where something failed or numbers differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="for everything")
    parser.add_argument("--out", type=Path, help="write PATH.md and PATH.json, for example runs/pages/bench-device")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device: expected cpu, as torch sees no GPU here (multigrid-rl doctor says why), got cuda")
    budget = Budget(args.budget)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    report = Report("More cores, and a GPU", describe(), {"device": device})
    budget.measured("kernels", partial(speed, [*DOORS, budget.until(0, DOORS_BATCH * 256)]))  # compiles them, once
    side_by_side(report, budget)
    games(report, budget)
    whole_runs(report, budget, args.device)
    learner(report, budget, args.device)
    report.result |= {"left_out": budget.left_out, "failed": budget.failed}
    report.write(args.out)
    sys.exit("\n".join(budget.failed) or 0)


if __name__ == "__main__":
    main()
