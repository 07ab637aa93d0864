"""Do environments of the multigrid package train? Runs the command line that users run and writes docs/results/.

python -m benchmarks.multigrid --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from multigrid_rl.world.multigrid_env import MultigridEnvs

RESULTS = Path("docs/results")
#: Environment -> steps of training.
BUDGET = {
    "MultiGrid-Empty-8x8-v0": 200_000,
    "MultiGrid-RedBlueDoors-6x6-v0": 500_000,
    "MultiGrid-LockedHallway-2Rooms-v0": 500_000,
    "MultiGrid-BlockedUnlockPickup-v0": 2_000_000,
}
RANDOM_EPISODES = 500
#: Last episodes of a run that its trained policy is judged by, at least.
LAST_EPISODES = 200
#: Random actions are drawn apart from everything that a run draws.
ACTION_SEED = 2**31


def random_play(env_id: str, episodes: int, seed: int) -> dict[str, float]:
    """Uniform actions through the same adapter: the first episode of each of ``episodes`` games."""
    envs = MultigridEnvs(env_id, episodes, seed=seed)
    rng = np.random.default_rng((ACTION_SEED, seed))
    returns, length = np.zeros(episodes), np.zeros(episodes)
    playing = np.ones(episodes, np.bool_)
    while playing.any():
        step = envs.step({"agent_0": rng.integers(0, 7, episodes)})
        returns += step.rewards["agent_0"] * playing
        length += playing
        playing &= ~step.done
    return {
        "episodes": episodes,
        "return": float(returns.mean()),
        "success": float((returns > 0).mean()),
        "length": float(length.mean()),
    }


def last_episodes(rows: list[dict[str, Any]], least: int) -> dict[str, float]:
    """Means over the last reports of a run that hold ``least`` episodes together (all of them if there are fewer)."""
    parts: list[dict[str, Any]] = []
    for row in reversed(rows):
        if "report_episodes" in row and sum(part["report_episodes"] for part in parts) < least:
            parts.append(row)
    weights = [part["report_episodes"] for part in parts]
    means = {
        short: float(np.average([part[name] for part in parts], weights=weights))
        for short, name in (
            ("return", "return_mean/agent_0"),
            ("success", "win/agent_0"),
            ("length", "episode_len_mean"),
        )
    }
    return {"episodes": int(sum(weights)), **means}


def one_run(env_id: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Train one seed in a process of its own."""
    run = folder / f"{env_id}-seed{seed}"
    command = ["multigrid-rl", "train", "scenario=multigrid", f"env_id={env_id}", f"seed={seed}", "--until", str(steps)]
    program = [str(Path(sys.executable).parent / command[0]), *command[1:], f"run_dir={run}"]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "env_id": env_id,
        "seed": seed,
        "command": " ".join(command),
        "env_steps": rows[-1]["env_steps"],
        "seconds": rows[-1]["seconds"],
        "trained": last_episodes(rows, LAST_EPISODES),
        "random": random_play(env_id, RANDOM_EPISODES, seed),
        "provenance": json.loads((run / "provenance.json").read_text(encoding="utf-8")),
    }


def table(rows: list[dict[str, Any]], command: str) -> str:
    """Markdown: one row for each environment and seed."""
    provenance = rows[0]["provenance"]
    lines = [
        "# Environments of the multigrid package: trained against random play",
        "",
        f"`{command}` runs for each row",
        "`multigrid-rl train scenario=multigrid env_id=ENVIRONMENT seed=SEED --until STEPS`",
        "with the recipe `configs/experiment/multigrid.yaml`, the same for all. STEPS: "
        + ", ".join(f"{BUDGET[env_id]:,} ({env_id})" for env_id in dict.fromkeys(row["env_id"] for row in rows))
        + ".",
        f"Random: uniform actions through the same adapter, {RANDOM_EPISODES:,} episodes a seed. Trained: at least the",
        f"last {LAST_EPISODES} episodes of the run, with actions drawn from the policy as in training. Success: the",
        "episode's return is above 0; in LockedHallway one opened door is enough for that, and two bring at most 2.",
        f"Commit {provenance['commit']}. Versions: "
        + ", ".join(f"{name} {number}" for name, number in provenance["versions"].items())
        + f". Machine: {provenance['machine']['system']}.",
        "",
        "| environment | seed | steps | seconds | random: return | success "
        "| trained: return | success | length | episodes |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        base, got = row["random"], row["trained"]
        cells = [row["env_id"], row["seed"], f"{row['env_steps']:,}", f"{row['seconds']:.0f}"]
        cells += [f"{base['return']:.3f}", f"{base['success']:.1%}", f"{got['return']:.3f}", f"{got['success']:.1%}"]
        cells += [f"{got['length']:.0f}", got["episodes"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run everything one after the other and write the table and the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(BUDGET), default=list(BUDGET), metavar="ENV_ID")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-multigrid-") as folder:
        for env_id in options.only:
            for seed in options.seeds:
                row = one_run(env_id, seed, BUDGET[env_id], Path(folder))
                rows.append(row)
                base, got = row["random"], row["trained"]
                told = (
                    f"return {base['return']:.3f} -> {got['return']:.3f}, {base['success']:.1%} -> {got['success']:.1%}"
                )
                print(f"{env_id} seed {seed}: {told} ({row['seconds']:.0f} s)", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    stem = RESULTS / "multigrid"
    command = f"python -m benchmarks.multigrid --seeds {' '.join(map(str, options.seeds))}"
    stem.with_suffix(".md").write_text(table(rows, command), encoding="utf-8")
    stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {stem}.md and {stem}.json")


if __name__ == "__main__":
    main()
