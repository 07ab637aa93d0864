"""Do the recipes hold their gates, seed by seed? Trains as users do, plays the exported policies, writes docs/results/.

python -m benchmarks.results                 # everything; hours on a small machine
python -m benchmarks.results --only 1v1 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import SPEED, page, row, row_start, summary
from multigrid_rl.judge.evaluation import MODES, evaluate
from multigrid_rl.judge.lineups import run_target
from multigrid_rl.metrics import outcome_shares
from multigrid_rl.runs.reader import read_run, run_config
from multigrid_rl.runs.reference import build_reference, save_reference
from multigrid_rl.world.constants import BLUE, RED

RESULTS = Path("docs/results")
CURVES = Path("configs/experiment/curves")
#: Games of a policy check, and the seed that training never used.
CHECK_EPISODES = 1000
CHECK_SEED = 1_000_000


@dataclass(frozen=True)
class Study:
    """One recipe over seeds.

    Attributes:
        name: of the page in ``docs/results``.
        overrides: of ``multigrid-rl train``.
        seeds: how many, from 0 on.
        required: what has to be shown, or empty for "best result".
        recipe: whose reference curve these runs make, if any.
    """

    name: str
    overrides: tuple[str, ...]
    seeds: int = 2
    required: str = ""
    recipe: str = ""


GATED = "at least 9 of 10 seeds, median under {} steps"
STUDIES = (
    Study("single-obstacle", ("scenario=single-obstacle",), 10, GATED.format("2,000,000"), "single-obstacle"),
    Study("1v1", ("scenario=1v1",), 10, GATED.format("600,000"), "1v1"),
    Study("coop-ctde", ("scenario=coop", "scheme=ctde"), 10, GATED.format("1,000,000"), "coop"),
    Study("2v2-ctce", ("scenario=2v2", "scheme=ctce"), 10, GATED.format("528,000"), "2v2"),
    Study("single-obstacle-mlp", ("experiment=single-obstacle-mlp",), recipe="single-obstacle-mlp"),
    Study("single", ("scenario=single",), recipe="single"),
    Study("1v1-vs-adept", ("experiment=1v1-vs-adept",), recipe="1v1-vs-adept"),
    Study("1v1-vs-master", ("experiment=1v1-vs-master",), recipe="1v1-vs-master"),
    Study("coop-dtde", ("scenario=coop", "scheme=dtde", "train.until=1200000")),
    Study("coop-ctce", ("scenario=coop", "scheme=ctce")),
    Study("2v2-dtde", ("scenario=2v2", "scheme=dtde", "train.until=1000000")),
    Study("2v2-ctde", ("scenario=2v2", "scheme=ctde", "train.until=1000000")),
    Study("2v2-vs-adept", ("experiment=2v2-vs-adept",), recipe="2v2-vs-adept"),
    Study("2v2-deathmatch", ("scenario=2v2-deathmatch",), recipe="2v2-deathmatch"),
)


def command_of(study: Study, seed: int) -> list[str]:
    """Return the command line of one seed, as a user types it."""
    return ["multigrid-rl", "train", *study.overrides, f"seed={seed}"]


def one_run(study: Study, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed in a process of its own, unless its folder is there already; returns its row."""
    run = folder / study.name / f"seed{seed}"
    program, *arguments = command_of(study, seed)
    if (run / "verdict.json").exists():
        made_by = json.loads((run / "provenance.json").read_text(encoding="utf-8"))["command"]
        if made_by.split()[2:-1] != arguments[1:]:
            raise SystemExit(f"{run}: expected an empty folder or a run of this study, got one made by {made_by!r}")
    else:
        subprocess.run(
            [str(Path(sys.executable).parent / program), *arguments, f"run_dir={run}"],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    row: dict[str, Any] = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    row["provenance"] = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    row["policy"] = {mode: policy_check(run, mode) for mode in MODES}
    told = f"held at {row['env_steps_to_held']:,}" if row["held"] else f"not held within {row['env_steps']:,}"
    print(f"{study.name} seed {seed}: {told} ({row['env_steps_per_s']:,.0f} steps/s)", flush=True)
    return row


def policy_check(run: Path, mode: Any) -> dict[str, Any]:
    """Length, returns and wins of the exported policies over fresh games."""
    config = run_config(run)
    table = evaluate(run_target(run), episodes=CHECK_EPISODES, seed=CHECK_SEED, modes=(mode,)).parts[0].table
    spec = config.scenario.spec
    teams = {team: [a for a, seat in enumerate(spec.seats) if spec.team_of(seat) == team] for team in ("red", "blue")}
    means = table.returns.mean(axis=0)
    team = next(iter(config.scenario.learning.values()))
    win, draw, loss = outcome_shares(table.winner, RED if team == "red" else BLUE)
    return {
        "episodes": table.episodes,
        "length": float(table.length.mean()),
        "returns": {seat: float(means[spec.seats.index(seat)]) for seat in config.scenario.learning},
        "team_return": float(means[teams[team]].sum()),
        "win": win,
        "draw": draw,
        "loss": loss,
    }


def main() -> None:
    """Run the chosen studies and write their pages, and the summary: lines of other studies stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[s.name for s in STUDIES], default=[s.name for s in STUDIES])
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of each study's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; more than 1 spoils the seconds")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/results"), help="folder of the runs; done ones are kept"
    )
    options = parser.parse_args()
    readme = RESULTS / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.exists() else []
    for study in (s for s in STUDIES if s.name in options.only):
        seeds = options.seeds or list(range(study.seeds))
        with ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(lambda seed, its=study: one_run(its, seed, options.runs), seeds))
        if study.recipe:
            runs = [read_run(options.runs / study.name / f"seed{seed}") for seed in seeds]
            save_reference(build_reference(runs, study.recipe), CURVES / f"{study.recipe}.json", force=True)
        command = " ".join(command_of(study, 0)[:-1]) + " seed=SEED"
        told = {"study": study.name, "command": command, "required": study.required, "jobs": options.jobs, "rows": rows}
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{study.name}.md").write_text(page(told), encoding="utf-8")
        lines.append(row(told))
    order = [row_start(study.name) for study in STUDIES]
    known = {start: line for line in lines for start in order if line.startswith(start)}
    speed = [name for name in SPEED if (RESULTS / f"{name}.md").exists()]
    readme.write_text(summary([known[start] for start in order if start in known], speed), encoding="utf-8")


if __name__ == "__main__":
    main()
