"""Evaluation beside training, callbacks of episodes, and what was trained by ``config()`` judged as a run is."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.tune import Checkpoint
from typer.testing import CliRunner

import multigrid_rl
from multigrid_rl.cli.main import app
from multigrid_rl.gates import Gate
from multigrid_rl.rllib import GateCallback, config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY, running, without_time

pytestmark = pytest.mark.usefixtures("no_session")


def evaluated(made, iterations=1):
    """Results of a few iterations, and the last row."""
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


SHORT = [*TINY, "scenario.game.max_steps=9", "seed=5"]


class Measuring(RLlibCallback):
    """Measures keys as the course's solutions measure their own."""

    seen: list = []  # noqa: RUF012 - emptied by tests

    def on_episode_start(self, *, episode, **_):
        episode.custom_data["from_start"] = len(episode)

    def on_episode_end(self, *, episode, metrics_logger, **_):
        self.seen.append(episode)
        metrics_logger.log_value("keys", episode.events["red_0"]["key_pickup"], reduce="mean", window=100)
        metrics_logger.log_value("longest", episode.custom_data["from_start"], reduce="max", window=100)


@pytest.fixture(autouse=True)
def nothing_seen():
    Measuring.seen.clear()


def test_each_finished_game_is_one_episode_and_its_metrics_reach_results_and_gates():
    gate = GateCallback([Gate("env_runners/keys", ">=", 0.0, window=1)], report_episodes=10, every_s=None)
    results, row = evaluated(config("coop", *SHORT).callbacks([Measuring, gate]), 2)
    assert len(Measuring.seen) == sum(result["env_runners"]["num_episodes"] for result in results) > 50
    lengths = [episode.length for episode in Measuring.seen]
    assert max(lengths) == 9
    played = results[-1]["env_runners"]
    assert played["longest"] == 9
    newest = Measuring.seen[-100:]
    mean = sum(episode.get_return() for episode in newest) / len(newest)
    assert played["episode_return_mean"] == pytest.approx(mean)
    assert 0 <= played["keys"] <= 1
    assert results[-1]["gates"]["env_runners/keys"]["value"] == pytest.approx(played["keys"])
    last = Measuring.seen[-1]
    assert last.agent_ids == {"red_0", "red_1"}
    assert set(last.returns) >= last.agent_ids
    assert last.winner in (None, "red", "blue")
    with pytest.raises(AttributeError, match=r"episode: expected custom_data, .* got get_rewards"):
        last.get_rewards()
    _, without = evaluated(config("coop", *SHORT), 2)
    assert without_time([row]) == without_time([without])  # callbacks change nothing that is trained


def test_functions_and_evaluated_games_are_called_likewise():
    ended = []

    def on_end(*, episode, metrics_logger, **_):
        ended.append(episode.length)
        metrics_logger.log_value("mine", float(episode.length), reduce="mean", window=100)

    made = config("1v1", *SHORT).callbacks(on_episode_end=on_end)
    results, _ = evaluated(made.evaluation(evaluation_interval=2, evaluation_duration=7), 2)
    trainings = sum(result["env_runners"]["num_episodes"] for result in results)
    assert len(ended) == trainings + 7
    assert results[1]["evaluation"]["env_runners"]["mine"] == pytest.approx(sum(ended[-7:]) / 7)


def test_replaced_env_runners_are_told():
    told = []
    made = config("1v1", *SHORT).callbacks(on_env_runners_recreated=lambda **how: told.append(how))
    with running(made) as algorithm:

        class Pool:
            recreated, env_runners, restarts = [2], 1, 1

            def stop(self):
                pass

        algorithm.pool = Pool()
        algorithm.train()
        assert [how["env_runner_indices"] for how in told] == [[2]]
        assert told[0]["algorithm"] is algorithm
        algorithm.train()
        assert len(told) == 1


PLAYED = {"episodes": 20, "seed": 3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An algorithm and the folder of its checkpoint."""
    with running(config("1v1", *TINY, seed=5)) as algorithm:
        algorithm.train()
        yield algorithm, algorithm.save_to_path(str(tmp_path_factory.mktemp("checkpoint") / "c"))


def test_algorithm_checkpoint_and_result_are_judged_alike_in_one_call(trained):
    algorithm, folder = trained
    result = SimpleNamespace(checkpoint=Checkpoint(folder), metrics={})
    found = [
        multigrid_rl.evaluate(who, opponent="hunter", **PLAYED)
        for who in (algorithm, folder, Checkpoint(folder), result)
    ]
    assert found[0]["episodes"] == 20
    assert [row == found[0] for row in found] == [True] * 4
    assert multigrid_rl.evaluate(folder, **PLAYED) != found[0]  # its own scenario's opponent
    with pytest.raises(ConfigError, match="checkpoint: expected a result with one"):
        multigrid_rl.evaluate(SimpleNamespace(checkpoint=None), **PLAYED)


def test_environment_seats_them_alone_and_in_a_mixture(trained):
    algorithm, folder = trained
    result = SimpleNamespace(checkpoint=Checkpoint(folder), metrics={})
    for who in (algorithm, folder, Checkpoint(folder), result, {algorithm: 1, "random": 2}):
        multigrid_rl.make("1v1", players={"blue_0": who}).reset(seed=1)


def test_policy_seat_start_and_replay_take_them(trained, built):
    (algorithm, folder), hashes = trained, set()
    for who in (algorithm, folder):
        hashes.add(multigrid_rl.load_policy(who).sha256)
        weights = algorithm.get_module("red_0").net.state_dict()
        assert "Replay" in repr(multigrid_rl.play(who, "random", episodes=3))
        sparring = built(config("1v1", *TINY, f"scenario.seats.blue_0={folder}", init=who))
        assert np.array_equal(sparring.get_module("red_0").net.state_dict()["table"], weights["table"])
        sparring.train()
    assert len(hashes) == 1
    env = multigrid_rl.make("1v1", players={"blue_0": folder})
    env.reset(seed=1)
    assert CliRunner().invoke(app, ["evaluate", folder, "--episodes", "4"]).exit_code == 0


@pytest.mark.slow
def test_checkpoints_are_entrants_of_a_cup_which_is_verified(trained, tmp_path):
    algorithm, folder = trained
    later = algorithm.save_to_path(str(tmp_path / "later"))
    (tmp_path / "handed-in").mkdir()
    cup = ["cup", str(tmp_path / "handed-in"), "--with", folder, "--with", later, "--with", "hunter"]
    played = CliRunner().invoke(app, [*cup, "--scenario", "1v1", "--games", "4", "-o", str(tmp_path / "cup")])
    found = json.loads(played.stdout.splitlines()[-1])
    assert (found["entries"], found["games"], found["unranked"]) == (3, 6 * 4, [])
    verified = CliRunner().invoke(app, ["cup", "verify", str(tmp_path / "cup"), "--all"])
    assert json.loads(verified.stdout.splitlines()[-1])["different"] == 0


def test_checkpoint_restores_with_what_stands_beside_it(trained, built):
    algorithm, folder = trained
    again = built(config("1v1", *TINY, seed=6))
    again.restore_from_path(folder)
    assert again.run.fingerprints() == algorithm.run.fingerprints()
    again.save_to_path(folder)  # over it
    assert multigrid_rl.evaluate(folder, **PLAYED) == multigrid_rl.evaluate(again, **PLAYED)
