"""Small environments of PettingZoo's kind for tests: most of them have a fault; and how all of them are played."""

import sys
import threading
import time
from pathlib import Path

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

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
        if self.fault == "cut early" and self.t >= 3:
            self.agents.remove("runner_1")
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
        if self.fault == "cut early" and self.t == 3:
            cut["runner_1"], seen["runner_1"] = True, np.zeros(2, np.float32)
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


class Wages(ParallelEnv):
    """Both earn .6 in three steps, in different orders: their sums differ in the last digit."""

    earned = ((0.1, 0.3), (0.2, 0.2), (0.3, 0.1))

    def __init__(self):
        self.metadata, self.possible_agents = {"name": "wages"}, ["up_0", "down_0"]

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def shown(self):
        return {agent: np.zeros(2, np.float32) for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.shown(), {}

    def step(self, actions):
        paid = dict(zip(actions, self.earned[self.t], strict=True))
        self.t += 1
        over = dict.fromkeys(actions, self.t == 3)
        self.agents = [] if self.t == 3 else self.agents
        return self.shown(), paid, over, dict.fromkeys(actions, False), {agent: {} for agent in actions}


class Toll(Wages):
    """The first earns three, and the second pays them."""

    earned = ((1.0, -1.0),) * 3


class Ranks(ParallelEnv):
    """Leaders see three numbers and set two, helpers see one and set one."""

    def __init__(self):
        self.metadata, self.possible_agents = {"name": "ranks"}, ["lead_0", "help_0", "lead_1", "help_1"]

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (3 if agent.startswith("lead") else 1,), np.float32)

    def action_space(self, agent):
        return spaces.MultiDiscrete([2, 3]) if agent.startswith("lead") else TWO

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return {agent: np.zeros(self.observation_space(agent).shape, np.float32) for agent in self.agents}, {}


def ranks(**options):
    return Ranks(**options)


def toll(**options):
    return Toll(**options)


def wages(**options):
    return Wages(**options)


def auction(**options):
    return Auction(**options)


def relay(**options):
    return Relay(**options)


def words(**options):
    return Relay(seen=spaces.Sequence(BOX))


def endless(**options):
    return Relay(acts=spaces.Text(5))


class Unheard(Exception):
    """What nobody expects."""


def _raises(*_):
    raise Unheard("lost\nit")


def _sleeps(*_):
    time.sleep(1e6)


def _spins(*_):
    while True:
        pass


#: What goes wrong in ``step``, by its name: changes of observations, rewards, ends, cuts and infos, or worse.
FAULTS = {
    "": lambda *answer: answer,
    "raises": _raises,
    "exits": lambda *_: sys.exit(3),
    "sleeps": _sleeps,
    "spins": _spins,
    "nothing": lambda *_: None,
    "four values": lambda *answer: answer[:4],
    "not a number": lambda o, *rest: ({**o, "a_1": np.full(3, np.nan)}, *rest),
    "text": lambda o, *rest: ({**o, "a_1": np.array(["x", "y", "z"])}, *rest),
    "shape": lambda o, *rest: ({**o, "a_1": np.zeros((2, 2))}, *rest),
    "not shown": lambda o, *rest: ({"a_0": o["a_0"]}, *rest),
    "not paid": lambda o, r, *rest: (o, {"a_0": r["a_0"]}, *rest),
    "paid nothing": lambda o, r, *rest: (o, {**r, "a_1": None}, *rest),
    "paid text": lambda o, r, *rest: (o, {**r, "a_1": "much"}, *rest),
    "paid inf": lambda o, r, *rest: (o, {**r, "a_1": np.inf}, *rest),
    "paid beyond float32": lambda o, r, *rest: (o, {**r, "a_1": -1e300}, *rest),
    "no end": lambda o, r, d, *rest: (o, r, {"a_0": d["a_0"]}, *rest),
    "stranger paid": lambda o, r, *rest: (o, {**r, "ghost": 1.0}, *rest),
    "stranger ends": lambda o, r, d, *rest: (o, r, {**d, "__all__": True}, *rest),
    "common": lambda o, r, d, c, i: ({**o, "common": 1}, r, d, c, {**i, "common": {}}),
    "flags": lambda *answer: (*answer[:4], {"a_1": {"action_mask": np.ones(7)}}),
    "stuck": lambda *answer: (*answer[:4], {"a_1": {"action_mask": np.zeros(3)}}),
}


