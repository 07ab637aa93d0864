"""``World``: a batch of games. The only implementation of the game; all environment APIs wrap it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.streams import seeded
from multigrid_rl.text import expected
from multigrid_rl.types import Board, GameSpec
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.kernels import observe_games, reset_games, step_games
from multigrid_rl.world.state import Step, allocate_outputs, allocate_state, make_flags
from multigrid_rl.world.views import view_tables

VIEW_SIZES = (3, 5, 7)


class World:
    """``num_games`` games of one specification, stepped together.

    Args:
        spec: the game.
        num_games: how many games ``N``.
        seed: with a game's number, it determines all randomness in that game.
        first_game: number of the first game; game ``k`` of any batch on any machine plays the same under one seed.
        auto_reset: reset a finished game at once; else it stays finished until :meth:`reset`.

    Raises:
        ValueError: invalid specification.
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
        self._index_order = np.zeros((0, spec.num_agents), np.int8)
        self.reset(seed)

    def reset(self, seed: int | None = None, which: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
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

        Raises:
            ValueError: actions or an order of the wrong shape or type.
        """
        if actions.shape != (self.num_games, self.spec.num_agents) or actions.dtype != np.int8:
            wanted = f"{(self.num_games, self.spec.num_agents)} int8, values 0 to {len(ACTIONS) - 1}"
            raise ValueError(expected("actions", wanted, f"{actions.shape} {actions.dtype}"))
        orders = self._index_order if order is None else self._checked_order(order)
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
        """Return copies of all arrays of the games, which with the actions determine their future."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for games of another shape."""
        own = self._arrays()
        wrong = [n for n, a in own.items() if n not in state or state[n].shape != a.shape or state[n].dtype != a.dtype]
        if wrong:
            raise ValueError(expected("state", f"that of {self.num_games} such games", f"another {', '.join(wrong)}"))
        for name, array in own.items():
            array[...] = state[name]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**self.state._asdict(), **self.outputs._asdict()}

    def _checked_order(self, order: NDArray[np.int8]) -> NDArray[np.int8]:
        agents = np.arange(self.spec.num_agents)
        shape = (self.num_games, len(agents))
        if order.shape != shape or order.dtype != np.int8 or (np.sort(order, axis=1) != agents).any():
            wanted = f"{shape} int8, each row a permutation of 0 to {len(agents) - 1}"
            raise ValueError(expected("order", wanted, f"{order.shape} {order.dtype}"))
        return np.ascontiguousarray(order)


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
