"""Cloning, whatever the head: what was recorded becomes likely, and what comes next follows from the position."""

from copy import deepcopy
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from composing import error_of
from hostile_agents import assert_shares
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.evaluation.targets import SIDE_BY_SIDE
from multigrid_rl.imitation.cloning import Cloning, play_out
from multigrid_rl.imitation.demonstrations import Episode, write
from multigrid_rl.learn.update import SECONDS
from multigrid_rl.models.registry import fingerprint, network_of
from multigrid_rl.tables import HEADS
from multigrid_rl.types import AgentSpec

OBS = gym.spaces.Box(-np.inf, np.inf, (3,))
ACTS = gym.spaces.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
AGENT = AgentSpec("a", "a", ("a",), OBS, ACTS)
RATES = ["train.lr=1e-2", "train.lr_final=1e-3"]
FACTS = {"who": "me", "scenario": "x", "observation": {"size": 3}, "actions": {"low": [-1, -1], "high": [1, 1]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Far from the origin and of different scales; the action is a function of what is seen."""
    rng = np.random.default_rng(0)

    def episode() -> Episode:
        obs = rng.normal(size=(40, 3)) * [1, 50, 0.01] + [0, 300, 5]
        actions = np.tanh(np.stack([obs[:, 0], (obs[:, 1] - 300) / 50 - obs[:, 0]], axis=1))
        return Episode(obs, actions, np.ones(40), True, False, obs[-1], (0, 0, 0))

    folder = tmp_path_factory.mktemp("data") / "x"
    write(folder, [episode() for _ in range(50)], FACTS)
    return folder


def cloning_of(folder, head: str | None, net=None, **changes) -> Cloning:
    architecture = {"name": "mlp", "hidden": [32], "activation": "tanh", "normalise": True, "log_std": -1.0}
    net = net or network_of(AGENT, {**architecture, "head": head, "head_size": head and HEADS[head].size})
    seed = changes.pop("seed", 1)
    options = {"held_out": 0.1, "play_every": 10**9, **changes}
    batch = ["train.num_envs=1", "train.num_steps=1800", "train.minibatch_size=100", "train.until=8000"]
    overrides = [f"train.cloning.{key}={value}" for key, value in options.items()]
    config = compose(["scenario=halfcheetah", "train=bc", "data=x", *batch, *RATES, *overrides])
    return Cloning({"a": net}, {"a": ACTS}, config.train, str(folder), seed, torch.device("cpu"))


@pytest.mark.parametrize("head", [None, *HEADS])
def test_every_head_learns_recorded_actions(folder, learning, head):
    cloning = cloning_of(folder, head, seed=learning.seed)
    net = cloning._networks["a"]
    np.testing.assert_allclose(net.normaliser.mean.numpy(), [0, 300, 5], atol=5)
    before, value = cloning.held_out_losses()["a"], [part.detach().clone() for part in net.value.parameters()]
    statistics = [cloning.learn({}, 1800 * (k + 1)) for k in range(4)]
    assert statistics[0][SECONDS].keys() == {"loss", "minibatch", "network", "optimizer"}
    assert statistics[0]["a"]["gradient_steps"] == 18
    assert statistics[3]["a"]["lr"] == pytest.approx(1e-2 - 7200 / 8000 * 9e-3)  # of the next update
    assert statistics[3]["a"]["cloning_loss"] < statistics[0]["a"]["cloning_loss"]
    learning.check("gain", before - cloning.held_out_losses()["a"], above=0.1)
    assert all(torch.equal(one, other) for one, other in zip(value, net.value.parameters(), strict=True))


def test_restored_state_determines_next_updates(folder):
    one = cloning_of(folder, None)
    one.learn({}, 1800)
    other = cloning_of(folder, None)
    other._networks["a"].load_state_dict(one._networks["a"].state_dict())
    other.optimizers["a"][0].load_state_dict(deepcopy(one.optimizers["a"][0].state_dict()))
    other.set_state(one.get_state())
    other.schedule(1800)
    assert other.learn({}, 3600)["a"] == one.learn({}, 3600)["a"]
    assert len({fingerprint(cloning._networks["a"].state_dict()) for cloning in (one, other)}) == 1


@pytest.mark.parametrize("head", [None, "mixture", "deterministic"])
def test_action_at_a_bound_counts_as_outputs_beyond_it_if_censored(folder, head):
    rows = SimpleNamespace(obs=np.full((2, 3), [0, 300, 5], np.float32), actions=np.float32([[1, 1], [0.5, 0]]))
    found = []
    for censored in (True, False):
        cloning = cloning_of(folder, head, censored=censored)
        torch.nn.init.constant_(list(cloning._networks["a"].policy.parameters())[-1], 2.0)  # outputs beyond the bound
        found.append(cloning.losses("a", rows).tolist())
    (bound, inside), (plain, same) = found
    assert bound != pytest.approx(plain)
    assert inside == pytest.approx(same)


def test_weight_decay_pulls_weights_towards_zero(folder):
    sizes = []
    for decay in (0.0, 3.0):
        cloning = cloning_of(folder, None, weight_decay=decay)
        cloning.learn({}, 1800)
        sizes.append(sum(float(part.detach().pow(2).sum()) for part in cloning._networks["a"].policy.parameters()))
    assert sizes[1] < sizes[0]


def test_heads_without_probability_clone_but_reject_ppo():
    config = compose(["scenario=halfcheetah", "train=bc", "data=x", "model.head=diffusion"])
    assert (config.model.head, config.model.hidden, config.train.cloning.play_every) == ("diffusion", (256, 256), 10**6)
    assert error_of("scenario=halfcheetah", "model.head=diffusion").startswith("model.head: expected gaussian, ")


@pytest.mark.parametrize("episodes", [5, 50, 64, 100])
def test_every_environment_of_play_out_plays_its_share(episodes):
    def played_out(episodes, seed):
        factory = GymnasiumFactory("hostile_agents:Geometric-v0", seed)
        net = network_of(factory.specs.agents[0], {"name": "mlp", "hidden": [8], "activation": "tanh"})
        sizes = {"num_envs": SIDE_BY_SIDE, "first": 0, "seed": seed}
        return play_out(factory, {"agent_0": net}, episodes, **sizes, bound="clip")[0]

    assert_shares(played_out, episodes)


def test_play_out_of_a_game_by_turns_counts_episodes_as_they_were_played():
    factory = env_factory(compose(["env_id=pettingzoo:classic/leduc_holdem-v4"]))
    nets = {agent.module: network_of(agent, {"name": "mlp", "hidden": [8]}) for agent in factory.specs.agents}
    table = play_out(factory, nets, 150, num_envs=4, first=0, seed=1, bound="clip")[0]
    assert len(table.length) == 150
