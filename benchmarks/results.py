"""Do the recipes hold their gates, seed by seed? Trains as users do, plays the exported policies, writes docs/results/.

python -m benchmarks.results                 # everything; hours on a small machine
python -m benchmarks.results --only 1v1 --seeds 0 1 2
python -m benchmarks.results --fresh         # on seeds that nobody tuned on
"""

import argparse
import json
import re
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import FRESH, made_on, table
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.evaluation.evaluation import MODES, PlayedPart, evaluate
from multigrid_rl.evaluation.seeds import ENOUGH, told_median
from multigrid_rl.evaluation.targets import find_target, run_target
from multigrid_rl.runs.players import run_player
from multigrid_rl.runs.reader import read_run, run_config
from multigrid_rl.show.reference import build_reference, save_reference
from multigrid_rl.text import expected
from multigrid_rl.training.seeds import run_path, run_seeds, told_held

RESULTS = Path("docs/results")
CURVES = Path("configs/recipe/curves")
#: What a reader of a study's page needs to know besides its numbers, by the study's name.
NOTES = Path("benchmarks/notes")
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


GATED = "at least 9 of 10 seeds, median under {} steps"
PLAIN = "at least 9 of 10 seeds without a bonus"
HOLD = "at least 9 of 10 seeds"
ROBUST = "at least 78 % of the games won against strangers (its page's last table; all else: opponents of training)"
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
    Study(OBSTACLE, (f"scenario={OBSTACLE}",), 10, GATED.format("2,000,000"), OBSTACLE, fresh=LATEST),
    Study("1v1", ("scenario=1v1",), 10, GATED.format("600,000"), "1v1", against=UNMET),
    Study("1v1-robust", ("scenario=1v1-robust",), 5, ROBUST, against=STRANGERS),
    Study("coop-ctde", ("scenario=coop", "scheme=ctde"), 10, GATED.format("1,000,000"), "coop"),
    Study("2v2-ctce", ("scenario=2v2", "scheme=ctce"), 10, GATED.format("528,000"), "2v2"),
    Study(PLAIN_OBSTACLE, (f"experiment={PLAIN_OBSTACLE}",), 10, PLAIN, PLAIN_OBSTACLE, fresh=LATEST),
    Study("1v1-plain", ("experiment=1v1-plain",), 10, PLAIN, "1v1-plain", fresh=LATER),
    Study(f"{OBSTACLE}-mlp", (f"experiment={OBSTACLE}-mlp",), 10, HOLD, f"{OBSTACLE}-mlp", fresh=LAST),
    Study("single", ("scenario=single",), recipe="single", fresh=LATEST),
    Study("1v1-vs-adept", ("experiment=1v1-vs-adept",), 10, HOLD, "1v1-vs-adept", fresh=LATER),
    Study("1v1-vs-master", ("experiment=1v1-vs-master",), 10, HOLD, "1v1-vs-master", fresh=LATER),
    Study("coop-dtde", ("scenario=coop", "scheme=dtde"), 10, HOLD),
    Study("coop-ctce", ("scenario=coop", "scheme=ctce"), 10, HOLD),
    Study("2v2-dtde", ("scenario=2v2", "scheme=dtde"), 10, HOLD, fresh=LATER),
    Study("2v2-ctde", ("scenario=2v2", "scheme=ctde"), 10, HOLD, fresh=LATER),
    Study("2v2-vs-adept", ("experiment=2v2-vs-adept",), 10, HOLD, "2v2-vs-adept", fresh=LATEST),
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
    Study("simple-tag", ("scenario=simple-tag",), 10, HOLD, against=("random",), fresh=LATER),
    Study("battle", ("scenario=battle",), 5),
    Study("1v1-attention", ("scenario=1v1", "model=attention"), 10, HOLD, against=UNMET),
    Study("1v1-gru", ("scenario=1v1", "model=gru"), 10, against=UNMET),
    Study("coop-attention", ("scenario=coop", "scheme=ctde", "model=attention"), 10, HOLD),
    Study("2v2-attention", ("scenario=2v2", "scheme=ctce", "model=attention"), 10, HOLD),
    Study(f"{OBSTACLE}-attention", (f"scenario={OBSTACLE}", "model=attention"), 10, HOLD, fresh=LATEST),
)

