"""RLlib's config of our runs: what users of RLlib set and read does what RLlib's documentation says."""

import copy
import math
import pickle
from typing import ClassVar

import cloudpickle
import numpy as np
import pytest
import ray
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.rllib import config
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY, tiny_run, without_time

SMALL = [*TINY, "seed=5"]
FAILURES = "cluster.max_consecutive_failures"

pytestmark = pytest.mark.usefixtures("no_session")


def test_train_is_an_iteration_under_the_keys_of_rllib(built, tmp_path):
    early = "scenario.game.max_steps=9"  # many episodes: a report
    algorithm = built(config("1v1", *SMALL, early))
    assert isinstance(algorithm.config, PPOConfig)
    rows = []
    for _ in range(4):
        result = algorithm.train()
        rows.append(algorithm.row)
    _, trained = tiny_run(tmp_path / "run", "seed=5", "train.until=2048", early)
    assert without_time(rows) == without_time(trained)  # the iterations of the command line
    assert result["training_iteration"] == 4
    assert result["num_env_steps_sampled_lifetime"] == 2048
    assert not ray.is_initialized()  # nothing of it needs a session
    played = result["env_runners"]
    assert played["num_env_steps_sampled"] == 512
    assert played["num_episodes_lifetime"] == rows[-1]["episodes"]
    assert played["num_episodes"] == rows[-1]["episodes"] - rows[-2]["episodes"]
    assert played["episode_return_min"] <= played["episode_return_mean"] <= played["episode_return_max"]
    assert played["episode_len_min"] <= played["episode_len_mean"] <= played["episode_len_max"]
    assert played["agent_episode_returns_mean"] == {"red_0": played["episode_return_mean"]}
    assert played["module_episode_returns_mean"] == {"red_0": played["episode_return_mean"]}
    learnt = result["learners"]["red_0"]
    for ours, theirs in (
        ("learner/red_0/policy_loss", "policy_loss"),
        ("learner/red_0/vf_loss", "vf_loss"),
        ("entropy/red_0", "entropy"),
        ("explained_variance/red_0", "vf_explained_var"),
        ("approx_kl/red_0", "mean_kl_loss"),
        ("learner/red_0/lr", "default_optimizer_learning_rate"),
    ):
        assert learnt[theirs] == rows[-1][ours]
    assert set(result["timers"]) >= {"env_runner_sampling_timer", "learner_update_timer", "synch_weights"}
    assert {name: result["multigrid_rl"][name] for name in rows[-1]} == rows[-1]
    report = next(row for row in reversed(rows) if "episode_len_mean" in row)
    for state in algorithm.run.reports.keeper.states:
        metric, judged = state.gate.metric, result["gates"][state.gate.metric]
        assert (judged["value"], judged["bound"]) == (report[metric], state.gate.bound)
        assert judged["met"] == (report[f"gates/{metric}/met"] == 1)
    assert (result["gates"]["held"], result["done"]) == (False, False)


