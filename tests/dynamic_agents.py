"""A synthetic environment whose agents decide now and then, come and go, for tests; and what truly happened in it."""

import numpy as np
from gymnasium import spaces

from multigrid_rl.envs.base import AGENT, TEAM
from multigrid_rl.types import AgentSpec, BatchedStep, EpisodeTable, MultiAgentSpec

AGENTS = MultiAgentSpec(
    agents=(AgentSpec(AGENT, AGENT, (AGENT,), spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))),),
    seats=(AGENT,), teams=(TEAM,), team_names=(TEAM,), events=(), has_winner=False,
)  # fmt: skip


class DynamicAgents:
    """``num_envs`` places. Who decides, what is paid, and who ends, in which way, is drawn in every step.

    Attributes:
        story: finished and open decisions by place: [observation, paid so far, end], the end being "" while its agent
            may decide again, "next", "terminated" or "truncated", and what was seen then.
    """

    def __init__(self, num_envs: int = 5, seed: int = 0, always: bool = False) -> None:
        self.num_envs = num_envs
        self.always = always
        self.rng = np.random.default_rng(seed)
        self.obs = self.seen()
        self.turn = np.ones(num_envs, bool)
        self.there = np.ones(num_envs, bool)
        self.story = [[] for _ in range(num_envs)]

    def seen(self):
        return self.rng.normal(size=(self.num_envs, 3)).astype(np.float32)

    def deciding(self):
        return {AGENT: self.turn.copy()}

    def observations(self):
        return {AGENT: self.obs}

    def reset(self, seed):
        return self.observations()

    def step(self, actions):
        rng, count = self.rng, self.num_envs
        chance = rng.uniform(size=(6, count))
        mask, paid = self.turn.copy(), np.where(self.there, rng.normal(size=count), 0.0)
        done = self.there & (chance[0] < 0.15)
        truncated = done & (chance[1] < 0.5)
        final = self.seen()
        for k in range(count):
            if mask[k]:
                self.story[k].append([self.obs[k].copy(), 0.0, "", None])
            open_ = self.story[k] and self.story[k][-1][2] == ""
            if open_:
                self.story[k][-1][1] += paid[k]
            if done[k] and open_:
                self.story[k][-1][2:] = ["truncated" if truncated[k] else "terminated", final[k].copy()]
        self.there = (self.there & ~done) | self.always | (chance[2] < 0.5)
        self.turn = self.there & (self.always | (chance[3] < 0.6))
        new = self.seen()
        self.obs = np.where(self.turn[:, None], new, self.obs)  # whoever does not decide shows what is old
        for k in np.flatnonzero(self.turn):
            if self.story[k] and self.story[k][-1][2] == "":
                self.story[k][-1][2:] = ["next", self.obs[k].copy()]
        return BatchedStep(
            observations=self.observations(), final_observations={AGENT: final}, rewards={AGENT: paid},
            terminated={AGENT: done & ~truncated}, mask={AGENT: mask[:, None]}, truncated=truncated, done=done,
        )  # fmt: skip

    def drain_episodes(self):
        return EpisodeTable.empty(1, 0)

    def drain_seconds(self):
        return {"players": 0.0, "engine": 0.0}

    def get_state(self):
        arrays = [self.obs.copy(), self.turn.copy(), self.there.copy()]
        return {"arrays": arrays, "rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.obs, self.turn, self.there = (array.copy() for array in state["arrays"])
        self.rng.bit_generator.state = state["rng"]
        self.story = [[] for _ in range(self.num_envs)]
