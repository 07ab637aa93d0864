"""The runs of a study: what its file asks for, trained and judged side by side (benchmarks/study.py)."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from multigrid_rl.cli.seeds import Processes, state_of, train_seed
from multigrid_rl.runs.reader import read_verdict
from multigrid_rl.types import RunError

STUDIES = Path(__file__).parent / "studies"


class Job(NamedTuple):
    """One run of one arm."""

    arm: str
    seed: int
    folder: Path
    overrides: tuple[str, ...]
    episodes: int


class Study(NamedTuple):
    """What is asked; see the comments in ``benchmarks/studies/policy-gradients.yaml``."""

    name: str
    title: str
    text: str
    common: list[str]
    episodes: int
    groups: list[dict[str, Any]]
    claims: list[dict[str, Any]]
    before: dict[str, str]  # folders that runs need, with the command that writes each, as `{place}`
    scale: dict[str, float] | None  # returns that make scores of 0 and 1
    came: str  # what came of it, in the words of who read the numbers

    @property
    def metrics(self) -> set[str]:
        """What the figures of some group show beside returns."""
        return {name for group in self.groups for name in group.get("metrics", ())}

    @property
    def arms(self) -> dict[str, list[str]]:
        """Overrides by arm, each once though several groups may show it."""
        arms: dict[str, list[str]] = {}
        for group in self.groups:
            arms |= group["arms"]
        return arms

    def score(self, value: float) -> float:
        """Return what a return is worth between a random player's and the expert's."""
        assert self.scale is not None
        return (value - self.scale["random"]) / (self.scale["expert"] - self.scale["random"])


def read_study(name: str) -> Study:
    """Read a study. Raises ``SystemExit`` with one line for an unknown name."""
    path = STUDIES / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in STUDIES.glob("*.yaml")))
        raise SystemExit(f"NAME: expected {names}, got {name}")
    absent: dict[str, Any] = {"claims": [], "before": {}, "scale": None, "came": ""}
    return Study(name=name, **(absent | yaml.safe_load(path.read_text(encoding="utf-8"))))


def jobs_of(study: Study, seeds: Iterable[int], root: Path) -> list[Job]:
    """Return every run of a study, seed by seed, so that a study that is broken off has whole seeds."""
    return [
        Job(arm, seed, root / arm / str(seed), _expand((*study.common, *overrides), root, seed), study.episodes)
        for seed in seeds
        for arm, overrides in study.arms.items()
    ]


def _expand(arguments: Iterable[str], root: Path, seed: int = 0) -> tuple[str, ...]:
    return tuple(argument.replace("{folder}", str(root)).replace("{seed}", str(seed)) for argument in arguments)


def prepare(study: Study, root: Path) -> None:
    """Run the commands of a study for what its runs need and is not there yet."""
    for place, command in study.before.items():
        (folder,) = _expand([place], root)
        if not Path(folder).exists():
            words = _expand(command.replace("{place}", place).split(), root)
            call = [sys.executable, "-m", "multigrid_rl.cli.main", *words]
            subprocess.run(call, check=True)


def work(job: Job, tell: Callable[[Any], None]) -> None:
    """Train and judge one run; what was done before is not done again. Raises ``RunError``: it was interrupted."""
    from multigrid_rl.competition.bundle import seconds_per_action  # noqa: PLC0415 - in the process that trains
    from multigrid_rl.evaluation.evaluation import MODES, evaluate, summary  # noqa: PLC0415
    from multigrid_rl.evaluation.targets import find_target  # noqa: PLC0415
    from multigrid_rl.players.cards import read_card, read_network  # noqa: PLC0415

    if not state_of(job.folder).done:
        train_seed({"words": job.overrides, "seed": job.seed, "run": job.folder}, tell)
    verdict = read_verdict(job.folder)
    if verdict["ended"] == "interrupted":
        raise RunError("interrupted")
    target = find_target(str(job.folder))
    judged = evaluate(target, episodes=job.episodes, seed=1_000_003)
    found = {key: verdict[key] for key in ("env_steps", "seconds", "env_steps_per_s")}
    found |= {name: summary([part])["return_mean"] for name, part in zip(("draw", MODES[1]), judged.parts, strict=True)}
    source = Path(next(iter(target.refs.values())))
    card = read_card(source)
    found["ms_per_action"] = 1e3 * seconds_per_action(card, read_network(source, card))
    (job.folder / "study.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


def run_study(jobs: Sequence[Job], processes: int, log: Path) -> list[str]:
    """Do the ``jobs`` that are not done, side by side; returns what went wrong, one line a run."""
    one = ("train.threads=1",) if processes > 1 else ()  # no result depends on it
    left = {
        f"{job.arm}, seed {job.seed}": job._replace(overrides=(*one, *job.overrides))
        for job in jobs
        if not (job.folder / "study.json").is_file()
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    side_by_side, failed = Processes("benchmarks.study_runs:work", left, min(processes, len(left)), log), []
    for name, kind, value in filter(None, side_by_side.results(lambda: False)):
        if kind != "note":
            print(f"{name}{f': {value}' if kind == 'failed' else ''}", flush=True)
        if kind == "failed":
            failed.append(f"{name}: {value}")
    return failed
