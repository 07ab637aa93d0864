"""Games of OpenSpiel (https://arxiv.org/abs/1908.09453), as environments of PettingZoo's kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multigrid_rl.envs.zoo import Happened
from multigrid_rl.text import expected, suggestion


def load_game(name: str, arguments: Mapping[str, Any]) -> Any:
    """Load a game of OpenSpiel's. Raises ``ValueError``: it is not installed, or knows no such game."""
    try:
        import pyspiel  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ValueError(expected("env_id", "OpenSpiel (pip install open_spiel)", f"none: {error}")) from error
    known = [kind.short_name for kind in pyspiel.registered_games()]
    if name.partition("(")[0] not in known:
        raise ValueError(expected("env_id", "a game of OpenSpiel's", f"{name}{suggestion(name, known)}"))
    try:
        return pyspiel.load_game(name, dict(arguments))
    except (pyspiel.SpielError, TypeError) as error:
        raise ValueError(expected("env_args", f"arguments of {name}", f"{dict(arguments)}: {error}")) from error


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

    def __init__(self, name: str, env_args: Mapping[str, Any]) -> None:
        self.game = load_game(name, env_args)
        kind = self.game.get_type()
        self._memory = kind.provides_information_state_tensor
        if not (self._memory or kind.provides_observation_tensor):
            raise ValueError(expected("env_id", "a game of OpenSpiel's that shows tensors", name))
        self.agents = tuple(f"player_{k}" for k in range(self.game.num_players()))
        self.turns = kind.dynamics == type(kind.dynamics).SEQUENTIAL

    def spaces(self, agent: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:  # noqa: ARG002 - all are alike
        """Return what an agent sees and what it does."""
        size = self.game.information_state_tensor_size() if self._memory else self.game.observation_tensor_size()
        return spaces.Box(-np.inf, np.inf, (size,), np.float32), spaces.Discrete(self.game.num_distinct_actions())

    def close(self) -> None:
        """Do nothing: it has neither windows nor files."""

    def start(self, seed: int) -> Happened:
        """Begin an episode."""
        self.state, self._chance = self.game.new_initial_state(), np.random.default_rng(seed)
        return self._next()

    def play(self, actions: dict[str, Any]) -> Happened:
        """Play one step."""
        if self.state.is_simultaneous_node():
            nothing = [0] * len(self.agents)
            for agent, action in actions.items():
                nothing[self.agents.index(agent)] = int(action)
            self.state.apply_actions(nothing)
        else:
            self.state.apply_action(int(actions[self.agents[self.state.current_player()]]))
        return self._next()

    def _next(self) -> Happened:
        state, paid = self.state, np.zeros(len(self.agents))
        if state.move_number():
            paid += state.rewards()
        while state.is_chance_node():
            actions, probabilities = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(int(self._chance.choice(actions, p=probabilities)))
            paid += state.rewards()
        now = Happened({}, (), dict(zip(self.agents, paid.tolist(), strict=True)))
        if state.is_terminal():
            now.ended = dict.fromkeys(self.agents, True)
            return now
        movers = range(len(self.agents)) if state.is_simultaneous_node() else [state.current_player()]
        now.turn = tuple(self.agents[k] for k in movers if state.legal_actions(k))
        for k in movers:
            flags = np.zeros(self.game.num_distinct_actions(), np.float32)
            flags[state.legal_actions(k)] = 1
            seen = state.information_state_tensor(k) if self._memory else state.observation_tensor(k)
            now.seen[self.agents[k]] = np.array(seen, np.float32), {"action_mask": flags}
        return now
