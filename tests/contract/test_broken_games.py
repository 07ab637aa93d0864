"""Environments of strangers that break: each ends with one line that names it and the seat, and a run can go on."""

import gc
import pickle
import warnings

import numpy as np
import pytest

from commands import call, works
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.base import SECONDS
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec
from multigrid_rl.players.factories import MatchFactory
from multigrid_rl.types import RunError
from strange_games import play_legal
from tiny_runs import rows_of, without_time

with warnings.catch_warnings():
    # PettingZoo's tests import one of its games by a way of its own that it calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, max_cycles_test, parallel_api_test, parallel_seed_test, seed_test

BROKEN, TURNS = "pettingzoo:strange_games:broken", "pettingzoo:strange_games:broken_turns"
SMALL = [
    *("train.num_envs=4", "train.num_steps=16", "train.minibatch_size=64", "train.epochs=1", "train.threads=1"),
    *("model.hidden=[4]", "train.until=256", "train.checkpoint_every=64", "train.lr_final=null"),
    "scenario.report_episodes=2",
]


def play(env_id: str, steps: int = 12, **env_args):
    """Play two environments with random legal actions until one breaks."""
    args = ", ".join(f"{key}: {value}" for key, value in env_args.items())
    return play_legal(env_factory(compose([f"env_id={env_id}", f"env_args={{{args}}}"])).build(2, 3), steps)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", r"step: expected .* got Unheard: lost it \(strange_games.py:\d+\)"),
        ("exits", r"step: expected .* got SystemExit: 3"),
        ("nothing", "step: expected .* got TypeError: cannot unpack"),
        ("four values", "step: expected .* got ValueError: not enough values"),
        ("not a number", "step: a_1: expected .* got an observation of nan"),
        ("text", "step: a_1: expected .* got ValueError: could not convert string to float"),
        ("shape", r"step: a_1: expected .* got observation: expected shape \(3,\) of its space, got \(2, 2\)"),
        ("not shown", "step: a_1: expected .* got agent: expected an observation, and one of a_0, a_1, got none"),
        ("not paid", "step: expected .* got a_1: reward: expected one, got none"),
        ("paid nothing", "step: a_1: expected .* got reward: expected one number, got None"),
        ("paid text", "step: a_1: expected .* got reward: expected one number, got 'much'"),
        ("paid inf", "step: a_1: expected .* got a reward of inf"),
        ("paid beyond float32", r"step: a_1: expected .* got a reward of -1e\+300"),
        ("no end", "step: expected .* got a_1: termination: expected one, got none"),
        ("stranger paid", "step: ghost: expected .* got KeyError: 'ghost'"),
        ("stranger ends", "step: __all__: expected .* got agent: expected an observation, and one of a_0, a_1"),
        ("flags", "step: a_1: expected .* got action_mask: expected 3 flags, got 7"),
        ("stuck", "step: a_1: expected .* got no legal choice for who is to move"),
    ],
)
def test_step_that_breaks_names_environment_and_seat(fault, message):
    where = "in environment 3, step 5 of its episode 1$"
    with pytest.raises(RunError, match=f"^env_id={BROKEN}: {message}.*, {where}") as error:
        play(BROKEN, fault=fault)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", r"step: a_0: expected .* got Unheard: lost it"),
        ("ghost", "step: a_0: expected .* got KeyError: 'ghost'"),
        ("no flags", "step: a_1: expected .* got KeyError: 'action_mask'"),
        ("stuck", "step: a_1: expected .* got no legal choice for who is to move"),
    ],
)
def test_move_that_breaks_names_environment_and_seat(fault, message):
    with pytest.raises(RunError, match=f"^env_id={TURNS}: {message}") as error:
        play(TURNS, fault=fault)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fault", ["sleeps", "spins"])
def test_step_that_never_answers_is_ended(fault, monkeypatch):
    monkeypatch.setenv(SECONDS, "0.3")
    with pytest.raises(RunError, match=f"step: .* no answer in time; {SECONDS} says how many seconds"):
        play(BROKEN, fault=fault)
    monkeypatch.setenv(SECONDS, "0")  # as long as it likes
    assert PettingZooEnvs(compose([f"env_id={BROKEN}"]).scenario.kind.spec, 1)._limit._seconds == 0


def test_episode_that_is_over_when_it_begins_and_one_that_never_ends():
    with pytest.raises(RunError, match=r"reset: expected .* got an episode that is over when it begins"):
        play(BROKEN, fault="over")
    envs = play(BROKEN, steps=30, max_episode_steps=7)
    assert envs.drain_episodes().length.tolist() == [7] * 8


def test_truncated_episode_is_no_end_of_the_task():
    envs = env_factory(compose([f"env_id={BROKEN}", "env_args={max_episode_steps: 2}"])).build(1, 0)
    nothing = {name: np.zeros((1, 1), np.int64) for name in envs.observations()}
    assert not envs.step(nothing).done.any()
    step = envs.step(nothing)
    assert step.done.all()
    assert step.truncated.all()
    assert not any(ended.any() for ended in step.terminated.values())


