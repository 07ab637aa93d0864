"""The game as a PettingZoo parallel environment: every seat is an agent."""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.utils import seeding
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import RULE_SETS, GameSpec
from multigrid_rl.world import spaces
from multigrid_rl.world.constants import DONE
from multigrid_rl.world.engine import World
from multigrid_rl.world.rendering import render_frame


def parallel_env(
    scenario: str = "1v1", *, render_mode: str | None = None, rules: str | None = None, flat: bool = False
) -> "RedBlueDoorsParallelEnv":
    """Make the environment of a scenario.

    Args:
        scenario: one of ``config.recipes.scenario_names()``, or an environment name of the original course, such as
            ``MultiGrid-CompetativeRedBlueDoor-v3-DTDE-1v1``.
        render_mode: ``None``, or ``"rgb_array"`` for frames from ``render()``.
        rules: ``"fair"`` or ``"classic"`` instead of the scenario's rules.
        flat: observations are vectors; see :func:`multigrid_rl.world.spaces.flat_space`.

    Raises:
        ConfigError: unknown scenario or rules.
        ValueError: unknown render mode.
    """
    config = load_scenario(scenario)
    spec = config.spec
    if rules is not None:
        if rules not in RULE_SETS:
            raise ConfigError(expected("rules", ", ".join(RULE_SETS), rules))
        spec = replace(spec, rules=RULE_SETS[rules])
    return RedBlueDoorsParallelEnv(config.name, spec, render_mode, flat=flat)


class RedBlueDoorsParallelEnv(ParallelEnv):
    """One game, with an action for every seat. Make it with :func:`parallel_env`.

    * Agents: ``spec.seats``, blue first: ``blue_0``, ``red_0`` in 1v1.
    * Observation: see :func:`multigrid_rl.world.spaces.observation_space`, or ``flat_space`` there.
    * Action: Discrete(7): left, right, forward, pickup, drop, toggle, done.
    * Reward: the canonical reward (docs/game.md, section 5).
    * Terminated: all agents when the game is won; under ``fair`` rules an eliminated agent at once, and it leaves
      ``agents``. Truncated: all remaining agents after ``spec.max_steps`` steps. A win in the last step is both.
    * Info: see :func:`multigrid_rl.world.spaces.info`.

    ``reset(seed=...)`` determines all randomness in a game. Without a seed, each game's seed is drawn from this
    environment's generator, which was seeded by the last seed (or by the operating system).

    Args:
        name: shown as ``metadata["name"]``.
        render_mode: ``None`` or ``"rgb_array"``.
        flat: observations are vectors.

    Raises ``ValueError``: unknown render mode.
    """

    metadata = {"name": "multigrid_rl", "render_modes": ["rgb_array"], "is_parallelizable": True, "render_fps": 10}  # noqa: RUF012

    def __init__(self, name: str, spec: GameSpec, render_mode: str | None = None, *, flat: bool = False) -> None:
        self.metadata = {**type(self).metadata, "name": name}
        self.render_mode = spaces.check_render_mode(render_mode)
        self.spec = spec
        self.possible_agents: list[str] = list(spec.seats)
        self.agents: list[str] = []
        self._encode = spaces.flat_observation if flat else spaces.observation
        self.observation_spaces = {
            seat: spaces.flat_space(spec) if flat else spaces.observation_space(spec) for seat in spec.seats
        }
        self.action_spaces = {seat: spaces.action_space() for seat in spec.seats}
        self.world = World(spec, 1, auto_reset=False)
        self._index = {seat: a for a, seat in enumerate(spec.seats)}
        self._rng: np.random.Generator | None = None

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the observation space of one agent, always the same object; ``KeyError`` for an unknown one."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """Return the action space of one agent, always the same object; ``KeyError`` for an unknown one."""
        return self.action_spaces[agent]

    def reset(
        self,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> tuple[dict[str, Any], dict[str, spaces.Info]]:
        """Start a new game; returns observations and infos of all agents. ``options`` are not used.

        Raises ``gymnasium.error.Error``: a negative seed.
        """
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        self.world.reset(int(self._rng.integers(2**63)) if seed is None else seed)
        self.agents = list(self.possible_agents)
        return self._observations(self.agents), self._infos(self.agents)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, spaces.Info]]:
        """Play one step.

        ``actions``: an integer 0 to 6 for each of ``agents``. Missing ones mean ``done`` (docs/game.md, section 3);
        those of eliminated agents are ignored.

        Returns:
            Observations, rewards, terminated, truncated and infos of the agents that were in the game before the step.

        Raises:
            RuntimeError: no game is running.
            ValueError: an unknown agent or action.
        """
        if not self.agents:
            raise RuntimeError("no agent is in the game: call reset() before step()")
        row = np.full((1, self.spec.num_agents), DONE, np.int8)
        for seat, action in actions.items():
            if seat not in self._index:
                raise ConfigError(expected("agent", ", ".join(self.possible_agents), repr(seat)))
            if seat in self.agents:
                row[0, self._index[seat]] = spaces.check_action(action, seat)
        step = self.world.step(row)
        agents = self.agents
        rewards = {seat: float(step.reward[0, self._index[seat]]) for seat in agents}
        terminated = {seat: bool(step.terminated[0, self._index[seat]]) for seat in agents}
        truncated = dict.fromkeys(agents, bool(step.truncated[0]))
        self.agents = [seat for seat in agents if not (terminated[seat] or truncated[seat])]
        return self._observations(agents), rewards, terminated, truncated, self._infos(agents)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the uint8 frame (256, 512, 3) of the current state; ``None`` without a render mode."""
        return None if self.render_mode is None else render_frame(self.world, 0)

    def _observations(self, seats: list[str]) -> dict[str, Any]:
        tokens = self.world.outputs.tokens[0]
        return {seat: self._encode(self.spec, tokens[self._index[seat]]) for seat in seats}

    def _infos(self, seats: list[str]) -> dict[str, spaces.Info]:
        return {seat: spaces.info(self.world, self._index[seat]) for seat in seats}
