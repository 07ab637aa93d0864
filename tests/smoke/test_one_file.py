"""examples/ppo_one_file.py: the student's PPO trains, tells TensorBoard, and hands in what was trained."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import multigrid_rl
from commands import works
from doc_blocks import loaded
from multigrid_rl.config.compose import compose
from multigrid_rl.learn.advantages import gae

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
@pytest.mark.parametrize(("scenario", "opponent"), [("single-obstacle", "null"), ("1v1", "random")])
def test_what_it_exports_plays_as_its_network_and_can_be_graded(one, tmp_path, scenario, opponent):
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


def test_it_is_short_and_has_both_phases(one):
    text = FILE.read_text()
    assert len(text.splitlines()) <= 350
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 40
    marks = [text.index(f"# ---- {phase} phase") for phase in ("rollout", "learning")]
    assert marks == sorted(marks)


CLEANRL = """
exp_name seed env_id total_timesteps learning_rate num_envs num_steps anneal_lr gamma gae_lambda num_minibatches
update_epochs norm_adv clip_coef clip_vloss ent_coef vf_coef max_grad_norm target_kl
"""


def test_its_flags_have_the_names_of_cleanrl(one):
    assert set(CLEANRL.split()) <= vars(one.arguments([])).keys()
    assert one.arguments(["--clip-vloss", "--no-norm-adv"]).clip_vloss


def test_as_a_command_it_fills_tensorboard_and_refuses_a_folder_that_exists(one, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["one", "--env-id", "1v1", "--total-timesteps", "16384", "--export", "mine"])
    one.main()
    assert capsys.readouterr().out.splitlines()[-1] == "not held at 16,384 steps"
    tags = EventAccumulator(str(tmp_path / "runs" / "ppo_one_file__1v1__0")).Reload().Tags()["scalars"]
    assert {"charts/episodic_return", "charts/SPS", "losses/value_loss", "losses/approx_kl"} <= {*tags}
    with pytest.raises(SystemExit, match="--export: expected a new folder, got mine"):
        one.main()