def test_returns_are_means_over_the_newest_hundred_episodes_of_all_agents(built):
    algorithm = built(config("coop", *SMALL, "scenario.game.max_steps=9"))
    tables = []
    for _ in range(4):
        result = algorithm.train()
        tables.append(algorithm.run.finished.returns)
    newest = np.concatenate(tables)[-100:]
    seats = [algorithm.run.specs.seats.index(seat) for seat in ("red_0", "red_1")]
    played = result["env_runners"]
    assert len(np.concatenate(tables)) > 100
    assert played["episode_return_mean"] == pytest.approx(newest[:, seats].sum(axis=1).mean())
    for seat, column in zip(("red_0", "red_1"), seats, strict=True):
        assert played["agent_episode_returns_mean"][seat] == pytest.approx(newest[:, column].mean())


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        (lambda made: made.training(lr=2e-3), "train.lr", 2e-3),
        (lambda made: made.training(lr=np.float64(2e-3)), "train.lr", 2e-3),
        (lambda made: made.training(lr=[[0, 1e-3], [4096, 1e-4]]), "train.lr_schedule", ((0, 1e-3), (4096, 1e-4))),
        (lambda made: made.training(gamma=0.9), "train.gamma", 0.9),
        (lambda made: made.training(lambda_=0.8), "train.lam", 0.8),
        (lambda made: made.training(clip_param=0.4), "train.clip", 0.4),
        (lambda made: made.training(vf_loss_coeff=0.3), "train.vf_coef", 0.3),
        (lambda made: made.training(entropy_coeff=0.02), "train.entropy_final", None),
        (
            lambda made: made.training(entropy_coeff=[[0, 0.02], [999, -0.01]]),
            "train.entropy_schedule",
            ((0, 0.02), (999, -0.01)),
        ),
        (lambda made: made.training(grad_clip=0.7), "train.grad_clip", 0.7),
        (lambda made: made.training(grad_clip=None), "train.grad_clip", 1e6),  # no limit
        (lambda made: made, "train.kl_coef", None),
        (lambda made: made.training(use_kl_loss=False, kl_coeff=0.5), "train.kl_coef", None),
        (lambda made: made.training(use_kl_loss=True), "train.kl_coef", 0.2),
        (lambda made: made.training(kl_coeff=0.2), "train.kl_coef", 0.2),
        (lambda made: made.training(kl_target=0.01), "train.kl_coef", 0.2),
        (lambda made: made.training(kl_target=0.01, kl_coeff=0.7, use_kl_loss=True), "train.kl_coef", 0.7),
        (lambda made: made.training(num_epochs=5), "train.epochs", 5),
        (lambda made: made.training(minibatch_size=64), "train.minibatch_size", 64),
        (lambda made: made.training(train_batch_size=64 * 8, minibatch_size=64), "train.num_steps", 16),
        (lambda made: made.training(train_batch_size_per_learner=1024), "train.num_steps", 32),
        (lambda made: made.env_runners(num_env_runners=1), "cluster.num_env_runners", 1),
        (lambda made: made.env_runners(rollout_fragment_length=8), "train.num_steps", 8),
        (lambda made: made.env_runners(num_envs_per_env_runner=64), "train.num_envs", 64),
        (lambda made: made.env_runners(sample_timeout_s=7), "cluster.sample_timeout_s", 7),
        (lambda made: made.learners(num_learners=1), "cluster.num_learners", 1),
        (lambda made: made.debugging(seed=77), "seed", 77),
        (lambda made: made.fault_tolerance(restart_failed_env_runners=True), FAILURES, 5),
        (lambda made: made.fault_tolerance(restart_failed_env_runners=False), FAILURES, 1),
        (lambda made: made.fault_tolerance(num_consecutive_env_runner_failures_tolerance=100), FAILURES, 100),
    ],
)
def test_settings_of_rllib_become_keys_of_ours(change, key, value):
    made = change(config("1v1", *SMALL))
    made.validate()
    found = made.settings.run
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    again = made.settings.run
    made.validate()  # nothing is left to take over
    assert made.settings.run == again


