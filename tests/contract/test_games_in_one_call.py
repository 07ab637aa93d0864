"""Particle worlds and boards in one call against their packages, step by step; examples/multigrid_games.py."""

import numpy as np
import pytest

from examples.multigrid_games import parallel_env
from multigrid_rl.envs.connect_four import CONNECT_FOUR, ConnectFourEnvs, has_four
from multigrid_rl.envs.particles import SPREAD, TAG, ParticleEnvs, plays
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec
from multigrid_rl.envs.zoo import describe_game
from multigrid_rl.types import RunError
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

GAMES = 5
WORLDS = [
    (SPREAD, {}),
    (SPREAD, {"N": 4, "local_ratio": 0.2, "max_cycles": 13}),
    (SPREAD, {"max_episode_steps": 9}),
    (TAG, {}),
    (TAG, {"num_good": 2, "num_obstacles": 3}),
]


def both(env_id, env_args):
    """Return the same games, played by the package and in one call."""
    pytest.importorskip("mpe2")
    teams = dict.fromkeys(describe_game(env_id, env_args).seats, "one")
    game = ZooSpec(env_id, env_args, teams, wins=False, gaps=False)
    return [kind(game, GAMES, seed=3, first=7) for kind in (PettingZooEnvs, ParticleEnvs)]


def drawn(env, generator):
    return {seat: generator.integers(0, 5, (GAMES, 1)) for seat in env.seats}


@pytest.mark.parametrize(("env_id", "env_args"), WORLDS)
def test_games_in_one_call_show_and_pay_what_the_package_does(env_id, env_args):
    theirs, ours = both(env_id, env_args)
    generator = np.random.default_rng(0)
    for _ in range(150):
        np.testing.assert_equal(ours.observations(), theirs.observations())
        actions = drawn(theirs, generator)
        wanted, got = theirs.step(actions), ours.step(actions)
        for seat in theirs.seats:
            np.testing.assert_allclose(got.rewards[seat], wanted.rewards[seat], rtol=0, atol=1e-14)
        for part in ("final_observations", "terminated", "done", "truncated"):
            np.testing.assert_equal(getattr(got, part), getattr(wanted, part))


@pytest.mark.parametrize("stepped_by", [0, 1], ids=["the package", "one call"])
def test_games_go_on_where_their_state_was_asked(stepped_by):
    env, (_, again) = both(TAG, {})[stepped_by], both(TAG, {})
    generator = np.random.default_rng(1)
    for _ in range(30):
        env.step(drawn(env, generator))
    state, actions = env.get_state(), [drawn(env, generator) for _ in range(40)]
    wanted = [env.step(one).rewards["agent_0"].copy() for one in actions]
    again.set_state(state)
    np.testing.assert_allclose([again.step(one).rewards["agent_0"] for one in actions], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("env_id", "env_args"),
    [(SPREAD, {"continuous_actions": True}), (TAG, {"curriculum": True}), ("pettingzoo:mpe2.simple_push_v3", {})],
)
def test_a_world_of_other_rules_is_the_packages(env_id, env_args):
    assert not plays(env_id, env_args)


def test_a_version_that_is_not_known_is_the_packages(monkeypatch):
    pytest.importorskip("mpe2")
    assert plays(SPREAD, {})
    monkeypatch.setattr("multigrid_rl.envs.particles.version", lambda _: "2.0.0")
    assert not plays(SPREAD, {})


BOARDS, SEATS = 6, ("player_0", "player_1")


def both_boards(swapped, **others):
    """Return the same games, played by the package and in one call."""
    game = ZooSpec(CONNECT_FOUR, {}, {seat: seat for seat in SEATS}, wins=True, symmetric=(SEATS,), swaps=swapped)
    return [kind(game, BOARDS, seed=3, first=7, **others) for kind in (PettingZooEnvs, ConnectFourEnvs)]


def drawn_columns(env, generator):
    """Draw a legal column of each seat."""
    lots = {seat: generator.random((BOARDS, 7)) * (obs[:, -7:] > 0) for seat, obs in env.observations().items()}
    return {seat: values.argmax(axis=1)[:, None] for seat, values in lots.items()}


