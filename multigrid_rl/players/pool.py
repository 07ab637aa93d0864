"""Several players for one seat: each game draws one of them when it starts, and it alone computes that game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import Board, Policy, SeatView, UniformSource


class PoolState(NamedTuple):
    """Who plays each game, and what each player remembers."""

    chosen: NDArray[np.intp]  # (N,) index of the player that plays each game
    states: list[Any]  # each player's own memory of all games; rows of games that it does not play mean nothing


class OpponentPool:
    """A player that is one of ``players`` in each game, drawn with ``weights``; implements ``types.Policy``.

    The match draws one number for each team and game, from the game's stream, and gives it to :meth:`assign`: team
    mates with the same pool are then the same player. A player computes only the games it plays, from their streams.

    Args:
        players: who takes turns, with different names.
        weights: of each of them, in any unit.
    """

    def __init__(self, players: Sequence[Policy], weights: Sequence[float]) -> None:
        self.players = list(players)
        self.weigh(weights)

    def weigh(self, weights: Sequence[float]) -> None:
        """Draw with other weights, one for each player, from the next game on.

        Raises:
            ValueError: another number of weights than players, negative ones, or none above 0.
        """
        total = float(np.sum(weights))
        if len(weights) != len(self.players) or min(weights) < 0 or not total > 0:
            raise ValueError(f"weights: expected {len(self.players)} numbers from 0 on, not all 0, got {list(weights)}")
        self.name = "+".join(player.name for player in self.players)
        self.weights = tuple(float(weight) for weight in weights)
        self._bounds = np.cumsum(weights)[:-1] / total

    def add(self, player: Policy, weights: Sequence[float], state: PoolState) -> PoolState:
        """Take in one player more while games are under way; they go on as they are.

        Args:
            player: the last of the players from now on.
            weights: of all players, the new one last.
            state: of the games.

        Returns:
            The state with room for the new player.
        """
        self.players.append(player)
        self.weigh(weights)
        return PoolState(state.chosen, [*state.states, player.initial_state(len(state.chosen))])

    def initial_state(self, games: int) -> PoolState:
        """Return the state of ``games`` fresh games; all have the first player until :meth:`assign` is called."""
        return PoolState(np.zeros(games, np.intp), [player.initial_state(games) for player in self.players])

    def reset_state(self, state: PoolState, done: NDArray[np.bool_]) -> PoolState:
        """Return the state with the games in ``done`` (N,) started afresh."""
        states = [player.reset_state(its, done) for player, its in zip(self.players, state.states, strict=True)]
        return PoolState(state.chosen, states)

    def assign(self, state: PoolState, which: NDArray[np.bool_], drawn: NDArray[np.float64]) -> None:
        """Choose the player of the games in ``which`` (N,) by their numbers in [0, 1) ``drawn`` (N,)."""
        state.chosen[which] = np.searchsorted(self._bounds, drawn[which], side="right")

    def act(self, view: SeatView, state: PoolState, rng: Any) -> tuple[NDArray[np.int8], PoolState]:
        """Return actions (N,), of a team (N, C); ``rng`` is a ``world.streams.Streams``."""
        actions: NDArray[np.int8] | None = None
        states = list(state.states)
        for k in np.unique(state.chosen):
            rows = np.flatnonzero(state.chosen == k)
            source: UniformSource = rng.rows(rows)
            board = None if view.board is None else Board(*(column[rows] for column in view.board))
            part = SeatView(view.tokens[rows], board, view.seat)
            memory = states[k]
            taken, following = self.players[k].act(part, None if memory is None else memory[rows], source)
            if memory is not None:
                memory[rows] = following
            if actions is None:
                actions = np.zeros((len(state.chosen), *taken.shape[1:]), taken.dtype)
            actions[rows] = taken
        assert actions is not None
        return actions, PoolState(state.chosen, states)
