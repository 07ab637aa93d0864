"""What the screen of a run says beside its numbers: what its recipe does, what was set, and a hint at the end."""

import json
import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from multigrid_rl.config.compose import compose
from multigrid_rl.config.overrides import SHORT, parse, written
from multigrid_rl.config.recipes import FILES, GROUPS
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.files import data_root
from multigrid_rl.text import ConfigError, program

#: Keys that say which values a run begins with, and those that other lines of the screen show.
_CHOOSING, _TOLD = (*GROUPS, "scheme", "env_id"), ("scenario", "experiment", "env_id", "seed", "run_dir", "train.until")


class Expectation(NamedTuple):
    """What the seeds of a recipe did, by its reference curves (docs/running.md)."""

    held: int
    seeds: int
    #: Median environment steps until all gates were held; ``None`` where half of the seeds never held them.
    steps: int | None

    def __str__(self) -> str:
        median = "" if self.steps is None else f", median {self.steps:,} steps"
        return f"held on {self.held} of {self.seeds} seeds{median}, with the recipe as it is"


def expectation(config: RunConfig) -> Expectation | None:
    """Return what a run's recipe is known to do; ``None`` for no recipe, or one without reference curves."""
    name = config.experiment
    if name is None or name.endswith(FILES):
        return None
    path = data_root() / "configs" / "recipe" / "curves" / f"{name}.json"
    if not path.is_file():
        return None
    known = json.loads(path.read_text(encoding="utf-8"))
    if (known["scenario"], known["scheme"]) != (config.scenario.name, config.scheme) or not known["gates"]:
        return None
    steps = [run["steps_to_held"].get("all gates") for run in known["runs"]]
    held = [step for step in steps if step is not None]
    median = statistics.median([step or float("inf") for step in steps])
    return Expectation(len(held), len(steps), None if median == float("inf") else int(median))


def settings(overrides: Sequence[str]) -> list[str]:
    """Return what was set beside scenario, recipe, seed and budget: ``key=value``, and the value that was there.

    Raises ``ConfigError``: an override that is none.
    """
    given = parse(overrides)
    chosen = [f"{key}={written(value)}" for key, value in given.items() if key in _CHOOSING]
    before: dict[str, Any] = {}
    with suppress(ConfigError):  # together with other values alone
        before = compose(chosen).model_dump(mode="json")
    said = []
    for key, value in given.items():
        if key not in _TOLD:
            there = None if key in _CHOOSING else _at(before, SHORT.get(key, key))
            instead = "" if there in (None, {}, value) else f" instead of {written(there)}"
            said.append(f"{key}={written(value)}{instead}")
    return said


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def hint(verdict: dict[str, Any], path: Path, config: RunConfig, changed: Sequence[str] = ()) -> str:
    """Return one thing to try, of a run that did not hold its gates.

    ``changed``: what was set, as :func:`settings` tells it.
    """
    known, run = expectation(config), quote(str(path))
    unmet = [gate["metric"] for gate in verdict["gates"] if not (gate["held"] or gate.get("met"))]
    if known is not None and known.steps is not None and verdict["env_steps"] < known.steps:
        return f"the recipe's median seed holds its gates at {known.steps:,} steps; this run played less: resume it"
    if not unmet:
        return "every gate is met now, and not yet long enough: resume it"
    if changed and known is not None and known.held:
        return f"{known}; set here: {', '.join(changed)}"
    if all(metric.startswith("entropy/") for metric in unmet):
        return "it still explores: a smaller train.entropy_coef, or an earlier end of it, train.entropy_decay"
    if config.train.name == "ppo" and config.scenario.opponents and all("return" in metric for metric in unmet):
        return f"it loses too often: `{program()} report {run}` shows games; a weaker opponent first, then init={run}"
    return f"`{program()} report {run}` draws where its curves leave {'the recipe' if known else 'the gates'}"
