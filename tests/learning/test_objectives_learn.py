"""Each objective comes to the optimum of a task whose optimum is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hostile_agents import Target
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumFactory
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.learn.update import Update, UpdateConfig
from multigrid_rl.models.distributions import Gaussian
from multigrid_rl.models.registry import network_of
from updates import PPO, steady


def learn(config: UpdateConfig, bound: str, updates: int, seed: int) -> tuple[np.ndarray, list[float], int]:
    """The action that the mean stands for, mean rewards of each batch, and optimiser steps taken."""
    factory = GymnasiumFactory("Target-v0", 1)
    (agent,) = factory.specs.agents
    architecture = {"name": "mlp", "hidden": [8], "activation": "tanh", "log_std": -0.5}
    net = network_of(agent, architecture, seed)
    collector = collector_of(
        factory.build(32, 0), factory.specs, {AGENT: net}, seed=seed, first=0, steps=4, bound=bound
    )
    update = Update({AGENT: net}, {AGENT: agent.action_space}, config, device=torch.device("cpu"))
    rewards = []
    for k in range(updates):
        rollout = collector.collect()[AGENT]
        rewards.append(float(rollout.rewards.mean()))
        update.learn({AGENT: estimate(rollout, Estimator(0.99, 0.95))}, k)
    with torch.no_grad():
        outputs = net(torch.ones(1, 1))[0].numpy()
    (state,) = update.optimizers[AGENT][0].state.values()
    distribution = Gaussian(agent.action_space.low, agent.action_space.high, bound)
    return distribution.bounded(distribution.mode(outputs))[0], rewards, int(state["step"])


FAST = replace(PPO, lr=steady(0.02), seed=1)
A2C = replace(FAST, objective="policy_gradient", epochs=1, minibatch_size=None)


@pytest.mark.parametrize("bound", ["clip", "tanh", "clip3"])
@pytest.mark.parametrize(("config", "updates", "steps"), [(FAST, 40, 320), (A2C, 120, 120)], ids=["ppo", "a2c"])
def test_gaussian_finds_best_action(learning, config, bound, updates, steps):
    best, rewards, taken = learn(config, bound, updates, learning.seed)
    assert taken == steps
    learning.check("loss over the first", np.mean(rewards[-5:]) / np.mean(rewards[:5]), below=0.4)
    learning.check("distance to the best", np.abs(best - Target.best).max(), below=0.25)
