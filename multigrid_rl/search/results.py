"""What a search found, in files: results.json, trials.csv, winner.yaml."""

from __future__ import annotations

import csv
import io
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from multigrid_rl.config import GROUPS, data_root
from multigrid_rl.recipes import TRUST, recipe_overrides
from multigrid_rl.search.folder import SearchFolder
from multigrid_rl.search.importance import Importance, importance_of
from multigrid_rl.search.plans import Outcome, Winner, winner_of
from multigrid_rl.search.settings import ThreeStageSettings
from multigrid_rl.search.transforms import Value, in_words

WINNER, RESULTS, TRIALS = "winner.yaml", "results.json", "trials.csv"


@dataclass(frozen=True)
class Found:
    """What a search knows when it ends or is interrupted.

    Attributes:
        outcomes: of all trials that have ended.
        winner: the best configuration so far; ``None`` if every trial failed.
        importance: of each variable, or why it is not known.
        complete: whether the plan was carried out to its end.
        seconds: that searching took, all sittings together.
    """

    outcomes: list[Outcome]
    winner: Winner | None
    importance: Importance
    complete: bool
    seconds: float

    @property
    def failed(self) -> list[Outcome]:
        """Trials that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def found_in(folder: SearchFolder, *, complete: bool, seconds: float) -> Found:
    """What the recorded outcomes of a search amount to."""
    outcomes = folder.outcomes()
    settings = folder.asked.settings
    seeds = settings.confirm.seeds if isinstance(settings, ThreeStageSettings) else 0
    importance = importance_of(folder.asked.space.variables, outcomes)
    return Found(outcomes, winner_of(outcomes, seeds), importance, complete, seconds)


def write_found(folder: SearchFolder, found: Found) -> None:
    """Write ``results.json``, ``trials.csv`` and, if there is a winner, ``winner.yaml``."""
    folder.write_json(RESULTS, as_data(folder, found))
    folder.write_text(TRIALS, as_csv(folder, found.outcomes))
    if found.winner is not None:
        folder.write_text(WINNER, as_recipe(folder, found))


def winning_overrides(folder: SearchFolder, winner: Winner) -> list[str]:
    """Overrides of ``train`` that are the winning configuration."""
    return folder.asked.space.overrides(winner.point)


def winning_command(folder: SearchFolder, winner: Winner) -> str:
    """The command that trains the winning configuration."""
    return shlex.join(["multigrid-rl", "train", *winning_overrides(folder, winner)])


def as_data(folder: SearchFolder, found: Found) -> dict[str, Any]:
    """A search's result as plain data; what cannot be a number in JSON is ``null``."""
    asked, winner = folder.asked, found.winner
    return {
        "format": 1,
        "search": asked.name,
        "settings": asked.settings.model_dump(mode="json"),
        "space": asked.space.name,
        "variables": asked.content,
        "base": list(asked.space.base),
        "seed": asked.seed,
        **folder.provenance,
        "complete": found.complete,
        "seconds": round(found.seconds, 1),
        "winner": winner
        and {
            "confirmed": winner.confirmed,
            "env_steps_to_held": winner.score.env_steps_to_held,
            "margin": _finite(winner.score.margin),
            "trials": list(winner.trials),
            "values": asked.space.values(winner.point),
            "command": winning_command(folder, winner),
        },
        "importance": {"shares": found.importance.shares, "note": found.importance.note},
        "trials": [_row(folder, outcome) for outcome in found.outcomes],
    }


def _row(folder: SearchFolder, outcome: Outcome) -> dict[str, Any]:
    spec, score = outcome.spec, outcome.score
    return {
        "id": spec.id,
        "stage": spec.stage,
        "status": outcome.status,
        "held": bool(score and score.held),
        "env_steps_to_held": score.env_steps_to_held if score else None,
        "margin": _finite(score.margin) if score else None,
        "env_steps": outcome.env_steps,
        "seconds": round(outcome.seconds, 1),
        "seed": spec.seed,
        "until": spec.until,
        "origin": spec.origin,
        "reason": outcome.reason,
        "values": folder.asked.space.values(spec.point),
    }


def _finite(number: float) -> float | None:
    return round(number, 6) if math.isfinite(number) else None


def as_csv(folder: SearchFolder, outcomes: list[Outcome]) -> str:
    """One line a trial, one column a key."""
    rows = [_row(folder, outcome) for outcome in outcomes]
    flat = [{**{k: v for k, v in row.items() if k != "values"}, **_words(row["values"])} for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _words(values: dict[str, Value]) -> dict[str, str]:
    return {key: in_words(value) for key, value in values.items()}


def as_recipe(folder: SearchFolder, found: Found) -> str:
    """The winning configuration in the form of a file of ``configs/experiment/``.

    Raises:
        ValueError: there is no winner.
    """
    winner = found.winner
    if winner is None:
        raise ValueError("a search without a winner has no recipe")
    head = [
        "# @package _global_",
        f"# {verdict_of(folder, winner)}",
        f"# Found by: {folder.provenance['command']}",
        f"# Trains: {winning_command(folder, winner)}",
    ]
    content = recipe_of(winning_overrides(folder, winner))
    return "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False, default_flow_style=False)


def recipe_of(overrides: list[str]) -> dict[str, Any]:
    """Overrides as a recipe: groups in its defaults list, keys in its tree; a recipe that they build on is part of it.

    Raises:
        ConfigError: the recipe that they name cannot be read.
    """
    defaults: list[dict[str, str]] = []
    tree: dict[str, Any] = {}
    given = dict(override.split("=", 1) for override in overrides)
    given.pop(TRUST, None)  # the search composed it already
    base = given.pop("experiment", "none")
    if base not in ("none", "null"):
        path = Path(base) if base.endswith(".yaml") else data_root() / "configs" / "experiment" / f"{base}.yaml"
        given = {**dict(override.split("=", 1) for override in recipe_overrides(path, trusted=True)), **given}
    for key, value in given.items():
        if key in GROUPS:
            defaults.append({f"override /{key}": value})
            continue
        *places, last = key.split(".")
        node = tree
        for place in places:
            node = node.setdefault(place, {})
        mixture = places[:2] == ["scenario", "seats"] and ":" in value
        node[last] = {name: _read(weight) for name, _, weight in _parts(value)} if mixture else _read(value)
    return {"defaults": defaults, **tree}


def _parts(mixture: str) -> list[tuple[str, str, str]]:
    return [part.rpartition(":") for part in mixture.split(",")]


def _read(text: str) -> Any:
    value = yaml.safe_load(text)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def verdict_of(folder: SearchFolder, winner: Winner) -> str:
    """What is known of the winner, in one sentence."""
    steps, runs = winner.score.env_steps_to_held, len(winner.trials)
    if steps is None:
        return f"Did not hold all gates in {runs} run(s); smallest margin {winner.score.margin:.3g} of a bound."
    settings = folder.asked.settings
    if isinstance(settings, ThreeStageSettings):
        of = f"on {runs} of {settings.confirm.seeds} seeds that no earlier stage had seen"
        how = of if winner.trials[0].startswith("s3-") else "in one short run, not confirmed over seeds"
    elif winner.trials[0].startswith("g"):
        how = "as the last of several configurations that its policy learned with; alone it is not known to"
    else:
        how = "in one run, not confirmed over seeds"
    return f"Held all gates {how}; {steps:,} environment steps at most."
