"""A checkpoint of RLlib's as the folder of a run: whatever takes the players of a run takes those of an algorithm."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

from multigrid_rl.config.schema import to_yaml
from multigrid_rl.rllib.build import Settings
from multigrid_rl.rllib.learner import MODULES
from multigrid_rl.runs.players import FREE
from multigrid_rl.runs.provenance import circumstances
from multigrid_rl.runs.reader import read_config
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.loop import write_players
from multigrid_rl.training.run import TrainingRun
from multigrid_rl.training.stages import seated_in


def check_networks(folder: Path, settings: Settings) -> None:
    """Check that a checkpoint has the networks of a run. Raises ``ConfigError``: it has others, or for other agents."""
    wanted, model = settings.stages[0].factory.specs.modules, read_config(folder)["model"]
    there = sorted(home.name for home in (folder / MODULES).iterdir() if home.is_dir())
    if not {*wanted} <= {*there}:
        raise ConfigError(expected(f"{folder}: modules", ", ".join(wanted), ", ".join(there)))
    for key, value in settings.run.model.model_dump(mode="json", exclude={*FREE, "bound"}).items():
        if model.get(key, value) != value:
            raise ConfigError(expected(f"model.{key}", f"{model[key]}, as in {folder}", value))


def write_beside(path: Path, settings: Settings, run: TrainingRun) -> None:
    """Write configuration, provenance and players beside what RLlib writes. Raises ``DivergedError``: not finite."""
    seats, name = seated_in(settings.stages), f"step_{run.env_steps}"
    opponents = [
        {"seat": seat, "name": player.name, "weight": player.weight, "sha256": player.sha256}
        for seat, players in seats.items()
        for player in players
    ]
    provenance = {**circumstances(), "seed": settings.run.seed, "opponents": opponents}
    folder = SimpleNamespace(path=path, provenance=provenance)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)  # of an earlier checkpoint in the same folder
    write_players(path / "checkpoints" / name / "players", run, settings.run, folder)
    written = {
        "checkpoints/latest": f"{name}\n",
        "provenance.json": json.dumps(provenance),
        "config.yaml": to_yaml(settings.run),
    }
    for file, text in written.items():
        (path / file).write_text(text, encoding="utf-8")