def test_settings_that_depend_on_each_other_are_taken_together():
    made = config("1v1", *SMALL)
    made.env_runners(num_env_runners=2, num_envs_per_env_runner=6).training(train_batch_size=120, minibatch_size=60)
    made.validate()
    run = made.settings.run
    assert (run.cluster.num_env_runners, run.train.num_envs, run.train.num_steps) == (2, 12, 10)
    learners = config("1v1", *SMALL).learners(num_learners=2).training(train_batch_size_per_learner=512)
    learners.validate()
    assert learners.settings.run.train.batch_size == 1024
    recurrent = config("1v1", *SMALL, "model.hidden=[16]", model="lstm")
    recurrent.env_runners(rollout_fragment_length=4).training(minibatch_size=32)
    recurrent.validate()
    assert recurrent.settings.run.train.minibatch_size == 32 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.framework("tf2"), "framework: expected torch, as nothing of ours follows it .* got tf2"),
        (lambda made: made.env_runners(num_env_runners=9999), "cluster.num_env_runners: expected 0 to"),
        (lambda made: made.environment(env_config={"wind": 1}), r"env_config: expected .*'wind': 1"),
        (lambda made: made.training(lr=-1), "train.lr: expected greater than 0, got -1"),
        (lambda made: made.training(lr=[[3, 1e-3], [5, 1e-4]]), r"train.lr_schedule: expected points \[\[0, a\]"),
        (lambda made: made.training(lr=[[0, 1e-3], [5, -1e-4]]), "train.lr_schedule.1.1: expected .*0, got -0.0001"),
        (lambda made: made.training(train_batch_size=1000), "train_batch_size: expected a multiple of train.num_envs"),
        (lambda made: made.training(kl_coeff=-0.5), "train.kl_coef: expected greater than or equal to 0, got -0.5"),
        (
            lambda _: config("1v1", *SMALL, "train.psi=future_return").training(lambda_=0.5),
            "train.lam: expected nothing with train.psi=future_return",
        ),
        (lambda made: made.rl_module(model_config={"fcnet_hiddens": [3]}), "model_config: expected "),
        (lambda made: made.multi_agent(policies={"mine"}), "policies: expected .*, as nothing of ours"),
        (lambda made: made.env_runners(explore=False), "explore: expected True, as nothing of ours"),
        (lambda made: made.evaluation(evaluation_parallel_to_training=True), "`evaluation_parallel_to_training` can "),
        (lambda made: made.evaluation(evaluation_config={"opponent": "hunterr"}), "hunterr"),
        (lambda made: made.evaluation(evaluation_config={"gamma": 1}), "evaluation_config: expected explore=False"),
        (lambda made: made.evaluation(evaluation_config={"opponent": ["hunter"]}), r"got opponent=\['hunter'\]$"),
        (lambda made: made.evaluation(evaluation_config={"explore": "False"}), "got explore=False$"),
        (lambda made: made.api_stack(enable_rl_module_and_learner=False), "^enable_rl_module_and_learner: "),
        (lambda made: made.callbacks(on_episode_step=print), "callbacks: expected on_episode_end, or methods of the"),
        (lambda made: made.callbacks(Watching), "callbacks: expected .* got Watching.on_episode_step"),
    ],
)
def test_what_nothing_of_ours_follows_is_refused_before_anything_starts(change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        change(config("1v1", *SMALL)).build_algo()
    assert "\n" not in str(caught.value)
    assert not ray.is_initialized()


def test_empty_config_unknown_keys_and_folders_are_refused():
    with pytest.raises(ConfigError, match="MultigridConfig: expected one that config"):
        type(config("1v1"))().build_algo()
    of_ppo = PPOConfig().update_from_dict(config("1v1", *SMALL).to_dict())  # as tune.Tuner("PPO") makes it
    with pytest.raises(ConfigError, match=r"^algorithm: expected MultigridAlgorithm, .* got PPO$"):
        BatchedEnvRunner(config=of_ppo, worker_index=0)
    (validated := config("1v1", *SMALL)).validate()
    runner = BatchedEnvRunner(config=validated, worker_index=0)  # as PPO(config=config("1v1")) builds it
    runner.sample()
    with pytest.raises(ConfigError, match=r"^algorithm: expected MultigridAlgorithm, .* metrics of a rollout$"):
        runner.get_metrics()
    with pytest.raises(ConfigError, match="expected keys of configs/, got lrr"):
        config("1v1", lrr=3)
    with pytest.raises(ConfigError, match=r"run_dir: expected null with multigrid_rl\.rllib"):
        config("1v1", run_dir="mine").build_algo()
    with pytest.raises(ConfigError, match=r"^scenario\.seats\.blue_0: expected numbers, texts.*got <object"):
        config("1v1", opponent=object())
    with pytest.raises(ConfigError, match=r"^opponent: expected none with scenario=single-v3, got hunter$"):
        config("single-v3", opponent="hunter")


class Watching(RLlibCallback):
    def on_episode_step(self, **_):
        pass


class Counting(RLlibCallback):
    seen: ClassVar[list[int]] = []

    def on_train_result(self, *, result, **_):
        self.seen.append(result["training_iteration"])
        result["mine"] = result["gates"]["held"] if result["gates"] else None


def test_config_survives_copies_pickles_and_dictionaries(built):
    made = config("1v1", *SMALL, lr=1e-3).training(gamma=0.97).callbacks(Counting)
    copies = [made.copy(), copy.deepcopy(made), pickle.loads(cloudpickle.dumps(made))]
    copies.append(type(made)().update_from_dict(made.to_dict()))  # Tune's way
    results = []
    for one in copies:
        algorithm = built(one)
        assert algorithm.config.settings.run.train.gamma == 0.97
        results.append(algorithm.train()["learners"]["red_0"]["policy_loss"])
    assert len(set(results)) == 1
    assert math.isfinite(results[0])
    assert Counting.seen == [1] * len(copies)
    assert made.gamma == 0.97  # building does not change it
    assert "Settings(scenario=1v1" in str(made.settings)


def test_checkpoint_continues_exactly(built, tmp_path):
    algorithm = built(config("1v1", *SMALL))
    algorithm.train()
    folder = algorithm.save_to_path(str(tmp_path / "here"))
    ahead = [algorithm.train() and algorithm.row for _ in range(2)]
    again = Algorithm.from_checkpoint(folder)
    try:
        rows = [again.train() and again.row for _ in range(2)]
        assert without_time(rows) == without_time(ahead)
        assert again.run.fingerprints() == algorithm.run.fingerprints()
        again.restore_from_path(folder)
        assert again.train()["num_env_steps_sampled_lifetime"] == 1024
        assert without_time([again.row]) == without_time(ahead[:1])
    finally:
        again.stop()
    other = built(config("1v1", *SMALL).training(gamma=0.9))
    other.restore(algorithm.save(str(tmp_path / "tune")))  # as Tune does
    assert other.train()["training_iteration"] == 4
    assert not ray.is_initialized()


def test_evaluation_plays_whole_fresh_games_and_changes_no_training(built):
    plain = built(config("1v1", *SMALL))
    rows = [plain.train() and plain.row for _ in range(2)]
    made = config("1v1", *SMALL)
    algorithm = built(made.evaluation(evaluation_interval=2, evaluation_duration=7))
    assert "evaluation" not in algorithm.train()
    assert algorithm.train()["evaluation"]["env_runners"]["num_episodes"] == 7
    assert without_time([algorithm.row]) == without_time(rows[1:])
    first, second = (plain.evaluate()["env_runners"] for _ in range(2))
    assert first["num_episodes"] == 10  # RLlib's default
    assert first["episode_len_mean"] != second["episode_len_mean"]  # other games each time
    assert without_time([plain.train() and plain.row]) == without_time([algorithm.train() and algorithm.row])
    greedy = built(config("1v1", *SMALL).evaluation(evaluation_interval=1, evaluation_config={"explore": False}))
    greedy.train()
    likeliest = greedy.eval_env_runner.sample(num_episodes=3)
    assert sum(episode.env_steps() for episode in likeliest) > 0
    assert greedy.eval_env_runner.config.explore is False


def test_restored_algorithm_evaluates_the_games_that_would_have_come_next(built, tmp_path):
    for made in (config("1v1", *SMALL), config("1v1", *SMALL).evaluation(evaluation_interval=1)):
        algorithm = built(made)
        first = algorithm.evaluate()["env_runners"]
        again = built(made)
        again.restore_from_path(algorithm.save_to_path(str(tmp_path / str(len(list(tmp_path.iterdir()))))))
        second = algorithm.evaluate()["env_runners"]
        assert again.evaluate()["env_runners"] == second != first


def test_module_is_the_network_that_learns(built):
    algorithm = built(config("1v1", *SMALL))
    algorithm.train()
    module = algorithm.get_module("red_0")
    weights = algorithm.run.learner.get_weights()["red_0"]
    state = module.get_state()
    assert set(state) == set(weights)
    assert all(np.array_equal(state[name], weights[name]) for name in weights)
    assert algorithm.get_module("nobody") is None


def test_curriculum_goes_on_and_an_earlier_stage_is_restored_where_a_later_one_is_played(built, tmp_path):
    algorithm = built(config("1v1", *SMALL, "curriculum=[{scenario: single-v3, steps: 512}]"))
    assert algorithm.train()["multigrid_rl"]["stage"] == 0
    algorithm.save_to_path(str(tmp_path / "first"))
    stages = [algorithm.train()["multigrid_rl"]["stage"] for _ in range(2)]
    assert (stages, algorithm.row["env_steps"]) == ([1, 1], 1536)
    algorithm.restore_from_path(str(tmp_path / "first"))
    assert algorithm.run.stage == 0
    assert [algorithm.train()["multigrid_rl"]["stage"] for _ in range(2)] == stages
    assert algorithm.row["env_steps"] == 1536


def test_setting_that_equals_what_is_filled_in_is_a_users_all_the_same(built):
    made = config("1v1", *SMALL)
    batch = int(made.train_batch_size)
    half = config("1v1", *SMALL).env_runners(num_envs_per_env_runner=16).training(train_batch_size=batch)
    few = config("1v1", *SMALL).env_runners(num_envs_per_env_runner=1).training(minibatch_size=16)
    for one in (half, few, made):
        one.validate()
    assert half.settings.run.train.batch_size == batch
    assert few.settings.run.train.num_envs == 1
    assert made.settings.run.train.num_envs == 32
    copied = pickle.loads(cloudpickle.dumps(copy.deepcopy(made)))
    copied.validate()
    assert copied.settings.run == made.settings.run


def test_evaluation_by_who_trains_follows_its_own_settings(built):
    likeliest = config("1v1", *SMALL, "curriculum=[{scenario: single-v3, steps: 100000}]")
    algorithm = built(likeliest.evaluation(evaluation_config={"explore": False}))
    algorithm.train()
    found = algorithm.evaluate()["env_runners"]
    assert algorithm.env_runner.greedy
    assert algorithm.env_runner.config.explore
    assert set(found["module_episode_returns_mean"]) == {"red_0"}
    assert found["episode_return_min"] < 0  # lost: in the stage that is trained in there is nobody to lose to


def test_run_is_done_at_its_budget(built):
    algorithm = built(config("1v1", *SMALL, until=1024))
    assert [algorithm.train()["done"] for _ in range(2)] == [False, True]


def test_algorithm_sets_the_threads_of_its_run(built):
    # Sums of torch's depend on them: in a fresh process a run would differ from the command line's.
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        built(config("1v1", *TINY, "train.torch_threads=1"))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "wants",
    [
        lambda made: made.env_runners(num_env_runners=2).learners(num_learners=1),
        lambda made: made.env_runners(num_env_runners=2).evaluation(evaluation_num_env_runners=1),
    ],
    ids=["learners", "evaluation"],
)
def test_more_processes_than_cpus_are_refused(wants, monkeypatch):
    monkeypatch.setattr("multigrid_rl.rllib.build.available_cpus", lambda: 2)
    monkeypatch.setattr("multigrid_rl.config.schema.available_cpus", lambda: 2)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    message = "num_env_runners: expected processes for at most 2 CPUs, got 2 env runners, "
    with pytest.raises(ConfigError, match=message):
        wants(config("1v1", *TINY)).build_algo()


