"""Several players for one seat: each game draws one of them at its start, and only that player is evaluated in it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.players.frozen import Alike, FrozenPlayer
from multigrid_rl.types import Board, Policy, SeatView


class PoolState(NamedTuple):
    """Player of each game, and the players' memories."""

    chosen: NDArray[np.intp]  # (N,) number of the player that plays each game
    states: dict[int, Any]  # by number: a player's memory of all games; rows of other players' games are unused


class OpponentPool:
    """A player that is one of ``players`` in each game, drawn with ``weights``; implements ``types.Policy``.

    The match draws one number for each team and game, from the game's stream, and passes it to :meth:`assign`: team
    mates with the same pool then get the same player. A player is evaluated only in its games, with their streams.

    Players are numbered, the initial ones from 0; a league adds and removes others (:meth:`update`).

    Args:
        players: permanent members, with different names.
        weights: of the players, not normalised.
    """

    def __init__(self, players: Sequence[Policy], weights: Sequence[float]) -> None:
        self.players = dict(enumerate(players))
        self._permanent = len(players)
        self.weigh(weights)

    def weigh(self, weights: Sequence[float]) -> None:
        """Set the weights, one for each player, from the next game on.

        Raises:
            ValueError: wrong number of weights, negative ones, or all 0.
        """
        # A cumulative sum: players of weight 0 do not change the draws, wherever they are.
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
        """Add players and change the weights; running games keep their players.

        Players of an earlier update without weight and without running games are removed.

        Args:
            newcomers: by their numbers.
            weights: by number; players without one finish their games.
            state: of the games.

        Returns:
            The state with memories of the newcomers.
        """
        playing = {*newcomers, *weights, *np.unique(state.chosen).tolist()}
        players = {**self.players, **newcomers}
        self.players = {n: players[n] for n in sorted(players) if n < self._permanent or n in playing}
        self.weigh([weights.get(n, 0.0) for n in self.players])
        return self.with_memories(state)

    def with_memories(self, state: PoolState) -> PoolState:
        """Return the state with memories of exactly the present players."""
        games, states = len(state.chosen), state.states
        fresh = {n: player.initial_state(games) for n, player in self.players.items() if n not in states}
        return PoolState(state.chosen, {n: fresh[n] if n in fresh else states[n] for n in self.players})

    def initial_state(self, games: int) -> PoolState:
        """Return the state of ``games`` new games; all have the first player until :meth:`assign` is called."""
        return self.with_memories(PoolState(np.zeros(games, np.intp), {}))

    def reset_state(self, state: PoolState, done: NDArray[np.bool_]) -> PoolState:
        """Return the state with the games in ``done`` (N,) reset."""
        cleared = {n: self.players[n].reset_state(state.states[n], done) for n in self._single}
        return PoolState(state.chosen, {**state.states, **cleared})

    def assign(self, state: PoolState, which: NDArray[np.bool_], drawn: NDArray[np.float64]) -> None:
        """Choose the players of the games in ``which`` (N,) from uniform numbers ``drawn`` (N,)."""
        state.chosen[which] = self._numbers[np.searchsorted(self._bounds, drawn[which], side="right")]

    def act(self, view: SeatView, state: PoolState, rng: Any) -> tuple[NDArray[np.int8], PoolState]:
        """Return actions (N,), of a team (N, C); ``rng`` is a ``streams.Streams``."""
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
            part = SeatView(view.tokens[rows], board, view.seat)
            chosen, next_memory = player.act(part, None if memory is None else memory[rows], rng.rows(rows))
            if memory is not None:
                memory[rows] = next_memory
            parts.append((rows, chosen))
        actions = np.empty((len(state.chosen), *parts[0][1].shape[1:]), parts[0][1].dtype)
        for rows, chosen in parts:
            actions[rows] = chosen
        return actions, PoolState(state.chosen, states)

    def _group(self) -> None:
        """Group players of one kind into single calls; others act alone."""
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
        self._single = [numbers[0] for alike, numbers in self._groups if alike is None]
