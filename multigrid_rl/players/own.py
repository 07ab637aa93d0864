"""Players of somebody's own, ``module:Class``: tried before anything starts, watched while they play."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.scenario import MISTAKES, ConfigError, mistakes_told
from multigrid_rl.text import expected, one_line, shown
from multigrid_rl.types import GameSpec, RunError, SeatView, UniformSource
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.engine import World
from multigrid_rl.world.streams import Streams

_GAMES = 3


class OwnPlayer:
    """A player of somebody's own as a match takes it; what it needs not have is added, what it answers is checked.

    Args:
        name: what it is called.
        player: has ``act``; with memory also ``initial_state`` and ``reset_state``.
    """

    def __init__(self, name: str, player: Any) -> None:
        self.name = name
        self.player = player
        self.reads_board = bool(getattr(player, "reads_board", True))
        self._remembers = hasattr(player, "initial_state")

    def initial_state(self, games: int) -> Any:
        """Return its memory of ``games`` fresh games."""
        return self.player.initial_state(games) if self._remembers else None

    def reset_state(self, state: Any, done: NDArray[np.bool_]) -> Any:
        """Return its memory with the games in ``done`` (N,) started afresh."""
        return self.player.reset_state(state, done) if self._remembers else None

    def act(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[np.int8], Any]:
        """Return its actions (N,). Raises ``RunError``: it failed, or answered something else."""
        try:
            return self.checked(view, state, rng)
        except ConfigError as error:
            raise RunError(str(error)) from error
        except MISTAKES as error:
            raise RunError(f"player {self.name}: {type(error).__name__}: {one_line(error)}") from error

    def checked(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[np.int8], Any]:
        """Return its actions (N,). Raises :class:`ConfigError` for other ones, and whatever its code raises."""
        answer = self.player.act(view, state, rng)
        if not isinstance(answer, tuple) or len(answer) != 2:
            wanted = "actions and the next memory, a tuple of two"
            raise ConfigError(expected(f"player {self.name}: act", wanted, type(answer).__name__))
        actions = np.asarray(answer[0])
        good = actions.shape == (len(view.tokens),) and actions.dtype.kind in "iu"
        if not good or ((actions < 0) | (actions >= len(ACTIONS))).any():
            wanted = f"integers 0 to {len(ACTIONS) - 1}, one for each of {len(view.tokens)} games"
            got = f"{actions.dtype} of shape {actions.shape}: {shown(str(actions.tolist()), 40)}"
            raise ConfigError(expected(f"player {self.name}: actions", wanted, got))
        return actions.astype(np.int8), answer[1]


def watched(name: str, own: Any, spec: GameSpec, seat: str) -> OwnPlayer:
    """Return a player that acted once on ``seat`` of three games. Raises :class:`ConfigError`: it cannot."""
    with mistakes_told(f"player {name}"):
        if not hasattr(own, "act"):
            raise ConfigError(expected(f"player {name}", "something with act(view, state, rng)", own))
        player = OwnPlayer(name, own)
        world, agent = World(spec, _GAMES), spec.seats.index(seat)
        view = SeatView(world.outputs.tokens[:, agent], world.board(), agent)
        state = player.initial_state(_GAMES)
        _, state = player.checked(view, state, Streams(0, np.arange(_GAMES)))
        player.reset_state(state, np.ones(_GAMES, np.bool_))
    return player
