"""Settings of a league: its players, their shares of games, and its metrics."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from multigrid_rl.config.scenario import LEAGUE, LEARN, Part, Steps
from multigrid_rl.metrics import MetricGroup
from multigrid_rl.tables import entries
from multigrid_rl.text import expected, unknown

LEAGUE_METRICS = MetricGroup(
    {
        "league/size": ("players in the league, its anchors included", "count"),
        "league/min_win": (
            "smallest win rate over all players of the league, a draw as half a win, older games fading",
            "share",
        ),
    },
    absent=lambda config, _: {} if config.scenario.league is not None else {"league/*": "there is no league"},
)


class LeagueConfig(Part):
    """Settings of a growing pool of opponents and of their shares of games."""

    #: Class of the pool with these settings, with the interface of ``league.snapshots.RunLeague``.
    pool: ClassVar[str] = "multigrid_rl.league.snapshots:RunLeague"

    anchors: dict[str, float]
    """fixed players with their weights; they alone play until there is a snapshot"""
    anchor_share: float = Field(ge=0, lt=1)
    """share of the games against anchors once there are snapshots. More: better against what is unlike itself"""
    latest_share: float = Field(ge=0, le=1)
    """share of the games against the newest snapshot. More: closer to plain self-play"""
    weighting: str
    """weight of a snapshot by the win rate x against it: squared (1-x)^2, variance x(1-x), linear 1-x, linear_capped
    min(.5, 1-x), uniform, latest, nash (a mixture of snapshots that none of them beats)"""
    every: Steps | None
    """environment steps after which a snapshot joins. Smaller: more of them, more alike. null: by win rate alone"""
    win: float | None = Field(gt=0, lt=1)
    """a snapshot joins as soon as this win rate is reached, a draw as half a win. Higher: fewer, stronger ones. null:
    by steps alone"""
    win_over: Literal["pool", "episodes"]
    """whose win rate: the smallest against those who play (pool), or over the last 100 episodes (episodes)"""
    most: int = Field(ge=1, le=64)
    """snapshots that play at a time, drawn by weight. More: nearer to the weights, slower"""
    redraw: Steps
    """environment steps after which it is drawn anew who plays, new snapshots too. Smaller: sooner; below the longest
    game times num_envs slower"""

    @field_validator("weighting")
    @classmethod
    def _check_weighting(cls, value: str) -> str:
        if value not in entries("weightings"):
            raise ValueError(unknown("weighting", value, entries("weightings"), "one of {}").partition(": ")[2])
        return value

    @model_validator(mode="after")
    def _grows(self) -> "LeagueConfig":
        if not self.anchors or {LEARN, LEAGUE} & set(self.anchors) or min(self.anchors.values()) <= 0:
            raise ValueError(expected("anchors", "at least one player with a weight above 0", self.anchors))
        if self.every is None and self.win is None:
            raise ValueError(expected("every", "a number of environment steps, or a win rate in win", "null for both"))
        if self.anchor_share + self.latest_share > 1:
            raise ValueError(expected("latest_share", f"at most {1 - self.anchor_share:g}", self.latest_share))
        return self

    @property
    def summary(self) -> str:
        """A run's description of its league at its start."""
        opponents = "each who plays" if self.win_over == "pool" else "all in 100 episodes"
        conditions = [f"every {self.every:,} steps"] if self.every else []
        conditions += [f"at {self.win:.0%} wins against {opponents}"] if self.win else []
        share = f"{1 - self.anchor_share:.0%} of the games are against snapshots"
        return f"a snapshot is added {' or '.join(conditions)}; {share}, weighted {self.weighting}"
