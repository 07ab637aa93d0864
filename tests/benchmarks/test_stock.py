"""RLlib's own path, the peer of our speed measurements: the same networks and games, nothing of RLlib's replaced."""

import pytest
import torch

from benchmarks.stock import measured, stock_config
from multigrid_rl.config.compose import compose
from multigrid_rl.rllib.build import algorithm_config
from tiny_runs import TINY, running

# Ray and tensorboard warn about their own future at every start.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEAM = ["scenario=2v2-deathmatch", "scenario.game.max_steps=30"]


def test_networks_start_with_same_weights(session):
    config = compose([*TINY, "seed=5"])
    ours, theirs = (build(config).rl_module_spec.rl_module_specs["red_0"] for build in (algorithm_config, stock_config))
    weights = theirs.build().net.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in ours.build().net.state_dict().items())


@pytest.mark.parametrize(
    ("overrides", "networks"),
    [([], {"red_0"}), (TEAM, {"red_0", "red_1"}), ([*TEAM, "shared=true"], {"red"})],
    ids=["1v1", "dtde", "shared"],
)
def test_rllib_trains_our_games(session, overrides, networks):
    with running(stock_config(compose([*TINY, "seed=5", *overrides]))) as algorithm:
        results = algorithm.train()
    assert networks <= set(results["learners"])
    assert all(1.746 < results["learners"][name]["entropy"] <= 1.946 for name in networks)


@pytest.mark.long
def test_measures_speed(session):
    assert measured(compose([*TINY, "seed=5"]), iterations=1, warmup=1) > 0
