"""Pools, which draw a player for each game; players of seats combined to one of a team; snapshots of a learner."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.fast.towers import Stack
from multigrid_rl.players.cards import PlayerError, PlayerFiles, read_card
from multigrid_rl.players.catalogue import Seating, load_frozen
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.places import counterpart, place_of
from multigrid_rl.text import expected
from multigrid_rl.types import Board, Policy, Seats, SeatView, UniformSource
from multigrid_rl.world.constants import other_side


class PlayerStack:
    """Players of one kind (:attr:`FrozenPlayer.kind`) that act in one call, with the results of single calls."""

    def __init__(self, players: Sequence[FrozenPlayer]) -> None:
        self._first = players[0]
        self._stack = Stack([player.towers for player in players if player.towers is not None])
        self._mirrored = np.array([player.mirrored for player in players])

    def act(self, tokens: NDArray[np.uint8], numbers: NDArray[np.intp], rng: UniformSource) -> NDArray[Any]:
        """Draw actions (N,), of a team (N, C): row by row for the players with indices ``numbers`` (N,), ascending."""
        mirrored = self._mirrored[numbers]
        if mirrored.all():
            tokens = other_side(tokens, self._first.members)
        elif mirrored.any():
            tokens[mirrored] = other_side(tokens[mirrored], self._first.members)
        return self._first.sample(self._stack.policy(tokens, numbers), rng)


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

    Attributes:
        permanent: names of the permanent members.
    """

    def __init__(self, players: Sequence[Policy], weights: Sequence[float]) -> None:
        self.players = dict(enumerate(players))
        self.permanent = tuple(player.name for player in players)
        self.weigh(weights)

    def weigh(self, weights: Sequence[float]) -> None:
        """Set the weights, one for each player, from the next game on.

        Raises ``ValueError``: wrong number of weights, negative ones, or all 0.
        """
        # A cumulative sum: players of weight 0 do not change the draws, at any position.
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
        self.players = {n: players[n] for n in sorted(players) if n < len(self.permanent) or n in playing}
        self.weigh([weights.get(n, 0.0) for n in self.players])
        return self.with_memories(state)

    def with_memories(self, state: PoolState) -> PoolState:
        """Return the state with memories of exactly the present players."""
        games, states = len(state.chosen), state.states
        fresh = {n: player.initial_state(games) for n, player in self.players.items() if n not in states}
        for n, memory in fresh.items():
            if memory is not None and not hasattr(memory, "shape"):
                key, got = f"player {self.players[n].name}: initial_state", type(memory).__name__
                raise PlayerError(expected(key, "one array with a row for each game, as it takes turns", got))
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

    def act(self, view: SeatView, state: PoolState, rng: Any) -> tuple[NDArray[Any], PoolState]:
        """Return actions (N, C), of a team of all its seats; ``rng`` is a ``streams.Streams``."""
        states, parts = dict(state.states), []
        rank = self._rank[np.searchsorted(self._numbers, state.chosen)]
        order = np.argsort(rank, kind="stable")
        rank = rank[order]
        ends = np.searchsorted(rank, self._ends).tolist()
        for (stacked, numbers), begin, end in zip(self._groups, [0, *ends], ends, strict=False):
            if begin == end:
                continue
            rows = order[begin:end]
            if stacked is not None:
                places = rank[begin:end] - self._ranks[numbers[0]]
                parts.append((rows, stacked.act(view.tokens[rows], places, rng.rows(rows))))
                continue
            player, memory = self.players[numbers[0]], states[numbers[0]]
            board = view.board if getattr(player, "reads_board", True) else None
            board = None if board is None else Board(*(column[rows] for column in board))
            turn = None if view.turn is None else view.turn[rows]
            part = SeatView(view.tokens[rows], board, view.seat, turn)
            chosen, next_memory = player.act(part, None if memory is None else memory[rows], rng.rows(rows))
            if memory is not None:
                memory[rows] = next_memory
            parts.append((rows, chosen))
        dtype = parts[0][1].dtype if len(parts) == 1 else np.result_type(*(chosen for _, chosen in parts))
        actions = np.empty((len(state.chosen), parts[0][1][0].size), dtype)
        for rows, chosen in parts:
            actions[rows] = chosen.reshape(len(rows), -1)
        return actions, PoolState(state.chosen, states)

    @property
    def hears(self) -> bool:
        """Whether one of the players receives rewards."""
        return any(getattr(player, "hears", False) for player in self.players.values())

    def hear(self, state: PoolState, rewards: NDArray[np.float64]) -> None:
        """Send players the rewards (N, C) of a step in their games."""
        for n, player in self.players.items():
            if getattr(player, "hears", False):
                cast(Any, player).hear(state.states[n], rewards * (state.chosen == n)[:, None])

    def _group(self) -> None:
        """Group players of one kind, which act in one call; others act in single calls."""
        kinds, players = dict[Any, list[int]](), cast(Any, self.players)
        for n, player in self.players.items():
            kind = getattr(player, "kind", None)
            kinds.setdefault(n if kind is None else kind, []).append(n)
        self._groups = [
            (None if isinstance(kind, int) else PlayerStack([players[n] for n in numbers]), numbers)
            for kind, numbers in kinds.items()
        ]
        self._ranks = {n: rank for rank, n in enumerate(n for _, numbers in self._groups for n in numbers)}
        self._rank = np.array([self._ranks[n] for n in self.players], np.intp)
        self._ends = np.cumsum([len(numbers) for _, numbers in self._groups])
        self._single = [numbers[0] for stacked, numbers in self._groups if stacked is None]


