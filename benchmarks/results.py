"""Do the recipes hold their gates, seed by seed? Trains as users do, plays the exported policies, writes the results.

Every seed goes into docs/results/results.json, a line for each recipe into docs/results/README.md.

python -m benchmarks.results                 # everything; hours on a small machine
python -m benchmarks.results --only 1v1 --seeds 0 1 2
python -m benchmarks.results --fresh         # on seeds that nobody tuned on
"""

import argparse
import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import FRESH, table
from multigrid_rl.cli.seeds import held_summary, run_path, run_seeds
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.evaluation.evaluation import MODES, PlayedPart, evaluate
from multigrid_rl.evaluation.seed_statistics import ENOUGH, median_text, wilson_interval
from multigrid_rl.evaluation.targets import find_target, run_target
from multigrid_rl.runs.players import run_player
from multigrid_rl.runs.reader import RunRecord, read_run, run_config
from multigrid_rl.show.reference import build_reference
from multigrid_rl.text import expected

RESULTS = Path("docs/results")
CURVES = Path("configs/recipe/curves")
#: Between these stands the table in the page.
MARKS = ("<!-- recipes -->", "<!-- /recipes -->")
#: Games of a policy check, and the seed that training never used.
CHECK_EPISODES = 1000
CHECK_SEED = 1_000_000


@dataclass(frozen=True)
class Study:
    """One recipe over seeds.

    Attributes:
        name: in ``results.json``.
        overrides: of ``multigrid-rl train``.
        seeds: how many, from 0 on.
        required: what has to be shown, or empty for "best result".
        recipe: whose reference curve these runs make, if any.
        against: players that the exported policy meets on all seats that it can take, :data:`CHECK_EPISODES` on each.
        fresh: the first of the seeds that nobody tuned on.
    """

    name: str
    overrides: tuple[str, ...]
    seeds: int = 2
    required: str = ""
    recipe: str = ""
    against: tuple[str, ...] = ()
    fresh: int = FRESH


#: Seeds where one takes less than two minutes.
MANY = 30
TAG = "at least 5 of 5 seeds"
GATED = "at least 27 of 30 seeds, median under {} steps"
PLAIN = "at least 27 of 30 seeds without a bonus"
HOLD = "at least 27 of 30 seeds"
TEN = "at least 9 of 10 seeds"
ROBUST = "at least 78 % of the games won against strangers (`matches`; all else: opponents of training)"
OBSTACLE = "single-obstacle"
PLAIN_OBSTACLE = f"{OBSTACLE}-plain"
#: The first fresh seed of recipes that were tuned on seeds from 100 on, or changed after these had been seen.
LATER = 200
#: The same where the seeds from 200 on had been seen, too.
LATEST = 400
#: The same where those from 400 and 500 on had been seen, too.
LAST = 600
#: Trained for these matches and for nothing else. They are no shipped players: hand-ins are compared with those.
STRANGERS = tuple(f"benchmarks/strangers/stranger-{kind}" for kind in ("course", "selfplay", "clone"))
#: Blues that a red of the plain 1v1 never met.
UNMET = ("blue-adept", "blue-master", *STRANGERS)
STUDIES = (
    Study(OBSTACLE, (f"scenario={OBSTACLE}",), MANY, GATED.format("2,000,000"), OBSTACLE, fresh=LATEST),
    Study("1v1", ("scenario=1v1",), MANY, GATED.format("600,000"), "1v1", against=UNMET),
    Study("1v1-robust", ("scenario=1v1-robust",), 5, ROBUST, against=STRANGERS, fresh=LATER),
    Study("coop-ctde", ("scenario=coop", "scheme=ctde"), MANY, GATED.format("1,000,000"), "coop"),
    Study("2v2-ctce", ("scenario=2v2", "scheme=ctce"), MANY, GATED.format("528,000"), "2v2", fresh=LATER),
    Study(PLAIN_OBSTACLE, (f"experiment={PLAIN_OBSTACLE}",), MANY, PLAIN, PLAIN_OBSTACLE, fresh=LATEST),
    Study("1v1-plain", ("experiment=1v1-plain",), MANY, PLAIN, "1v1-plain", fresh=LATER),
    Study(f"{OBSTACLE}-mlp", (f"experiment={OBSTACLE}-mlp",), MANY, HOLD, f"{OBSTACLE}-mlp", fresh=LAST),
    Study("single", ("scenario=single",), recipe="single", fresh=LATEST),
    Study("1v1-vs-adept", ("experiment=1v1-vs-adept",), MANY, HOLD, "1v1-vs-adept", fresh=LATER),
    Study("1v1-vs-master", ("experiment=1v1-vs-master",), MANY, HOLD, "1v1-vs-master", fresh=LATEST),
    Study("coop-dtde", ("scenario=coop", "scheme=dtde"), MANY, HOLD),
    Study("coop-ctce", ("scenario=coop", "scheme=ctce"), MANY, HOLD),
    Study("2v2-dtde", ("scenario=2v2", "scheme=dtde"), MANY, HOLD, fresh=LATER),
    Study("2v2-ctde", ("scenario=2v2", "scheme=ctde"), MANY, HOLD, fresh=LATER),
    Study("2v2-vs-adept", ("experiment=2v2-vs-adept",), MANY, HOLD, "2v2-vs-adept", fresh=LATEST),
    Study("2v2-deathmatch", ("scenario=2v2-deathmatch",), recipe="2v2-deathmatch"),
    Study(
        "tictactoe",
        ("scenario=tictactoe",),
        10,
        "the likeliest moves lose none of 1,000 games against perfect play on either seat, at least 9 of 10 seeds",
        against=("examples.board_games:PerfectTicTacToe", "random"),
    ),
    Study(
        "connect-four",
        ("scenario=connect-four",),
        10,
        "at least 99 % of the games won against random, 90 % against one move of foresight, on both seats",
        against=("random", "examples.board_games:OneMoveConnectFour"),
        fresh=LATER,
    ),
    Study("simple-spread", ("scenario=simple-spread",), 10, "at least EPyMARL's IPPO and MAPPO", fresh=LATER),
    Study("simple-tag", ("scenario=simple-tag",), 5, TAG, against=("random",), fresh=LATER),
    Study("battle", ("scenario=battle",), 5),
    Study("1v1-attention", ("scenario=1v1", "model=attention"), 10, TEN, against=UNMET),
    Study("1v1-gru", ("scenario=1v1", "model=gru"), MANY, against=UNMET),
    Study("coop-attention", ("scenario=coop", "scheme=ctde", "model=attention"), 10, TEN),
    Study("2v2-attention", ("scenario=2v2", "scheme=ctce", "model=attention"), 10, TEN),
    Study(f"{OBSTACLE}-attention", (f"scenario={OBSTACLE}", "model=attention"), 10, TEN, fresh=LATEST),
)


