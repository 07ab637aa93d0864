"""Games of OpenSpiel (https://arxiv.org/abs/1908.09453), as environments of PettingZoo's kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.envs.zoo import LIMIT, DrawMode, Observations, StepResult
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
    """A player's knowledge at a decision."""

    agent: str
    observation: NDArray[np.float32]  # (D,)
    flags: NDArray[np.float32]  # (A,) 1 for each legal action


@dataclass
class Position:
    """One position of a game, linked to the next ones that were played: computing them takes half of the time."""

    state: Any  # OpenSpiel's, never changed
    rewards: list[float]  # of the step to this position, by player
    chance: list[tuple[int, float]] = field(default_factory=list)  # actions with probabilities, if chance moves
    over: bool = False
    turn: tuple[str, ...] = ()
    observations: dict[str, Any] = field(default_factory=dict)
    next_positions: dict[Any, Position] = field(default_factory=dict)


#: First positions and room for more, by game and arguments: all games of a process share them.
_KNOWN: dict[tuple[str, str], tuple[Position, list[int]]] = {}
#: Maximum count of observed numbers that are stored with them.
_NUMBERS = 5_000_000


def _size(game: Any) -> int:
    """Return the length of an observation; 0 if a game lacks the tensors that it promises."""
    import pyspiel  # noqa: PLC0415 - an extra

    memory = game.get_type().provides_information_state_tensor
    try:
        return int(game.information_state_tensor_size() if memory else game.observation_tensor_size())
    except pyspiel.SpielError:
        return 0


