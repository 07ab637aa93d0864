"""Small environments of PettingZoo's kind for tests: most of them have a fault; and how all of them are played."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

BOX, TWO = spaces.Box(-10, 10, (2,), np.float32), spaces.Discrete(2)


class Relay(ParallelEnv):
    """Two runners and a guest who comes every third step and leaves again; what is paid says who did what."""

    def __init__(self, fault="", steps=7, acts=TWO, seen=BOX):
        self.metadata, self.possible_agents = {"name": "relay"}, ["runner_0", "runner_1", "guest"]
        self.fault, self.steps, self.acts, self.seen = fault, steps, acts, seen

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return self.acts

    def shown(self):
        self.agents = ["runner_0", "runner_1", *(["guest"] if self.t % 3 == 0 else [])]
        noise = self.rng.uniform()
        seen = {agent: np.array([self.t, noise], np.float32) for agent in self.agents}
        if self.fault == "nan" and self.t == 3:
            seen["runner_1"][0] = np.nan
        if self.fault == "shape" and self.t == 3:
            seen["runner_1"] = np.zeros(5, np.float32)
        return seen

    def reset(self, seed=None, options=None):
        if self.fault == "reset":
            raise RuntimeError("no board")
        self.t, self.rng = 0, np.random.default_rng(seed)
        return self.shown(), {}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        if self.fault == "step" and self.t == 3:
            raise KeyError("lost")
        paid = {agent: 10.0 + float(action) for agent, action in actions.items()}
        if self.fault == "reward":
            paid["runner_0"] = float("inf")
        self.t += 1
        over = self.t >= self.steps
        mine = list(actions)
        seen = self.shown()
        ended = dict.fromkeys(mine, over and self.fault != "cut")
        cut = dict.fromkeys(mine, over and self.fault == "cut")
        if over:
            self.agents = []
        return seen, paid, ended, cut, {agent: {} for agent in mine}


class Auction(ParallelEnv):
    """Three bidders: who bids most without an equal gets what the lot is worth, less the bid."""

    def __init__(self):
        self.metadata, self.possible_agents = {"name": "auction"}, ["bidder_0", "bidder_1", "bidder_2"]

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        self.agents, self.worth = list(self.possible_agents), np.random.default_rng(seed).uniform(1, 5)
        return {agent: np.array([self.worth, k], np.float32) for k, agent in enumerate(self.agents)}, {}

    def step(self, actions):
        bids = list(actions.values())
        best = max((bid for bid in bids if bids.count(bid) == 1), default=-1)
        paid = {agent: self.worth - bid if bid == best else 0.0 for agent, bid in actions.items()}
        over, self.agents = dict.fromkeys(self.agents, True), []
        seen = {agent: np.zeros(2, np.float32) for agent in actions}
        return seen, paid, over, dict.fromkeys(actions, False), {agent: {} for agent in actions}


def auction(**options):
    return Auction(**options)


def relay(**options):
    return Relay(**options)


def words(**options):
    return Relay(seen=spaces.Sequence(BOX))


def endless(**options):
    return Relay(acts=spaces.Text(5))


def legal_actions(env, name, rngs):
    """Return random legal actions (N, C) of an agent as a network fills them, each row from a generator of its own."""
    agent = next(agent for agent in env.specs.agents if agent.name == name)
    acts, seen = agent.action_space, env.observations()[name]
    if isinstance(acts, spaces.Box):
        low, high = np.clip(acts.low, -5, 5), np.clip(acts.high, -5, 5)
        return np.stack([rng.uniform(low, high) for rng in rngs]).astype(np.float32)
    if not agent.legal:
        return np.stack([rng.integers(acts.nvec) for rng in rngs])
    flags = seen[:, -agent.legal :]
    return np.array(
        [[rng.choice(np.flatnonzero(row)) if row.any() else 0] for row, rng in zip(flags, rngs, strict=True)]
    )