def test_what_belongs_to_no_agent_may_stand_beside():
    assert play(BROKEN, fault="common").drain_episodes().episodes == 0


def test_environments_are_closed_when_they_are_let_go():
    closed = []
    envs = PettingZooEnvs(compose([f"env_id={BROKEN}"]).scenario.kind.spec, 2)
    for game in envs.games:
        game.close = lambda: closed.append(1)
    del envs, game
    gc.collect()
    assert closed == [1, 1]


def test_run_that_broke_is_resumed_when_its_environment_is_mended(tmp_path):
    # The clock is in the file: as long as it is there, the environment fails in its 40th step.
    flag = tmp_path / "flag"
    args = [f"env_id={BROKEN}", f"env_args={{fault: raises, at: 40, while_there: '{flag}'}}"]
    assert call("train", *SMALL, *args, f"run_dir={tmp_path / 'whole'}").exit_code == 0
    flag.touch()
    result = call("train", *SMALL, *args, f"run_dir={tmp_path / 'part'}")
    assert result.exit_code == 3, result.output
    told = [line for line in result.stderr.splitlines() if line.startswith("multigrid-rl: ")]
    assert len(told) == 2
    assert f"env_id={BROKEN}: step: expected an answer as PettingZoo defines it, got Unheard: lost it" in told[0]
    assert "--resume" in told[1]
    assert rows_of(tmp_path / "part")
    flag.unlink()
    works("train", "--resume", tmp_path / "part")
    assert without_time(rows_of(tmp_path / "part")) == without_time(rows_of(tmp_path / "whole"))


def test_environment_without_seeds_is_warned_of_when_its_run_goes_on(tmp_path):
    args = [*SMALL, f"env_id={BROKEN}", "env_args={fault: unseeded}", f"run_dir={tmp_path / 'run'}"]
    assert call("train", *args).exit_code == 0
    result = works("train", "--resume", tmp_path / "run", "--until", "320")
    assert f"env_id={BROKEN}: played again, it shows something else: the run goes on, not exactly" in result.stderr


# --- PettingZoo's own suites: what is trained passes them, and what fails there is refused or warned of


@pytest.mark.parametrize(
    "module",
    [
        *("pettingzoo.classic.tictactoe_v3", "pettingzoo.classic.connect_four_v3", "pettingzoo.classic.chess_v6"),
        *("pettingzoo.classic.leduc_holdem_v4", "pettingzoo.classic.texas_holdem_v4", "pettingzoo.classic.rps_v2"),
        *("pettingzoo.butterfly.knights_archers_zombies_v11", "mpe2.simple_spread_v3", "mpe2.simple_tag_v3"),
        *("mpe2.simple_speaker_listener_v4", "mpe2.simple_crypto_v3", "magent2.environments.battle_v4"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_trained_passes_the_suites_of_pettingzoo(module, capsys):
    found = pytest.importorskip(module)
    api_test(found.env(), 20)
    seed_test(found.env, 20)
    if hasattr(found, "parallel_env"):
        parallel_api_test(found.parallel_env(), 20)
        parallel_seed_test(found.parallel_env, 20)
        max_cycles_test(found)
    play(f"pettingzoo:{module}", 20, **({"map_size": 16} if "magent2" in module else {}))


@pytest.mark.parametrize("swapped", [(), (("a_0", "a_1"),)])
def test_whose_turn_does_not_come_before_the_limit_is_paid_all_the_same(swapped):
    spec = ZooSpec(TURNS, {"max_episode_steps": 4}, {"a_0": "a", "a_1": "b"}, True, swapped, swaps=bool(swapped))
    envs = MatchFactory(spec, {}, None, {}, 5).build(2, 0)
    acts = {agent.name: np.zeros((2, 1), np.int64) for agent in envs.specs.agents}
    for _ in range(4):
        last = envs.step(acts)
    table = envs.drain_episodes()
    assert last.truncated.all()
    assert table.returns.tolist() == [[4.0, 4.0]] * 2
    assert (table.winner == -1).all()


def test_agent_that_was_cut_before_the_others_ended_is_no_terminated_one():
    envs = env_factory(compose(["env_id=pettingzoo:strange_games:relay", "env_args={fault: cut early}"])).build(1, 0)
    acts = {agent.name: np.zeros((1, 1), np.int64) for agent in envs.specs.agents}
    for _ in range(5):
        assert not envs.step(acts).done.any()
    envs.set_state(pickle.loads(pickle.dumps(envs.get_state())))  # a run that goes on knows of it, too
    envs.step(acts)
    last = envs.step(acts)
    assert last.done.all()
    assert last.truncated.all()
    assert last.terminated["runner_0"].all()
    assert not last.terminated["runner_1"].any()
    steps = [envs.step(acts) for _ in range(3)]  # the next episode begins without
    assert not any(step.truncated.any() for step in steps)