#: Pages of speed, by name: what they tell and the command that makes them.
SPEED = {
    "bench-training": ("training against RLlib's own PPO and Stable-Baselines3, memory, where the time goes", "bench"),
    "bench-control": ("MuJoCo's bodies, Box2D and CartPole against Gymnasium and EnvPool", "bench-control"),
    "bench-world": ("the game engine over games, views, agents and threads", "bench-world"),
    "policy-gradients": (
        "what weighs log pi(a|s), how often a batch is learned from, why PPO clips",
        "study NAME=policy-gradients",
    ),
    "control": ("the scenarios of control with their recipes, over seeds", "study NAME=control"),
    "soak": ("env runners killed at random: recovery, memory, processes left behind", "soak"),
    "robustness": ("the tests that train, over seeds and the kernels of other processors", "robustness"),
}


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
    learning, spec = run_config(run).scenario.learning, run_config(run).scenario.kind.spec
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


def page(summary: dict[str, Any]) -> str:
    """Markdown of one study: how it was made, one row a seed, median and spread, and the policies' own games."""
    rows = summary["rows"]
    provenance = rows[0]["provenance"]
    lines = [f"# {summary['study']}", ""]
    if summary["required"]:
        lines += [f"Required: {summary['required']}.", ""]
    if summary.get("note"):
        lines += [summary["note"], ""]
    lines += [
        f"Command of each row: `{summary['command']}`",
        f"(all of them: `{summary['all']} --seeds {' '.join(str(row['seed']) for row in rows)}`).",
        f"{kind_of_seeds(rows, summary['fresh'])} {made_on([row['provenance'] for row in rows])}",
        f"Opponents: {_opponents(provenance['opponents'])}.",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in provenance["versions"].items()) + ".",
        "",
        *_training(rows),
        "",
        *_policies(rows),
        "",
        *_matches(rows),
    ]
    return "\n".join(lines)


def kind_of_seeds(rows: list[dict[str, Any]], fresh: int) -> str:
    """Say whether anybody may have chosen values by these seeds."""
    if all(row["seed"] >= fresh for row in rows):
        return f"Fresh seeds: the recipe was frozen before any seed from {fresh} on was run."
    return f"Tuning seeds: the recipe may have been chosen by them; `--fresh` judges it on seeds from {fresh} on."


def _opponents(rows: list[dict[str, Any]]) -> str:
    opponents = []
    for row in rows:
        share = f"{row['weight']:.0%} " if row["weight"] < 1 else ""
        sha = f"sha256 {row['sha256'][:16]}" if row["sha256"] else "scripted"
        opponents.append(f"{row['seat']}: {share}{row['name']} ({sha})")
    return ", ".join(opponents) or "none"


def _training(rows: list[dict[str, Any]]) -> list[str]:
    gates = rows[0]["gates"]
    heads = ["seed", "held", "env steps to held", "updates", "seconds", "steps played"]
    heads += [f"{gate['metric']} {gate['comparison']} {gate['bound']:g}" for gate in gates]
    lines = []
    for row in rows:
        held = row["held"]
        cells = [str(row["seed"]), "yes" if held else "no"]
        cells += [f"{row['env_steps_to_held']:,}", str(row["policy_updates_to_held"])] if held else ["-", "-"]
        cells += [f"{row['seconds_to_held'] if held else row['seconds']:.0f}", f"{row['env_steps']:,}"]
        cells += ["-" if gate["window_mean"] is None else f"{gate['window_mean']:.3f}" for gate in row["gates"]]
        lines.append(cells)
    text = f"Gate columns are means over the last 100,000 steps of the run. {held_sentence(rows)}"
    return [*table(heads, lines, left=(1,)), "", text]


