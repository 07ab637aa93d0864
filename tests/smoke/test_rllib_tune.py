"""Ray Tune searches our runs as it does any algorithm of RLlib's."""

import os
from pathlib import Path

import pytest
from ray import tune
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from multigrid_rl.rllib import GateCallback, GateStopper, MultigridAlgorithm, config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY, running

pytestmark = pytest.mark.slow


def test_tune_draws_stops_records_and_restores(session, tmp_path):
    made = config("1v1", *TINY, "seed=5", "train.until=1024").callbacks(GateCallback(every_s=None))
    made.training(lr=tune.grid_search([1e-3, 2e-3]))
    how = tune.TuneConfig(metric="env_runners/episode_return_mean", mode="max", max_concurrent_trials=2)
    kept = tune.CheckpointConfig(checkpoint_at_end=True)
    run = tune.RunConfig(name="mine", storage_path=str(tmp_path), stop=GateStopper(), verbose=0, checkpoint_config=kept)
    trials = list(tune.Tuner(made.algo_class, param_space=made, tune_config=how, run_config=run).fit())
    assert [trial.error for trial in trials] == [None, None]
    assert sorted(trial.config["lr"] for trial in trials) == [1e-3, 2e-3]
    for trial in trials:
        assert trial.metrics["num_env_steps_sampled_lifetime"] == 1024  # ended by its own budget
        written = EventAccumulator(trial.path).Reload()
        returns = [event.value for event in written.Scalars("ray/tune/env_runners/episode_return_mean")]
        assert returns[-1] == pytest.approx(trial.metrics["env_runners"]["episode_return_mean"])
        algorithm = MultigridAlgorithm.from_checkpoint(trial.checkpoint)
        try:
            assert algorithm.run.env_steps == 1024
            assert algorithm.config.settings.run.train.lr == trial.config["lr"]
        finally:
            algorithm.stop()
    assert len(tune.Tuner.restore(str(tmp_path / "mine"), made.algo_class, param_space=made).get_results()) == 2


@pytest.mark.parametrize(("seed", "runs"), [(None, 2), (7, 1)])
def test_samples_of_one_configuration_differ_unless_they_are_seeded(seed, runs, session, tmp_path):
    made = config("1v1", *TINY, "train.until=512", **({} if seed is None else {"seed": seed}))
    how = tune.TuneConfig(num_samples=2, max_concurrent_trials=2)
    run = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    trials = list(tune.Tuner(made.algo_class, param_space=made, tune_config=how, run_config=run).fit())
    assert len({trial.metrics["learners"]["red_0"]["policy_loss"] for trial in trials}) == runs
    seeds = {trial.config["seed"] for trial in trials}
    assert seeds == ({0, 1} if seed is None else {seed})  # who reads a result can repeat its run
    assert seeds == {trial.config["settings"].run.seed for trial in trials}


@pytest.mark.long
def test_remote_env_runners_and_evaluation_by_the_names_of_rllib(session, cores):
    made = config("1v1", *TINY, "seed=5").env_runners(num_env_runners=2)
    made.evaluation(evaluation_interval=1, evaluation_num_env_runners=1, evaluation_duration=6)
    with running(made) as algorithm:
        result = algorithm.train()
        assert result["multigrid_rl"]["env_runners"] == 2
        assert result["evaluation"]["env_runners"]["num_episodes"] == 6
        assert set(algorithm.get_module("red_0").get_state()) == set(algorithm.run.learner.get_weights()["red_0"])
    refused = pytest.raises(ConfigError, match="evaluation_num_env_runners: expected 1 or more, as")
    with running(config("1v1", *TINY, "seed=5").env_runners(num_env_runners=1)) as alone, refused:
        alone.evaluate()


def test_replaced_env_runners_are_counted_under_rllibs_names(session, cores):
    with running(config("1v1", *TINY, "train.until=100_000").env_runners(num_env_runners=2)) as algorithm:
        before = algorithm.train()["fault_tolerance"]
        algorithm.env_runner_group.foreach_env_runner(
            lambda runner: os._exit(1), local_env_runner=False, remote_worker_ids=[1], timeout_seconds=1
        )
        for _ in range(2000):
            result = algorithm.train()
            if result["multigrid_rl"]["env_runners"] == 2 and result["multigrid_rl"]["env_runner_restarts"]:
                break
        counts = [[now[f"num_{name}"] for name in ("healthy_workers", "remote_worker_restarts")]
                  for now in (before, result["fault_tolerance"])]  # fmt: skip
        assert counts == [[2, 0], [2, 1]]
        group = algorithm.env_runner_group
        reached = group.foreach_env_runner(lambda runner: runner.worker_index, local_env_runner=False)
        assert sorted(reached) == [1, 2]
        assert group.num_healthy_remote_workers() == 2


def test_weights_put_in_by_rllibs_means_reach_remote_env_runners(session, cores):
    other, one = (config("1v1", *TINY, f"seed={seed}", "train.lr=0.01") for seed in (1, 2))
    other, one = other.build_algo(), one.env_runners(num_env_runners=1).build_algo()
    try:
        other.train()
        one.train()
        one.learner_group.set_state({"learner": other.learner_group.get_state()["learner"]})
        one.env_runner_group.sync_weights(from_worker_or_learner_group=one.learner_group)
        one.train()
        one.set_weights(other.get_weights())
        # Far less than from other weights: the batch was played with these.
        assert one.train()["learners"]["red_0"]["mean_kl_loss"] < 1e-2
    finally:
        one.stop()
        other.stop()


def test_keys_of_ours_are_drawn_and_a_trial_that_cannot_start_is_refused(session, tmp_path):
    small = [word for word in TINY if not word.startswith("model.")]
    drawn = {"hidden": tune.grid_search([[8], [16, 16]]), "opponent": tune.choice(["hunter"])}
    drawn["lr"] = tune.uniform(1e-4, 1e-3)
    made = config("1v1", *small, "train.until=1024", **drawn).training(gamma=0.9)
    with pytest.raises(ConfigError, match=r"model\.hidden: expected a value; tune\.Tuner"):
        made.build_algo()
    how = tune.TuneConfig(max_concurrent_trials=2, metric="env_runners/episode_return_mean", mode="max")
    run = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    trials = list(tune.Tuner(made.algo_class, param_space=made, tune_config=how, run_config=run).fit())
    assert [trial.error for trial in trials] == [None, None]
    for trial, hidden in zip(trials, ([8], [16, 16]), strict=True):
        found = trial.config["drawn"]
        assert (found["model.hidden"], found["scenario.seats.blue_0"]) == (hidden, "hunter")
        assert trial.metrics["learners"]["red_0"]["default_optimizer_learning_rate"] == found["train.lr"]
        header = Path(trial.path, "progress.csv").read_text(encoding="utf-8").splitlines()[0]
        assert "gates/held" in header
        assert "multigrid_rl/win/red_0" in header
    many = config("1v1", *TINY)
    monkey = many.env_runners(num_env_runners=2, num_cpus_per_env_runner=500)
    with pytest.raises(ConfigError, match="trial: expected processes for at most"):
        many.algo_class.default_resource_request(monkey.to_dict())
