"""Means over episodes are unbiased: how many each environment plays is settled before any of them has ended."""

import numpy as np
import pytest

from hostile_agents import Geometric, assert_shares
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.evaluation.evaluation import evaluate
from multigrid_rl.evaluation.targets import Target
from multigrid_rl.players.scripted import IdlePlayer

FACTORY = GymnasiumFactory("hostile_agents:Geometric-v0", 0)


class Idle(Target):
    """A player without a file."""

    def players(self, *, greedy):
        player = IdlePlayer()
        player.sha256 = None
        return {"agent_0": player}


def judged(episodes, seed):
    (part,) = evaluate(Idle("idle", FACTORY, {}), episodes=episodes, seed=seed, modes=("stochastic",)).parts
    return part.table


@pytest.mark.parametrize("episodes", [5, 33, 50, 64, 100])
def test_every_environment_plays_its_share(episodes):
    assert_shares(judged, episodes)


def test_short_episodes_do_not_come_first():
    """The first of 33 episodes to end have a mean of 22, of 50 one of 34; all have one of 50, give or take 8 here."""
    for episodes in (33, 50):
        lengths = np.concatenate([judged(episodes, seed).length for seed in range(4)])
        assert abs(lengths.mean() - Geometric.mean) < 12, episodes
