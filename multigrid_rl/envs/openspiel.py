"""Games of OpenSpiel (https://arxiv.org/abs/1908.09453), as environments of PettingZoo's kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.envs.zoo import LIMIT, Happened, How, Shown
from multigrid_rl.files import install_command
from multigrid_rl.text import expected, suggestion


def load_game(name: str, arguments: Mapping[str, Any]) -> Any:
    """Load a game of OpenSpiel's. Raises ``ValueError``: it is not installed, or knows no such game."""
    try:
        import pyspiel  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ValueError(expected("env_id", f"OpenSpiel ({install_command('games')})", f"none: {error}")) from error
    known = [kind.short_name for kind in pyspiel.registered_games()]
    if name.partition("(")[0] not in known:
        raise ValueError(expected("env_id", "a game of OpenSpiel's", f"{name}{suggestion(name, known)}"))
    try:
        return pyspiel.load_game(name, dict(arguments))
    except (pyspiel.SpielError, TypeError) as error:
        raise ValueError(expected("env_args", f"arguments of {name}", f"{dict(arguments)}: {error}")) from error


class Situation(NamedTuple):
    """What a player knows when it decides."""

    agent: str
    seen: NDArray[np.float32]  # (D,)
    flags: NDArray[np.float32]  # (A,) 1 for each legal action


@dataclass
class Position:
    """One position of a game, and those after it that were played: half of the time of a small game goes into them."""

    state: Any  # OpenSpiel's, which nobody changes
    paid: list[float]  # by whatever led here, for each player
    chance: list[tuple[int, float]] = field(default_factory=list)  # its actions with their probabilities, if it moves
    over: bool = False
    turn: tuple[str, ...] = ()
    seen: dict[str, Any] = field(default_factory=dict)
    after: dict[Any, Position] = field(default_factory=dict)


#: First positions, and for how many more there is room, by game and arguments: all games of a process share them.
_KNOWN: dict[tuple[str, str], tuple[Position, list[int]]] = {}
#: Numbers of observations that are kept with them.
_NUMBERS = 5_000_000


def _size(game: Any) -> int:
    """Return how many numbers a player sees; 0 where a game promises tensors that it does not have."""
    import pyspiel  # noqa: PLC0415 - an extra

    memory = game.get_type().provides_information_state_tensor
    try:
        return int(game.information_state_tensor_size() if memory else game.observation_tensor_size())
    except pyspiel.SpielError:
        return 0


