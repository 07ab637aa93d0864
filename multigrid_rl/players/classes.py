"""Players that are a user's Python classes, ``module:Class``, or objects that a user's program passes.

They are tried before a run starts, and their answers are checked during play.
"""

from importlib.metadata import entry_points
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Naming, PlayerMaker
from multigrid_rl.players.places import place_of
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.trust import CODE, import_object, user_code
from multigrid_rl.types import AgentSpec, GameSpec, RunError, SeatView, UniformSource
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.engine import World

#: Entry points by which an installed package names its classes of players.
PLUGGED_IN = "multigrid_rl.players"
#: Games in which a user's player is tried.
_TRIALS = 3


def code_of(name: str) -> str | None:
    """Return the ``module:Class`` of a user's player, also from the name in its package's entry points."""
    if CODE.fullmatch(name):
        return name
    return next((point.value for point in entry_points(group=PLUGGED_IN, name=name)), None)


def check_not_class(key: str, name: str) -> None:
    """Refuse a user's class where a player must have a folder. Raises :class:`PlayerError`."""
    if code_of(name) is not None:
        wanted = "a player with a folder (a Python class takes part as an agent that calls it, docs/extending.md)"
        raise PlayerError(expected(key, wanted, name))


class UserPlayer:
    """Wraps a user's player for a match: adds optional parts that it lacks and checks its answers.

    ``player``: has ``act``; with memory also ``initial_state`` and ``reset_state``.
    """

    def __init__(self, name: str, player: Any) -> None:
        self.name = name
        self.player = player
        self.reads_board = bool(getattr(player, "reads_board", True))
        self._remembers = hasattr(player, "initial_state")

    def initial_state(self, games: int) -> Any:
        """Return the player's memory of ``games`` fresh games."""
        return self.player.initial_state(games) if self._remembers else None

    def reset_state(self, state: Any, done: NDArray[np.bool_]) -> Any:
        """Return the player's memory with the games in ``done`` (N,) reset."""
        return self.player.reset_state(state, done) if self._remembers else None

    def act(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[np.int8], Any]:
        """Return actions (N,). Raises ``RunError``: the player fails or returns anything else."""
        with user_code(f"player {self.name}", RunError):
            return self.act_checked(view, state, rng)

    def act_checked(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[np.int8], Any]:
        """Return actions (N,). Raises :class:`ConfigError` for invalid ones, and what the player raises."""
        answer = self.player.act(view._replace(tokens=view.tokens.copy()), state, rng)  # it may change them
        if not isinstance(answer, tuple) or len(answer) != 2:
            wanted = "actions and the next memory, a tuple of two"
            raise ConfigError(expected(f"player {self.name}: act", wanted, type(answer).__name__))
        return self._actions(np.asarray(answer[0]), len(view.tokens)), answer[1]

    def _actions(self, actions: NDArray[Any], games: int) -> NDArray[Any]:
        """Return an answer as actions of a game. Raises :class:`ConfigError`: they are invalid."""
        valid = actions.shape == (games,) and actions.dtype.kind in "iu"
        if not valid or ((actions < 0) | (actions >= len(ACTIONS))).any():
            raise self._invalid(f"integers 0 to {len(ACTIONS) - 1}, one for each of {games} games", actions)
        return actions.astype(np.int8)

    def _invalid(self, wanted: str, actions: NDArray[Any]) -> ConfigError:
        got = f"{actions.dtype} of shape {actions.shape}: {shown(str(actions.tolist()), 40)}"
        return ConfigError(expected(f"player {self.name}: actions", wanted, got))


