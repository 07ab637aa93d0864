"""PPO written a second time (``ppo_twin``): number for number what ``make train SCENARIO=1v1`` does."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ppo_twin as one
from multigrid_rl.cli.start import run_training
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.learn.advantages import gae
from multigrid_rl.models.registry import network_of
from multigrid_rl.streams import LEARNER_PURPOSE, Streams
from tiny_runs import rows_of

ITERATIONS = 3


@pytest.mark.parametrize("seed", [0, 5])
def test_three_iterations_are_those_of_a_run_number_for_number(tmp_path, seed):
    until = ITERATIONS * one.NUM_ENVS * one.NUM_STEPS
    run_training(["scenario=1v1", f"seed={seed}", f"train.until={until}", f"run_dir={tmp_path / 'run'}"])
    expected = rows_of(tmp_path / "run")
    found = list(one.train(seed, until, str(tmp_path / "weights.pt")))
    assert len(found) == len(expected) == ITERATIONS
    told = set()
    for mine, theirs in zip(found, expected, strict=True):
        for name, value in mine.items():
            if name != "env_steps_per_s":
                told.add(name)
                # Sums of float32 in another order; explained variance, a difference from 1, is near 0.
                assert math.isclose(value, theirs[name], rel_tol=1e-5, abs_tol=1e-7), (name, value, theirs[name])
    assert {"return_mean/red_0", "approx_kl/red_0", "learner/red_0/vf_loss", "explained_variance/red_0"} <= told
    row = torch.load(tmp_path / "weights.pt", weights_only=True)["weights"]
    assert row.shape == (583 * 128 + 128 + 2 * (64 * 64 + 64) + 7 * 64 + 7 + 64 + 1,)


def test_it_begins_with_the_weights_of_a_run():
    config = compose(["scenario=1v1"])
    agent = env_factory(config).specs.agents[0]
    net = network_of(agent, config.model.model_dump(), 64 * 3)
    mine = one.ActorCritic(agent.observation_space.nvec.tolist(), 3)
    layers = [part for tower in (net.policy, net.value) for layer in tower[1::2] for part in (layer.weight, layer.bias)]
    for part, theirs in zip(mine.split(mine.weights.detach().numpy()), (net.table, net.bias, *layers), strict=True):
        np.testing.assert_array_equal(part, theirs.detach().numpy())


def test_its_way_back_is_that_of_torch():
    rng = np.random.default_rng(0)
    net = one.ActorCritic([5, 4, 3], 1)
    obs = rng.integers(0, 3, (50, 3)).astype(np.uint8)
    log_probs, values = net(obs)
    wanted = torch.from_numpy(rng.normal(size=(50, 8)).astype(np.float32))
    (torch.cat([log_probs, values[:, None]], 1) * wanted).sum().backward()
    gradient = net.weights.grad.clone()

    parts = [torch.from_numpy(part.copy()).requires_grad_() for part in net.split(net.weights.detach().numpy())]
    table, bias, *layers = parts
    hidden = table[torch.from_numpy(obs.astype(np.int64) + net.first)].sum(1) + bias
    outputs = []
    for half, (w1, b1, w2, b2) in zip(hidden.chunk(2, dim=1), (layers[:4], layers[4:]), strict=True):
        outputs.append(torch.tanh(torch.tanh(half) @ w1.T + b1) @ w2.T + b2)
    slow = torch.cat([torch.log_softmax(outputs[0], 1), outputs[1]], 1)
    (slow * wanted).sum().backward()
    torch.testing.assert_close(torch.cat([log_probs, values[:, None]], 1), slow, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, torch.cat([part.grad.ravel() for part in parts]), rtol=1e-4, atol=1e-4)


def test_its_streams_and_advantages_are_those_of_the_package():
    mine, theirs = one.Streams(7, 5), Streams(7, np.arange(5), LEARNER_PURPOSE)
    np.testing.assert_array_equal(mine.uniform(3), np.stack([theirs.uniform(1)[:, 0] for _ in range(3)]))
    np.testing.assert_array_equal(mine.uniform(1)[0], theirs.uniform(1)[:, 0])

    rng = np.random.default_rng(0)
    rewards, values, following = rng.normal(size=(3, 16, 40)).astype(np.float32)
    done = rng.random((16, 40)) < 0.2
    terminated = done & (rng.random((16, 40)) < 0.5)  # others were cut by the time limit

    class Steps:
        active = np.ones_like(done)

    steps = Steps()
    steps.rewards, steps.terminated, steps.done = rewards, terminated, done
    expected = gae(steps, values, following, gamma=one.GAMMA, lam=one.LAM)
    np.testing.assert_allclose(one.gae(rewards, values, following, terminated, done), expected, rtol=1e-5, atol=1e-6)


def test_a_clipped_value_loss_is_the_larger_of_two():
    values, old, targets = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.9]), torch.tensor([2.0, 2.0])
    assert one.value_loss(values, old, targets).item() == pytest.approx(1.0)
    # Moved by .2 at most from 0: an error of 1.8; the other was moved by .1 and stays.
    assert one.value_loss(values, old, targets, clip=True).item() == pytest.approx((1.8**2 + 1.0) / 2)


def test_it_brings_its_own_algorithm():
    ours = re.findall(r"^(?:from|import) (multigrid_rl\S*)", Path(one.__file__).read_text(), re.MULTILINE)
    assert set(ours) == {"multigrid_rl", "multigrid_rl.world.constants"}
