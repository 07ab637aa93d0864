"""Several players for one seat: each game draws one of them when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import Policy, SeatView, UniformSource


class _Memory(NamedTuple):
    chosen: NDArray[np.intp]  # (N,) index of the player that plays each game
    states: list[Any]  # each player's own memory of all games


class Mixture:
    """A player that is one of ``players`` in each game, drawn with ``weights``.

    The match draws one number for each team and game, from the game's stream, and gives it to :meth:`seat`: team mates
    with the same mixture are then the same player.
    """

    def __init__(self, players: Sequence[Policy], weights: Sequence[float]) -> None:
        self.players = tuple(players)
        self.name = "+".join(player.name for player in players)
        self._bounds = np.cumsum(weights)[:-1] / np.sum(weights)

    def initial_state(self, games: int) -> _Memory:
        """Memory of ``games`` fresh games; all have the first player until :meth:`seat` is called."""
        return _Memory(np.zeros(games, np.intp), [player.initial_state(games) for player in self.players])

    def reset_state(self, state: _Memory, done: NDArray[np.bool_]) -> _Memory:
        """Memory with the games in ``done`` (N,) started afresh."""
        states = [player.reset_state(its, done) for player, its in zip(self.players, state.states, strict=True)]
        return _Memory(state.chosen, states)

    def seat(self, state: _Memory, which: NDArray[np.bool_], drawn: NDArray[np.float64]) -> None:
        """Choose the player of the games in ``which`` (N,) by their numbers in [0, 1) ``drawn`` (N,)."""
        state.chosen[which] = np.searchsorted(self._bounds, drawn[which], side="right")

    def act(self, view: SeatView, state: _Memory, rng: UniformSource) -> tuple[NDArray[np.int8], _Memory]:
        """Actions (N,), of a team (N, C)."""
        # Everybody plays every game and the game's own player is heard: what a game draws from its stream then does not
        # depend on who plays the games beside it.
        actions, states = [], []
        for player, its in zip(self.players, state.states, strict=True):
            action, following = player.act(view, its, rng)
            actions.append(action)
            states.append(following)
        return np.stack(actions)[state.chosen, np.arange(len(state.chosen))], _Memory(state.chosen, states)
