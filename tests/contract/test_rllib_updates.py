"""RLlib's settings of an update mean what they mean there, and what its own means put into an algorithm holds."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import ray
import torch
from gymnasium.spaces import Box, MultiDiscrete
from ray import tune
from ray._common.deprecation import DEPRECATED_VALUE
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
from ray.rllib.utils.schedules.scheduler import Scheduler

from multigrid_rl.learn.losses import KlPenalty
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.rllib import MultigridAlgorithm, config
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


def test_what_is_not_followed_is_refused_in_one_line():
    from multigrid_rl.rllib.build import RLLIBS  # noqa: PLC0415
    from multigrid_rl.rllib.translation import CONVERTED, SAME  # noqa: PLC0415

    followed = {*RLLIBS, *SAME, *CONVERTED}
    for name in sorted(vars(config("1v1", *TINY))):
        deprecated = getattr(PPOConfig(), name, None) == DEPRECATED_VALUE
        if name in followed or deprecated or name.startswith(("callbacks_", "evaluation_")):
            continue
        made = config("1v1", *TINY)
        vars(made)[name] = {"other"} if name == "policies" else object()
        with pytest.raises(ConfigError, match=r"^.*nothing of ours follows it.*$"):
            made._user_values()


def test_fragment_and_batch_that_differ_are_refused():
    made = config("1v1", *TINY).env_runners(rollout_fragment_length=32)
    assert made.copy().training(train_batch_size=32 * 32)._user_values() == {"train.num_steps": 32}
    with pytest.raises(ConfigError, match="rollout_fragment_length: expected 16, which follows from the batch, got 32"):
        made.training(train_batch_size=32 * 16)._user_values()


def test_values_that_no_configuration_has_are_refused_by_their_key():
    with pytest.raises(ConfigError, match=r"^model.hidden: expected numbers, texts, lists and mappings, got .*Categ"):
        config("1v1", hidden=[tune.choice([16, 32]), 16])
    with pytest.raises(ConfigError, match=r"^scenario: expected"):
        config(tune.choice(["1v1", "coop"]))


PART = "learner_group/learner/rl_module/red_0"


@pytest.fixture
def tiny(built):
    """Builds tiny algorithms of 1v1."""
    return lambda *overrides: built(config("1v1", *TINY, *overrides))


def by_component(one, other, path):
    one.restore_from_path(f"{path}/{PART}", component=PART)


def by_state(one, other, path):
    one.set_state({"learner_group": {"learner": {"rl_module": other.learner_group.get_weights()}}})


def by_weights(one, other, path):
    one.set_weights(other.get_weights())


def by_learner_group(one, other, path):
    one.learner_group.set_state({"learner": other.learner_group.get_state()["learner"]})


def by_sync_of_env_runners(one, other, path):
    by_learner_group(one, other, path)
    one.env_runner_group.sync_weights(from_worker_or_learner_group=one.learner_group)


def played(algorithm):
    """Weights that the next batch is played with, and what its update reports."""
    hashes, sample = [], algorithm.run.sampler.sample

    def noted():
        experience = sample()
        hashes.extend(part.weights_hash for part in experience)
        return experience

    algorithm.run.sampler.sample = noted
    result = algorithm.train()
    del algorithm.run.sampler.sample
    return hashes, result["learners"]["red_0"]


@pytest.mark.parametrize("put", [by_component, by_state, by_weights, by_learner_group, by_sync_of_env_runners])
def test_weights_put_in_by_rllibs_means_are_trained_on_from(put, tiny, tmp_path):
    other, one = tiny("seed=1", "train.lr=0.01"), tiny("seed=2")
    other.train()
    path = other.save_to_path(str(tmp_path))
    one.train()
    put(one, other, path)
    given = other.env_runner.weights_hash()
    hashes, learnt = played(one)
    assert hashes == [given]
    assert learnt["mean_kl_loss"] < 1e-3
    assert learnt["default_optimizer_learning_rate"] == one.config.settings.run.train.lr
    one.train()
    assert not ray.is_initialized()


def test_step_sizes_follow_the_configuration_whatever_was_set_on_optimisers(tiny):
    one, same = tiny("seed=2"), tiny("seed=2")
    one.learner_group.foreach_learner(
        lambda learner: [group.update(lr=0.5) for group in learner.updater.optimizers["red_0"][0].param_groups]
    )
    rows = [one.train()["multigrid_rl"], same.train()["multigrid_rl"]]
    assert without_time(rows[:1]) == without_time(rows[1:])
    assert one.run.fingerprints() == same.run.fingerprints()


class Restoring(RLlibCallback):
    """Restores a whole checkpoint when an algorithm is there, or after its second iteration."""

    path, when = "", "start"

    def on_algorithm_init(self, *, algorithm, **_):
        if self.when == "start":
            algorithm.restore_from_path(self.path)

    def on_train_result(self, *, algorithm, result, **_):
        if self.when == "later" and result["training_iteration"] == 2:
            type(self).when = ""
            algorithm.restore_from_path(self.path)


@pytest.mark.parametrize("when", ["start", "later"])
def test_whole_restore_inside_a_callback_goes_on_from_there(when, tiny, built, tmp_path, monkeypatch):
    first = tiny("seed=1")
    first.train()
    monkeypatch.setattr(Restoring, "path", first.save_to_path(str(tmp_path)))
    monkeypatch.setattr(Restoring, "when", when)
    second = built(config("1v1", *TINY, "seed=1").callbacks(Restoring))
    for _ in range(2 if when == "later" else 0):
        second.train()
    rows = [first.train()["multigrid_rl"], second.train()["multigrid_rl"]]
    assert without_time(rows[:1]) == without_time(rows[1:])


GATES = "scenario.gates=[{metric: win/red_0, at_least: 0.5}]"
MIXED = "scenario.seats.blue_0={hunter: 1, random: 1}"


@pytest.mark.parametrize(
    ("before", "after", "warned"),
    [
        ((), ("train.gamma=0.9",), ""),
        ((), ("scenario.game.max_steps=99",), ""),
        ((), ("scenario.seats.blue_0=random",), ""),
        ((MIXED,), ("scenario.seats.blue_0={hunter: 3, random: 1}",), ""),
        ((), ("train.num_envs=64", "train.num_steps=8"), "games start afresh"),
        ((), (MIXED,), "games start afresh"),
        ((MIXED,), (), "games start afresh"),
        ((MIXED,), ("scenario.seats.blue_0={random: 1, blue-rookie: 1}",), "games start afresh"),
        ((), (GATES,), "other gates than before are judged anew"),
        ((GATES,), (GATES.replace("5}", "5, window: 9}"),), "other gates than before are judged anew"),
    ],
)
def test_what_changes_at_a_restore_is_taken_or_starts_afresh(before, after, warned, tiny, tmp_path, caplog):
    first = tiny("seed=1", *before)
    first.train()
    second = tiny("seed=1", *after)
    second.restore_from_path(first.save_to_path(str(tmp_path)))
    assert [record.getMessage() for record in caplog.records if record.name.startswith("multigrid_rl")] == [
        text for text in [next((r.getMessage() for r in caplog.records if warned in r.getMessage()), "")] if warned
    ]
    assert second.run.fingerprints() == first.run.fingerprints()
    result = second.train()
    assert result["num_env_steps_sampled_lifetime"] == 1024
    assert [state.gate for state in second.run.keeper.states] == second.run.stages[0].gates


def test_modules_are_neither_added_nor_removed(tiny):
    one = tiny()
    for call in (one.add_module, one.remove_module):
        with pytest.raises(ConfigError, match="add_module or remove_module: expected the modules of the scenario"):
            call("blue_0")
    assert not ray.is_initialized()


def test_nothing_of_rays_is_replaced_for_others_while_algorithms_are_built():
    before, seen = ray.put, []

    class Looking(RLlibCallback):
        def on_algorithm_init(self, **_):
            seen.append(ray.put)

    def build(seed: int) -> None:
        MultigridAlgorithm.stop(config("1v1", *TINY, seed=seed).callbacks(Looking).build_algo())

    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(build, range(4)))
    assert ray.put is before
    assert all(put is before for put in seen)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["1v1", "model.hidden=[8]"], r"model.hidden: expected \[16, 16\], as in .*, got \[8\]$"),
        (["1v1", "model.activation=relu"], r"model.activation: expected tanh, as in .*, got relu$"),
        (["1v1", "model=gru", "model.hidden=[16]"], r"model.name: expected mlp, as in .*, got gru$"),
        (["coop"], r"modules: expected red_0, red_1, got red_0$"),
    ],
)
def test_checkpoints_of_other_networks_are_refused_in_one_line(overrides, message, tiny, tmp_path):
    path = tiny().save_to_path(str(tmp_path))
    scenario, *own = overrides
    with pytest.raises(ConfigError, match=message):
        config(scenario, *TINY, *own).build_algo().restore_from_path(path)


@pytest.mark.parametrize("put", [by_component, by_state, by_weights, by_learner_group])
def test_weights_of_other_networks_are_refused_in_one_line(put, tiny, tmp_path):
    other, one = tiny(), tiny("model.hidden=[8]")
    path = other.save_to_path(str(tmp_path))
    with pytest.raises(ConfigError, match=r"weights of another network, net.table: expected shape \(583, 16\), got "):
        put(one, other, path)


def test_weights_of_unknown_modules_are_refused(tiny, built):
    algorithm, other = tiny(), built(config(env_id="CartPole-v1")).get_state()
    with pytest.raises(ConfigError, match=r"^weights: expected red_0, got red \(did you mean red_0\?\)$"):
        algorithm.set_weights({"red": {}})
    with pytest.raises(ConfigError, match=r"^state: modules: expected red_0, got agent_0$"):
        algorithm.set_state(other)
    for component in (PART.replace("red_0", "blue_0"), PART.partition("/")[2]):
        with pytest.raises(ConfigError, match=r"^component: (rl_module: expected red_0|expected learner_group)"):
            algorithm.restore_from_path("nowhere", component=component)