class Spiel:
    """One game. Who moves sees its information state, or its observation where the game has no such tensor.

    Chance moves by the episode's seed. (Shimmy's wrapper counts chance's moves towards the longest game: it cuts poker
    short, and shows observations, which forget what was bet.)

    Args:
        name: of the game, such as ``leduc_poker``.
        env_args: its parameters.

    Raises:
        ValueError: see :func:`load_game`, or a game without tensors.
    """

    draws: Mapping[How, Mapping[str, Any]] = {"text": {}}
    fps = 1.0

    def __init__(self, name: str, env_args: Mapping[str, Any]) -> None:
        env_args = {key: value for key, value in env_args.items() if key != LIMIT}
        self.game = load_game(name, env_args)
        kind = self.game.get_type()
        self._memory = kind.provides_information_state_tensor
        self._size = _size(self.game) if self._memory or kind.provides_observation_tensor else 0
        if not self._size:
            raise ValueError(expected("env_id", "a game of OpenSpiel's that shows tensors", name))
        self.agents = tuple(f"player_{k}" for k in range(self.game.num_players()))
        self.turns = kind.dynamics == type(kind.dynamics).SEQUENTIAL
        if not self.turns and kind.dynamics != type(kind.dynamics).SIMULTANEOUS:
            raise ValueError(expected("env_id", "a game of OpenSpiel's between players", f"{name}, a mean field"))
        self._open = kind.information == type(kind.information).PERFECT_INFORMATION
        self._told = kind.provides_information_state_string
        self._actions = self.game.num_distinct_actions()
        key = name, json.dumps(dict(env_args), sort_keys=True)
        if key not in _KNOWN:
            drawn = kind.chance_mode == type(kind.chance_mode).SAMPLED_STOCHASTIC  # positions that are not repeated
            room = 0 if drawn else _NUMBERS // self._size
            _KNOWN[key] = self._position(self.game.new_initial_state()), [room]
        self._first, self._room = _KNOWN[key]
        self._now = self._first

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:  # noqa: ARG002 - all are alike
        """Return what an agent sees and what it does."""
        return spaces.Box(-np.inf, np.inf, (self._size,), np.float32), spaces.Discrete(self._actions)

    def drawn(self, how: How, agent: str | None = None) -> str:  # noqa: ARG002 - text alone
        """Return the state as text; of a game with secrets what ``agent`` knows, while it is played."""
        state = self.state
        if self._open or agent is None or state.is_terminal():
            return str(state)
        k = self.agents.index(agent)
        return str(state.information_state_string(k) if self._told else state.observation_string(k))

    def named(self, agent: str, action: int) -> str:
        """Return OpenSpiel's name of a choice."""
        return str(self.state.action_to_string(self.agents.index(agent), action))

    def close(self) -> None:
        """Do nothing: it holds no window."""

    @property
    def state(self) -> Any:
        """The present position, of OpenSpiel's."""
        return self._now.state

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        self._now, self._chance = self._first, np.random.default_rng(seed)
        return self._next(self._now.paid)

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one step."""
        if self._now.state.is_simultaneous_node():
            self._go(tuple(int(actions.get(agent, 0)) for agent in self.agents))
        else:
            self._go(int(actions[self.agents[self._now.state.current_player()]]))
        return self._next(self._now.paid)

    def _next(self, paid: list[float]) -> Happened:
        while self._now.chance:
            left = self._chance.random()
            for action, probability in self._now.chance:  # noqa: B007 - the last one takes the rounding error
                left -= probability
                if left < 0:
                    break
            self._go(action)
            paid = [before + more for before, more in zip(paid, self._now.paid, strict=True)]
        now = Happened(self._now.seen, self._now.turn, dict(zip(self.agents, paid, strict=True)), others=self._others)
        if self._now.over:
            now.ended = dict.fromkeys(self.agents, True)
        return now

    def _others(self) -> Shown:
        # Who is not to move has no choice, and so no flags.
        return {agent: (self._shown(self._now.state, k)[0], {}) for k, agent in enumerate(self.agents)}

    def _go(self, action: int | tuple[int, ...]) -> None:
        """Go to the position after an action, or after those of all players at once."""
        known = self._now.after.get(action)
        if known is None:
            state = self._now.state.clone()
            apply = state.apply_actions if isinstance(action, tuple) else state.apply_action
            apply(action)
            known = self._position(state)
            if self._room[0] > 0:
                self._room[0] -= 1
                self._now.after[action] = known
        self._now = known

    def _position(self, state: Any) -> Position:
        paid = state.rewards() if state.move_number() else [0.0] * len(self.agents)
        if state.is_chance_node():
            return Position(state, paid, state.chance_outcomes())
        if state.is_terminal():
            return Position(state, paid, over=True)
        movers = range(len(self.agents)) if state.is_simultaneous_node() else [state.current_player()]
        turn = tuple(self.agents[k] for k in movers if state.legal_actions(k))
        shown = {self.agents[k]: self._shown(state, k) for k in movers}
        return Position(state, paid, turn=turn, seen={a: (s, {"action_mask": f}) for a, (s, f) in shown.items()})

    def _shown(self, state: Any, k: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what player ``k`` sees in a position (D,), and flags of its legal actions (A,)."""
        flags = np.zeros(self._actions, np.float32)
        flags[state.legal_actions(k)] = 1
        seen = state.information_state_tensor(k) if self._memory else state.observation_tensor(k)
        return np.array(seen, np.float32), flags

    def situations(self, most: int) -> dict[str, Situation]:
        """Return all situations that a player can tell apart, by OpenSpiel's name of each.

        Args:
            most: positions of the game that are looked at.

        Raises:
            ValueError: there are more, or the game is none in which OpenSpiel computes best responses.
        """
        kind = self.game.get_type()
        known = kind.chance_mode != type(kind.chance_mode).SAMPLED_STOCHASTIC
        key = f"env_id=openspiel:{kind.short_name}"
        if not (self.turns and known and kind.provides_information_state_string):
            wanted = "a game in turns whose chance is known, to compute best responses"
            raise ValueError(expected(key, wanted, "one that OpenSpiel computes none in"))
        found: dict[str, Situation] = {}
        waiting, looked = [self.game.new_initial_state()], 0
        while waiting:
            state, looked = waiting.pop(), looked + 1
            if looked > most:
                raise ValueError(expected(key, f"at most {most:,} positions, to compute best responses", "more"))
            if state.is_terminal():
                continue
            if not state.is_chance_node() and (name := state.information_state_string()) not in found:
                k = state.current_player()
                found[name] = Situation(self.agents[k], *self._shown(state, k))
            waiting += [state.child(action) for action in state.legal_actions()]
        return found

    def best_responses(self, policy: Mapping[str, list[tuple[int, float]]]) -> dict[str, tuple[float, float]]:
        """Return what each agent earns by ``policy``, and what a best response to it in its place would.

        Args:
            policy: (action, probability) of all legal actions, by situation.
        """
        import pyspiel  # noqa: PLC0415 - an extra

        start, table = self.game.new_initial_state(), pyspiel.TabularPolicy(dict(policy))
        own = pyspiel.expected_returns(start, table, -1, True)
        best = [pyspiel.TabularBestResponse(self.game, k, table).value_from_state(start) for k in range(len(own))]
        return dict(zip(self.agents, zip(own, best, strict=True), strict=True))