class UserActor(UserPlayer):
    """Wraps a user's player in place of an agent of another package's environment.

    Args:
        player: see :class:`UserPlayer`; ``view.tokens`` (N, D) are the agent's observations.
        space: space of actions: choices (C,), or numbers (A,) with bounds.
    """

    sha256 = None

    def __init__(self, name: str, player: Any, space: spaces.Box | spaces.MultiDiscrete) -> None:
        super().__init__(name, player)
        self._space = space

    def _actions(self, actions: NDArray[Any], games: int) -> NDArray[Any]:
        (width,) = self._space.shape
        rows = actions[:, None] if actions.ndim == 1 and width == 1 else actions
        if rows.shape != (games, width) or not np.issubdtype(rows.dtype, np.number) or not np.isfinite(rows).all():
            raise self._invalid(f"finite numbers of shape ({games}, {width})", actions)
        if isinstance(self._space, spaces.Box):
            clipped: NDArray[np.float32] = np.clip(rows, self._space.low, self._space.high).astype(np.float32)
            return clipped
        integers = rows.astype(np.int64)
        if not ((integers == rows) & (integers >= 0) & (integers < self._space.nvec)).all():
            raise self._invalid(f"integers 0 to {(self._space.nvec - 1).tolist()} of shape ({games}, {width})", actions)
        return integers


def checked_player(name: str, player: Any, spec: GameSpec, seat: str) -> UserPlayer:
    """Let a player act once on ``seat`` of three games and return it wrapped. Raises :class:`ConfigError`: it fails."""
    world, agent = World(spec, _TRIALS), spec.seats.index(seat)
    with user_code(f"player {name}"):
        wrapper = UserPlayer(name, player)
        _try_player(wrapper, SeatView(world.outputs.tokens[:, agent], world.board(), agent))
    return wrapper


def _try_player(wrapper: UserPlayer, view: SeatView) -> None:
    """Let a wrapped player act once. Raises :class:`ConfigError` for what it lacks, and what the player raises."""
    key, player = f"player {wrapper.name}", wrapper.player
    if not hasattr(player, "act"):
        raise ConfigError(expected(key, "something with act(view, state, rng)", type(player).__name__))
    memory = [part for part in ("initial_state", "reset_state") if hasattr(player, part)]
    if len(memory) == 1:
        raise ConfigError(expected(key, "both initial_state and reset_state, or neither", memory[0]))
    state = wrapper.initial_state(_TRIALS)
    _, state = wrapper.act_checked(view, state, Streams(0, np.arange(_TRIALS)))
    if not memory and state is not None:
        wanted = "None as the next memory without initial_state and reset_state"
        raise ConfigError(expected(f"{key}: act", wanted, type(state).__name__))
    wrapper.reset_state(state, np.ones(_TRIALS, np.bool_))


def import_player(code: str, *arguments: Any) -> Any:
    """Import a class and call it with ``arguments``. Raises :class:`ConfigError`: it cannot be imported."""
    with user_code(f"player {code}"):
        return import_object(f"player {code}", code, "module:Class")(*arguments)


def agent_player_from_class(code: str, agent: AgentSpec) -> UserActor:
    """Import a class, make and try a player for an agent of another package's environment.

    The class is called with observation and action space. Raises :class:`ConfigError`: no import, or no valid action.
    """
    return agent_player(code, import_player(code, agent.observation_space, agent.action_space), agent)


def agent_player(name: str, player: Any, agent: AgentSpec) -> UserActor:
    """Let a player act once in place of an agent, all choices legal, and return it. Raises :class:`ConfigError`."""
    space, size = agent.observation_space, int(np.prod(agent.observation_space.shape or (1,)))
    rows = np.ones((_TRIALS, size), np.float32 if isinstance(space, spaces.Box) else np.uint8)
    rows[:, : rows.shape[1] - agent.legal] = 0
    with user_code(f"player {name}"):
        wrapper = UserActor(name, player, agent.action_space)
        _try_player(wrapper, SeatView(rows, None, 0))
    return wrapper


def catalogue_player(name: str, player: Any) -> PlayerMaker:
    """Return a user's object as a player of the catalogue."""
    return PlayerMaker(name, lambda game, seat: place_of(game).from_object(game, name, player, seat))


def _find(name: str) -> PlayerMaker | None:
    code = code_of(name)
    return None if code is None else PlayerMaker(name, lambda game, seat: place_of(game).from_class(game, code, seat))


#: Entry of ``tables.NAMINGS``.
NAMING = Naming(
    "module:Class", _find, runs_code=True, known=lambda: [point.name for point in entry_points(group=PLUGGED_IN)]
)
