"""Environments of the ``multigrid`` package as games of PettingZoo's kind.

multigrid-rl train scenario=multigrid env_args='{id: MultiGrid-LockedHallway-2Rooms-v0, agents: 2}'
"""

import os

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # else pygame greets on standard output


class MultiGrid(ParallelEnv):
    """One by its registered id; its missions are left out, as each of these environments has one."""

    metadata = {"name": "multigrid", "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, id="MultiGrid-Empty-8x8-v0", agents=2, render_mode=None):
        import multigrid.envs
        from multigrid.utils.random import RandomMixin

        assert multigrid.envs  # registers them
        self.env = gymnasium.make(id, agents=agents, render_mode=render_mode, disable_env_checker=True).unwrapped
        self.seeded = RandomMixin.__init__
        self.possible_agents = [f"agent_{k}" for k in range(agents)]
        self.observation_spaces = {
            agent: gymnasium.spaces.Dict({name: space[name] for name in ("image", "direction")})
            for agent, space in zip(self.possible_agents, self.env.observation_space.values(), strict=True)
        }
        self.action_spaces = dict(zip(self.possible_agents, self.env.action_space.values(), strict=True))
        self.render_mode, self.render, self.close = render_mode, self.env.render, self.env.close

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        if seed is not None:  # layouts follow from the generator that it was built with, whatever reset is given
            self.seeded(self.env, np.random.default_rng(seed))
        self.agents = list(self.possible_agents)
        seen, infos = self.env.reset(seed=seed)
        return self.by_name(seen), {agent: {} for agent in self.agents}

    def step(self, actions):
        given = {self.possible_agents.index(agent): action for agent, action in actions.items()}
        seen, *rest = self.env.step(given)
        played, self.agents = (
            self.agents,
            [a for k, a in enumerate(self.possible_agents) if not (rest[1][k] or rest[2][k])],
        )
        told = [{agent: it for agent, it in self.by_number(part).items() if agent in played} for part in rest[:3]]
        return {a: o for a, o in self.by_name(seen).items() if a in played}, *told, {agent: {} for agent in played}

    def by_name(self, seen):
        views = self.by_number(seen)
        return {agent: {name: view[name] for name in ("image", "direction")} for agent, view in views.items()}

    def by_number(self, part):
        return {self.possible_agents[number]: it for number, it in part.items()}


parallel_env = MultiGrid