def judged(study: Study, run: Path) -> dict[str, Any]:
    """Return the row of a seed that was trained: its verdict, and games of its exported policy."""
    row: dict[str, Any] = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    row["provenance"] = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    row["policy"] = {mode: policy_check(run, mode) for mode in MODES}
    opponents = (*study.against, *run_config(run).scenario.held_out.get("test", ()))
    if row["seed"] < study.fresh:  # whom no choice has seen is met on seeds that no choice has seen, or never
        opponents = tuple(name for name in study.against if name not in STRANGERS)
    row["matches"] = [match for opponent in opponents for match in matches(run, opponent)]
    return row


def results_of(study: Study, seeds: list[int], jobs: int | None, folder: Path) -> list[dict[str, Any]]:
    """Train the seeds that are not done, and return a row for each. Raises ``SystemExit``: one failed."""
    states = run_seeds([*study.overrides, f"run_dir={folder}"], seeds, jobs)
    if wrong := [f"{study.name} seed {seed}: {its.state} {its.reason}" for seed, its in states.items() if not its.done]:
        raise SystemExit("\n".join(wrong))
    return [judged(study, run_path(folder, seed)) for seed in seeds]


def policy_check(run: Path, mode: Any) -> dict[str, Any]:
    """Length, returns and wins of the exported policies over fresh games."""
    learning, spec = run_config(run).scenario.kind.learning, run_config(run).scenario.kind.spec
    part = evaluate(run_target(run), episodes=CHECK_EPISODES, seed=CHECK_SEED, modes=(mode,)).parts[0]
    means = part.table.returns.mean(axis=0)
    team = next(iter(learning.values()))
    return {
        "episodes": part.table.episodes,
        "length": float(part.table.length.mean()),
        "returns": {seat: float(means[spec.seats.index(seat)]) for seat in learning},
        "team_return": float(means[[spec.seats.index(seat) for seat in spec.seats_of(team)]].sum()),
        **outcomes(part),
    }