class Roster(NamedTuple):
    """Active players of a growing pool."""

    weights: dict[int, float]  # by number: share of the games
    files: dict[int, dict[str, PlayerFiles]]  # of snapshots, by number and network


class TeamPlayer:
    """Single-seat players combined into one player of the whole team; implements ``types.Policy``."""

    def __init__(self, name: str, members: Sequence[Policy]) -> None:
        self.name = name
        self.members = list(members)
        memories = [member.initial_state(0) for member in self.members]
        self._widths = [0 if memory is None else int(memory.shape[1]) for memory in memories]

    def initial_state(self, games: int) -> torch.Tensor:
        """Return the members' empty memories (N, S) side by side; a member without memory adds none."""
        return torch.zeros(games, sum(self._widths))

    def reset_state(self, state: torch.Tensor, done: NDArray[np.bool_]) -> torch.Tensor:
        """Return the memories with the games in ``done`` (N,) cleared."""
        return state * torch.from_numpy(~done).unsqueeze(1) if state.shape[1] else state

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[Any], torch.Tensor]:
        """Return actions (N, C), drawn member by member from the same stream."""
        tokens = view.tokens.reshape(len(view.tokens), len(self.members), -1)
        memories, actions = list(torch.split(state, self._widths, dim=1)), []
        for c, member in enumerate(self.members):
            memory: Any = memories[c] if self._widths[c] else member.initial_state(len(tokens))
            chosen, memory = member.act(SeatView(tokens[:, c], view.board, view.seat + c), memory, rng)
            actions.append(chosen)
            memories[c] = memory if self._widths[c] else memories[c]
        return np.column_stack(actions), torch.cat(memories, dim=1)


def anchor_pool(seated: Seating, seats: Sequence[str]) -> OpponentPool:
    """Return the pool of fixed players, numbered from 0 on, that plays all ``seats`` of a team."""
    anchors = []
    for rows in zip(*(seated[seat] for seat in seats), strict=True):
        single = len(rows) == 1 or rows[0].members > 1
        anchors.append(rows[0].player if single else TeamPlayer(rows[0].name, [row.player for row in rows]))
    return OpponentPool(anchors, [row.weight for row in seated[seats[0]]])


def snapshot_player(name: str, files: Mapping[str, PlayerFiles], spec: Seats, seats: Sequence[str]) -> Policy:
    """Return one player of all ``seats`` of a team, from the networks of the learners on the other side.

    Raises ``PlayerError``: damaged files, or none for a seat.
    """
    cards = {module: read_card(source) for module, source in files.items()}
    members: list[Policy] = []
    for seat in seats:
        trained_seat = counterpart(spec, seat)  # the seat at the same place is preferred
        for module in sorted(cards, key=lambda module: trained_seat not in cards[module].seats):
            with suppress(PlayerError):
                place_of(spec).fits(spec, cards[module], seat)
                break
        else:
            raise PlayerError(expected(f"league/{name}", f"a network of {trained_seat}", ", ".join(cards)))
        loaded = load_frozen(name, files[module], cards[module], spec, seat)
        if loaded.members > 1:
            return loaded.player
        members.append(loaded.player)
    return members[0] if len(members) == 1 else TeamPlayer(name, members)
