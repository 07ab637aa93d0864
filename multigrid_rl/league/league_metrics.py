"""What a league measures of itself."""

from multigrid_rl.metrics import MetricGroup

LEAGUE = MetricGroup(
    {
        "league/size": ("players in the league, its anchors included", "count"),
        "league/min_win": (
            "smallest win rate over all players of the league, a draw as half a win, older games fading",
            "share",
        ),
    },
    absent=lambda config, _: {} if config.scenario.league is not None else {"league/*": "there is no league"},
)