class Broken(ParallelEnv):
    """Two agents, 20 steps; from step ``at`` on something is wrong, or where the file ``while_there`` exists."""

    def __init__(self, *, fault="", at=5, while_there="", acts=None, seen=None, human=False, nobody=False, steps=20):
        self.metadata, self.render_mode = {"name": "broken"}, "human" if human else None
        self.possible_agents = [] if nobody else ["a_0", "a_1"]
        self.fault, self.at, self.file, self.steps = fault, at, while_there, steps
        self.lock, self.key = threading.Lock(), lambda: self  # cannot be pickled
        self.played = 0
        self.acts, self.seen = acts or spaces.Discrete(3), seen or spaces.Box(-1, 1, (3,), np.float32)

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return self.acts

    def shown(self):
        return {agent: self.seen_by(agent) for agent in self.agents}, {agent: self.told(agent) for agent in self.agents}

    def seen_by(self, agent):
        return self.rng.uniform(-1, 1, 3).astype(np.float32)

    def told(self, agent):
        return {"action_mask": np.ones(3)} if self.fault in ("flags", "stuck") else {}

    def reset(self, seed=None, options=None):
        if self.fault == "reset":
            _raises()
        self.t, self.rng = 0, np.random.default_rng(None if self.fault == "unseeded" else seed)
        self.agents = [] if self.fault == "over" else list(self.possible_agents)
        return self.shown()

    def step(self, actions):
        self.t, self.played = self.t + 1, self.played + 1
        over = self.t >= self.steps
        paid = {agent: float(np.sum(action)) for agent, action in actions.items()}
        seen, told = self.shown()
        answer = seen, paid, dict.fromkeys(paid, over), dict.fromkeys(paid, False), told
        bad = Path(self.file).exists() and self.played > self.at if self.file else self.t >= self.at
        self.agents = [] if over else self.agents
        return FAULTS[self.fault](*answer) if bad and self.fault in FAULTS else answer


def broken(**options):
    return Broken(**options)


def empty(**options):
    return None


def counted(**options):
    env = Relay()
    env.possible_agents = 3
    return env


class Pixels(Broken):
    """Two agents see small images, of which the first pixel says what is paid."""

    def __init__(self, **options):
        super().__init__(seen=spaces.Box(0, 255, (9, 7, 3), np.uint8), **options)

    def seen_by(self, agent):
        image = self.rng.integers(0, 256, (9, 7, 3)).astype(np.uint8)
        image[0, 0] = 255
        return image


def pixels(**options):
    return Pixels(**options)


class Parts(Broken):
    """Actions have two parts; not all of the second is legal, as the dictionary beside two observations says."""

    def __init__(self, **options):
        seen = {"own": spaces.Discrete(3), "other": spaces.MultiDiscrete([2, 4]), "action_mask": spaces.MultiBinary(5)}
        super().__init__(acts=spaces.MultiDiscrete([2, 3]), seen=spaces.Dict(seen), **options)

    def seen_by(self, agent):
        self.flags = np.array([1, 1, 0, 1, 1]) if self.t % 2 else np.array([0, 1, 1, 0, 0])
        return {"own": self.t % 3, "other": np.array([1, self.t % 4]), "action_mask": self.flags}

    def step(self, actions):
        first, second = (self.flags[:2], self.flags[2:])
        assert all(first[action[0]] and second[action[1]] for action in actions.values()), "not legal"
        return super().step(actions)


def parts(**options):
    return Parts(**options)


class BrokenTurns(AECEnv):
    """Two agents take turns; from the fifth move on something is wrong."""

    def __init__(self, fault=""):
        self.metadata = {"name": "broken_turns"}
        self.fault, self.render_mode, self.possible_agents = fault, None, ["a_0", "a_1"]

    def observation_space(self, agent):
        box = spaces.Box(-1, 1, (3,), np.float32)
        return spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return spaces.Discrete(3)

    def observe(self, agent):
        seen = {"observation": np.zeros(3, np.float32), "action_mask": np.ones(3, np.int8)}
        if self.t >= 5 and self.fault == "no flags":
            del seen["action_mask"]
        if self.t >= 5 and self.fault == "stuck":
            seen["action_mask"][:] = 0
        return seen

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.agent_selection = 0, list(self.possible_agents), "a_0"
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action):
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.t += 1
        if self.t == 5 and self.fault == "raises":
            _raises()
        self.terminations = dict.fromkeys(self.agents, self.t >= 8)
        self._cumulative_rewards[self.agent_selection] = 0
        self.rewards = dict.fromkeys(self.agents, 1.0)
        self.agent_selection = "a_1" if self.agent_selection == "a_0" else "a_0"
        if self.t == 5 and self.fault == "ghost":
            self.agent_selection = "ghost"
        self._accumulate_rewards()


def broken_turns(**options):
    return BrokenTurns(**options)


def legal_actions(env, name, rngs):
    """Return random legal actions (N, C) of an agent as a network fills them, each row from a generator of its own."""
    agent = next(agent for agent in env.specs.agents if agent.name == name)
    acts, seen = agent.action_space, env.observations()[name]
    if isinstance(acts, spaces.Box):
        low, high = np.clip(acts.low, -5, 5), np.clip(acts.high, -5, 5)
        return np.stack([rng.uniform(low, high) for rng in rngs]).astype(np.float32)
    if not agent.legal:
        return np.stack([rng.integers(acts.nvec) for rng in rngs])
    parts = np.split(seen[:, -agent.legal :], np.cumsum(acts.nvec)[:-1], axis=1)
    rows = zip(zip(*parts, strict=True), rngs, strict=True)
    return np.array([[rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in whose] for whose, rng in rows])


def play_legal(envs, steps):
    """Play all environments with random legal actions; returns them."""
    rngs = [np.random.default_rng(n) for n in range(envs.num_envs)]
    for _ in range(steps):
        envs.step({agent.name: legal_actions(envs, agent.name, rngs) for agent in envs.specs.agents})
    return envs
