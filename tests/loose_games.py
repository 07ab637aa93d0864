"""Small games of PettingZoo's kind that take liberties which many environments take, for tests."""

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

SEEN, CHOICES = spaces.Box(-1000, 1000, (2,), np.float32), spaces.Discrete(6)
#: What is paid by habit.
PAID = {"paid a vector": [1.0, 2.0], "paid none": None}


def flags(rng):
    """Two of six choices are legal."""
    told = np.zeros(6, np.int8)
    told[rng.choice(6, 2, replace=False)] = 1
    return told


class Loose(ParallelEnv):
    """Two agents, ten steps, and one habit."""

    def __init__(self, habit="", names=("a_0", "a_1"), steps=10, acts=CHOICES, max_episode_steps=None):
        self.metadata, self.render_mode, self.possible_agents = {"name": "loose"}, None, list(names)
        self.habit, self.steps, self.acts, self.own_limit = habit, steps, acts, max_episode_steps
        self.taken = []

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return self.acts

    def reset(self, seed=None, options=None):
        if self.habit == "31 bits" and seed >= 2**31:
            raise OverflowError("value too large to convert to int")
        self.seed, self.rng, self.t, self.agents = seed, np.random.default_rng(seed), 0, list(self.possible_agents)
        self.legal = flags(self.rng)
        if self.habit == "empty start" and self.rng.integers(4):
            self.agents = []
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}

    def step(self, actions):
        self.t += 1
        over = self.t >= (self.own_limit or self.steps)
        if self.habit == "late masks" and self.t > 1:
            assert all(self.legal[action] for action in actions.values()), "not legal"
        self.legal = flags(self.rng)
        paid = {agent: float(np.sum(action)) for agent, action in actions.items()}
        ended, cut = dict.fromkeys(actions, over), dict.fromkeys(actions, False)
        seen = {agent: np.full(2, self.t, np.float32) for agent in actions}
        mine = self.agents
        self.agents = [] if over else mine
        told = {agent: {} for agent in actions}
        if self.habit in ("late masks", "very late masks") and self.t > (self.habit == "very late masks") * 5:
            told = {agent: {"action_mask": self.legal} for agent in actions}
        self.ends(actions, seen, ended, cut)
        paid |= {"a_1": PAID[self.habit]} if self.habit in PAID else {}
        seen |= {"a_1": np.float32(1)} if self.habit == "stretched" else {}
        self.takes(actions)
        if self.habit == "in rows":
            paid, ended, cut = ({agent: np.array([it]) for agent, it in row.items()} for row in (paid, ended, cut))
        return seen, paid, ended, cut, told

    def ends(self, actions, seen, ended, cut):
        """End it as is the habit."""
        if self.habit.startswith("never emptied"):
            self.agents = list(self.possible_agents)
            assert set(actions) == set(self.agents)
            if self.habit.endswith("cut"):
                cut.update(ended)
                ended.update(dict.fromkeys(ended, False))
            if self.habit.endswith("one by one"):
                ended["a_0"] = self.t >= 4
        elif self.habit == "shown none" and self.t == 5:
            seen["a_1"], ended["a_1"], self.agents = None, True, ["a_0"]

    def takes(self, actions):
        """Take actions as is the habit."""
        if self.habit == "int" and not all(isinstance(action, int) for action in actions.values()):
            raise TypeError("no int")
        if self.habit == "item":
            self.taken.append([(action.item(), action.dtype) for action in actions.values()])
        if self.habit == "in place":
            self.taken.append({agent: np.copy(action) for agent, action in actions.items()})
            for action in actions.values():
                action[...] = 7
            actions.clear()


def loose(**options):
    return Loose(**options)


def numbers(**options):
    return Loose(acts=spaces.Box(-1, 1, (2,), np.float32), **options)


class Clock(AECEnv):
    """Three agents in turn see how many moves were made; the last of nine ends the game."""

    def __init__(self, habit="", names=("a_0", "a_1", "a_2"), moves=9):
        self.metadata, self.render_mode, self.possible_agents = {"name": "clock"}, None, list(names)
        self.habit, self.moves = habit, moves

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return CHOICES

    def observe(self, agent):
        return np.array([self.t, self.possible_agents.index(agent)], np.float32)

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.agent_selection = 0, list(self.possible_agents), self.possible_agents[0]
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action):
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            if self.habit == "":
                self._was_dead_step(action)
            elif self.habit == "rotates":
                self.agent_selection = self.possible_agents[(self.agents.index(self.agent_selection) + 1) % 3]
            return
        if self.habit == "masks":
            legal = self.infos[self.agent_selection].get("action_mask")
            assert legal is None or legal[action], "not legal"
        self.t += 1
        self._cumulative_rewards[self.agent_selection] = 0
        over = self.truncations if self.habit == "stuck cut" else self.terminations
        over.update(dict.fromkeys(self.agents, self.t >= self.moves))
        self.rewards = dict.fromkeys(self.agents, 1.0)
        if self.habit == "masks":
            self.infos[self.agent_selection] = {"action_mask": flags(np.random.default_rng(self.t))}
        self.agent_selection = self.possible_agents[self.t % len(self.possible_agents)]
        self._accumulate_rewards()


def clock(**options):
    return Clock(**options)
