"""What a league measures of itself."""

from typing import Any

from multigrid_rl.metrics import MetricGroup
from multigrid_rl.types import MultiAgentSpec


def _absent(config: Any, specs: MultiAgentSpec) -> dict[str, str]:  # noqa: ARG001
    return {} if config.scenario.league is not None else {"league/*": "there is no league"}


LEAGUE = MetricGroup(
    {
        "league/size": ("players in the league, its anchors included", "count"),
        "league/min_win": (
            "smallest win rate over all players of the league, a draw as half a win, older games fading",
            "share",
        ),
    },
    absent=_absent,
)
