"""RLlib's settings of an update mean what they mean there: schedules, the KL penalty, single modules."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
from ray.rllib.utils.schedules.scheduler import Scheduler

from multigrid_rl.learn.losses import KlPenalty
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.rllib import config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY, running, without_time

SMALL = [*TINY, "seed=5"]
pytestmark = pytest.mark.usefixtures("no_session")


def trained(change, iterations=2, scenario="1v1", overrides=()):
    """Results of a few iterations."""
    with running(change(config(scenario, *SMALL, *overrides))) as algorithm:
        return [algorithm.train() for _ in range(iterations)]


@pytest.mark.parametrize(
    "points",
    [
        [[0, 1e-3], [4096, 0.0]],
        [[0, 1e-3], [99_999, 1e-4]],
        [[0, 1e-3], [700, 5e-4], [1000, 0.0]],
        [[0, 0.0], [512, 1e-3], [2048, 1e-4], [2048, 1e-5], [9000, 0.0]],
        [(0, 1e-3), (1e4, 0.0)],
        0.0,
    ],
)
def test_schedules_of_any_points_are_those_of_rllib(points):
    made = config("1v1", *SMALL).training(lr=points, entropy_coeff=points)
    made.validate()
    schedules = made.settings.run.train.schedules
    theirs = Scheduler(fixed_value_or_schedule=points)
    for steps in (0, 1, 512, 700, 900, 2048, 4096, 5000, 99_999, 200_000):
        wanted = pytest.approx(float(theirs.update(steps)), rel=1e-6)
        assert schedules["lr"].at(steps) == wanted
        assert schedules["entropy_coef"].at(steps) == wanted
    again = made.settings.run
    made.validate()
    assert made.settings.run == again


def test_step_size_of_zero_learns_nothing_and_later_points_are_reached():
    results = trained(lambda made: made.training(lr=[[0, 0.0], [512, 0.0], [1024, 1e-2]]), 3)
    rates = [result["learners"]["red_0"]["default_optimizer_learning_rate"] for result in results]
    assert rates == [0.0, 1e-2, 1e-2]
    assert [result["multigrid_rl"]["approx_kl/red_0"] > 1e-9 for result in results] == [False, False, True]


@pytest.mark.parametrize("space", [MultiDiscrete([5]), MultiDiscrete([3, 3]), Box(-1, 1, (3,))])
def test_divergence_is_that_of_rllib(space):
    ours, torch_rng = distribution_of(space), torch.Generator().manual_seed(1)
    old, new = (torch.randn((7, ours.outputs), generator=torch_rng) for _ in range(2))
    if isinstance(space, Box):
        theirs = TorchDiagGaussian.from_logits(old).kl(TorchDiagGaussian.from_logits(new))
    else:
        pairs = zip(old.split(list(space.nvec), 1), new.split(list(space.nvec), 1), strict=True)
        theirs = sum(TorchCategorical.from_logits(a).kl(TorchCategorical.from_logits(b)) for a, b in pairs)
    torch.testing.assert_close(ours.kl(old, new).sum(1), theirs, rtol=1e-5, atol=1e-6)
    mask = torch.ones((7, ours.components), dtype=torch.bool)
    mask[3:] = False
    torch.testing.assert_close(KlPenalty(1.0, 0.1).of(ours, old, new, mask), theirs[:3].mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("network", [(), ("model=gru", "model.hidden=[16]")], ids=["mlp", "gru"])
def test_kl_penalty_holds_the_policy_and_its_weight_follows_the_target(network):
    free = trained(lambda made: made.training(kl_coeff=0.0), overrides=network)
    held = trained(lambda made: made.training(kl_coeff=1000.0, kl_target=1e-9), overrides=network)
    assert held[0]["learners"]["red_0"]["mean_kl_loss"] < free[0]["learners"]["red_0"]["mean_kl_loss"]
    assert [result["learners"]["red_0"]["curr_kl_coeff"] for result in held] == [1500.0, 2250.0]
    loose = trained(lambda made: made.training(use_kl_loss=True, kl_target=10.0), overrides=network)
    assert [result["learners"]["red_0"]["curr_kl_coeff"] for result in loose] == [0.1, 0.05]
    with pytest.raises(ConfigError, match=r"train.kl_coef: expected null with model.head=mixture"):
        config("halfcheetah", "train.kl_coef=0.2", "model.head=mixture")


@pytest.mark.parametrize(
    ("change", "coefficient"),
    [
        (lambda made: made, None),
        (lambda made: made.training(use_kl_loss=False, kl_coeff=0.5), None),
        (lambda made: made.training(use_kl_loss=True), 0.2),
        (lambda made: made.training(kl_coeff=0.2), 0.2),
        (lambda made: made.training(kl_target=0.01), 0.2),
        (lambda made: made.training(kl_target=0.01, kl_coeff=0.7, use_kl_loss=True), 0.7),
    ],
)
def test_any_setting_of_the_kl_penalty_turns_it_on_unless_it_is_off(change, coefficient):
    made = change(config("1v1", *SMALL))
    made.validate()
    assert made.settings.run.train.kl_coef == coefficient


def test_kl_penalty_goes_on_after_a_restore(built, tmp_path):
    made = config("1v1", *SMALL).training(kl_coeff=0.3, kl_target=1e-9)
    first, second = built(made), built(made)
    first.train()
    second.restore_from_path(first.save_to_path(str(tmp_path)))
    rows = [one.train() and one.row for one in (first, second)]
    assert without_time(rows[:1]) == without_time(rows[1:])
    assert rows[0]["learner/red_0/kl_coef"] == pytest.approx(0.3 * 1.5**2)


def test_value_losses_beyond_vf_clip_param_have_no_gradient():
    def learnt(**limit):
        return trained(lambda made: made.training(**limit), 1)[0]["learners"]["red_0"]

    plain, wide, none = learnt(), learnt(vf_clip_param=10.0), learnt(vf_clip_param=1e-9)
    assert wide["vf_loss"] == pytest.approx(plain["vf_loss"], rel=1e-4)
    assert none["vf_loss"] <= 1.001e-9
    assert none["gradients_default_optimizer_global_norm"] < plain["gradients_default_optimizer_global_norm"]


def test_overrides_of_single_modules_reach_them_alone():
    own = {"red_0": PPOConfig.overrides(lr=5e-3, entropy_coeff=0.0, gamma=0.5, lambda_=0.3)}
    plain = trained(lambda made: made, 2, "coop")
    parts = trained(lambda made: made.rl_module(algorithm_config_overrides_per_module=own), 2, "coop")
    lines = trained(
        lambda made: made, 2, "coop", ["train.modules={red_0: {lr: 5e-3, entropy_coef: 0, gamma: 0.5, lam: 0.3}}"]
    )
    for result in (parts[1], lines[1]):
        learnt = result["learners"]
        rates = [learnt[module]["default_optimizer_learning_rate"] for module in ("red_0", "red_1")]
        assert rates == [5e-3, 1e-3]
        assert [learnt[module]["curr_entropy_coeff"] > 0 for module in ("red_0", "red_1")] == [False, True]
    first = [result[0]["learners"] for result in (plain, parts)]
    assert first[0]["red_1"]["vf_loss"] == first[1]["red_1"]["vf_loss"]  # its batch and its update are the same
    assert first[0]["red_0"]["vf_explained_var"] != first[1]["red_0"]["vf_explained_var"]  # another gamma
    assert first[0]["red_1"]["vf_explained_var"] == first[1]["red_1"]["vf_explained_var"]


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ({"kl_coeff": 0.5, "kl_target": 0.02}, {"kl_coef": 0.5, "kl_target": 0.02}),
        ({"kl_target": 0.02, "kl_coeff": 0.5}, {"kl_coef": 0.5, "kl_target": 0.02}),
        ({"kl_coeff": 0.5, "use_kl_loss": True}, {"kl_coef": 0.5}),
        ({"use_kl_loss": False, "kl_coeff": 0.5}, {"kl_coef": None}),
    ],
)
def test_kl_penalty_of_a_module_is_the_same_in_every_order(own, wanted):
    made = config("1v1", *SMALL).rl_module(algorithm_config_overrides_per_module={"red_0": own})
    made.validate()
    assert made.settings.run.train.modules == {"red_0": wanted}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"red_9": {"lr": 1e-3}}, "train.modules: expected red_0, got red_9"),
        ({"red_0": {"train_batch_size": 7}}, r"per_module.red_0: expected one of lr, gamma, .* got train_batch_size"),
        ({"red_0": {"gamma": 2}}, "train.modules.red_0.gamma: expected less than or equal to 1"),
    ],
)
def test_overrides_that_no_module_can_have_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config("1v1", *SMALL).rl_module(algorithm_config_overrides_per_module=overrides).build_algo()


def test_total_loss_is_the_sum_of_its_parts():
    result = trained(lambda made: made.training(kl_coeff=0.5, kl_target=1e-9, lr=1e-9), 1)[0]["learners"]["red_0"]
    entropy = result["entropy"]  # with tiny steps that of the last minibatch is near that of the batch
    wanted = result["policy_loss"] + 0.5 * result["vf_loss"] - 0.02 * entropy
    assert result["total_loss"] == pytest.approx(wanted, abs=2e-3)
    assert np.isfinite(result["total_loss"])


def test_keys_of_public_dashboards_are_there_from_the_first_result_on():
    first, second = trained(lambda made: made, 2, "coop")
    played, learnt = second["env_runners"], second["learners"]
    for name in ("num_agent_steps_sampled", "num_module_steps_sampled"):
        assert played[name] == {"red_0": 512, "red_1": 512}
        assert played[f"{name}_lifetime"] == {"red_0": 1024, "red_1": 1024}
    assert played["num_env_steps_sampled_lifetime_throughput"]["throughput_since_last_reduce"] > 0
    assert learnt["red_0"]["num_module_steps_trained"] == 2 * 512
    assert learnt["__all_modules__"]["num_module_steps_trained_lifetime"] == 2 * 2 * 2 * 512
    assert learnt["__all_modules__"]["num_env_steps_trained_lifetime"] == 1024
    assert first["gates"]["held"] is False
    assert np.isnan(first["gates"]["return_mean/red_0"]["value"])


def test_restarting_env_runners_is_what_happens_and_not_restarting_ends_the_run():
    for value, failures in ((True, 5), (False, 1)):
        made = config("1v1", *SMALL).fault_tolerance(restart_failed_env_runners=value)
        made.validate()
        assert made.settings.run.cluster.max_consecutive_failures == failures


def test_tolerance_of_failures_counts_also_where_it_is_the_default_of_rllib():
    made = config("1v1", *SMALL).fault_tolerance(num_consecutive_env_runner_failures_tolerance=100)
    made.validate()
    assert made.settings.run.cluster.max_consecutive_failures == 100
