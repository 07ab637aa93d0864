"""``World``: a batch of games. The only implementation of the game, which all environment APIs wrap."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import kernel
from multigrid_rl.streams import seeded
from multigrid_rl.text import expected
from multigrid_rl.types import BatchedStep, Board, Clock, EpisodeTable, GameSpec, Shaping
from multigrid_rl.world.constants import ACTIONS, NUM_EVENTS
from multigrid_rl.world.kernels import observe_games, reset_games, step_games
from multigrid_rl.world.state import Step, allocate_outputs, allocate_state, make_flags, view_tables

VIEW_SIZES = (3, 5, 7)


class World:
    """``num_games`` games of one specification, stepped together.

    Args:
        num_games: how many games ``N``.
        seed: with a game's number, it determines all randomness in that game.
        first_game: number of the first game; game ``k`` of any batch on any machine plays the same under one seed.
        auto_reset: reset a finished game at once; otherwise it stays finished until :meth:`reset`.

    Raises ``ValueError``: invalid specification.
    """

    def __init__(
        self, spec: GameSpec, num_games: int, *, seed: int = 0, first_game: int = 0, auto_reset: bool = True
    ) -> None:
        _check(spec, num_games)
        self.spec = spec
        self.num_games = num_games
        self.first_game = first_game
        self.auto_reset = auto_reset
        self.state = allocate_state(num_games, spec.num_agents)
        self.outputs = allocate_outputs(num_games, spec.num_agents, spec.num_tokens)
        self.flags = make_flags(spec)
        self.tables = view_tables(spec.view_size)
        self.index_order = np.zeros((0, spec.num_agents), np.int8)
        self.reset(seed)

    def reset(
        self, seed: int | Sequence[int] | None = None, which: NDArray[np.bool_] | None = None
    ) -> NDArray[np.uint8]:
        """Reset the games in ``which`` (N,), by default all, and return tokens (N, A, D).

        With a ``seed`` their random streams restart; without one they continue.
        """
        chosen = np.ones(self.num_games, np.bool_) if which is None else which
        if chosen.shape != (self.num_games,) or chosen.dtype != np.bool_:
            raise ValueError(expected("which", f"({self.num_games},) bool", f"{chosen.shape} {chosen.dtype}"))
        if seed is not None:
            numbers = np.arange(self.first_game, self.first_game + self.num_games, dtype=np.int64)
            self.state.stream[chosen] = seeded(seed, numbers)[chosen]
        reset_games(self.state, self.flags, self.outputs, self.tables, chosen)
        return self.outputs.tokens

    def step(self, actions: NDArray[np.int8], order: NDArray[np.int8] | None = None) -> Step:
        """Play one step of every game.

        Args:
            actions: (N, A) int8, 0 to 6 (``constants.ACTIONS``). Those of finished games and, depending on
                the rules, of eliminated agents are ignored.
            order: (N, A) int8 order in which agents act; by default as the rules say.

        Raises ``ValueError``: actions or an order of the wrong shape or type.
        """
        if actions.shape != (self.num_games, self.spec.num_agents) or actions.dtype != np.int8:
            wanted = f"{(self.num_games, self.spec.num_agents)} int8, values 0 to {len(ACTIONS) - 1}"
            raise ValueError(expected("actions", wanted, f"{actions.shape} {actions.dtype}"))
        orders = self.index_order if order is None else self._check_order(order)
        actions = np.ascontiguousarray(actions)
        step_games(self.state, self.flags, self.outputs, self.tables, actions, orders, self.auto_reset)
        return self.outputs

    def observe(self) -> NDArray[np.uint8]:
        """Compute observations after ``state`` was written from outside. Returns tokens (N, A, D)."""
        observe_games(self.state, self.flags, self.outputs, self.tables)
        return self.outputs.tokens

    def board(self) -> Board:
        """Return the full state of all boards (arrays are shared with the world)."""
        s = self.state
        return Board(s.cells, s.position, s.heading, s.hand, s.out)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays of the games; with the actions they determine all later steps."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for games of another shape."""
        live = self._arrays()
        wrong = [n for n, a in live.items() if n not in state or state[n].shape != a.shape or state[n].dtype != a.dtype]
        if wrong:
            raise ValueError(expected("state", f"that of {self.num_games} such games", f"another {', '.join(wrong)}"))
        for name, array in live.items():
            array[...] = state[name]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**self.state._asdict(), **self.outputs._asdict()}

    def _check_order(self, order: NDArray[np.int8]) -> NDArray[np.int8]:
        agents = np.arange(self.spec.num_agents)
        shape = (self.num_games, len(agents))
        if order.shape != shape or order.dtype != np.int8 or (np.sort(order, axis=1) != agents).any():
            wanted = f"{shape} int8, each row a permutation of 0 to {len(agents) - 1}"
            raise ValueError(expected("order", wanted, f"{order.shape} {order.dtype}"))
        return np.ascontiguousarray(order)


