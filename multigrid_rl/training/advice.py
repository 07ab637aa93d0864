"""Lines of a run's screen besides its numbers: the recipe's known results, changed settings, a hint at the end."""

import json
import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from multigrid_rl.config.compose import compose
from multigrid_rl.config.overrides import SHORT, parse, value_at, written
from multigrid_rl.config.recipes import FILES, GROUPS
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.files import data_root
from multigrid_rl.text import ConfigError, program

#: Keys that select the values a run begins with, and keys without which some runs cannot be composed.
_CHOICES = (*GROUPS, "scheme", "env_id", "data", "expert", "train.dagger.expert")


class Expectation(NamedTuple):
    """Results of a recipe's seeds, by its reference curves (docs/running.md)."""

    held: int
    seeds: int
    #: Median environment steps until all gates were held; ``None`` where half of the seeds never held them.
    steps: int | None

    def __str__(self) -> str:
        median = "" if self.steps is None else f", median {self.steps:,} steps"
        return f"held on {self.held} of {self.seeds} seeds{median}, with the recipe as it is"


def expectation(config: RunConfig) -> Expectation | None:
    """Return the known results of a run's recipe; ``None``: no recipe or gates, or no reference curves."""
    name = config.experiment
    if name is None or name.endswith(FILES) or not config.scenario.gates:
        return None
    path = data_root() / "configs" / "recipe" / "curves" / f"{name}.json"
    if not path.is_file():
        return None
    known = json.loads(path.read_text(encoding="utf-8"))
    if (known["scenario"], known["scheme"]) != (config.scenario.name, config.scheme) or not known["gates"]:
        return None
    steps = [run["steps_to_held"].get("all gates") for run in known["runs"]]
    median = statistics.median([step or float("inf") for step in steps])
    return Expectation(len(steps) - steps.count(None), len(steps), None if median == float("inf") else int(median))


def settings(overrides: Sequence[str]) -> list[str]:
    """Return settings besides scenario, recipe, seed and budget: ``key=value``, with the value replaced.

    Raises ``ConfigError``: an invalid override.
    """
    values_set = parse(overrides)
    selection = [f"{key}={written(value)}" for key, value in values_set.items() if key in _CHOICES]
    previous_values: dict[str, Any] = {}
    with suppress(ConfigError):  # valid only together with other values
        previous_values = compose(selection).model_dump(mode="json")
    lines = []
    for key, value in values_set.items():
        if key not in ("scenario", "experiment", "env_id", "seed", "run_dir", "train.until"):
            previous = None if key in _CHOICES else next(value_at(previous_values, SHORT.get(key, key)), None)
            instead = "" if previous in (None, {}, value) else f" instead of {written(previous)}"
            lines.append(f"{key}={written(value)}{instead}")
    return lines


def hint(verdict: dict[str, Any], path: Path, config: RunConfig, changed: Sequence[str] = ()) -> str:
    """Return one thing to try, of a run that did not hold its gates.

    ``changed``: changed settings, from :func:`settings`.
    """
    expected, run = expectation(config), quote(str(path))
    unmet = [gate["metric"] for gate in verdict["gates"] if not (gate["held"] or gate.get("met"))]
    if expected is not None and expected.steps is not None and verdict["env_steps"] < expected.steps:
        return f"the recipe's median seed holds its gates at {expected.steps:,} steps; this run played less: resume it"
    if all(gate["value"] is None for gate in verdict["gates"]):
        return "no report has judged the gates yet: resume it"
    if not unmet:
        return "every gate is met now, and not yet long enough: resume it"
    if changed and expected is not None and expected.held:
        return f"{expected}; set here: {', '.join(changed)}"
    if all(metric.startswith("entropy/") for metric in unmet):
        return "it still explores: a smaller train.entropy_coef, or an earlier end of it, train.entropy_decay"
    if config.train.name == "ppo" and config.scenario.kind.opponents and all("return" in metric for metric in unmet):
        return f"it loses too often: `{program()} report {run}` shows games; a weaker opponent first, then init={run}"
    return f"`{program()} report {run}` draws where its curves leave {'the recipe' if expected else 'the gates'}"
