"""The update of policy gradients against a plain loop, and what stops, renews and measures it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from multigrid_rl.config.compose import compose
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumFactory
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.learn.update import Update
from multigrid_rl.models.registry import network_of
from multigrid_rl.models.vector import Moments
from multigrid_rl.training.stages import estimator_of
from multigrid_rl.types import Schedule
from updates import PPO, steady

CPU = torch.device("cpu")
VPG = replace(
    PPO, objective="policy_gradient", minibatch_size=None, lr=steady(3e-3), vf_coef=1.0, grad_clip=1e9,
    v_iters=10, v_lr=steady(1e-2), standardise=False,
)  # fmt: skip


def parts(env_id: str = "CartPole-v1", steps: int = 40, **architecture):
    """A collector of four environments, its network, and the update that learns from it."""
    factory = GymnasiumFactory(env_id, 1)
    (agent,) = factory.specs.agents
    net = network_of(agent, {"name": "mlp", "hidden": [16], "activation": "tanh", "log_std": -0.5} | architecture, 1)
    collector = collector_of(factory.build(4, 0), factory.specs, {AGENT: net}, seed=1, first=0, steps=steps)
    return collector, net, {AGENT: agent.action_space}


class Reference:
    """Vanilla policy gradient on CartPole in plain torch: two networks, two Adams, whole batches, REINFORCE with V."""

    def __init__(self, net) -> None:
        self.policy = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        self.value = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.policy.load_state_dict(net.policy.state_dict())
        self.value.load_state_dict(net.value.state_dict())
        self.pi_adam = torch.optim.Adam(self.policy.parameters(), 3e-3)
        self.v_adam = torch.optim.Adam(self.value.parameters(), 1e-2)

    def returns(self, rollout) -> np.ndarray:
        """Discounted rewards from each step on; at the end of the batch the value of what was seen last stands in."""
        result = np.zeros_like(rollout.rewards)
        for n in range(result.shape[1]):
            after = 0.0
            for t in reversed(range(len(result))):
                if rollout.done[t, n] or t == len(result) - 1:
                    after = 0.0 if rollout.terminated[t, n] else float(rollout.next_values[t, n])
                after = rollout.rewards[t, n] + 0.99 * after
                result[t, n] = after
        return result

    def learn(self, rollout) -> None:
        obs = torch.from_numpy(rollout.obs).flatten(0, 1)
        actions = torch.from_numpy(rollout.actions).flatten()
        returns = torch.from_numpy(self.returns(rollout)).flatten()
        psi = returns - torch.from_numpy(rollout.values).flatten()
        for _ in range(4):
            logp = torch.distributions.Categorical(logits=self.policy(obs)).log_prob(actions)
            self.pi_adam.zero_grad()
            (-(logp * psi).mean()).backward()
            self.pi_adam.step()
        for _ in range(10):
            self.v_adam.zero_grad()
            (self.value(obs).squeeze(-1) - returns).pow(2).mean().backward()
            self.v_adam.step()


def test_vpg_equals_plain_loop_step_for_step():
    collector, net, space = parts()
    update, reference = Update({AGENT: net}, space, VPG, device=CPU), Reference(net)
    for k in range(5):
        rollout = collector.collect()[AGENT]
        reference.learn(rollout)
        statistics = update.learn({AGENT: estimate(rollout, Estimator(0.99, 0.95, "baselined_return"))}, k)[AGENT]
        assert statistics["gradient_steps"] == 14
        for ours, theirs in ((net.policy, reference.policy), (net.value, reference.value)):
            for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_target_kl_stops_policy_passes_not_value_passes():
    steps = []
    for target in (None, 1e-4):
        collector, net, space = parts()
        config = replace(VPG, target_kl=target, lr=Schedule(0.05, 0.05, 1))
        update = Update({AGENT: net}, space, config, device=CPU)
        statistics = update.learn({AGENT: estimate(collector.collect()[AGENT], Estimator(0.99, 0.95))}, 0)[AGENT]
        steps.append(statistics["gradient_steps"])
    assert steps == [14, 11]  # the first pass has ratio 1 and steps; the second one is already too far


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_recomputed_advantages_use_new_values(env_id):
    """Truncated episodes included: Pendulum's end after 200 steps."""
    collector, net, space = parts(env_id, steps=230)
    how = Estimator(0.9, 0.8)
    update = Update({AGENT: net}, space, replace(VPG, recompute=how), device=CPU)
    rollout = collector.collect()[AGENT]
    batch = estimate(rollout, how)
    paths = {AGENT: [collector.paths()[AGENT]]}
    same = update._recomputed({AGENT: batch}, paths, how)[AGENT]
    np.testing.assert_allclose(same.advantages, batch.advantages, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        net.value[-1].bias.add_(7.0)  # every value is larger by 7
    moved = update._recomputed({AGENT: batch}, paths, how)[AGENT]
    expected = estimate(
        rollout._replace(
            values=rollout.values + 7,
            next_values=np.where(rollout.done & rollout.terminated, 0, rollout.next_values + 7).astype(np.float32),
        ),
        how,
    )
    np.testing.assert_allclose(moved.advantages, expected.advantages, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(moved.targets, expected.targets, rtol=1e-4, atol=1e-3)


def test_normaliser_is_updated_after_learning():
    """What played a batch learns from it: the first ratio of each update is exactly 1."""
    collector, net, space = parts("Pendulum-v1", normalise=True, scale_values=True)
    config = replace(VPG, v_iters=None, v_lr=None, epochs=1, objective="ppo")
    update = Update({AGENT: net}, space, config, device=CPU, scale_values=True)
    seen, targets = [], []
    for k in range(3):
        rollout = collector.collect()[AGENT]
        batch = estimate(rollout, Estimator(0.9, 0.8))
        statistics = update.learn({AGENT: batch}, k)[AGENT]
        assert statistics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        seen.append(batch.obs)
        targets.append(batch.targets)
        every = np.concatenate(seen).astype(np.float64)
        np.testing.assert_allclose(net.normaliser.mean, every.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(net.normaliser.std, every.std(0), rtol=1e-3)
        np.testing.assert_allclose(net.value_scale, np.concatenate(targets).std(), rtol=1e-3)


@pytest.mark.parametrize("apart", [False, True])
def test_rescaled_values_keep_their_optimiser_in_step(apart):
    """Moments of Adam are of gradients: where the values' unit grows, they shrink, and their square with the square."""
    states = []
    for scaled in (False, True):
        collector, net, space = parts("Pendulum-v1", scale_values=True)
        config = replace(VPG, epochs=1) if apart else replace(VPG, v_iters=None, v_lr=None, epochs=1)
        update = Update({AGENT: net}, space, config, device=CPU, scale_values=scaled)
        update.learn({AGENT: estimate(collector.collect()[AGENT], Estimator(0.9, 0.8))}, 0)
        (state,) = update.optimizers[AGENT][-1].state.values()
        last = torch.zeros_like(state["exp_avg"], dtype=torch.bool)
        for parameter in net.value[-1].parameters():
            last[parameter.storage_offset() :][: parameter.numel()] = True
        states.append((state, float(net.value_scale)))
    (plain, one), (scaled, scale) = states
    assert one == 1 < scale
    for name, factor in (("exp_avg", 1 / scale), ("exp_avg_sq", 1 / scale**2)):
        torch.testing.assert_close(scaled[name][last], plain[name][last] * factor)
        torch.testing.assert_close(scaled[name][~last], plain[name][~last])


def test_moments_resume():
    rows = np.random.default_rng(0).normal(3, 2, (90, 2))
    whole, parts_of = Moments(2), Moments(2)
    whole.add(rows)
    for part in np.split(rows, [10, 11, 60]):
        parts_of.add(part)
    np.testing.assert_allclose([parts_of.mean, parts_of.std], [rows.mean(0), rows.std(0)], rtol=1e-6)
    np.testing.assert_allclose(whole.std, parts_of.std)


def test_objective_without_values_reads_none():
    config = compose(["scenario=gymnasium", "train=vpg", "train.psi=future_return", "train.vf_coef=0",
                      "train.v_iters=null", "train.v_lr=null"])  # fmt: skip
    how = estimator_of(config)
    assert (how.psi, how.critic) == ("future_return", False)
    collector, *_ = parts(steps=5)
    batch = estimate(collector.collect()[AGENT], how)
    assert batch.advantages.reshape(5, 4)[-1].tolist() == [1.0] * 4  # nothing stands in for what was not played
