"""Why a team that was handed in cannot be loaded, for tests."""

from pathlib import Path

import bundles
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.types import GameSpec


def refusal(path: Path, spec: GameSpec = bundles.ONE, team: str = "red") -> str:
    """The one line with which a team is refused."""
    return bundles.refusal(lambda: load_team(path, spec, team))
