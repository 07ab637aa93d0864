"""Several players for one seat: each game draws one of them when it starts, and it alone computes that game."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.players.frozen import Alike, FrozenPlayer
from multigrid_rl.types import Board, Policy, SeatView


class PoolState(NamedTuple):
    """Who plays each game, and what each player remembers."""

    chosen: NDArray[np.intp]  # (N,) number of the player that plays each game
    states: dict[int, Any]  # by number: a player's own memory of all games; rows of games of others mean nothing


class OpponentPool:
    """A player that is one of ``players`` in each game, drawn with ``weights``; implements ``types.Policy``.

    The match draws one number for each team and game, from the game's stream, and gives it to :meth:`assign`: team
    mates with the same pool are then the same player. A player computes only the games it plays, from their streams.

    Players have numbers, those given here from 0 on; a league adds others (:meth:`update`) and lets them go again.

    Args:
        players: who takes turns, with different names; they stay.
        weights: of each of them, in any unit.
    """

    def __init__(self, players: Sequence[Policy], weights: Sequence[float]) -> None:
        self.players = dict(enumerate(players))
        self._staying = len(players)
        self.weigh(weights)

    def weigh(self, weights: Sequence[float]) -> None:
        """Draw with other weights, one for each player, from the next game on.

        Raises:
            ValueError: another number of weights than players, negative ones, or none above 0.
        """
        # Added up one after the other: players of weight 0 change nothing, wherever they stand.
        bounds = np.cumsum(weights)
        total = float(bounds[-1])
        if len(weights) != len(self.players) or min(weights) < 0 or not total > 0:
            raise ValueError(f"weights: expected {len(self.players)} numbers from 0 on, not all 0, got {list(weights)}")
        self.name = "+".join(player.name for player in self.players.values())
        self.weights = tuple(float(weight) for weight in weights)
        self._numbers = np.array(list(self.players), np.intp)
        self._bounds = bounds[:-1] / total
        self._group()

    def update(self, newcomers: Mapping[int, Policy], weights: Mapping[int, float], state: PoolState) -> PoolState:
        """Take in players and draw with other weights while games are under way; those go on as they are.

        Whoever came with an earlier update, has no weight any more and no game under way, is let go.

        Args:
            newcomers: by their numbers.
            weights: by number, of all who shall play; others play their games to the end.
            state: of the games.

        Returns:
            The state with room for the newcomers.
        """
        playing = {*newcomers, *weights, *np.unique(state.chosen).tolist()}
        players = {**self.players, **newcomers}
        self.players = {n: players[n] for n in sorted(players) if n < self._staying or n in playing}
        self.weigh([weights.get(n, 0.0) for n in self.players])
        return self.taken_up(state)

    def taken_up(self, state: PoolState) -> PoolState:
        """Return a state with a memory of each of the present players and of nobody else."""
        games, states = len(state.chosen), state.states
        fresh = {n: player.initial_state(games) for n, player in self.players.items() if n not in states}
        return PoolState(state.chosen, {n: fresh[n] if n in fresh else states[n] for n in self.players})

    def initial_state(self, games: int) -> PoolState:
        """Return the state of ``games`` fresh games; all have the first player until :meth:`assign` is called."""
        return self.taken_up(PoolState(np.zeros(games, np.intp), {}))

    def reset_state(self, state: PoolState, done: NDArray[np.bool_]) -> PoolState:
        """Return the state with the games in ``done`` (N,) started afresh."""
        forgotten = {n: self.players[n].reset_state(state.states[n], done) for n in self._forgetting}
        return PoolState(state.chosen, {**state.states, **forgotten})

    def assign(self, state: PoolState, which: NDArray[np.bool_], drawn: NDArray[np.float64]) -> None:
        """Choose the player of the games in ``which`` (N,) by their numbers in [0, 1) ``drawn`` (N,)."""
        state.chosen[which] = self._numbers[np.searchsorted(self._bounds, drawn[which], side="right")]

    def act(self, view: SeatView, state: PoolState, rng: Any) -> tuple[NDArray[np.int8], PoolState]:
        """Return actions (N,), of a team (N, C); ``rng`` is a ``world.streams.Streams``."""
        states, parts = dict(state.states), []
        rank = self._rank[np.searchsorted(self._numbers, state.chosen)]
        order = np.argsort(rank, kind="stable")
        rank = rank[order]
        ends = np.searchsorted(rank, self._ends).tolist()
        for (alike, numbers), begin, end in zip(self._groups, [0, *ends], ends, strict=False):
            if begin == end:
                continue
            rows = order[begin:end]
            if alike is not None:
                places = rank[begin:end] - self._ranks[numbers[0]]
                parts.append((rows, alike.act(view.tokens[rows], places, rng.rows(rows))))
                continue
            player, memory = self.players[numbers[0]], states[numbers[0]]
            board = view.board if getattr(player, "reads_board", True) else None
            board = None if board is None else Board(*(column[rows] for column in board))
            seen = SeatView(view.tokens[rows], board, view.seat)
            taken, following = player.act(seen, None if memory is None else memory[rows], rng.rows(rows))
            if memory is not None:
                memory[rows] = following
            parts.append((rows, taken))
        actions = np.empty((len(state.chosen), *parts[0][1].shape[1:]), parts[0][1].dtype)
        for rows, taken in parts:
            actions[rows] = taken
        return actions, PoolState(state.chosen, states)

    def _group(self) -> None:
        """Sort the players into those that act together, and others alone."""
        kinds: dict[Any, list[int]] = {}
        for n, player in self.players.items():
            kind = getattr(player, "kind", None)
            kinds.setdefault(n if kind is None else kind, []).append(n)
        self._groups = [
            (None if isinstance(kind, int) else Alike([cast(FrozenPlayer, self.players[n]) for n in numbers]), numbers)
            for kind, numbers in kinds.items()
        ]
        grouped = [n for _, numbers in self._groups for n in numbers]
        self._ranks = {n: rank for rank, n in enumerate(grouped)}
        self._rank = np.array([self._ranks[n] for n in self.players], np.intp)
        self._ends = np.cumsum([len(numbers) for _, numbers in self._groups])
        self._forgetting = [numbers[0] for alike, numbers in self._groups if alike is None]
