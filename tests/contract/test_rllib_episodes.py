"""Callbacks of episodes on ``config()``: once for each finished game of a batch, and what they log is in results."""

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.gates import Gate
from multigrid_rl.rllib import GateCallback, config
from tests.tiny_runs import TINY, running, without_time

SHORT = [*TINY, "scenario.game.max_steps=9", "seed=5"]
pytestmark = pytest.mark.usefixtures("no_session")


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


def trained(made, iterations=2):
    with running(made) as algorithm:
        return [algorithm.train() for _ in range(iterations)], algorithm.row


def test_each_finished_game_is_one_episode_and_its_metrics_reach_results_and_gates():
    gate = GateCallback([Gate("env_runners/keys", ">=", 0.0, window=1)], report_episodes=10, every_s=None)
    results, row = trained(config("coop", *SHORT).callbacks([Measuring, gate]))
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
    _, without = trained(config("coop", *SHORT))
    assert without_time([row]) == without_time([without])  # callbacks change nothing that is trained


def test_functions_and_evaluated_games_are_called_likewise():
    ended = []

    def on_end(*, episode, metrics_logger, **_):
        ended.append(episode.length)
        metrics_logger.log_value("mine", float(episode.length), reduce="mean", window=100)

    made = config("1v1", *SHORT).callbacks(on_episode_end=on_end)
    results, _ = trained(made.evaluation(evaluation_interval=2, evaluation_duration=7))
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