class Spiel:
    """One game. A mover sees its information state, or its observation if the game has no such tensor.

    Chance moves by the episode's seed. (Shimmy's wrapper counts chance's moves towards the longest game: it cuts poker
    short, and shows observations, which forget what was bet.)

    Args:
        name: name of the game, such as ``leduc_poker``.
        env_args: its parameters.

    Raises ``ValueError``: see :func:`load_game`, or a game without tensors.
    """

    draws: Mapping[DrawMode, Mapping[str, Any]] = {"text": {}}
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
        self._no_secrets = kind.information == type(kind.information).PERFECT_INFORMATION
        self._has_text = kind.provides_information_state_string
        self._actions = self.game.num_distinct_actions()
        key = name, json.dumps(dict(env_args), sort_keys=True)
        if key not in _KNOWN:
            sampled = kind.chance_mode == type(kind.chance_mode).SAMPLED_STOCHASTIC  # positions that are not repeated
            _KNOWN[key] = self._position(self.game.new_initial_state()), [0 if sampled else _NUMBERS // self._size]
        self._root, self._room = _KNOWN[key]
        self._current = self._root

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:  # noqa: ARG002 - all are the same
        """Return the observation and action space of an agent."""
        return spaces.Box(-np.inf, np.inf, (self._size,), np.float32), spaces.Discrete(self._actions)

    def drawn(self, mode: DrawMode, agent: str | None = None) -> str:  # noqa: ARG002 - only text
        """Return the state as text; of a game with secrets, before its end, only what ``agent`` knows."""
        state = self._current.state
        if self._no_secrets or agent is None or state.is_terminal():
            return str(state)
        k = self.agents.index(agent)
        return str(state.information_state_string(k) if self._has_text else state.observation_string(k))

    def named(self, agent: str, action: int) -> str:
        """Return OpenSpiel's name of a choice."""
        return str(self._current.state.action_to_string(self.agents.index(agent), action))

    def close(self) -> None:
        """Do nothing: it holds no window."""

    def start(self, seed: int) -> StepResult:
        """Begin an episode."""
        self._current, self._chance = self._root, np.random.default_rng(seed)
        return self._next(self._current.rewards)

    def play(self, actions: dict[str, Any]) -> StepResult:
        """Play one step."""
        if self._current.state.is_simultaneous_node():
            self._go(tuple(int(actions.get(agent, 0)) for agent in self.agents))
        else:
            self._go(int(actions[self.agents[self._current.state.current_player()]]))
        return self._next(self._current.rewards)

    def _next(self, rewards: list[float]) -> StepResult:
        while self._current.chance:
            remaining = self._chance.random()
            for action, probability in self._current.chance:  # noqa: B007 - the last one takes the rounding error
                remaining -= probability
                if remaining < 0:
                    break
            self._go(action)
            rewards = [total + reward for total, reward in zip(rewards, self._current.rewards, strict=True)]
        current, by_agent = self._current, dict(zip(self.agents, rewards, strict=True))
        result = StepResult(current.observations, current.turn, by_agent, observe_others=self._others)
        if current.over:
            result.endings = dict.fromkeys(self.agents, True)
        return result

    def _others(self) -> Observations:
        # Agents that do not move have no choice and no flags.
        return {agent: (self._view(self._current.state, k)[0], {}) for k, agent in enumerate(self.agents)}

    def _go(self, action: int | tuple[int, ...]) -> None:
        """Go to the position after an action, or after those of all players at once."""
        if (known := self._current.next_positions.get(action)) is None:
            state = self._current.state.clone()
            apply = state.apply_actions if isinstance(action, tuple) else state.apply_action
            apply(action)
            known = self._position(state)
            if self._room[0] > 0:
                self._room[0] -= 1
                self._current.next_positions[action] = known
        self._current = known

    def _position(self, state: Any) -> Position:
        rewards = state.rewards() if state.move_number() else [0.0] * len(self.agents)
        if state.is_chance_node():
            return Position(state, rewards, state.chance_outcomes())
        if state.is_terminal():
            return Position(state, rewards, over=True)
        movers = range(len(self.agents)) if state.is_simultaneous_node() else [state.current_player()]
        turn = tuple(self.agents[k] for k in movers if state.legal_actions(k))
        views = {self.agents[k]: self._view(state, k) for k in movers}
        pairs = {agent: (obs, {"action_mask": flags}) for agent, (obs, flags) in views.items()}
        return Position(state, rewards, turn=turn, observations=pairs)

    def _view(self, state: Any, k: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the observation of player ``k`` in a position (D,), and flags of its legal actions (A,)."""
        flags = np.zeros(self._actions, np.float32)
        flags[state.legal_actions(k)] = 1
        observation = state.information_state_tensor(k) if self._memory else state.observation_tensor(k)
        return np.array(observation, np.float32), flags

    def situations(self, limit: int) -> dict[str, Situation]:
        """Return all situations that a player can distinguish, by OpenSpiel's name.

        Args:
            limit: maximum number of positions of the game.

        Raises ``ValueError``: there are more, or OpenSpiel cannot compute best responses in the game.
        """
        kind = self.game.get_type()
        known = kind.chance_mode != type(kind.chance_mode).SAMPLED_STOCHASTIC
        key = f"env_id=openspiel:{kind.short_name}"
        if not (self.turns and known and kind.provides_information_state_string):
            wanted = "a game in turns whose chance is known, to compute best responses"
            raise ValueError(expected(key, wanted, "one that OpenSpiel computes none in"))
        found: dict[str, Situation] = {}
        waiting, count = [self.game.new_initial_state()], 0
        while waiting:
            state, count = waiting.pop(), count + 1
            if count > limit:
                raise ValueError(expected(key, f"at most {limit:,} positions, to compute best responses", "more"))
            if state.is_terminal():
                continue
            if not state.is_chance_node() and (name := state.information_state_string()) not in found:
                k = state.current_player()
                found[name] = Situation(self.agents[k], *self._view(state, k))
            waiting += [state.child(action) for action in state.legal_actions()]
        return found

    def best_responses(self, policy: Mapping[str, list[tuple[int, float]]]) -> dict[str, tuple[float, float]]:
        """Return the return of each agent under ``policy``, and of a best response in its place.

        Args:
            policy: (action, probability) of all legal actions, by situation.
        """
        import pyspiel  # noqa: PLC0415 - an extra

        start, table = self.game.new_initial_state(), pyspiel.TabularPolicy(dict(policy))
        returns = pyspiel.expected_returns(start, table, -1, True)
        best = [pyspiel.TabularBestResponse(self.game, k, table).value_from_state(start) for k in range(len(returns))]
        return dict(zip(self.agents, zip(returns, best, strict=True), strict=True))
