"""A checkpoint of RLlib's as the folder of a run: whatever takes the players of a run takes those of an algorithm."""

import json
import shutil
from pathlib import Path
from typing import Any

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


class CheckpointFolder:
    """Writes configuration, provenance and players beside what RLlib writes; see ``runs.reader``.

    Attributes:
        path: of the checkpoint.
        provenance: of its players.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self._config = path, settings.run
        self.provenance: dict[str, Any] = {
            **circumstances(),
            "seed": settings.run.seed,
            "opponents": [
                {"seat": seat, "name": player.name, "weight": player.weight, "sha256": player.sha256}
                for seat, players in seated_in(settings.stages).items()
                for player in players
            ],
        }

    def write(self, run: TrainingRun) -> None:
        """Write them. Raises ``DivergedError``: weights are not finite."""
        name = f"step_{run.env_steps}"
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)  # of an earlier checkpoint in the same folder
        write_players(self.path / "checkpoints" / name / "players", run, self._config, self)
        written = {
            "checkpoints/latest": f"{name}\n",
            "provenance.json": json.dumps(self.provenance),
            "config.yaml": to_yaml(self._config),
        }
        for file, text in written.items():
            (self.path / file).write_text(text, encoding="utf-8")