def matches(run: Path, opponent: str) -> list[dict[str, Any]]:
    """Wins, draws and losses of the exported policy against a player, by mode and side."""
    folder = run_player(run, next(iter(env_factory(run_config(run)).specs.modules)))
    target = find_target(f"{folder}/", opponent=opponent)
    games = CHECK_EPISODES * len(target.teams())
    return [
        {
            **{"opponent": Path(opponent).name, "actions": part.mode, "as": part.lineup.team, **outcomes(part)},
            **{"return": float(part.returns.mean()), "wins": part.lineup.specs.has_winner},
        }
        for part in evaluate(target, episodes=games, seed=CHECK_SEED).parts
    ]


def outcomes(part: PlayedPart) -> dict[str, float]:
    """Shares of games that the judged team won, drew and lost."""
    return {name: float((part.results == value).mean()) for name, value in (("win", 1), ("draw", 0), ("loss", -1))}


def record_of(study: Study, rows: list[dict[str, Any]], *, fresh: bool) -> dict[str, Any]:
    """Return what ``results.json`` keeps of a study: how it was made, a row for each seed, games against others."""
    made = [row["provenance"] for row in rows]
    kept = ("seed", "held", "env_steps_to_held", "policy_updates_to_held", "seconds", "env_steps", "policy")
    gates = [
        {f"{gate['metric']} {gate['comparison']} {gate['bound']:g}": gate["window_mean"] for gate in row["gates"]}
        for row in rows
    ]
    return {
        "required": study.required,
        "command": f"multigrid-rl train {' '.join(study.overrides)} seed=SEED",
        "all": f"python -m benchmarks.results --only {study.name}{' --fresh' * fresh}",
        "seeds": kind_of_seeds(rows, study.fresh),
        "commit": ", ".join(sorted({str(one.get("commit") or "unknown") for one in made})),
        "processor": ", ".join(sorted({str((one.get("machine") or {}).get("processor", "unknown")) for one in made})),
        "versions": made[0]["versions"],
        "opponents": _opponents(made[0]["opponents"]),
        "rows": [{**{key: row[key] for key in kept}, "gates": means} for row, means in zip(rows, gates, strict=True)],
        "matches": _matches(rows),
    }


def kind_of_seeds(rows: list[dict[str, Any]], fresh: int) -> str:
    """Return "fresh" where the recipe was frozen before these seeds ran, "tuning" where it may be chosen by them."""
    return "fresh" if all(row["seed"] >= fresh for row in rows) else "tuning"


def _opponents(rows: list[dict[str, Any]]) -> str:
    opponents = []
    for row in rows:
        share = f"{row['weight']:.0%} " if row["weight"] < 1 else ""
        sha = f"sha256 {row['sha256'][:16]}" if row["sha256"] else "scripted"
        opponents.append(f"{row['seat']}: {share}{row['name']} ({sha})")
    return ", ".join(opponents) or "none"


