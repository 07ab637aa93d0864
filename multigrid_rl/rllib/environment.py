"""The red/blue-door game as RLlib's ``MultiAgentEnv``, and its names in Tune's registry: for stock algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.tune.registry import register_env

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.gym import sides
from multigrid_rl.players.gymnasium_env import match_around
from multigrid_rl.text import ConfigError, expected, unknown
from multigrid_rl.world import spaces
from multigrid_rl.world.constants import DONE
from multigrid_rl.world.rendering import render_frame
from multigrid_rl.world.state import token_categories

#: Keys of ``env_config`` with their defaults.
KEYS: dict[str, Any] = {"scenario": "1v1", "players": {}, "observation": "flat"}
OBSERVATIONS = ("flat", "tokens")


class RedBlueDoors(MultiAgentEnv):
    """One game. Its agents are the open seats, blue first: ``blue_0`` and ``red_0`` in 1v1.

    * Observation: ``flat``, one-hot vectors (``world.spaces.flat_space``), which RLlib's default modules read; or
      ``tokens``, MultiDiscrete (D,), which our networks read.
    * Action: Discrete(7): left, right, forward, pickup, drop, toggle, done.
    * Reward: the canonical reward (docs/game.md, section 5).
    * Terminated: all agents when the game is won; under ``fair`` rules an eliminated agent at once, and it leaves
      ``agents``. Truncated: all remaining agents after ``max_steps`` steps. A win in the last step is both. The episode
      is over when no agent is left, though background players may not have finished.
    * Info: the seat's events in this step, and ``winner`` (0 red, 1 blue, -1 none), see ``world.spaces.info``.

    ``reset(seed=...)`` determines all randomness, background players' included; without a seed the streams of the last
    one continue, as those of a ``players.match.Match`` do: both play the same games.

    Args:
        config: ``env_config``: ``scenario``, a name or a file; ``players``, background players by seat, a name or a
            mixture of names with weights, all other seats are open; ``observation``.

    Raises:
        ConfigError: an unknown key, scenario or observation, or no open seat.
        PlayerError: an unknown or damaged player, or one that does not fit its seat.
        ValueError: an unknown seat.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        values = _complete(config or {})
        spec = load_scenario(values["scenario"]).spec
        for seat in values["players"]:
            spec.team_of(seat)
        self.possible_agents = [seat for seat in spec.seats if seat not in values["players"]]
        if not self.possible_agents:
            raise ConfigError(expected("env_config.players", "at least one open seat", ", ".join(values["players"])))
        # Set before RLlib's constructor, which would take missing values from elsewhere.
        self.agents: list[str] = []
        super().__init__()
        self.match = match_around(values["scenario"], self.possible_agents, values["players"], None, 1, auto_reset=True)
        self.game = spec
        self._flat = values["observation"] == "flat"
        space: gymnasium.Space[Any] = (
            spaces.flat_space(spec) if self._flat else gymnasium.spaces.MultiDiscrete(token_categories(spec))
        )
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = {seat: spaces.action_space() for seat in self.possible_agents}
        self._seeded = self._at_start = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, Any]]]:
        """Start a new game; returns observations and empty infos of all agents. ``options`` are not used.

        Raises ``gymnasium.error.Error``: a negative seed.
        """
        super().reset(seed=seed, options=options)
        if seed is not None or not self._seeded:
            self.match.reset(int(self.np_random.integers(2**63)) if seed is None else seed)
        elif not self._at_start:
            self.match.restart(np.ones(1, np.bool_))
            self.match.drain_episodes()  # not needed
        self._seeded, self._at_start = True, False
        self.agents = list(self.possible_agents)
        return self._encoded(self.match.observations()), {seat: {} for seat in self.agents}

    def step(
        self, action_dict: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Play one step.

        Args:
            action_dict: an integer 0 to 6 for each of ``agents``; missing ones mean ``done`` (docs/game.md, section 3).

        Returns:
            Observations, rewards, terminated, truncated and infos of the agents that were in the game before the step;
            ``__all__`` says whether the episode is over, and is the only key of truncated.

        Raises:
            RuntimeError: no game is running.
            ValueError: an agent that is not in the game, or an unknown action.
        """
        if not self.agents:
            raise RuntimeError("no agent is in the game: call reset() before step()")
        actions = {seat: np.full(1, DONE, np.int8) for seat in self.possible_agents}
        for seat, action in action_dict.items():
            if seat not in self.agents:
                raise ValueError(expected("agent", ", ".join(self.agents), repr(seat)))
            actions[seat][0] = spaces.check_action(action, seat)
        step, acting = self.match.step(actions), self.agents
        self._at_start = bool(step.done[0])  # the next game has begun: a reset would skip it
        observations = self._encoded(step.final_observations if self._at_start else step.observations)
        rewards = {seat: float(step.rewards[seat][0]) for seat in acting}
        terminated = {seat: bool(step.terminated[seat][0]) for seat in acting}
        # Only for all at once: else RLlib's episodes, where no agent is left, call truncated agents terminated.
        truncated = {"__all__": bool(step.truncated[0])}
        self.agents = [] if truncated["__all__"] else [seat for seat in acting if not terminated[seat]]
        terminated["__all__"] = all(terminated.values())
        return observations, rewards, terminated, truncated, {seat: self._info(seat) for seat in acting}

    def render(self) -> NDArray[np.uint8]:
        """Return the uint8 frame (256, 512, 3) of the whole board; after a game's last step that of the next one."""
        return render_frame(self.match.env.world, 0)

    def _encoded(self, tokens: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if self._flat:
            return {seat: spaces.flat_observation(self.game, tokens[seat][0]) for seat in self.agents}
        return {seat: tokens[seat][0].astype(np.int64) for seat in self.agents}

    def _info(self, seat: str) -> dict[str, Any]:
        events = spaces.info(self.match.env.world, self.game.seats.index(seat))
        return {name: value for name, value in events.items() if name != "mission"}


def register_envs() -> list[str]:
    """Make every scenario of the red/blue-door game known to Tune and return the names: ``multigrid_rl/1v1``, ...

    ``PPOConfig().environment("multigrid_rl/1v1", env_config={"players": {"blue_0": "blue-rookie"}})``. Calling it again
    has no effect.
    """
    names = [f"multigrid_rl/{scenario}" for scenario in sides()]
    for name in names:
        scenario = {"scenario": name.partition("/")[2]}
        register_env(name, lambda config, scenario=scenario: RedBlueDoors({**scenario, **config}))
    return names


def _complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``env_config`` with all keys. Raises :class:`ConfigError` for an unknown one, or one of a wrong kind."""
    for key in config:
        if key not in KEYS:
            raise ConfigError(unknown("env_config", key, KEYS))
    values = {**KEYS, **config}
    if values["observation"] not in OBSERVATIONS:
        raise ConfigError(expected("env_config.observation", " or ".join(OBSERVATIONS), values["observation"]))
    if not isinstance(values["scenario"], str):
        raise ConfigError(expected("env_config.scenario", "a name or a file", repr(values["scenario"])))
    if not isinstance(values["players"], Mapping):
        wanted = "players by seat, such as {'blue_0': 'blue-rookie'}"
        raise ConfigError(expected("env_config.players", wanted, repr(values["players"])))
    return values
