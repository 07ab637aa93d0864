"""Ways to choose opponents: how strong red becomes by each in as many steps, and how hard it is to beat.

    python -m benchmarks.league runs/league --seeds 3

Trains each of ``ARMS`` with each seed on one board, then plays whom none of them has met, trains best responses to
every red from both sides, and lets all meet in a cup with the ladder. The page is ``runs/pages/league.md``; the same
command goes on after a kill.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study import PAGES
from benchmarks.tables import table
from multigrid_rl.files import write_whole

_LEAGUE, _ENTROPY = "scenario=1v1-league", "train.entropy_coef=0.05 train.entropy_final=0.01"
_LATEST = f"{_LEAGUE} scenario.league.weighting=latest"
_SELF = f"{_LATEST} scenario.league.anchor_share=0.0 scenario.league.latest_share=1.0"
ARMS = {
    "squared": _LEAGUE,
    "squared, more entropy": f"{_LEAGUE} {_ENTROPY}",
    "uniform": f"{_LEAGUE} scenario.league.weighting=uniform scenario.league.latest_share=0.0",
    "latest": f"{_LATEST} scenario.league.latest_share=0.7",
    "no league": "scenario=1v1 scenario.gates=[] scenario.seats.blue_0={random:1,blue-rookie:1,key-runner:2}",
    "self-play, more entropy": f"{_SELF} {_ENTROPY}",
}
COMMON = "experiment=none train.entropy_decay=3000000 train.bonus={all:{key_pickup:0.5}}"
HELD_OUT = ("blue-adept", "blue-master", "blue-grandmaster", "hunter", "idle")


def verb(*arguments: str) -> None:
    """Run a verb of the command line. Raises ``CalledProcessError``."""
    subprocess.run([sys.executable, "-m", "multigrid_rl.cli.main", *arguments], check=True)


def measure(arm: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Train, or read an earlier result; returns win shares: against held-out players, and of its best response."""
    name = f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}"
    run, entry, best = (folder / part / name for part in ("runs", "entries", "exploit"))
    if not (run / "verdict.json").is_file():
        overrides = [*shlex.split(COMMON), *shlex.split(ARMS[arm]), f"train.until={steps}", f"seed={seed}"]
        verb("train", *overrides, f"run_dir={run}")
    if not entry.exists():
        verb("export", str(run), "--seat", "red_0", "-o", str(entry))
    if not (best / "exploit.json").is_file():
        arguments = ("--budget", "1e6", "--seeds", "1", "--games", "2000", "--folder", str(best))
        verb("exploit", str(entry), "scenario=1v1", *arguments)
    row: dict[str, Any] = {"name": name}
    for opponent in HELD_OUT:
        place = folder / "games" / f"{name}-{opponent}"
        if not place.exists():
            games = ("scenario=1v1", "--opponent", opponent, "--sides", "red", "--mode", "stochastic", "-o", str(place))
            verb("evaluate", str(entry), *games)
        row[opponent] = json.loads((place / "summary.json").read_text(encoding="utf-8"))["parts"][0]["win"]
    beaten = json.loads((best / "exploit.json").read_text(encoding="utf-8"))["best_response"]["win"]
    return {**row, "best response": beaten}


def rated(folder: Path) -> dict[str, float]:
    """Let all reds meet each other and the ladder from both sides; returns Bradley-Terry ratings."""
    ladder = [argument for name in ("key-runner", *HELD_OUT[:3]) for argument in ("--with", name)]
    arguments = ("--games", "100", "--seed", "20000", "--allow-copies", *ladder, "-o", str(folder / "cup"))
    verb("cup", str(folder / "entries"), "--scenario", "1v1", *arguments)
    results = json.loads((folder / "cup" / "results.json").read_text(encoding="utf-8"))
    return {row["name"]: row["rating"] for row in results["standings"]}


def lines_of(rows: dict[str, list[dict[str, Any]]], ratings: dict[str, float], command: str) -> list[str]:
    """Return the lines of the page."""
    heads = ["opponents", "rating", "held out", *HELD_OUT, "best response", "of each seed"]
    cells = []
    for arm, results in rows.items():
        each = {key: float(np.mean([row[key] for row in results])) for key in (*HELD_OUT, "best response")}
        shares = [f"{100 * each[key]:.0f} %" for key in (*HELD_OUT, "best response")]
        average = f"{100 * np.mean([each[key] for key in HELD_OUT]):.0f} %"
        of_each = ", ".join(f"{100 * row['best response']:.0f}" for row in results)
        rating = f"{np.mean([ratings[row['name']] for row in results]):.0f}"
        cells.append([arm, rating, average, *shares, of_each])
    ladder = ", ".join(f"{name} {value:.0f}" for name, value in ratings.items() if name in ("key-runner", *HELD_OUT))
    return [
        "# Ways to choose opponents\n",
        "Red learns 1v1 by each way for as many steps. Then it plays whom it has not met, best responses are trained "
        "against it from both sides, and all meet in a cup with the ladder.",
        f"\nMade by `{command}` on 2 shared cores. Every run: `{COMMON}`, and:\n",
        *(f"* {arm}: `{overrides}`" for arm, overrides in ARMS.items()),
        "\nAll numbers but the last column are means over seeds. `rating`: Bradley-Terry of a cup of all these reds "
        f"and the ladder, 100 games a pair and side, the mean of all is 1,000 ({ladder}). `held out`: win share, draws "
        "not counted, against five players that none met, 1,000 games each. `best response`: win share in 2,000 games "
        "of the better of two that trained a million steps against it, one from each side: lower is harder to beat.\n",
        *table(heads, cells),
    ]


def main() -> None:
    """Train, measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4_000_000)
    options = parser.parse_args()
    rows = {arm: [measure(arm, seed, options.steps, options.folder) for seed in range(options.seeds)] for arm in ARMS}
    command = f"python -m benchmarks.league runs/league --seeds {options.seeds} --steps {options.steps}"
    page = "\n".join(lines_of(rows, rated(options.folder), command)) + "\n"
    PAGES.mkdir(parents=True, exist_ok=True)
    write_whole(PAGES / "league.md", page.encode())


if __name__ == "__main__":
    main()
