"""How strong a player is: whole games against a known one, half of them from each side of the board."""

from __future__ import annotations

import numpy as np

from multigrid_rl.metrics import outcome_shares
from multigrid_rl.players.basic import RandomPlayer
from multigrid_rl.players.cards import PlayerError, Strength
from multigrid_rl.players.catalogue import Catalogue, Seated
from multigrid_rl.players.factory import seat_players
from multigrid_rl.players.games import play_episodes
from multigrid_rl.types import EpisodeTable, GameSpec, Policy
from multigrid_rl.world.constants import BLUE, RED

STRENGTH_SEED = 20_000


def side(catalogue: Catalogue, name: str, spec: GameSpec, team: str) -> dict[str, Policy]:
    """Players of one team: ``name`` wherever it can sit, random beside it where it cannot.

    Raises:
        PlayerError: it cannot sit on any seat of the team.
    """
    seated: dict[str, tuple[Seated, ...]] = {}
    failure: PlayerError | None = None
    seats = [seat for seat in spec.seats if spec.team_of(seat) == team]
    for seat in seats:
        try:
            seated[seat] = (catalogue.seat(name, spec, seat),)
        except PlayerError as error:
            failure = error
    if failure is not None and not seated:
        raise failure
    players = seat_players(spec, seated)
    return players | {seat: RandomPlayer() for seat in seats if seat not in seated}


def measure(
    catalogue: Catalogue, name: str, opponent: str, spec: GameSpec, scenario: str, *, episodes: int, seed: int
) -> Strength:
    """Results of ``name`` against ``opponent``, who fill whole teams, over ``episodes`` games, half from each side.

    In a game without a blue team ``name`` plays all games, as red, and ``opponent`` none.

    Raises:
        PlayerError: one of the two cannot play this game.
    """
    sides = [("red", RED), ("blue", BLUE)] if spec.blue else [("red", RED)]
    share = [episodes // len(sides)] * (len(sides) - 1)
    tables: list[tuple[EpisodeTable, int]] = []
    for k, (team, code) in enumerate(sides):
        games = (*share, episodes - sum(share))[k]
        if games == 0:
            continue
        players = side(catalogue, name, spec, team)
        if spec.blue:
            players |= side(catalogue, opponent, spec, "blue" if team == "red" else "red")
        tables.append((play_episodes(spec, players, games, seed=seed + k), code))
    # Winners as "1 this player, 0 the opponent": the two halves then add up.
    winner = np.concatenate([np.where(t.winner < 0, -1, t.winner == code).astype(np.int8) for t, code in tables])
    win, draw, loss = outcome_shares(winner, 1)
    return Strength(
        scenario=scenario,
        opponent=opponent,
        episodes=episodes,
        win=round(win, 4),
        draw=round(draw, 4),
        loss=round(loss, 4),
        length_mean=round(float(np.concatenate([t.length for t, _ in tables]).mean()), 2),
        seed=seed,
    )
