"""Means over episodes are unbiased: how many each environment plays is settled before any of them has ended."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hostile_agents import Geometric
from multigrid_rl.envs.base import reset_seed
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.evaluation.evaluation import evaluate
from multigrid_rl.evaluation.targets import SIDE_BY_SIDE, Target
from multigrid_rl.imitation.cloning import play_out
from multigrid_rl.models.registry import network_of
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


def played_out(episodes, seed):
    net = network_of(FACTORY.specs.agents[0], {"name": "mlp", "hidden": [8], "activation": "tanh"})
    factory = GymnasiumFactory(FACTORY.env_id, seed)
    table, _ = play_out(
        factory, {"agent_0": net}, episodes, num_envs=SIDE_BY_SIDE, first=0, seed=seed, bound="clip"
    )  # fmt: skip
    return table


@pytest.mark.parametrize("judge", [judged, played_out])
@pytest.mark.parametrize("episodes", [5, 33, 50, 64, 100])
def test_every_environment_plays_its_share(judge, episodes):
    count = min(episodes, SIDE_BY_SIDE)
    lengths = []
    for seed in range(2):
        table = judge(episodes, seed)
        share = {k: len(range(k, episodes, count)) for k in range(count)}
        due = [Geometric.length(reset_seed(seed, k, number)) for k in share for number in range(share[k])]
        assert Counter(table.length.tolist()) == Counter(due)
        assert (table.returns[:, 0] == table.length).all()
        lengths += table.length.tolist()
    assert len(lengths) == 2 * episodes


def test_short_episodes_do_not_come_first():
    """The first of 33 episodes to end have a mean of 22, of 50 one of 34; all have one of 50, give or take 6 here."""
    for episodes in (33, 50):
        lengths = np.concatenate([judged(episodes, seed).length for seed in range(8)])
        assert abs(lengths.mean() - Geometric.mean) < 10, episodes