def held_sentence(rows: list[dict[str, Any]]) -> str:
    """How many seeds held all gates, and after how many steps (runs that did not hold count as "more than all")."""
    if not rows[0]["gates"]:
        return "This scenario has no gates."
    return told_held([row["env_steps_to_held"] if row["held"] else None for row in rows])


def _policies(rows: list[dict[str, Any]]) -> list[str]:
    modes = list(rows[0]["policy"])
    seats = list(rows[0]["policy"][modes[0]]["returns"])
    heads = ["seed", "actions", "length", *(f"return {seat}" for seat in seats), "team", "win", "draw", "loss"]
    lines = []
    for row in rows:
        for mode in modes:
            its = row["policy"][mode]
            cells = [str(row["seed"]), mode, f"{its['length']:.1f}", *(f"{v:.3f}" for v in its["returns"].values())]
            lines.append([*cells, f"{its['team_return']:.3f}", *(f"{its[k]:.1%}" for k in ("win", "draw", "loss"))])
    text = f"The exported policies over {rows[0]['policy'][modes[0]]['episodes']} fresh games each:"
    return [text, "", *table(heads, lines, left=(1,))]


def _matches(rows: list[dict[str, Any]]) -> list[str]:
    """One row for each opponent, kind of actions and side: the worst and the median seed."""
    lines = []
    for number, first in enumerate(rows[0]["matches"]):
        wins, losses, returns = (
            sorted(row["matches"][number][key] for row in rows) for key in ("win", "loss", "return")
        )
        shares = [statistics.median(wins), wins[0], statistics.median(losses), losses[-1]]
        cells = [f"{share:.1%}" if first["wins"] else None for share in shares]
        unbeaten = f"{losses.count(0)} of {len(rows)}" if first["wins"] else None
        lines.append([first["opponent"], first["actions"], first["as"], *cells, unbeaten])
        lines[-1] += [f"{statistics.median(returns):.2f}", f"{returns[0]:.2f}"]
    if not lines:
        return []
    heads = ["opponent", "actions", "side", "won: median", "lowest", "lost: median", "highest", "seeds that lost none"]
    text = f"The exported policies against others, {CHECK_EPISODES} fresh games on each side, over the seeds:"
    return [text, "", *table([*heads, "return: median", "lowest"], lines, left=(0, 1, 2)), ""]


RULES = f"""## Rules of evidence

* A recipe is frozen in a commit, then judged on seeds {FRESH} to {FRESH + 9} that nobody tuned on: `make results ARGS="--fresh"`, `make study NAME=...
  ARGS="--fresh"`. Where a seed takes over ten minutes: five. A recipe that was tuned on these seeds, or changed after they had been seen, is
  judged on those from {LATER} on, or from {LATEST} on where these had been seen, too. A page says which seeds it has, its commit, processor and
  command; what was measured on tuning seeds says so.
* Held-out players come in two lists ([leagues](../league.md)): `validate`, by whom one chooses, and `test`, whom no choice has seen and
  `--fresh` alone plays.
* A claim that one thing is better carries the p of a permutation test and needs {ENOUGH} seeds; an interval of fewer is not drawn. Arms differ in
  what is compared and in nothing else: gradient steps, minibatches, step sizes. Drawn and likeliest actions are both told.
* "Exact" means: on one kind of processor. Another one adds numbers up in another order, and a run is then another run.
* [Beside the best that others publish](anchors.md): what we lose is in it.
"""  # noqa: E501


