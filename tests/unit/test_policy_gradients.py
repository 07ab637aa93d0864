"""Objectives by hand, the update of policy gradients against a plain loop, what stops, renews and measures it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from multigrid_rl.cli.explain import Sizes
from multigrid_rl.config.compose import compose
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumFactory
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.losses import (
    OBJECTIVES,
    Losses,
    Rows,
    Weighting,
    loss_of,
    objective_of,
    policy_gradient,
    ppo,
    reference,
    value_loss_of,
)
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.learn.update import Update
from multigrid_rl.models.distributions import Categorical, Gaussian
from multigrid_rl.models.registry import network_of
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import estimator_of, update_config
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


def test_objective_without_values_reads_none():
    config = compose(["scenario=gymnasium", "train=vpg", "train.psi=future_return", "train.vf_coef=0",
                      "train.v_iters=null", "train.v_lr=null"])  # fmt: skip
    how = estimator_of(config)
    assert (how.psi, how.critic) == ("future_return", False)
    collector, *_ = parts(steps=5)
    batch = estimate(collector.collect()[AGENT], how)
    assert batch.advantages.reshape(5, 4)[-1].tolist() == [1.0] * 4  # nothing stands in for what was not played


# --- what a policy maximises, by hand


WEIGHTING = Weighting(clip=0.2, vf_coef=0.5, entropy_coef=0.1)
PLAIN = Weighting(clip=0.2, vf_coef=0.0, entropy_coef=0.0)
both = pytest.mark.parametrize("function", [loss_of, reference])


def rows_of(actions, mask, logp, advantages, targets) -> Rows:
    floats = (torch.tensor(column, dtype=torch.float32) for column in (logp, advantages, targets))
    return Rows(torch.tensor(actions), torch.tensor(mask), *floats)


# --- by hand


@both
def test_ppo_of_joint_action_by_hand(function):
    # Two seats with two actions each. Row 0: both in the game, uniform logits. Row 1: the second is out.
    half, third = math.log(0.5), [math.log(0.25), math.log(0.75)]
    outputs = torch.tensor([[0.0, 0.0, 0.0, 0.0], [*third, 5.0, -3.0]])
    # Row 0 was played with probability 0.2, row 1 with 0.75: ratios 0.25 / 0.2 = 1.25 and 1.
    rows = rows_of([[0, 1], [1, 0]], [[True, True], [True, False]], np.log([0.2, 0.75]), [2.0, -1.0], [1.0, 0.0])
    loss, parts = function(outputs, torch.tensor([0.0, 3.0]), rows, Categorical((2, 2)), Losses(), WEIGHTING)
    policy = -(2 * 1.2 + -1 * 1.0) / 2  # 1.25 is clipped to 1.2
    vf = (1.0 + 9.0) / 2
    entropy = (-2 * half + -(0.25 * third[0] + 0.75 * third[1])) / 2
    kl, k1 = ((1.25 - 1 - math.log(1.25)) + 0) / 2, (-math.log(1.25) + 0) / 2
    assert [float(part) for part in parts] == pytest.approx([policy, vf, entropy, kl, 0.5, k1])
    assert float(loss) == pytest.approx(policy + 0.5 * vf - 0.1 * entropy)


def test_gaussian_policy_gradient_is_advantage_times_score():
    outputs = torch.tensor([[0.0, 1.2, -0.5, -0.5]], requires_grad=True)
    rows = Rows(
        torch.tensor([[0.1, 1.0]]), torch.ones(1, 1).bool(), torch.zeros(1), torch.tensor([-3.0]), torch.zeros(1)
    )
    distribution = Gaussian([-1.0, -1.0], [1.0, 1.0], "clip")
    loss, _ = loss_of(outputs, torch.zeros(1), rows, distribution, Losses(policy_gradient), PLAIN)
    loss.backward()
    assert outputs.grad[0, :2].tolist() == pytest.approx([3 * 0.2718, 3 * -0.5437], abs=2e-4)


@pytest.mark.parametrize(
    "distribution", [Categorical((5, 5)), Gaussian([-1.0] * 2, [1.0] * 2, "clip")], ids=["choices", "numbers"]
)
def test_compiled_clipped_value_loss_is_that_of_torch(distribution):
    generator = torch.Generator().manual_seed(2)
    numbers = torch.randn(6, 512, generator=generator)
    old, values = numbers[4], (numbers[4] + 0.4 * numbers[5]).requires_grad_()
    outputs = torch.randn(512, distribution.outputs, generator=generator, requires_grad=True)
    actions = torch.randint(0, 5, (512, 2), generator=generator)
    mask = torch.rand(512, distribution.components, generator=generator) > 0.2
    drawn = actions if isinstance(distribution, Categorical) else actions.float()
    rows = Rows(drawn, mask, *numbers[:3], values=old)
    assert (abs(values - old) > 0.2).float().mean() > 0.3
    losses, found = Losses(value_loss=value_loss_of("clipped")), []
    assert losses.compiled(distribution)
    for function in (loss_of, reference):
        loss, parts = function(outputs, values, rows, distribution, losses, WEIGHTING)
        found.append((loss, torch.stack(parts), *torch.autograd.grad(loss, [outputs, values])))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    held, active = found[0][3] == 0, mask.any(1)
    assert (held & active).any()
    assert (~held & active & (abs(values - old) > 0.2)).any()
    plain, _ = loss_of(outputs, values, rows, distribution, Losses(), WEIGHTING)
    assert plain != found[0][0]


# --- objectives by name


def test_objectives_resolve_by_name_or_module_function():
    assert {name: objective_of(name) for name in OBJECTIVES} == {"ppo": ppo, "policy_gradient": policy_gradient}
    assert objective_of("multigrid_rl.learn.losses:ppo") is ppo


@pytest.mark.parametrize("name", ["pg", "", "nowhere:f", "math:nothing", "math.py:pow", ":", "math:"])
def test_rejects_unknown_objective(name):
    with pytest.raises(ConfigError, match=r"^train\.objective.*module:function"):
        objective_of(name)


def test_a2c_takes_one_step_on_whole_batch():
    config = compose(["train=a2c", "experiment=none"])
    train = config.train
    assert (train.objective, train.epochs, train.minibatch_size, train.minibatch) == (
        "policy_gradient", 1, None, train.batch_size,
    )  # fmt: skip
    sizes = Sizes.of(config, ["red_0"])
    assert (sizes.gradient_steps_per_update, sizes.minibatches_per_epoch) == (1, 1)
    built = update_config(config)
    assert (built.objective, built.epochs, built.minibatch_size) == ("policy_gradient", 1, None)
    assert compose(["train=a2c", "train.lr=0.01"]).train.schedules["lr"].end == 0.01