@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("swapped", [False, True])
def test_boards_in_one_call_show_and_pay_what_the_package_does(swapped, auto_reset):
    theirs, ours = both_boards(swapped, auto_reset=auto_reset)
    generator = np.random.default_rng(0)
    for _ in range(300 if auto_reset else 43):
        np.testing.assert_array_equal(ours.turn, theirs.turn)
        for seat, seen in theirs.observations().items():
            np.testing.assert_array_equal(ours.observations()[seat], seen)
        actions = drawn_columns(theirs, generator)
        wanted, got = theirs.step(actions), ours.step(actions)
        for part in ("rewards", "terminated", "mask", "final_observations"):
            for seat in SEATS:
                np.testing.assert_array_equal(getattr(got, part)[seat], getattr(wanted, part)[seat])
        np.testing.assert_array_equal(got.done, wanted.done)
        np.testing.assert_array_equal(got.truncated, wanted.truncated)
    assert ours.played == theirs.played
    episodes, expected = ours.drain_episodes(), theirs.drain_episodes()
    assert len(expected.length) > (20 if auto_reset else BOARDS - 1)
    for name in ("length", "returns", "winner"):
        np.testing.assert_array_equal(getattr(episodes, name), getattr(expected, name))


@pytest.mark.parametrize("stepped_by", [0, 1], ids=["the package", "one call"])
def test_boards_go_on_where_their_state_was_asked(stepped_by):
    env, (_, again) = both_boards(swapped=True)[stepped_by], both_boards(swapped=True)
    generator = np.random.default_rng(1)
    for _ in range(50):
        env.step(drawn_columns(env, generator))
    again.set_state(env.get_state())
    for _ in range(60):
        actions = drawn_columns(env, generator)
        np.testing.assert_array_equal(again.step(actions).rewards["player_0"], env.step(actions).rewards["player_0"])


def test_a_full_column_takes_no_disc():
    _, ours = both_boards(swapped=False)
    column = {seat: np.full((BOARDS, 1), 3) for seat in SEATS}
    for _ in range(6):
        ours.step(column)
    with pytest.raises(RunError, match=r"step: player_0: .*got a disc in column 3, full"):
        ours.step(column)


def test_all_sixty_nine_rows_of_four_and_no_three_count():
    fours = [
        [(row + k * down, column + k * right) for k in range(4)]
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        for row in range(6)
        for column in range(7)
        if 0 <= row + 3 * down < 6 and 0 <= column + 3 * right < 7
    ]
    boards = np.zeros((69, 6, 7), bool)
    for board, cells in zip(boards, fours, strict=True):
        board[tuple(np.transpose(cells))] = True
    assert has_four(boards).all()
    for missing in range(4):
        threes = boards.copy()
        for board, cells in zip(threes, fours, strict=True):
            board[cells[missing]] = False
        assert not has_four(threes).any()


@pytest.mark.parametrize("id", ["MultiGrid-Empty-8x8-v0", "MultiGrid-LockedHallway-2Rooms-v0"])
def test_keeps_the_api_and_layouts_follow_from_the_seed(id):
    from pettingzoo.test import parallel_api_test  # noqa: PLC0415 - it warns

    parallel_api_test(parallel_env(id), num_cycles=50)
    same, other = parallel_env(id), parallel_env(id)
    for seed in (3, 4, 3):
        views = [env.reset(seed=seed)[0] for env in (same, other)]
        for agent in same.possible_agents:
            np.testing.assert_array_equal(views[0][agent]["image"], views[1][agent]["image"])


def test_an_agent_that_has_finished_takes_no_part_in_what_follows():
    env = parallel_env("MultiGrid-Empty-5x5-v0", agents=2)
    rng = np.random.default_rng(0)
    for seed in range(20):
        env.reset(seed=seed)
        while env.agents:
            playing = list(env.agents)
            seen, rewards, ended, cut, _ = env.step({agent: int(rng.integers(7)) for agent in playing})
            assert set(seen) == set(rewards) == set(ended) == set(cut) == set(playing)
            assert set(env.agents) == {agent for agent in playing if not (ended[agent] or cut[agent])}


def test_the_scenario_trains(tmp_path):
    verdict, rows = tiny_run(tmp_path / "run", "scenario=multigrid", "train.until=1024")
    assert verdict["env_steps"] == rows[-1]["env_steps"] == 1024
