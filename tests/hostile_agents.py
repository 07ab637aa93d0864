"""Environments of strangers, as tests of Gymnasium's side need them; registered when this module is imported."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from multigrid_rl.envs.base import reset_seed
from multigrid_rl.evaluation.targets import SIDE_BY_SIDE
from multigrid_rl.types import EpisodeTable

ACTIONS = {
    "started": spaces.Discrete(3, start=5),
    "parts": spaces.MultiDiscrete([2, 4, 3]),
    "grid": spaces.MultiDiscrete([[2, 4], [3, 2]]),
    "vector": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
    "double": spaces.Box(-1.0, 3.0, (2, 2), np.float64),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "text": spaces.Text(3),
    "many": spaces.Discrete(8193),
    "offset": spaces.MultiDiscrete([3, 200], start=[10, -2]),
    "binary": spaces.MultiBinary((2, 3)),
    "whole": spaces.Box(-2, 3, (2,), np.int64),
}
SIZE = 5
SEEN = {
    "vector": spaces.Box(-np.inf, np.inf, (SIZE,), np.float64),
    "dict": spaces.Dict({"kind": spaces.Discrete(3), "where": spaces.Box(-1, 1, (2,), np.float32)}),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,), np.float32), None),
}


class Echo(gymnasium.Env[Any, Any]):
    """Shows noise, how many steps it has played and the last action's sum, and pays that sum.

    Args:
        actions, seen: names of its spaces.
        ends: steps until it terminates; 0: it never does.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium wants it

    def __init__(self, actions: str = "started", seen: str = "vector", ends: int = 0, render_mode: str | None = None):
        self.action_space, self.observation_space = ACTIONS[actions], SEEN[seen]
        self.ends, self.render_mode = ends, render_mode
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed, options=options)
        self.taken = []
        return self._shown(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(np.array(action))
        gone = len(self.taken) == self.ends
        return self._shown(), float(np.sum(action)), gone, False, {}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)

    def _shown(self):
        noise = self.np_random.normal(size=2)
        if isinstance(self.observation_space, spaces.Dict):
            return {"kind": len(self.taken) % 3, "where": np.float32(noise.clip(-1, 1))}
        last = self.taken[-1] if self.taken else np.zeros(2)
        return np.array([*noise, len(self.taken), np.sum(last), np.max(last)])


class Target(gymnasium.Env[Any, Any]):
    """One step long: pays most for the action whose numbers are ``best``."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    best = np.array([0.6, -0.3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed, options=options)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), -float(np.square(action - self.best).sum()), True, False, {}


class Recall(gymnasium.Env[Any, Any]):
    """Shows one of two cues, then nothing, and pays 1 in its last step for the action that the cue named."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 4

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed, options=options)
        self.cue, self.played = int(self.np_random.integers(2)), 0
        return np.array([self.cue == 0, self.cue == 1, 0], np.float32), {}

    def step(self, action):
        self.played += 1
        last = self.played == self.steps
        shown = np.array([0, 0, self.played == self.steps - 1], np.float32)
        return shown, float(last and int(action) == self.cue), last, False, {}


class Geometric(gymnasium.Env[Any, Any]):
    """Ends in each step with a chance of 1 in ``mean``, pays 1 a step."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    mean = 50

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed, options=options)
        self.left = self.length(seed)
        return np.ones(1, np.float32), {}

    @classmethod
    def length(cls, seed: int | None) -> int:
        return int(np.random.default_rng(seed).geometric(1 / cls.mean))

    def step(self, action):
        self.left -= 1
        return np.ones(1, np.float32), 1.0, self.left == 0, False, {}


def assert_shares(play: Callable[[int, int], EpisodeTable], episodes: int) -> None:
    """Assert that ``play(episodes, seed)`` of Geometric had each environment play its share, and all of it."""
    count = min(episodes, SIDE_BY_SIDE)
    lengths: list[float] = []
    for seed in range(2):
        table = play(episodes, seed)
        share = {k: len(range(k, episodes, count)) for k in range(count)}
        due = [Geometric.length(reset_seed(seed, k, number)) for k in share for number in range(share[k])]
        assert Counter(table.length.tolist()) == Counter(due)
        assert (table.returns[:, 0] == table.length).all()
        lengths += table.length.tolist()
    assert len(lengths) == 2 * episodes


class Broken(Echo):
    """As Echo, until in its third step something is no number any more.

    Args:
        what: observation or reward.
        value: what it is instead.
    """

    def __init__(self, what: str = "reward", value: float = np.nan):
        super().__init__("vector")
        self.what, self.value = what, value

    def step(self, action):
        shown, reward, *rest = super().step(action)
        if len(self.taken) == 3:
            shown[1], reward = (self.value, reward) if self.what == "observation" else (shown[1], self.value)
        return shown, reward, *rest


gymnasium.register("Broken-v0", Broken)
gymnasium.register("Echo-v0", Echo)
gymnasium.register("EchoCut-v0", Echo, max_episode_steps=4)
gymnasium.register("Geometric-v0", Geometric)
gymnasium.register("OtherPole-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=20)
gymnasium.register("Recall-v0", Recall)
gymnasium.register("Target-v0", Target)
