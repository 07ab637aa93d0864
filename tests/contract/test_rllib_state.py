"""What RLlib's own means put into an algorithm of ours holds: weights, states, modules."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.rllib import MultigridAlgorithm, config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY, without_time

PART = "learner_group/learner/rl_module/red_0"
pytestmark = pytest.mark.usefixtures("no_session")


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
