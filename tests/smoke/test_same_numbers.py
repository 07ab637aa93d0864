"""Other ways to the same numbers: torch alone, ``ppo_twin``, several learners, examples/ppo_one_file.py."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import multigrid_rl
import ppo_twin
from commands import works
from doc_blocks import loaded
from multigrid_rl import fast
from multigrid_rl.cli.train import run_training
from multigrid_rl.config.compose import compose
from multigrid_rl.learn import rollout, update
from multigrid_rl.learn.advantages import gae
from multigrid_rl.text import ConfigError
from tiny_runs import rows_of, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start
SHORT = ("train.until=1024",)


@pytest.mark.parametrize(
    "settings",
    [(), ("model=gru", "model.hidden=[16]"), ("scenario=cartpole", "experiment=none")],
    ids=["doors", "memory", "vectors"],
)
def test_rows_are_those_of_compiled_networks(tmp_path, monkeypatch, settings):
    compiled = without_time(tiny_run(tmp_path / "compiled", *settings, *SHORT)[1])
    monkeypatch.setattr(fast, "_COMPILERS", dict.fromkeys(fast._COMPILERS, "nowhere:nothing"))
    monkeypatch.setattr(rollout, "CompiledCollector", None)
    monkeypatch.setattr(update, "ppo_gradient", None)
    torchs = without_time(tiny_run(tmp_path / "torch", *settings, *SHORT, "train.compiled=false")[1])
    assert len(torchs) == len(compiled) > 1
    for ours, theirs in zip(compiled, torchs, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_env_runners_play_without_compiled_networks(tmp_path):
    settings = (*SHORT, "train.compiled=false")
    alone = without_time(tiny_run(tmp_path / "alone", *settings)[1])
    remote = without_time(tiny_run(tmp_path / "remote", *settings, "cluster.num_env_runners=1")[1])
    apart = {"env_runners", "env_runner_restarts"}
    assert [{k: v for k, v in row.items() if k not in apart} for row in remote] == [
        {k: v for k, v in row.items() if k not in apart} for row in alone
    ]


ITERATIONS = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 5])
def test_three_iterations_are_those_of_a_run_number_for_number(tmp_path, seed):
    until = ITERATIONS * ppo_twin.NUM_ENVS * ppo_twin.NUM_STEPS
    run_training(["scenario=1v1", f"seed={seed}", f"train.until={until}", f"run_dir={tmp_path / 'run'}"])
    expected = rows_of(tmp_path / "run")
    found = list(ppo_twin.train(seed, until))
    assert len(found) == len(expected) == ITERATIONS
    told = set()
    for mine, theirs in zip(found, expected, strict=True):
        for name, value in mine.items():
            told.add(name)
            # Sums of float32 in another order; explained variance, a difference from 1, is near 0.
            assert math.isclose(value, theirs[name], rel_tol=1e-5, abs_tol=1e-7), (name, value, theirs[name])
    assert {"return_mean/red_0", "approx_kl/red_0", "learner/red_0/vf_loss", "explained_variance/red_0"} <= told


ONE_STEP = ["train.until=512", "train.epochs=1", "train.minibatch_size=512"]


def weights_of(run):
    path = run / json.loads((run / "verdict.json").read_text())["checkpoint"] / "players" / "red_0"
    return load_file(path / "model.safetensors")


MEMORY = ["scenario=single-obstacle", "model=gru", "model.hidden=[16]"]


@pytest.mark.long  # test_update averages the gradients of two in one process
@pytest.mark.parametrize("kind", [["scenario=1v1"], MEMORY, ["scenario=1v1", "train.kl_coef=5"]])
def test_two_learners_equal_one_on_whole_batch(session, cores, tmp_path, kind):
    # Each computes half of every minibatch: only the order of additions differs.
    _, alone = tiny_run(tmp_path / "one", *kind, "train.until=1024")
    _, both = tiny_run(tmp_path / "two", *kind, "train.until=1024", "cluster.num_learners=2")
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    start = weights_of_start(tmp_path, kind)
    moved = np.sqrt(sum(np.sum((one[name] - start[name]) ** 2) for name in one))
    apart = np.sqrt(sum(np.sum((one[name] - two[name]) ** 2) for name in one))
    assert apart < 1e-3 * moved
    assert both[0]["gradient_steps"] == alone[0]["gradient_steps"]
    for name in ("learner/red_0/grad_norm", "learner/red_0/lr", "learner/red_0/entropy_coef"):
        assert both[0][name] == pytest.approx(alone[0][name], rel=1e-3)


def weights_of_start(tmp_path, kind):
    # A step size near nothing leaves the weights where they began.
    tiny_run(tmp_path / "start", *kind, "train.until=512", "train.lr=1e-12", "train.lr_final=1e-12")
    return weights_of(tmp_path / "start")


def test_learners_must_divide_minibatch(cores, tmp_path):
    with pytest.raises(ConfigError, match=r"train.minibatch_size: expected what 3 learners can share"):
        tiny_run(tmp_path / "run", "cluster.num_learners=3")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_remote_learner_equals_driver(session, cores, tmp_path):
    tiny_run(tmp_path / "here", *ONE_STEP)
    tiny_run(tmp_path / "there", *ONE_STEP, "cluster.num_learners=1")
    here, there = weights_of(tmp_path / "here"), weights_of(tmp_path / "there")
    assert all((here[name] == there[name]).all() for name in here)
    assert rows_of(tmp_path / "there")[0]["env_steps"] == 512


FILE = Path(__file__).parents[2] / "examples" / "ppo_one_file.py"
SMALL = ["--num-envs", "8", "--total-timesteps", "256"]
RUBRIC = """
scenario: {}
pass_points: 1
exams:
  - name: some games
    episodes: 100
    opponent: {}
    checks: [{{metric: entropy/*, from: 3, full: 1.9, points: 100}}]
"""


@pytest.fixture(scope="module")
def one():
    return loaded(FILE, "ppo_one_file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "opponent", "activation"), [("single-obstacle", "null", "Tanh"), ("1v1", "random", "ReLU")]
)
def test_what_it_exports_plays_as_its_network_and_can_be_graded(
    one, tmp_path, monkeypatch, scenario, opponent, activation
):
    monkeypatch.setattr(one.nn, "Tanh", getattr(torch.nn, activation))  # as a student changes it
    args = one.arguments([*SMALL, "--env-id", scenario, "--export", str(tmp_path / "mine")])
    agents, make = [], one.Agent
    one.Agent = lambda *sizes: agents.append(make(*sizes)) or agents[0]
    rows = list(one.train(args))
    one.Agent = make
    assert rows[-1]["steps"] == 256
    games = one.Games(args)
    player = multigrid_rl.load_policy(tmp_path / "mine", scenario=scenario)
    seen = games.envs.match.observations()["red_0"]
    with torch.no_grad():
        expected = agents[0](torch.from_numpy(games.obs))[0]
    found = torch.log_softmax(torch.from_numpy(player.network.logits(torch.from_numpy(seen)).detach().numpy()), dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    (tmp_path / "rubric.yaml").write_text(RUBRIC.format(scenario, opponent))
    works("grade", tmp_path / "mine", "--rubric", tmp_path / "rubric.yaml")


def test_its_gates_and_its_bonus_are_those_of_the_scenarios(one):
    for scenario, bounds in one.GATES.items():
        config = compose([f"scenario={scenario}"])
        gates = {gate.metric.partition("/")[0]: gate.bound for gate in config.scenario.gates}
        names = ("episode_len_mean", "return_mean", "explained_variance", "entropy")
        assert bounds == tuple(gates[name] for name in names)
        assert one.BONUS[scenario] == config.train.bonus["all"]


def test_its_advantages_are_those_of_the_package(one):
    rng = np.random.default_rng(0)
    rewards, values, following = rng.normal(size=(3, 16, 40)).astype(np.float32)
    done = rng.random((16, 40)) < 0.2

    class Steps:
        active = np.ones_like(done)

    steps = Steps()
    steps.rewards, steps.done = rewards, done
    steps.terminated = done & (rng.random((16, 40)) < 0.5)  # others were cut by the time limit
    given = map(torch.from_numpy, (rewards, values, following, steps.terminated, done))
    expected = gae(steps, values, following, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(one.gae(*given, 0.9, 0.8).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_step_that_ends_a_game_is_followed_by_what_was_seen_last_and_not_by_the_next_game(one):
    args = one.arguments([*SMALL, "--env-id", "1v1"])
    games = one.Games(args)
    for _ in range(300):
        _, following, _, done = games.step(np.full(8, 6))  # it waits for blue
        if done.any():
            break
    assert (following[done] != games.obs[done]).any(axis=1).all()
    assert (following[~done] == games.obs[~done]).all()
    assert len(games.ended) == done.sum()
    assert (games.lengths[done] == 0).all()


def test_as_a_command_it_fills_tensorboard_and_refuses_a_folder_that_exists(one, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["one", "--env-id", "1v1", "--total-timesteps", "16384", "--export", "mine"])
    one.main()
    assert capsys.readouterr().out.splitlines()[-1] == "not held at 16,384 steps"
    tags = EventAccumulator(str(tmp_path / "runs" / "ppo_one_file__1v1__0")).Reload().Tags()["scalars"]
    assert {"charts/episodic_return", "charts/SPS", "losses/value_loss", "losses/approx_kl"} <= {*tags}
    with pytest.raises(SystemExit, match="--export: expected a new folder, got mine"):
        one.main()