def summary(rows: list[str], pages: Collection[str] = ()) -> str:
    """Markdown over all studies, by their rows; ``pages`` are the lines of further pages."""
    heads = ["study", "required", "seeds held", "median env steps to held", "length", "team return", "win"]
    lines = [
        "# Results",
        "",
        "Made by `make results`; each page has the command, versions, a row for each seed and the exported policies'",
        "games. Behind medians of at least five seeds stands a 95 % interval.",
        "Length, return and win are medians over seeds of means over 1000 fresh games with drawn actions.",
        "",
        *table([*heads, "argmax: length, return, win", "seeds, commit"], [], left=(0, 1, 2, 7, 8)),
        *rows,
    ]
    return "\n".join([*lines, "", RULES, *(["## Speed and studies", "", *pages, ""] if pages else [])])


def further_pages(lines: list[str]) -> list[str]:
    """Return the lines of a summary's further pages, with those of :data:`SPEED` that are there and had none."""
    known = list({line.partition("]")[0]: line for line in lines if re.match(r"\* \[[\w-]+\]\(", line)}.values())
    new = [name for name in SPEED if (RESULTS / f"{name}.md").exists()]
    new = [name for name in new if not any(line.startswith(f"* [{name}]") for line in known)]
    return [*known, *(f"* [{name}]({name}.md): {SPEED[name][0]} (`make {SPEED[name][1]}`)" for name in new)]


def row_start(study: str) -> str:
    """Return how a study's line of the summary begins."""
    return f"| [{study}]({study}.md) |"


def summary_row(summary: dict[str, Any]) -> str:
    """Write a study's line of the summary."""
    rows = summary["rows"]
    held = np.array([row["env_steps_to_held"] if row["held"] else np.inf for row in rows])
    middle = np.median(held)
    gated = bool(rows[0]["gates"])
    drawn, likely = ([row["policy"][mode] for row in rows] for mode in ("stochastic", "argmax"))
    kind = "fresh" if rows[0]["seed"] >= summary["fresh"] else "tuning"
    seeds = f"{kind}, {rows[0]['provenance'].get('commit') or 'unknown':.8}"
    cells = [
        summary["required"] or "-",
        f"{sum(row['held'] for row in rows)}/{len(rows)}" if gated else f"no gates, {len(rows)} seeds",
        told_median(held, ",.0f").removeprefix("median ").rpartition(", ")[0] if middle < np.inf else "-",
        _middle(drawn, "length", ".1f"),
        _middle(drawn, "team_return", ".2f"),
        _middle(drawn, "win", ".1%"),
        f"{_middle(likely, 'length', '.1f')}, {_middle(likely, 'team_return', '.2f')}, {_middle(likely, 'win', '.1%')}",
        seeds,
    ]
    return f"{row_start(summary['study'])} {' | '.join(cells)} |"


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
    readme = RESULTS / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.exists() else []
    for study in chosen:
        fresh = list(range(study.fresh, study.fresh + max(study.seeds, ENOUGH)))
        seeds = options.seeds or (fresh if options.fresh else list(range(study.seeds)))
        rows = results_of(study, seeds, options.jobs, options.runs / study.name)
        if study.recipe:
            runs = [read_run(run_path(options.runs / study.name, seed)) for seed in seeds]
            save_reference(build_reference(runs, study.recipe), CURVES / f"{study.recipe}.json", force=True)
        note = NOTES / f"{study.name}.md"
        record = {
            "study": study.name,
            "command": f"multigrid-rl train {' '.join(study.overrides)} seed=SEED",
            "all": f"python -m benchmarks.results --only {study.name}{' --fresh' * options.fresh}",
            "required": study.required,
            "fresh": study.fresh,
            "note": note.read_text(encoding="utf-8").strip() if note.exists() else "",
            "rows": rows,
        }
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{study.name}.md").write_text(page(record), encoding="utf-8")
        lines.append(summary_row(record))
    order = [row_start(study.name) for study in STUDIES]
    known = {start: line for line in lines for start in order if line.startswith(start)}
    rows_kept = [known[start] for start in order if start in known]
    readme.write_text(summary(rows_kept, further_pages(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
