"""Run folders as training writes them, made of numbers: nothing is trained."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.config.schema import to_yaml
from multigrid_rl.gates import GateKeeper, Moment
from multigrid_rl.runs.checkpoints import UNFINISHED, commit, seal
from multigrid_rl.runs.reports import gates_of


@dataclass
class Story:
    """What becomes of a run."""

    reports: int = 60
    good_from: int = 20  # report from which all gates are met
    ended: str | None = "held"  # None: killed, no verdict
    overrides: tuple[str, ...] = ()
    torn: bool = False  # the last line was half written
    against: tuple[str, ...] = ()  # opponents that take turns


def write_run(folder: Path, story: Story | None = None, **changes) -> Path:
    """A 1v1 run folder as training writes it, without a checkpoint; ``changes`` go into ``provenance.json``."""
    story = story or Story()
    folder.mkdir(parents=True)
    config = compose(["scenario=1v1", "seed=3", f"run_dir={folder}", *story.overrides])
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    keeper = GateKeeper(gates_of(config, env_factory(config).specs))
    rows = [_row(k, story) for k in range(1, story.reports + 1)]
    for row in rows:
        now = Moment(row["env_steps"], row["policy_updates"], row["seconds"])
        keeper.report(now, 200, row)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text[:-40] if story.torn else text, encoding="utf-8")
    provenance = {"command": "multigrid-rl train scenario=1v1 seed=3", "commit": "abc", "seed": 3, **changes}
    (folder / "provenance.json").write_text(json.dumps({"versions": {"ray": "2"}, "opponents": [], **provenance}))
    if story.ended is not None:
        verdict = {**keeper.verdict(), "ended": story.ended, "env_steps": rows[-1]["env_steps"]}
        (folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")
    return folder


def _row(number: int, story: Story) -> dict:
    good = number >= story.good_from
    wave = 0.02 * math.sin(number)
    return {
        **{f"win_against/red_0/{name}": k / 10 for k, name in enumerate(story.against)},
        "iteration": number, "env_steps": number * 4096, "policy_updates": number, "seconds": number * 0.5,
        "episodes": number * 200, "report_episodes": 200.0, "episode_len_mean": 18.0 + wave if good else 60.0,
        "return_mean/red_0": 1.38 + wave if good else -0.5, "explained_variance/red_0": 0.9 if good else -0.1,
        "entropy/red_0": 0.2 if good else 1.9, "win/red_0": 0.95 if good else 0.3, "draw/red_0": 0.0,
        "defeat/red_0": 0.05 if good else 0.7, "behaviour/red_0/key_pickup": 0.98, "behaviour/red_0/door_open": 0.2,
        "behaviour/red_0/eliminated_opponents": 0.75, "behaviour/red_0/ball_pay": 0.0,
        "learner/red_0/policy_loss": 0.01, "learner/red_0/vf_loss": 0.1, "learner/red_0/lr": 1e-3,
        "approx_kl/red_0": 0.01, "clip_fraction/red_0": 0.2,
        "timing/sample_s": 0.1, "timing/engine_s": 0.02, "timing/learn_s": 0.3, "timing/network_s": 0.2,
        "timing/sync_s": 0.01, "timing/metrics_s": 0.01, "timing/checkpoint_s": 0.0, "timing/other_s": 0.08,
    }  # fmt: skip


#: Gates of the runs that :func:`write_seed` writes.
SEED_GATES = [("episode_len_mean", "<=", 20.0), ("return_mean/red_0", ">=", 1.3)]


def write_seed(
    root: Path,
    name: str,
    *,
    seed: int,
    lengths: list[float],
    returns: list[float] | None = None,
    held: int | None = None,
    ended: str = "held",
    every: int = 100,
    **changes,
) -> Path:
    """A run folder of short numbers; reports at ``every``, ``2 * every``, ...; a row without a report between."""
    folder = root / name
    folder.mkdir(parents=True)
    config = {"scenario": {"name": "1v1"}, "scheme": "dtde", "experiment": "1v1", "seed": seed, "train": {"lr": 0.1}}
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "run_dir": str(folder), **changes.get("config", {})}))
    rows = []
    for k, length in enumerate(lengths, 1):
        rows.append({"env_steps": k * every - every // 2, "entropy/red_0": 9.0})
        values = {"episode_len_mean": length, "return_mean/red_0": (returns or lengths)[k - 1], "win/red_0": 0.5}
        rows.append({"env_steps": k * every, "report_episodes": 100.0, "entropy/red_0": None, **values})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gates = [
        {"metric": m, "comparison": c, "bound": b, "hold": "every", "window": 50, "value": 1.0, "first_held": None}
        for m, c, b in SEED_GATES
    ]
    if held is not None:
        gates[0]["first_held"] = {"env_steps": held, "policy_updates": 1, "seconds": 1.0}
    verdict = {"ended": ended, "env_steps": len(lengths) * every, "env_steps_to_held": held, "gates": gates}
    (folder / "verdict.json").write_text(json.dumps(verdict))
    command = f"multigrid-rl train scenario=1v1 seed={seed} run_dir=/somewhere/{name} train.lr=0.1"
    provenance = {"command": command, "commit": changes.get("commit", "abc"), "versions": {"ray": "2"}}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    return folder


def killed(run: Path, folder: Path, *lost: str) -> Path:
    """A copy of a run as if it had been killed before its verdict and these checkpoints."""
    shutil.copytree(run, folder)
    (folder / "verdict.json").unlink()
    for name in lost:
        shutil.rmtree(folder / "checkpoints" / name)
    return folder


def three_seeds(root: Path) -> list[Path]:
    """Three seeds: a long one that never holds, two that hold and end early."""
    return [
        write_seed(root, "a", seed=0, lengths=[40, 30, 20, 10], held=None, ended="until"),
        write_seed(root, "b", seed=1, lengths=[44, 32], held=200),
        write_seed(root, "c", seed=2, lengths=[48, 34, 24], held=300),
    ]


def write_checkpoint(run: Path, steps: int) -> Path:
    """A whole checkpoint without content in a run's folder."""
    unfinished = run / "checkpoints" / UNFINISHED
    unfinished.mkdir(parents=True)
    seal(unfinished, {"env_steps": steps, "stage": 0, "gate_margin": None, "metrics_bytes": 0})
    commit(unfinished, run / "checkpoints" / f"step_{steps:09d}")
    return run
