"""How strong a player is: whole games against a known one."""

from __future__ import annotations

from multigrid_rl.metrics import outcome_shares
from multigrid_rl.players.cards import Strength
from multigrid_rl.players.catalogue import BUILT_IN
from multigrid_rl.players.match import play_episodes
from multigrid_rl.types import GameSpec, Policy
from multigrid_rl.world.constants import BLUE, RED


def measure(
    player: Policy, seat: str, spec: GameSpec, scenario: str, *, opponent: str = "random", episodes: int, seed: int
) -> Strength:
    """Results of ``player`` on ``seat`` with the built-in player ``opponent`` on every other seat."""
    players = {other: BUILT_IN[opponent](spec) for other in spec.seats if other != seat} | {seat: player}
    table = play_episodes(spec, players, episodes, seed=seed)
    win, draw, loss = outcome_shares(table.winner, RED if spec.team_of(seat) == "red" else BLUE)
    return Strength(
        scenario=scenario,
        opponent=opponent,
        episodes=episodes,
        win=round(win, 4),
        draw=round(draw, 4),
        loss=round(loss, 4),
        length_mean=round(float(table.length.mean()), 2),
        seed=seed,
    )