def _matches(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Games against each opponent, kind of actions and side: the median and the worst seed."""
    found = []
    for number, first in enumerate(rows[0]["matches"]):
        wins, losses, returns = (
            sorted(row["matches"][number][key] for row in rows) for key in ("win", "loss", "return")
        )
        shares = {
            "win": {"median": statistics.median(wins), "lowest": wins[0]},
            "loss": {"median": statistics.median(losses), "highest": losses[-1], "seeds_without": losses.count(0)},
        }
        paid = {"return": {"median": statistics.median(returns), "lowest": returns[0]}}
        who = {"opponent": first["opponent"], "actions": first["actions"], "side": first["as"]}
        found.append({**who, **(shares if first["wins"] else {}), **paid})
    return found


def summary(records: dict[str, Any]) -> list[str]:
    """Return the lines of the table over all studies of ``results.json``."""
    heads = [
        "recipe",
        "required",
        "seeds held (95 %, Wilson)",
        "steps to held: median (95 % interval)",
        "length",
        "team return",
        "win",
    ]
    heads += ["likeliest actions", "seeds, commit"]
    rows = [summary_row(study, records[study.name]) for study in STUDIES if study.name in records]
    return table(heads, rows, left=(0, 1, 2, 7, 8))


def summary_row(study: Study, record: dict[str, Any]) -> list[str]:
    """Return the cells of a study's line."""
    rows = record["rows"]
    held = np.array([row["env_steps_to_held"] if row["held"] else np.inf for row in rows])
    drawn, likely = ([row["policy"][mode] for row in rows] for mode in ("stochastic", "argmax"))
    has_winner = any(row["draw"] < 1 for row in drawn + likely)
    wins = [_middle(part, "win", ".1%") if has_winner else "-" for part in (drawn, likely)]
    return [
        f"`{' '.join(study.overrides)}`",
        record["required"] or "-",
        _share_held(rows) if rows[0]["gates"] else f"no gates, {len(rows)} seeds",
        median_text(held, ",.0f").removeprefix("median ").replace("95 % interval ", "").rpartition(", ")[0]
        if np.median(held) < np.inf
        else "-",
        _middle(drawn, "length", ".1f"),
        _middle(drawn, "team_return", ".2f"),
        wins[0],
        f"{_middle(likely, 'length', '.1f')}, {_middle(likely, 'team_return', '.2f')}, {wins[1]}",
        f"{record['seeds']}, {record['commit']:.8}",
    ]


def _share_held(rows: list[dict[str, Any]]) -> str:
    """Say how many seeds held, and between which shares of all seeds that leaves it."""
    held = sum(row["held"] for row in rows)
    low, high = wilson_interval(held, len(rows))
    return f"{held}/{len(rows)} ({low:.0%} to {high:.0%})"


def _middle(rows: list[dict[str, Any]], key: str, form: str) -> str:
    return format(statistics.median(row[key] for row in rows), form)


def main() -> None:
    """Run the chosen studies and write their pages, and the summary: lines of other studies stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[s.name for s in STUDIES], default=[s.name for s in STUDIES])
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of each study's own")
    parser.add_argument("--fresh", action="store_true", help=f"judge on seeds from {FRESH} on, at least {ENOUGH}")
    parser.add_argument("--jobs", type=int, help="runs at the same time; as many as there are cores by default")
    parser.add_argument("--runs", type=Path, default=Path("runs/results"), help="where runs are; done ones are kept")
    options = parser.parse_args()
    chosen = [study for study in STUDIES if study.name in options.only]
    if options.seeds and len(set(options.seeds)) < 2 and (curves := [study.name for study in chosen if study.recipe]):
        wanted = f"at least 2 different seeds for the curves of {', '.join(curves)}"
        raise SystemExit(expected("--seeds", wanted, " ".join(map(str, options.seeds))))
    kept = RESULTS / "results.json"
    records = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for study in chosen:
        fresh = list(range(study.fresh, study.fresh + max(study.seeds, ENOUGH)))
        seeds = options.seeds or (fresh if options.fresh else list(range(study.seeds)))
        rows = results_of(study, seeds, options.jobs, options.runs / study.name)
        if study.recipe:
            runs = [read_run(run_path(options.runs / study.name, seed)) for seed in seeds]
            save_curves(runs, study.recipe)
        records[study.name] = record_of(study, rows, fresh=options.fresh)
        lines = (f"{json.dumps(name)}: {json.dumps(record)}" for name, record in records.items())
        kept.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(f"{study.name}: {held_sentence(rows)}")
    page = RESULTS / "README.md"
    before, _, after = page.read_text(encoding="utf-8").partition(MARKS[0])
    after = after.partition(MARKS[1])[2]
    page.write_text("\n".join([before + MARKS[0], *summary(records), MARKS[1] + after]), encoding="utf-8")


def save_curves(runs: list[RunRecord], recipe: str) -> None:
    """Write a recipe's reference curves, and where they are from, one list a line."""
    first = runs[0]
    command = [word for word in str(first.provenance["command"]).split() if not word.startswith(("seed=", "run_dir="))]
    origin = {
        "scenario": first.config["scenario"]["name"],
        "scheme": first.config["scheme"],
        "command": " ".join([*command, "seed=SEED"]),
        # "+changes" if any run had changes.
        "commit": max((str(run.provenance["commit"]) for run in runs), key=len),
        "versions": first.provenance["versions"],
    }
    text = json.dumps({**origin, **build_reference(runs, recipe).model_dump(mode="json")}, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match[0].split()), text)
    (CURVES / f"{recipe}.json").write_text(f"{text}\n", encoding="utf-8")


def held_sentence(rows: list[dict[str, Any]]) -> str:
    """How many seeds held all gates, and after how many steps (runs that did not hold count as "more than all")."""
    if not rows[0]["gates"]:
        return "This scenario has no gates."
    return held_summary([row["env_steps_to_held"] if row["held"] else None for row in rows])


if __name__ == "__main__":
    main()
