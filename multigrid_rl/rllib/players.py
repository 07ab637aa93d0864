"""A checkpoint of RLlib's as the folder of a run: whatever takes the players of a run takes those of an algorithm."""

import json
import shutil
from pathlib import Path
from typing import Any

from multigrid_rl.config.schema import to_yaml
from multigrid_rl.rllib.build import Settings
from multigrid_rl.runs.provenance import circumstances
from multigrid_rl.training.loop import write_players
from multigrid_rl.training.run import TrainingRun
from multigrid_rl.training.stages import seated_in


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
