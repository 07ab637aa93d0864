"""What many environments of PettingZoo's kind do beside its letter is taken as it is meant, or told in one line."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from commands import call, complaint, works
from loose_games import Loose
from multigrid_rl.config.compose import compose
from multigrid_rl.config.overrides import written
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.farama import Choice
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, kinds_of
from multigrid_rl.envs.zoo import describe_game
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError
from strange_games import legal_actions, play_legal

LOOSE, CLOCK = "pettingzoo:loose_games:loose", "pettingzoo:loose_games:clock"
TINY = [
    *("train.num_envs=4", "train.num_steps=16", "train.minibatch_size=64", "train.epochs=1", "train.threads=1"),
    *("model.hidden=[4]", "train.until=128", "scenario.report_episodes=2"),
]


def built(env_id: str, count: int = 2, **env_args):
    return env_factory(compose([f"env_id={env_id}", f"env_args={written(env_args)}"])).build(count, 0)


def played(env_id: str, **env_args):
    """Play two environments with random legal actions."""
    return play_legal(built(env_id, **env_args), 40)


# --- what is legal


@pytest.mark.parametrize(("env_id", "habit"), [(LOOSE, "late masks"), (CLOCK, "masks")])
def test_masks_of_infos_that_come_after_the_start_are_kept_to(env_id, habit):
    envs = played(env_id, habit=habit)  # it raises at what is not legal
    assert [agent.legal for agent in envs.specs.agents] == [6] * len(envs.specs.agents)


def test_masks_that_come_when_it_is_too_late_are_one_line():
    message = r"a_0: expected .* got action_mask: expected flags within the first 3 rounds"
    with pytest.raises(RunError, match=message):
        played(LOOSE, habit="very late masks")


# --- the end of an episode


@pytest.mark.parametrize("habit", ["never emptied", "never emptied, cut", "never emptied, one by one", "shown none"])
def test_episode_ends_when_all_have_ended_even_if_listed_or_shown_none(habit):
    assert played(LOOSE, habit=habit).drain_episodes().length.tolist() == [10] * 8


def test_who_has_ended_and_is_still_listed_decides_no_more():
    envs = built(LOOSE, habit="never emptied, one by one")
    acts = {agent.name: np.ones((2, 1), np.int64) for agent in envs.specs.agents}
    steps = [envs.step(acts) for _ in range(10)]
    assert [bool(step.mask["a_0"].all()) for step in steps] == [True] * 4 + [False] * 6
    assert [bool(step.terminated["a_1"].all()) for step in steps] == [False] * 9 + [True]
    assert not any(step.truncated.any() for step in steps)


@pytest.mark.parametrize("habit", ["", "stuck", "rotates", "stuck cut"])
def test_game_in_turns_ends_when_all_have_ended_though_agents_is_never_emptied(habit):
    envs = built(CLOCK, habit=habit)
    acts = {agent.name: np.zeros((2, 1), np.int64) for agent in envs.specs.agents}
    steps = [envs.step(acts) for _ in range(9)]
    table = envs.drain_episodes()
    assert table.length.tolist() == [9] * 2
    assert table.returns.tolist() == [[9.0] * 3] * 2
    assert all(ended.all() for ended in steps[-1].terminated.values()) == (habit != "stuck cut")
    assert steps[-1].truncated.all() == (habit == "stuck cut")


def test_start_in_which_nobody_is_to_move_is_drawn_again():
    envs = played(LOOSE, habit="empty start")
    assert envs.drain_episodes().length.tolist() == [10] * 8
    envs.set_state(envs.get_state())


# --- who is who


@pytest.mark.parametrize(
    ("names", "seats", "kinds"),
    [
        ([0, 1], ["0", "1"], ["agent", "agent"]),
        (["red/0", "red:1"], ["red_0", "red_1"], ["red", "red"]),
        (["b?", ".."], ["b_", "__"], ["b_", "__"]),
        (["agent.0", "agent.1"], ["agent.0", "agent.1"], ["agent", "agent"]),
        (["agent 0", "agent."], ["agent 0", "agent_"], ["agent", "agent_"]),
    ],
)
def test_names_of_agents_become_text_that_folders_and_metrics_take(names, seats, kinds):
    about = describe_game(LOOSE, {"names": names}).seats
    assert list(about) == seats
    assert list(kinds_of(about).values()) == kinds
    assert played(LOOSE, names=names).drain_episodes().length.tolist() == [10] * 8
    assert played(CLOCK, names=[*names, "c"]).drain_episodes().length.tolist() == [9] * 8


@pytest.mark.parametrize("names", [["a", "a"], ["a/", "a?"], ["a" * 101, "b"], [["a"], ["b"]]])
def test_agents_that_cannot_be_told_apart_are_refused(names):
    with pytest.raises(ConfigError, match="env_id: expected agents with different names of at most 100 letters"):
        built(LOOSE, names=names)


def test_seat_with_a_dot_in_its_name_is_set_and_trained_beside(tmp_path):
    args = [f"env_id={LOOSE}", 'env_args={names: ["agent.0", "red/1"]}', f"run_dir={tmp_path / 'run'}"]
    works("train", *TINY, *args, "scenario.seats.agent.0=random")
    assert (tmp_path / "run" / "verdict.json").exists()
    assert [path.name for path in (tmp_path / "run").glob("checkpoints/*/players/*")] == ["red_1"]


# --- what is given and taken


def test_environment_may_ask_its_choices_for_an_int_or_for_what_numpy_has():
    assert played(LOOSE, habit="int").drain_episodes().episodes == 8
    envs = played(LOOSE, habit="item")
    assert all(kind == np.int64 for row in envs.env.env.games[0].env.taken for _, kind in row)
    assert np.array([5, 6, 7])[Choice(1)] == 6


def test_environment_may_write_into_the_actions_it_is_given():
    envs = built("pettingzoo:loose_games:numbers", 1, habit="in place")
    rng = np.random.default_rng(3)
    rows = [{name: rng.uniform(-1, 1, (1, 2)).astype(np.float32) for name in ("a_0", "a_1")} for _ in range(4)]
    for row in rows:
        envs.step(row)
    for row, taken, kept in zip(rows, envs.env.env.games[0].env.taken, envs.env.env.played[0], strict=True):
        assert all(np.array_equal(row[name][0], its[name]) for its in (taken, kept) for name in row)


@pytest.mark.parametrize(
    ("habit", "message"),
    [
        ("paid a vector", r"reward: expected one number, got shape \(2,\)"),
        ("paid none", "reward: expected one number, got None"),
        ("stretched", r"observation: expected shape \(2,\) of its space, got \(\)"),
    ],
)
def test_what_numpy_would_stretch_is_one_line_that_names_the_agent(habit, message):
    with pytest.raises(RunError, match=f"step: a_1: expected .* got {message}"):
        played(LOOSE, habit=habit)


def test_numbers_that_stand_in_arrays_alone_are_taken_as_from_gymnasium():
    rows, plain = (played(LOOSE, habit=habit).drain_episodes() for habit in ("in rows", ""))
    assert rows.length.tolist() == plain.length.tolist() == [10] * 8
    assert np.array_equal(rows.returns, plain.returns)
    assert rows.returns.any()


def test_environment_that_takes_31_bits_of_a_seed_is_given_such():
    envs = built(LOOSE, 8, habit="31 bits")
    seeds = [game.env.seed for game in envs.env.env.games]
    assert len(set(seeds)) == 8
    assert max(game.env.seed for game in built(LOOSE, 8).env.env.games) >= 2**31  # the others keep theirs


def test_argument_of_ours_reaches_an_environment_that_has_one_of_its_name():
    envs = played(LOOSE, max_episode_steps=4)
    table = envs.drain_episodes()
    assert envs.env.env.games[0].env.own_limit == 4
    assert table.length.tolist() == [4] * 20
    envs = played(CLOCK, max_episode_steps=4)  # and not one that has none
    assert envs.drain_episodes().length.tolist() == [4] * 20
    assert Loose().own_limit is None


class Team(gymnasium.Env):
    """Two agents of one Gymnasium id, as foraging has them: spaces, observations and rewards are tuples."""

    observation_space = spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32)] * 2)
    action_space = spaces.Tuple([spaces.Discrete(3)] * 2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return (np.zeros(2, np.float32),) * 2, {}

    def step(self, actions):
        self.t += 1
        return (np.ones(2, np.float32),) * 2, [float(action) for action in actions], self.t >= 5, False, {}


def test_adapter_of_the_page_makes_agents_of_a_gymnasium_id_with_tuples(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "games.md").read_text("utf-8")
    (tmp_path / "team_env.py").write_text(page[page.index("# team_env.py") :].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    gymnasium.register("Team-v0", Team, disable_env_checker=True)
    game = compose(["env_id=pettingzoo:team_env:TeamEnv", "env_args={env_id: Team-v0}"]).scenario.kind.spec
    envs = PettingZooEnvs(game, 2)
    for _ in range(10):
        envs.step({agent: np.ones((2, 1), np.int64) for agent in envs.seats})
    table = envs.drain_episodes()
    assert table.length.tolist() == [5] * 4
    assert table.returns.tolist() == [[5.0, 5.0]] * 4


# --- what a time limit goes on from


def test_time_limit_in_turns_goes_on_from_what_each_sees_at_the_cut():
    # All see how many moves were made: seven at every cut, whoever moved last.
    envs = built(CLOCK, max_episode_steps=7)
    acts = {agent.name: np.zeros((2, 1), np.int64) for agent in envs.specs.agents}
    last = [envs.step(acts) for _ in range(7)][-1]
    assert last.truncated.all()
    assert [seen.tolist() for seen in last.final_observations.values()] == [[[7, k]] * 2 for k in range(3)]
    assert [seen.tolist() for seen in last.observations.values()] == [[[0, 0]] * 2, *[[[7, k]] * 2 for k in (1, 2)]]


def test_time_limit_in_a_game_of_openspiel_goes_on_from_its_position():
    envs = built("openspiel:leduc_poker", 2, max_episode_steps=3)
    rngs = [np.random.default_rng(n) for n in range(2)]
    cuts = 0
    for _ in range(60):
        kept = [game._current.state for game in envs.env.env.games]
        acts = {agent.name: legal_actions(envs, agent.name, rngs) for agent in envs.specs.agents}
        step = envs.step(acts)
        for n in np.flatnonzero(step.truncated):
            cuts += 1
            after = kept[n].clone()
            after.apply_action(int(acts[f"player_{kept[n].current_player()}"][n, 0]))
            if after.is_chance_node():  # its card is drawn by the episode's seed
                continue
            for k in range(2):
                seen = step.final_observations[f"player_{k}"][n]
                assert np.array_equal(seen[:-3], np.array(after.information_state_tensor(k), np.float32))
    assert cuts > 5


@pytest.mark.parametrize("game", ["crossword", "mfg_crowd_modelling"])
def test_game_without_tensors_or_players_is_one_line_before_a_run(game, tmp_path):
    pytest.importorskip("pyspiel")
    said = complaint(call("train", *TINY, f"env_id=openspiel:{game}", f"run_dir={tmp_path / 'run'}"))
    assert f"a game of OpenSpiel's that shows tensors, got {game}" in said or "between players" in said
    assert not (tmp_path / "run").exists()
