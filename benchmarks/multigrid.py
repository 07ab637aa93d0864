"""Do environments of the multigrid package train? Runs the command line that users run and writes docs/results/.

python -m benchmarks.multigrid --seeds 0 1 2
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import table
from multigrid_rl.envs.multigrid import MultigridEnvs
from multigrid_rl.runs.reader import read_rows

RESULTS = Path("docs/results")


#: Steps and agents of each environment.
CASES = {
    "MultiGrid-Empty-8x8-v0": (200_000, 1),
    "MultiGrid-RedBlueDoors-6x6-v0": (500_000, 1),
    "MultiGrid-LockedHallway-2Rooms-v0": (400_000, 1),
    # One agent alone comes across the box in 4 of 1,000 episodes: whether it ever learns is luck. Three share the
    # reward, and meet it some six times as often.
    "MultiGrid-BlockedUnlockPickup-v0": (800_000, 3),
}
RANDOM_EPISODES = 200
#: Last episodes of a run that its trained policy is judged by, at least.
LAST_EPISODES = 200
#: Random actions are drawn apart from everything that a run draws.
ACTION_SEED = 2**31
HEADS = ["environment", "agents", "seed", "steps", "seconds", "random: return", "success", "trained: return", "success"]
HEADS += ["length", "episodes"]


def random_play(env_id: str, agents: int, seed: int) -> dict[str, float]:
    """Uniform actions through the same adapter: the first episode of each of many games."""
    games = RANDOM_EPISODES
    envs = MultigridEnvs(env_id, games, agents=agents, seed=seed)
    rng = np.random.default_rng((ACTION_SEED, seed))
    returns, length = np.zeros((games, agents)), np.zeros(games)
    playing = np.ones(games, np.bool_)
    while playing.any():
        step = envs.step({seat: rng.integers(0, 7, games) for seat in envs.seats})
        returns += np.stack([step.rewards[seat] for seat in envs.seats], axis=1) * playing[:, None]
        length += playing
        playing &= ~step.done
    return {
        "episodes": games,
        "return": float(returns[:, 0].mean()),
        "success": float((returns > 0).any(axis=1).mean()),
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


def one_run(env_id: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed in a process of its own, and play as many agents at random."""
    (steps, agents), run = CASES[env_id], folder / f"{env_id}-seed{seed}"
    team = [f"scenario.agents={agents}", "shared=true"] if agents > 1 else []
    command = ["multigrid-rl", "train", "scenario=multigrid", f"env_id={env_id}", f"seed={seed}", *team]
    command += ["--until", str(steps)]
    program = [str(Path(sys.executable).parent / command[0]), *command[1:], f"run_dir={run}"]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    rows = read_rows(run / "metrics.jsonl")
    return {
        "env_id": env_id,
        "agents": agents,
        "seed": seed,
        "command": " ".join(command),
        "env_steps": rows[-1]["env_steps"],
        "seconds": rows[-1]["seconds"],
        "trained": last_episodes(rows, LAST_EPISODES),
        "random": random_play(env_id, agents, seed),
        "provenance": json.loads((run / "provenance.json").read_text(encoding="utf-8")),
    }


def page(rows: list[dict[str, Any]], command: str) -> str:
    """Markdown: one row for each environment and seed."""
    provenance = rows[0]["provenance"]
    commands = dict.fromkeys(row["command"].replace(f" seed={row['seed']} ", " seed=SEED ") for row in rows)
    lines = [
        "# Environments of the multigrid package: trained against random play",
        "",
        f"`{command}` runs, seed by seed, with the recipe `configs/recipe/multigrid.yaml`:",
        "",
        *(f"    {line}" for line in commands),
        "",
        f"Random: uniform actions through the same adapter, {RANDOM_EPISODES} episodes a seed. Trained: at least the",
        f"last {LAST_EPISODES} episodes of the run, with actions drawn from the policy as in training. Return: of one",
        "agent, at most 1 (the sooner, the more); in LockedHallway each of two doors brings up to 1. Success: a return",
        "above 0, in LockedHallway that of the first door.",
        f"Commit {provenance['commit']}. Versions: "
        + ", ".join(f"{name} {number}" for name, number in provenance["versions"].items())
        + f". Machine: {provenance['machine']['system']}.",
        "",
        *table(HEADS, map(cells, rows)),
        "",
    ]
    return "\n".join(lines)


def cells(row: dict[str, Any]) -> list[Any]:
    """Cells of one environment and seed."""
    base, got = row["random"], row["trained"]
    numbers = [row["env_id"], str(row["agents"]), str(row["seed"]), row["env_steps"], row["seconds"], base["return"]]
    return [*numbers, f"{base['success']:.1%}", got["return"], f"{got['success']:.1%}", got["length"], got["episodes"]]


def main() -> None:
    """Run everything one after the other and write the table and the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="ENV_ID")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-multigrid-") as folder:
        for env_id in options.only:
            for seed in options.seeds:
                row = one_run(env_id, seed, Path(folder))
                rows.append(row)
                base, got = row["random"], row["trained"]
                result = (
                    f"return {base['return']:.3f} -> {got['return']:.3f}, {base['success']:.1%} -> {got['success']:.1%}"
                )
                print(f"{env_id} seed {seed}: {result} ({row['seconds']:.0f} s)", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    stem = RESULTS / "multigrid"
    command = f"python -m benchmarks.multigrid --seeds {' '.join(map(str, options.seeds))}"
    stem.with_suffix(".md").write_text(page(rows, command), encoding="utf-8")
    stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {stem}.md and {stem}.json")


if __name__ == "__main__":
    main()
