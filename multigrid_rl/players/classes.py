"""Players that are Python classes of the user's own, ``module:Class``, or objects that a program hands over.

They are tried before anything starts, and watched while they play.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Made, Naming
from multigrid_rl.players.places import place_of
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.trust import CODE, import_object, user_code
from multigrid_rl.types import AgentSpec, GameSpec, RunError, SeatView, UniformSource
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.engine import World

#: Entry points by which an installed package gives its classes of players names.
PLUGGED_IN = "multigrid_rl.players"
#: In which a player of the user's own is tried.
_GAMES = 3


def code_of(name: str) -> str | None:
    """Return the ``module:Class`` of a player of the user's own, also by the name that its package gives it."""
    if CODE.fullmatch(name):
        return name
    return next((point.value for point in entry_points(group=PLUGGED_IN, name=name)), None)


def check_not_class(key: str, name: str) -> None:
    """Refuse a player of the user's own where one must have a folder. Raises :class:`PlayerError`."""
    if code_of(name) is not None:
        wanted = "a player with a folder (a Python class takes part as an agent that calls it, docs/extending.md)"
        raise PlayerError(expected(key, wanted, name))


class OwnPlayer:
    """A player of the user's own as a match takes it; what it needs not have is added, what it answers is checked.

    ``player``: has ``act``; with memory also ``initial_state`` and ``reset_state``.
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
            with user_code(f"player {self.name}"):
                return self.checked(view, state, rng)
        except ConfigError as error:
            raise RunError(str(error)) from error

    def checked(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[np.int8], Any]:
        """Return its actions (N,). Raises :class:`ConfigError` for other ones, and whatever its code raises."""
        answer = self.player.act(view, state, rng)
        if not isinstance(answer, tuple) or len(answer) != 2:
            wanted = "actions and the next memory, a tuple of two"
            raise ConfigError(expected(f"player {self.name}: act", wanted, type(answer).__name__))
        return self._actions(np.asarray(answer[0]), len(view.tokens)), answer[1]

    def _actions(self, actions: NDArray[Any], games: int) -> NDArray[Any]:
        """Return its answer as actions of a game. Raises :class:`ConfigError`: they are none."""
        good = actions.shape == (games,) and actions.dtype.kind in "iu"
        if not good or ((actions < 0) | (actions >= len(ACTIONS))).any():
            wanted = f"integers 0 to {len(ACTIONS) - 1}, one for each of {games} games"
            raise self._refused(wanted, actions)
        return actions.astype(np.int8)

    def _refused(self, wanted: str, actions: NDArray[Any]) -> ConfigError:
        got = f"{actions.dtype} of shape {actions.shape}: {shown(str(actions.tolist()), 40)}"
        return ConfigError(expected(f"player {self.name}: actions", wanted, got))


class OwnActor(OwnPlayer):
    """A player of the user's own in place of an agent of another package's environment.

    Args:
        player: as above; ``view.tokens`` (N, D) are the agent's observations.
        space: of its actions: choices (C,), or numbers (A,) with bounds.
    """

    sha256 = None

    def __init__(self, name: str, player: Any, space: spaces.Box | spaces.MultiDiscrete) -> None:
        super().__init__(name, player)
        self._space = space

    def _actions(self, actions: NDArray[Any], games: int) -> NDArray[Any]:
        (width,) = self._space.shape
        rows = actions[:, None] if actions.ndim == 1 and width == 1 else actions
        if rows.shape != (games, width) or not np.issubdtype(rows.dtype, np.number) or not np.isfinite(rows).all():
            raise self._refused(f"finite numbers of shape ({games}, {width})", actions)
        if isinstance(self._space, spaces.Box):
            inside: NDArray[np.float32] = np.clip(rows, self._space.low, self._space.high).astype(np.float32)
            return inside
        whole = rows.astype(np.int64)
        if not ((whole == rows) & (whole >= 0) & (whole < self._space.nvec)).all():
            raise self._refused(f"integers 0 to {(self._space.nvec - 1).tolist()} of shape ({games}, {width})", actions)
        return whole


def checked_player(name: str, own: Any, spec: GameSpec, seat: str) -> OwnPlayer:
    """Return a player that acted once on ``seat`` of three games. Raises :class:`ConfigError`: it cannot."""
    world, agent = World(spec, _GAMES), spec.seats.index(seat)
    view = SeatView(world.outputs.tokens[:, agent], world.board(), agent)
    return _tried(name, own, partial(OwnPlayer, name, own), view)


def _tried(name: str, own: Any, build: Callable[[], OwnPlayer], view: SeatView) -> OwnPlayer:
    """Return the player after one act. Raises :class:`ConfigError`: it cannot."""
    with user_code(f"player {name}"):
        if not hasattr(own, "act"):
            raise ConfigError(expected(f"player {name}", "something with act(view, state, rng)", type(own).__name__))
        memory = [part for part in ("initial_state", "reset_state") if hasattr(own, part)]
        if len(memory) == 1:
            raise ConfigError(expected(f"player {name}", "both initial_state and reset_state, or neither", memory[0]))
        player = build()
        state = player.initial_state(_GAMES)
        _, state = player.checked(view, state, Streams(0, np.arange(_GAMES)))
        if not memory and state is not None:
            wanted = "None as the next memory without initial_state and reset_state"
            raise ConfigError(expected(f"player {name}: act", wanted, type(state).__name__))
        player.reset_state(state, np.ones(_GAMES, np.bool_))
    return player


def made(code: str, *given: Any) -> Any:
    """Import a class and make a player from what is ``given``. Raises :class:`ConfigError`: it cannot be imported."""
    with user_code(f"player {code}"):
        return import_object(f"player {code}", code, "module:Class")(*given)


def in_place_of_agent(code: str, agent: AgentSpec) -> OwnActor:
    """Import a class, make the player of an agent of another package's environment and try it.

    It is made from the spaces of observations and actions. Raises :class:`ConfigError`: it cannot be imported, or act.
    """
    return acting(code, made(code, agent.observation_space, agent.action_space), agent)


def acting(name: str, own: Any, agent: AgentSpec) -> OwnActor:
    """Return a player in place of an agent that acted once, every choice being legal. Raises :class:`ConfigError`."""
    seen = agent.observation_space
    rows = np.ones((_GAMES, int(np.prod(seen.shape or (1,)))), np.float32 if isinstance(seen, spaces.Box) else np.uint8)
    rows[:, : rows.shape[1] - agent.legal] = 0
    actor = OwnActor(name, own, agent.action_space)
    _tried(name, own, lambda: actor, SeatView(rows, None, 0))
    return actor


def handed_over(name: str, own: Any) -> Made:
    """Return an object that a program hands over as a player of the catalogue."""
    return Made(name, lambda game, seat: place_of(game).own(game, name, own, seat))


def _find(name: str) -> Made | None:
    code = code_of(name)
    return None if code is None else Made(name, lambda game, seat: place_of(game).own_class(game, code, seat))


#: Entry of ``tables.NAMINGS``.
NAMING = Naming(
    "module:Class", _find, runs_code=True, known=lambda: [point.name for point in entry_points(group=PLUGGED_IN)]
)
