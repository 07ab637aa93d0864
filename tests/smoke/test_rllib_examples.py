"""examples/rllib: each runs as it stands, only shorter, and does what its first line says."""

import os
import re
from pathlib import Path

import pytest
import ray

from doc_blocks import loaded

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start

EXAMPLES = Path(__file__).parents[2] / "examples" / "rllib"
#: Of a run of ours, such that an iteration takes a moment.
TINY = ("train.num_envs=16", "train.num_steps=32", "train.minibatch_size=256", "train.epochs=1")


@pytest.fixture(autouse=True, scope="module")
def _session(tmp_path_factory):
    """One session of Ray's for all examples, whose files end with the tests."""
    if not ray.is_initialized():
        # Ray's sockets have names of at most 107 bytes: its folder cannot lie deep.
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def example(name):
    return loaded(EXAMPLES / f"{name}.py", f"example_{name}")


@pytest.mark.slow
def test_custom_callback():
    runners = example("custom_callback").main(1, 400)["env_runners"]
    assert 0 <= runners["red_wins"] <= 1
    assert 0 <= runners["red_keys"] <= 1


@pytest.mark.slow
def test_custom_env():
    runners = example("custom_env").main(1, 700)["env_runners"]
    assert set(runners["agent_episode_returns_mean"]) == {"blue_0", "red_0"}
    # Every step costs: nobody who does not play well ends above what a door is worth.
    assert min(runners["agent_episode_returns_mean"].values()) < -0.02


@pytest.mark.slow
def test_curriculum():
    module = example("curriculum")
    module.Curriculum.ENOUGH = -100.0
    assert module.main(3, 400)["level"] in {1, 2}


@pytest.mark.slow
def test_self_play():
    module = example("self_play")
    module.SelfPlay.EVERY = 1
    result = module.main(2, 200)
    assert result["opponents"] == {"frozen", "main-1"}
    assert set(result["learners"]) >= {"main"}


def test_custom_rl_module():
    assert "red" in example("custom_rl_module").main(1, 200)["learners"]


@pytest.mark.slow
def test_evaluation_workers():
    result = example("evaluation_workers").main(2, 200, 2)
    assert result["evaluation"]["env_runners"]["num_episodes"] >= 2


def test_checkpoint_and_restore():
    unbroken, restored = example("checkpoint_and_restore").main(2, *TINY)
    assert len(set(unbroken)) == 2
    assert unbroken == restored


def test_inference_from_module():
    assert len(example("inference_from_module").main(1, 200, 3)) == 3


def test_offline_evaluation():
    earned, estimated = example("offline_evaluation").main(1, 200, 5)
    assert -2 < estimated < 3
    assert earned != estimated


def test_stock_ppo_as_the_page_builds_it():
    page = (EXAMPLES.parents[1] / "docs" / "rllib.md").read_text(encoding="utf-8")
    text = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "FrozenPlayerModule" in block)
    names = {}  # built in this process alone: remote env runners are those of other examples
    exec(text.replace("stock.build_algo()", "stock.env_runners(num_env_runners=0).build_algo()"), names)
    assert names["algorithm"].config.num_env_runners == 0
    assert names["algorithm"].get_module("blue").player.name == "blue-master"
    names["algorithm"].stop()


@pytest.mark.slow
def test_tune_pbt(tmp_path):
    results = example("tune_pbt").main(*TINY, trials=2, iterations=3, every=1, folder=os.fspath(tmp_path))
    assert not results.errors
    # One that takes over what another has learned may end on an older report.
    assert {3} <= {result.metrics["training_iteration"] for result in results} <= {2, 3}
    assert all("gates" in result.metrics for result in results)


def test_league():
    judged = example("league").main(*TINY, rounds=2, iterations=1, episodes=10)
    assert [0 <= wins <= 1 for wins in judged] == [True, True]


def test_episode_metrics():
    result = example("episode_metrics").main(*TINY, iterations=40, share=0.0)
    assert result["done"]  # the gate is held long before training ends
    assert 0 <= result["env_runners"]["red_takes_key"] <= 1


def test_custom_evaluation():
    module = example("custom_evaluation")
    module.against_all.episodes = 10
    found = module.main(*TINY, iterations=2, interval=1)
    assert {f"win_{who}" for who in module.OPPONENTS} <= set(found)


@pytest.mark.slow
def test_evaluation_beside_training():
    found = example("evaluation_beside_training").main(*TINY, iterations=2)
    assert [row["num_episodes"] > 0 for row in found] == [True, True]
    assert [row["num_env_steps_sampled"] >= 100 for row in found] == [True, True]


def test_stages():
    began = example("stages").main(*TINY, "train.until=8192", iterations=16, longest=2048)
    assert list(began) == [0, 1, 2]


def test_best_checkpoint(tmp_path):
    folder, wins = example("best_checkpoint").main(*TINY, iterations=10, episodes=10, folder=os.fspath(tmp_path))
    assert Path(folder).parent == tmp_path
    assert 0 <= wins <= 1


def test_restore_one_agent():
    assert example("restore_one_agent").main(*TINY, iterations=1) == {"red_0": True, "red_1": False}


def test_inference_after_training():
    assert len(example("inference_after_training").main(*TINY, iterations=1, games=2)) == 2


def test_action_masks():
    masked, taken = example("action_masks").main("train.num_envs=16", "train.num_steps=64", *TINY[2:], iterations=2)
    assert masked > 0
    assert taken == 0


@pytest.mark.slow
def test_custom_logger(tmp_path):
    where = {"path": os.fspath(tmp_path / "held.log"), "folder": os.fspath(tmp_path)}
    lines = sorted(line.partition(" ")[2] for line in example("custom_logger").main(*TINY, until=1024, **where))
    assert lines == [f"{{'model.hidden': {hidden}}}: not held" for hidden in ([32], [64, 64])]


@pytest.mark.slow
def test_custom_experiment(tmp_path):
    found = example("custom_experiment").main(*TINY, iterations=1, episodes=4, folder=os.fspath(tmp_path))
    assert [set(result.metrics) >= {"hunter", "random"} for result in found] == [True, True]
