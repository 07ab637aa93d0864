"""Environments of the ``multigrid`` package as games of PettingZoo's kind, by ``examples/multigrid_games.py``."""

import numpy as np
import pytest

from examples.multigrid_games import parallel_env
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize("id", ["MultiGrid-Empty-8x8-v0", "MultiGrid-LockedHallway-2Rooms-v0"])
def test_keeps_the_api_and_layouts_follow_from_the_seed(id):
    from pettingzoo.test import parallel_api_test  # noqa: PLC0415 - it warns

    parallel_api_test(parallel_env(id), num_cycles=50)
    same, other = parallel_env(id), parallel_env(id)
    for seed in (3, 4, 3):
        views = [env.reset(seed=seed)[0] for env in (same, other)]
        for agent in same.possible_agents:
            np.testing.assert_array_equal(views[0][agent]["image"], views[1][agent]["image"])


def test_an_agent_that_has_finished_takes_no_part_in_what_follows():
    env = parallel_env("MultiGrid-Empty-5x5-v0", agents=2)
    rng = np.random.default_rng(0)
    for seed in range(20):
        env.reset(seed=seed)
        while env.agents:
            playing = list(env.agents)
            seen, rewards, ended, cut, _ = env.step({agent: int(rng.integers(7)) for agent in playing})
            assert set(seen) == set(rewards) == set(ended) == set(cut) == set(playing)
            assert set(env.agents) == {agent for agent in playing if not (ended[agent] or cut[agent])}


def test_the_scenario_trains(tmp_path):
    verdict, rows = tiny_run(tmp_path / "run", "scenario=multigrid", "train.until=1024")
    assert verdict["env_steps"] == rows[-1]["env_steps"] == 1024
