"""Evaluation beside training against somebody else, by episodes or steps, and gates on its numbers."""

import pytest

import multigrid_rl
from multigrid_rl.gates import Gate
from multigrid_rl.rllib import GateCallback, config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY, running, without_time

pytestmark = pytest.mark.usefixtures("no_session")


def evaluated(made, iterations=1):
    with running(made) as algorithm:
        return [algorithm.train() for _ in range(iterations)], algorithm.row


def test_evaluation_against_another_opponent_changes_no_training_and_gates_judge_it():
    gate = Gate("evaluation/env_runners/multigrid_rl/win/red_0", ">=", 0.0, window=1)
    keeper = GateCallback([gate], report_episodes=10, every_s=None)
    _, plain = evaluated(config("1v1", *TINY, seed=5))
    wins = {}
    for opponent in ("hunter", "idle"):
        made, how = config("1v1", *TINY, seed=5), {"opponent": opponent}
        made.evaluation(evaluation_interval=1, evaluation_duration=40, evaluation_config=how).callbacks(keeper)
        results, row = evaluated(made)
        assert without_time([row]) == without_time([plain])
        found = results[0]["evaluation"]["env_runners"]
        assert found["num_episodes"] == 40
        wins[opponent] = found["episode_return_mean"]
        assert results[0]["gates"][gate.metric]["value"] == found["multigrid_rl"]["win/red_0"]
    assert wins["hunter"] < wins["idle"]


def test_local_evaluation_by_hand_follows_the_opponent(built):
    plain, hunted = {"explore": False}, {"explore": False, "opponent": "hunter"}
    algorithms = [built(config("1v1", *TINY, seed=5).evaluation(evaluation_config=how)) for how in (plain, hunted)]
    found = [algorithm.evaluate()["env_runners"] for algorithm in algorithms]
    assert found[0] != found[1]


def test_units_of_steps_play_whole_games_that_reach_them():
    made = config("1v1", *TINY, "scenario.game.max_steps=9", seed=5)
    made.evaluation(evaluation_interval=1, evaluation_duration=100, evaluation_duration_unit="timesteps")
    played = evaluated(made)[0][0]["evaluation"]["env_runners"]
    assert 100 <= played["num_env_steps_sampled"] <= 130
    assert played["episode_len_max"] <= 9
    # Over all of them, though they are played in several parts.
    assert played["episode_len_mean"] == pytest.approx(played["num_env_steps_sampled"] / played["num_episodes"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluation_duration": "auto"}, "`evaluation_duration=auto` not supported for .*training=False`!$"),
        ({"evaluation_duration": "all"}, r"`evaluation_duration` \(all\) must be an int and >0!$"),
        ({"evaluation_duration": 0}, r"`evaluation_duration` \(0\) must be an int and >0!$"),
        ({"evaluation_duration_unit": "steps"}, "evaluation_duration_unit: expected episodes or timesteps, got steps"),
        ({"evaluation_interval": "1"}, "evaluation_interval: expected a number of iterations, got 1"),
    ],
)
def test_how_long_is_evaluated_is_checked_before_a_run_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=message):
        config("1v1", *TINY).evaluation(**{"evaluation_interval": 1, **settings}).build_algo()


def test_algorithms_and_checkpoints_are_opponents_of_evaluation(built, tmp_path):
    first = built(config("1v1", *TINY, seed=5))
    folder = first.save_to_path(str(tmp_path / "c"))
    for who in (first, folder):
        made = config("1v1", *TINY, seed=6).evaluation(evaluation_interval=1, evaluation_config={"opponent": who})
        assert evaluated(made)[0][0]["evaluation"]["env_runners"]["num_episodes"] == 10
    assert multigrid_rl.evaluate(folder, episodes=4)["episodes"] == 4


def test_env_runners_show_the_games_that_they_play(built):
    algorithm = built(config("1v1", *TINY, seed=5).evaluation(evaluation_interval=1, evaluation_duration=3))
    (playing,) = algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.env)
    assert set(playing.observations()) == {"red_0"}
    assert playing.num_envs == 32
    algorithm.train()
    (judged,) = algorithm.eval_env_runner_group.foreach_env_runner(lambda runner: runner.env)
    assert judged.num_envs == 3


def test_games_without_opponents_refuse_one():
    made = config("cartpole").evaluation(evaluation_config={"opponent": "hunter"})
    with pytest.raises(ConfigError, match="evaluation_config: expected no opponent with scenario=cartpole, got hunter"):
        made.build_algo()
