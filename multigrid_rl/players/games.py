"""Whole games, each played once, with everybody seated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.players.match import Match
from multigrid_rl.types import EpisodeTable, GameSpec, Policy


class PlayerFaultError(RuntimeError):
    """A player that cannot go on in the middle of its games; ``name`` says who, the message why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason


class Played(NamedTuple):
    """``M`` games played once each; rows are in the order of the games' numbers."""

    table: EpisodeTable  # of an unfinished game: as far as it went, without a winner
    actions: NDArray[np.int8]  # (M, T, A), -1 behind a game's end
    start: NDArray[np.uint8]  # (M, 128) cell codes of the boards at the start
    finished: NDArray[np.bool_]  # (M,) all but where a player gave up
    fault: PlayerFaultError | None  # of the player that gave up
    first_game: int  # number of the game in row 0


def play_games(spec: GameSpec, players: dict[str, Policy], games: int, *, seed: int, first_game: int = 0) -> Played:
    """Play games number ``first_game`` to ``first_game + games - 1`` once each, every seat filled.

    A game depends on ``seed``, its number and its players alone, not on how many others are played beside it.

    Raises:
        ValueError: an empty seat, or a player for a seat that the game does not have.
    """
    match = Match(spec, players, games, seed=seed, first_game=first_game, auto_reset=False)
    if match.seats:
        raise ValueError(
            f"seats {', '.join(match.seats)} are empty; allowed is a player for each of {', '.join(spec.seats)}"
        )
    start = match.world.state.cells.copy()
    finished = np.zeros(games, np.bool_)
    order: list[NDArray[np.intp]] = []
    actions: list[NDArray[np.int8]] = []
    fault: PlayerFaultError | None = None
    while not finished.all():
        try:
            done = match.step({}).done
        except PlayerFaultError as error:
            fault = error
            break
        actions.append(np.where(finished[:, None], np.int8(-1), match.actions))
        if done.any():
            order.append(np.flatnonzero(done))
            finished |= done
    order.append(np.flatnonzero(~finished))
    table = EpisodeTable.concatenate([match.drain_episodes(), match.unfinished(~finished)])
    rows = np.argsort(np.concatenate(order))
    steps = np.stack(actions, axis=1) if actions else np.zeros((games, 0, spec.num_agents), np.int8)
    return Played(table.rows(rows), steps, start, finished, fault, first_game)


def play_episodes(spec: GameSpec, players: dict[str, Policy], episodes: int, *, seed: int) -> EpisodeTable:
    """Play ``episodes`` whole games, one for each game number, every seat filled; rows in the order of the numbers.

    Raises:
        PlayerFaultError: a player gave up.
    """
    played = play_games(spec, players, episodes, seed=seed)
    if played.fault is not None:
        raise played.fault
    return played.table
