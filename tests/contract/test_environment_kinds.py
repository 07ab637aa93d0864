"""A kind of environments from outside: one file, and one entry in the table."""

import pytest

from multigrid_rl import tables
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_signature, kind_named, packages
from tiny_runs import tiny_run

COINS = '''
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from multigrid_rl.config.scenario import EnvironmentKind, OneAgent
from multigrid_rl.envs.base import AGENT, TEAM, SingleAgentEnvs
from multigrid_rl.types import AgentSpec, EnvFactory, MultiAgentSpec


class Coins(SingleAgentEnvs):
    """Pays 1 for the sign of the number that is shown; an episode has 16 of them."""

    def __init__(self, num_envs, seed, first):
        super().__init__("coins", num_envs, spaces.Discrete(2), 1, first)
        self.reset(seed)

    def _start(self, seeds):
        return np.array([[np.random.default_rng(seed).uniform(-1, 1)] for seed in seeds.values()])

    def _play(self, actions):
        right = (self._obs[:, 0] > 0) == (actions == 1)
        over = self._length + 1 >= 16
        return -0.9 * self._obs, right.astype(float), over, np.zeros_like(over)


@dataclass(frozen=True)
class CoinsFactory(EnvFactory):
    seed: int

    @cached_property
    def specs(self):
        agent = AgentSpec(AGENT, AGENT, (AGENT,), spaces.Box(-1, 1, (1,), np.float32), spaces.MultiDiscrete([2]))
        return MultiAgentSpec((agent,), (AGENT,), (TEAM,), (TEAM,), (), has_winner=False)

    def build(self, num_envs, first):
        return Coins(num_envs, self.seed, first)


class Kind(EnvironmentKind):
    vectors: ClassVar[bool] = True
    env_id: str
    agents: OneAgent

    def factory(self, config: Any, hashes: Any):
        return CoinsFactory(config.seed)
'''
SCENARIO = "description: Coins.\ngame: null\npackage: coins\nenv_id: coins\nseats: {}\ngates: []\nreport_episodes: 4\n"


@pytest.mark.filterwarnings("ignore")
def test_kind_of_environments_from_outside_trains(tmp_path, monkeypatch):
    (tmp_path / "my_coins.py").write_text(COINS)
    (tmp_path / "coins.yaml").write_text(SCENARIO)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tables.ENVIRONMENTS, "coins", "my_coins:Kind")
    scenario = f"scenario={tmp_path / 'coins.yaml'}"
    assert packages()[-1] == "coins"
    assert env_signature(compose([scenario]).scenario)["package"] == "coins"
    verdict, rows = tiny_run(tmp_path / "run", scenario, "train.until=1024")
    assert (verdict["policy_updates"], len(rows)) == (2, 2)
    assert 0 < rows[-1]["return_mean/agent_0"] <= 16


def test_every_kind_says_what_it_can_do():
    kinds = {name: kind_named(name) for name in tables.ENVIRONMENTS if tables.has(tables.ENVIRONMENTS, name)}
    assert [name for name, kind in kinds.items() if kind.board] == ["doors"]
    assert {name for name, kind in kinds.items() if kind.stock} == {"doors"}
    assert kinds["gymnasium"].vectors
    assert kinds["gymnasium"].judged
    assert packages() == ["gymnasium", "pettingzoo", "unity"]