def test_processes_in_a_session_may_use_its_cpus_and_gpus(monkeypatch):
    monkeypatch.setattr("multigrid_rl.config.schema.available_cpus", lambda: 1)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 64.0, "GPU": 2.0})
    monkeypatch.setattr("multigrid_rl.rllib.build.free_cpus", lambda wanted: 64)
    made = config("1v1", *TINY).env_runners(num_env_runners=4).learners(num_learners=2, num_gpus_per_learner=1)
    made.validate()
    made.check_machine()
    assert made.settings.run.cluster.num_env_runners == 4
    made.learners(num_learners=4)
    made.validate()
    message = r"cluster\.gpus_per_learner: expected 0 to 0\.5, got 1 for 4 learner.s.: the cluster has 2 GPU"
    with pytest.raises(ConfigError, match=message):
        made.check_machine()


def test_gpus_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    message = r"cluster\.gpus_per_learner: expected 0, or a cluster\.address, got 1 for 1 learner.s.: torch sees no GPU"
    with pytest.raises(ConfigError, match=message):
        config("1v1", *TINY).learners(num_gpus_per_learner=1).build_algo()


def test_the_first_argument_is_a_scenario_or_an_override_itself():
    assert config("scenario=2v2", "seed=4").to_dict() == config("2v2", "seed=4").to_dict()
    assert config("seed=4").settings.run.seed == 4
