"""Do the gates of a scenario hold, seed by seed? Runs the command line that users run and writes docs/results/.

python -m benchmarks.gates --scenario 1v1 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path("docs/results")


def one_run(scenario: str, seed: int, folder: Path, extra: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Train one seed in a process of its own; returns the command and the verdict."""
    run = folder / f"{scenario}-seed{seed}"
    command = ["multigrid-rl", "train", f"scenario={scenario}", f"seed={seed}", *extra]
    program = [str(Path(sys.executable).parent / command[0]), *command[1:], f"run_dir={run}"]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    verdict: dict[str, Any] = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    verdict["provenance"] = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    return command, verdict


def table(scenario: str, rows: list[dict[str, Any]], extra: list[str]) -> str:
    """Markdown: one row a seed, then median and spread."""
    provenance = rows[0]["provenance"]
    held = [row for row in rows if row["held"]]
    metrics = [gate["metric"] for gate in rows[0]["gates"]]
    opponents = [f"{o['name']} (sha256 {(o['sha256'] or 'scripted')[:16]})" for o in provenance["opponents"]]
    lines = [
        f"# Gates of `{scenario}`, seed by seed",
        "",
        f"Command of each row: `multigrid-rl train scenario={scenario} seed=SEED {' '.join(extra)}`".rstrip(" `") + "`",
        f"(`python -m benchmarks.gates --scenario {scenario} --seeds {' '.join(str(r['seed']) for r in rows)}`).",
        f"Opponents: {', '.join(opponents) or 'none'}. Commit {provenance['commit']}. Versions: "
        + ", ".join(f"{name} {number}" for name, number in provenance["versions"].items())
        + f". Machine: {provenance['machine']['system']}.",
        "",
        "| seed | held | env steps to held | updates | seconds | steps/s | " + " | ".join(metrics) + " |",
        "|---|---|--:|--:|--:|--:|" + "--:|" * len(metrics),
    ]
    for row in rows:
        means = [f"{gate['window_mean']:.3f}" if gate["window_mean"] is not None else "-" for gate in row["gates"]]
        cells = [row["seed"], "yes" if row["held"] else "no", row["env_steps_to_held"], row["policy_updates_to_held"]]
        cells += [f"{row['seconds_to_held']:.1f}" if row["held"] else "-", f"{row['env_steps_per_s']:,.0f}", *means]
        lines.append("| " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |")
    lines += ["", f"Held: {len(held)} of {len(rows)} seeds."]
    if held:
        steps = [row["env_steps_to_held"] for row in held]
        seconds = [row["seconds_to_held"] for row in held]
        lines[-1] += (
            f" Environment steps to held: median {statistics.median(steps):,.0f}, {min(steps):,} to {max(steps):,}."
            f" Seconds: median {statistics.median(seconds):.1f}, {min(seconds):.1f} to {max(seconds):.1f}."
        )
    lines += ["", "Gate columns are means over the last 100,000 environment steps of the run.", ""]
    return "\n".join(lines)


def main() -> None:
    """Run all seeds one after the other and write the table and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="1v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--override", action="append", default=[], help="passed on to train, for example train.lr=3e-4")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-gates-") as folder:
        for seed in options.seeds:
            _, verdict = one_run(options.scenario, seed, Path(folder), options.override)
            rows.append(verdict)
            told = f"held at {verdict['env_steps_to_held']:,}" if verdict["held"] else "not held"
            print(f"seed {seed}: {told} ({verdict['env_steps_per_s']:,.0f} steps/s)", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    stem = RESULTS / f"gates-{options.scenario}"
    stem.with_suffix(".md").write_text(table(options.scenario, rows, options.override), encoding="utf-8")
    stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {stem}.md and {stem}.json")


if __name__ == "__main__":
    main()