class DoorsEnv:
    """The games of a ``world`` by seat; implements ``players.match.SeatsEnv`` and has a board.

    Attributes:
        actions: (N, A) actions of the last step; the next step overwrites them.
        sums: length (N,), returns (N, A) and events (N, A, E) so far of the running games.
        rows: table of finished episodes; its first ``row_count`` rows are valid.
        shaping: replaces the training reward; the canonical reward still goes into the episode table.
    """

    shaping: Shaping | None = None

    def __init__(self, world: World) -> None:
        self.world, self.spec, self.num_envs, self.board = world, world.spec, world.num_games, world.board()
        self._columns = tuple(enumerate(world.spec.seats))
        shape = (world.num_games, world.spec.num_agents)
        self.actions = np.zeros(shape, np.int8)
        self._clock = Clock()
        length, events = np.zeros(shape[0], np.int32), np.zeros((*shape, NUM_EVENTS))
        self.sums: tuple[NDArray[Any], ...] = (length, np.zeros(shape), events)
        self.rows, self.row_count = self._table(shape[0]), 0

    def reset(self, seed: int | Sequence[int]) -> dict[str, NDArray[Any]]:
        """Reset all games with ``seed``, or each with its own; returns tokens (N, D) of each seat."""
        self.row_count = 0
        self._clear_sums(np.ones(self.num_envs, np.bool_))
        self.world.reset(seed)
        return self.observations()

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the tokens (N, D) of each seat."""
        return self._by_seat(self.world.outputs.tokens)

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N,) or (N, 1) integers for each seat."""
        for a, seat in self._columns:
            self.actions[:, a] = actions[seat].reshape(-1)
        self._clock.begin()
        step = self.world.step(self.actions)
        self._clock.lap("engine")
        rows = self.room(self.num_envs)
        self.row_count = add_up(step.reward, step.events, step.done, step.winner, self.sums, rows, self.row_count)
        reward = step.reward
        if self.shaping is not None:
            # Eliminated agents get no reward: a team with a joint action would be rewarded for them.
            reward = np.where(step.acted, self.shaping(step.events, step.reward), 0.0)
        arrays: tuple[NDArray[Any], ...] = (step.tokens, step.final_tokens, reward, step.terminated, step.acted)
        return BatchedStep._make([*map(self._by_seat, arrays), step.truncated, step.done])

    def room(self, episodes: int) -> EpisodeTable:
        """Return :attr:`rows` with room for ``episodes`` more."""
        if self.row_count + episodes > self.rows.episodes:
            self.rows = EpisodeTable.concatenate([self.rows, self._table(max(self.rows.episodes, episodes))])
        return self.rows

    def boards(self) -> NDArray[np.uint8]:
        """Return the current cell codes (N, 128) of the boards."""
        cells: NDArray[np.uint8] = self.world.state.cells.copy()
        return cells

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Reset the games in ``which`` (N,) before they end; no table includes them."""
        self.world.reset(None, which)
        self._clear_sums(which)

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call."""
        finished = self._finished()
        self.row_count = 0
        return finished

    def _finished(self) -> EpisodeTable:
        return EpisodeTable._make(column[: self.row_count].copy() for column in self.rows)

    def _table(self, rows: int) -> EpisodeTable:
        shape = (rows, self.spec.num_agents)
        columns = np.zeros(rows, np.int32), np.zeros(shape), np.zeros((*shape, NUM_EVENTS))
        return EpisodeTable(*columns, np.zeros(rows, np.int8), np.zeros((rows, 0), np.int16))

    def unfinished(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> EpisodeTable:
        """Return rows of the unfinished games in ``which`` (N,), or with these numbers, without a winner."""
        length, returns, events = (column[which] for column in self.sums)
        rows = len(length)
        return EpisodeTable(length, returns, events, np.full(rows, -1, np.int8), np.zeros((rows, 0), np.int16))

    def _clear_sums(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> None:
        for array in self.sums:
            array[which] = 0

    def get_state(self) -> dict[str, Any]:
        """Return the state of the games and of their episodes."""
        log = {"sums": [array.copy() for array in self.sums], "finished": [self._finished()]}
        return {"world": self.world.get_state(), "log": log}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for a state of other games."""
        self.world.set_state(state["world"])
        for array, saved in zip(self.sums, state["log"]["sums"], strict=True):
            array[:] = saved
        self.rows = EpisodeTable.concatenate([*state["log"]["finished"], self._table(self.num_envs)])
        self.row_count = self.rows.episodes - self.num_envs

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on the ``engine`` since the last call."""
        return self._clock.drain()

    def _by_seat(self, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {seat: array[:, a] for a, seat in self._columns}


@kernel
def add_up(
    reward: NDArray[np.float64],
    events: NDArray[np.float32],
    done: NDArray[np.bool_],
    winner: NDArray[np.int8],
    sums: tuple[NDArray[Any], ...],
    rows: EpisodeTable,
    count: int,
) -> int:
    """Add one step's rewards (N, A), events (N, A, E) and 1 to the games' ``sums``, and move those of ended games.

    ``rows`` has room for them after its first ``count`` rows; returns the new count.
    """
    length, returns, counts = sums
    for n in range(reward.shape[0]):
        length[n] += 1
        for a in range(reward.shape[1]):
            returns[n, a] += reward[n, a]
            for e in range(events.shape[2]):
                counts[n, a, e] += events[n, a, e]
        if not done[n]:
            continue
        rows.length[count], rows.winner[count], length[n] = length[n], winner[n], 0
        for a in range(reward.shape[1]):
            rows.returns[count, a], returns[n, a] = returns[n, a], 0.0
            for e in range(events.shape[2]):
                rows.events[count, a, e], counts[n, a, e] = counts[n, a, e], 0.0
        count += 1
    return count


def _check(spec: GameSpec, num_games: int) -> None:
    problems = {
        "num_games": (num_games, num_games >= 1, "at least 1"),
        "view_size": (spec.view_size, spec.view_size in VIEW_SIZES, " or ".join(map(str, VIEW_SIZES))),
        "max_steps": (spec.max_steps, spec.max_steps >= 1, "at least 1"),
        "red": (spec.red, 1 <= spec.red <= 4, "1 to 4 agents (a game without red is undefined)"),
        "blue": (spec.blue, 0 <= spec.blue <= 4, "0 to 4 agents"),
    }
    for key, (value, good, wanted) in problems.items():
        if not good:
            raise ValueError(expected(key, wanted, value))
