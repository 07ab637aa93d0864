"""Gates on anybody's RLlib algorithm, and in Tune."""

import math

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from multigrid_rl.gates import Gate
from multigrid_rl.rllib import GateCallback, GateStopper, config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY

RETURN = "env_runners/episode_return_mean"
EVALUATED = f"evaluation/{RETURN}"
pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-multi-agent-env:UserWarning")


class Algorithm:
    """An algorithm that has no gates of its own."""


def results(*values, episodes=100, steps=500):
    """Results as RLlib returns them, with the mean return of each iteration."""
    for number, value in enumerate(values, 1):
        yield {
            "env_runners": {"episode_return_mean": value, "num_episodes": episodes},
            "num_env_steps_sampled_lifetime": number * steps,
            "training_iteration": number,
            "time_total_s": float(number),
            "done": False,
        }


def known(value):
    return None if math.isnan(value) else value


def judged(callback, rows):
    rows = list(rows)
    for row in rows:
        callback.on_train_result(algorithm=Algorithm(), result=row)
    return rows


def test_gate_is_held_once_it_is_met_for_its_window(capsys):
    told = []
    gate = Gate(RETURN, ">=", 20, window=1000)
    callback = GateCallback([gate], on_held=lambda algorithm, result: told.append(result), every_s=0)
    rows = judged(callback, results(10.0, 25.0, 30.0, 28.0, 29.0))
    assert [row["gates"][RETURN]["met"] for row in rows] == [False, True, True, True, True]
    assert [row["gates"]["held"] for row in rows] == [False, False, False, True, True]
    assert rows[2]["gates"][RETURN] == {"value": 30.0, "bound": 20, "met": True, "held": False}
    assert told == [rows[3]]  # once
    assert not any(row["done"] for row in rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"    1,000 steps | {RETURN} >= 20 now 25.000 met (1,000 to hold)"
    assert lines[3].endswith("now 28.000 held")


def test_report_needs_its_episodes():
    callback = GateCallback([Gate(RETURN, ">=", 1, window=100)], report_episodes=30, every_s=None)
    rows = judged(callback, results(5.0, 5.0, 5.0, 0.0, episodes=10))
    assert [known(row["gates"][RETURN]["value"]) for row in rows] == [None, None, 5.0, 5.0]


def test_held_gates_may_end_a_trial():
    callback = GateCallback([Gate(RETURN, ">=", 1, window=1)], stop_when_held=True, every_s=None)
    rows = judged(callback, results(0.0, 5.0, 5.0))
    assert [row["done"] for row in rows] == [False, False, True]
    stopper = GateStopper()
    assert [stopper("trial", row) for row in rows] == [False, False, True]
    assert not stopper("trial", {"training_iteration": 1})  # no gates in it
    assert not stopper.stop_all()
    first = GateStopper(first=True)
    assert (first("one", rows[0]), first.stop_all(), first("two", rows[2]), first.stop_all()) == (
        False, False, True, True,
    )  # fmt: skip


def test_unknown_metric_is_refused_and_an_evaluation_is_awaited():
    with pytest.raises(ConfigError, match=r"gate: expected a metric of RLlib's results, got env_runners/returns"):
        judged(GateCallback([Gate("env_runners/returns", ">=", 1)], every_s=None), results(1.0))
    callback = GateCallback([Gate(EVALUATED, ">=", 1, window=1)], every_s=None)
    rows = list(results(5.0, 5.0, 5.0))
    for row in rows[1:]:
        row["evaluation"] = {"env_runners": {"episode_return_mean": 2.0}}
    assert [row["gates"]["held"] for row in judged(callback, rows)] == [False, False, True]


def test_iterations_in_which_no_episode_ends_are_waited_for(capsys):
    nan = float("nan")
    rows = list(results(2.0, nan, 3.0, nan))
    for row, counted in zip(rows, (60, nan, 60, None), strict=True):
        row["env_runners"]["num_episodes"] = counted
    rows[3]["num_env_steps_sampled_lifetime"] = nan
    judged(GateCallback([Gate(RETURN, ">=", 1, window=1)], every_s=0), rows)
    assert [known(row["gates"][RETURN]["value"]) for row in rows] == [None, None, 3.0, 3.0]
    assert "1,500 steps" in capsys.readouterr().out


def test_metric_that_is_null_is_not_met():
    rows = list(results(2.0, 3.0))
    rows[1]["env_runners"]["episode_return_mean"] = None
    judged(GateCallback([Gate(RETURN, ">=", 1, window=1)], every_s=None), rows)
    assert [row["gates"][RETURN]["met"] for row in rows] == [True, False]


def test_metrics_of_our_reports_are_waited_for(built, tmp_path):
    gate = Gate("multigrid_rl/win/red_0", ">=", 0.0, window=1)
    made = config("1v1", *TINY, "scenario.report_episodes=40").callbacks(
        GateCallback([gate], report_episodes=1, every_s=None)
    )
    algorithm, rows = built(made), []
    while not rows or math.isnan(rows[-1]["gates"][gate.metric]["value"]):
        rows.append(algorithm.train())
    assert len(rows) > 1
    assert rows[-1]["gates"][gate.metric]["value"] == rows[-1]["multigrid_rl"]["win/red_0"]
    with pytest.raises(ConfigError, match="got multigrid_rl/wins/red_0"):
        built(made.callbacks(GateCallback([Gate("multigrid_rl/wins/red_0", ">=", 0)], report_episodes=1))).train()


def evaluated(number, episodes, **others):
    """A result of an algorithm that learns from files and plays to be evaluated."""
    return {
        "env_runners": {},
        "evaluation": {"env_runners": {"episode_return_mean": 2.0, "num_episodes": episodes}},
        "learners": {"__all_modules__": {"num_env_steps_trained_lifetime": 200 * number}, "one": {"loss": 1.0}},
        "num_env_steps_sampled_lifetime": 0,
        "training_iteration": number,
        "time_total_s": float(number),
        **others,
    }


@pytest.mark.parametrize(("others", "steps"), [({}, 400), ({"learners": {"one": {"loss": 1.0}}}, 2)])
def test_gates_of_algorithms_that_play_to_be_evaluated_alone_count_those_episodes(others, steps):
    gates = [Gate(EVALUATED, ">=", 1, window=1), Gate("learners/one/loss", "<=", 1)]
    callback = GateCallback(gates, report_episodes=10, every_s=None)
    rows = judged(callback, [evaluated(number, 5, **others) for number in (1, 2, 3)])
    assert [known(row["gates"][EVALUATED]["value"]) is not None for row in rows] == [False, True, True]
    assert callback.keeper.last.env_steps == steps


def test_metric_of_a_learner_that_has_not_begun_is_awaited():
    callback, name = GateCallback([Gate("learners/p/qf_mean", ">=", 1)], every_s=None), "learners/p/qf_mean"
    learned = [{}, {"p": {"qf_mean": 2.0}}, {"p": {}}]  # DQN samples before it learns
    rows = judged(callback, [row | {"learners": part} for row, part in zip(results(1, 1, 1), learned, strict=True)])
    assert [row["gates"][name]["met"] for row in rows] == [False, True, True]


@pytest.mark.parametrize("name", ["learners/p/qf_men", f"{EVALUATED}s"])
def test_misspelt_metric_of_a_section_that_is_there_is_refused(name):
    rows = [evaluated(1, 20) | {"learners": {"p": {"qf_mean": 2.0}}}]
    with pytest.raises(ConfigError, match=f"got {name} .did you mean {name[:-2]}"):
        judged(GateCallback([Gate(name, ">=", 1)], every_s=None, report_episodes=1), rows)


def test_gates_of_training_and_of_evaluation_wait_for_both():
    callback = GateCallback([Gate(EVALUATED, ">=", 1), Gate(RETURN, ">=", 1)], report_episodes=10, every_s=None)
    played = {"episode_return_mean": 1.0, "num_episodes": 5}
    rows = judged(callback, [evaluated(number, 20, env_runners=played) for number in (1, 2)])
    assert [known(row["gates"][EVALUATED]["value"]) is not None for row in rows] == [False, True]


def test_gates_are_needed_where_an_algorithm_has_none():
    with pytest.raises(ConfigError, match="GateCallback: expected gates, as"):
        GateCallback().on_algorithm_init(algorithm=Algorithm())


def test_one_setting_serves_several_algorithms():
    callback = GateCallback([Gate(RETURN, ">=", 1, window=1)], every_s=None)
    judged(callback(), results(5.0))
    assert callback().keeper.last is None


@pytest.mark.slow
def test_stock_multi_agent_environment_is_judged_module_by_module(built):
    module = "env_runners/module_episode_returns_mean/one"
    gates = [Gate(module, ">=", 9, window=200), Gate("learners/two/entropy", "<=", 1, window=200)]
    made = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(num_env_runners=0)
        .multi_agent(policies={"one", "two"}, policy_mapping_fn=lambda agent, *_, **__: ["one", "two"][agent])
        .training(train_batch_size=200, minibatch_size=100, num_epochs=1)
        .callbacks(GateCallback(gates, report_episodes=1, every_s=None))
    )
    algorithm = built(made)
    rows = [algorithm.train() for _ in range(3)]
    assert rows[-1]["gates"]["held"]
    assert rows[-1]["gates"][module]["value"] == rows[-1]["env_runners"]["module_episode_returns_mean"]["one"]
    assert 0 < rows[-1]["gates"]["learners/two/entropy"]["value"] < 1


def test_callback_shows_the_gates_of_our_runs(built, capsys):
    built(config("1v1", *TINY, "seed=5").callbacks(GateCallback(every_s=0))).train()
    assert "512 steps | gates: waiting for 100 finished episodes" in capsys.readouterr().out
