"""The vector face: the same games as one seat's, begun anew where they end; ids; flat observations."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from composing import ALL_SCENARIOS, SCENARIOS
from games import EAST, NORTH, place
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.gym import register_envs, sides
from multigrid_rl.players.gymnasium_env import SeatEnv, SeatVectorEnv
from multigrid_rl.world import constants as c
from multigrid_rl.world.pettingzoo_env import parallel_env

GAMES = 8


def filled(scenario, player="random"):
    return {seat: player for seat in load_scenario(scenario).spec.seats if seat != "red_0"}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("flat", [False, True])
def test_every_scenario_steps_within_spaces(scenario, flat):
    env = SeatVectorEnv(GAMES, scenario, players=filled(scenario), flat=flat)
    seen, infos = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert env.observation_space.contains(seen)
        seen, rewards, terminated, truncated, infos = env.step(rng.integers(0, 7, GAMES))
        assert (rewards.shape, terminated.dtype, truncated.dtype) == ((GAMES,), np.bool_, np.bool_)
    assert {*c.EVENTS, "mission", "winner"} <= set(infos)
    assert all(infos[name].shape == (GAMES,) for name in (*c.EVENTS, "mission", "winner"))


def test_games_equal_batched_engine_and_follow_seed():
    envs = [SeatVectorEnv(GAMES, "1v1", players={"blue_0": "hunter"}) for _ in range(2)]
    rng = np.random.default_rng(1)
    ends = 0
    first, again = (env.reset(seed=9)[0] for env in envs)
    for _ in range(200):
        assert all(np.array_equal(first[key], again[key]) for key in first)
        actions = rng.integers(0, 7, GAMES)
        (first, _, terminated, truncated, infos), (again, *_) = (env.step(actions) for env in envs)
        ended = terminated | truncated
        ends += ended.sum()
        assert ended.any() == ("final_obs" in infos)
        if ended.any():
            assert np.array_equal(infos["_final_obs"], ended)
            assert (infos["winner"][terminated] >= 0).all()
            assert (envs[0].match.env.world.state.clock[ended] == 0).all()
    assert ends > GAMES


def test_final_observation_is_of_own_seat():
    env, one = SeatVectorEnv(2, "1v1", players={"blue_0": "idle"}), SeatEnv("1v1", players={"blue_0": "idle"})
    seen, _ = env.reset(seed=4)
    alone, _ = one.reset(seed=4)  # game 0 of the same seed
    for step in range(env.game.max_steps):
        assert all(np.array_equal(seen[key][0], alone[key]) for key in alone)
        action = (c.RIGHT, c.FORWARD, c.LEFT, c.FORWARD)[step % 4]
        seen, _, _, truncated, infos = env.step(np.full(2, action))
        alone, *_ = one.step(action)
    assert truncated.all()
    assert all(np.array_equal(infos["final_obs"][key][0], alone[key]) for key in alone)
    assert seen["direction"].tolist() == [2, 2]  # of new games


def test_eliminated_seat_starts_new_game_while_others_play():
    env = SeatVectorEnv(3, "2v2-deathmatch", players=filled("2v2-deathmatch", "idle") | {"blue_0": "key-runner"})
    env.reset(seed=0)
    world = env.match.env.world
    place(world, "red_0", 7, 3, NORTH)
    place(world, "blue_0", 6, 3, EAST)
    _, paid, terminated, truncated, infos = env.step(np.full(3, c.DONE))
    assert (terminated.tolist(), truncated.tolist()) == ([True, False, False], [False] * 3)
    assert (paid[0], infos["_final_obs"].tolist()) == (-1.0, [True, False, False])
    assert world.state.clock.tolist() == [0, 1, 1]
    assert world.state.out.sum() == 0
    assert len(env.match.unfinished(np.ones(3, bool)).returns) == 3
    assert env.match.unfinished(np.ones(3, bool)).length.tolist() == [0, 1, 1]


@pytest.mark.parametrize("seeds", [[5], [5, 7, 5], (9, 2), np.array([3, 4])], ids=str)
def test_each_of_a_list_of_seeds_is_the_game_of_one_environment(seeds):
    players = {"blue_0": {"random": 1, "idle": 1}}
    many = SeatVectorEnv(len(seeds), "1v1", "red_0", players=players)
    shown = [many.reset(seed=seeds)[0]]
    shown += [many.step(np.full(len(seeds), c.FORWARD))[0] for _ in range(20)]
    for k, seed in enumerate(seeds):
        alone = SeatEnv("1v1", "red_0", players=players)
        own = [alone.reset(seed=int(seed))[0], *(alone.step(c.FORWARD)[0] for _ in range(20))]
        for one, other in zip(shown, own, strict=True):
            np.testing.assert_array_equal(one["image"][k], other["image"])


def test_some_of_a_list_of_seeds_may_be_none():
    many = SeatVectorEnv(2)
    assert (many.reset(seed=[1, None])[0]["image"][0] == many.reset(seed=[1, 8])[0]["image"][0]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SeatVectorEnv(0), "^num_envs: expected a whole number of at least 1, got 0$"),
        (lambda: SeatVectorEnv(2, "1v1", "green_0"), "^seat: expected blue_0, red_0"),
        (
            lambda: SeatVectorEnv(2).reset(seed=[1, 2, 3]),
            r"^seed: expected an integer, or a list of 2, got \[1, 2, 3\]",
        ),
        (lambda: SeatVectorEnv(2).reset(seed=[1, 2.5]), "^seed: expected an integer, or a list of 2"),
        (lambda: SeatVectorEnv(2).reset(seed="12"), "^seed: expected an integer, or a list of 2"),
        (lambda: SeatVectorEnv(2).step(np.array([0, 7])), r"^actions: expected \(2,\) integers 0 to 6, got \(2,\): "),
        (lambda: SeatVectorEnv(2).step(np.array([0, 1.5])), r"^actions: expected \(2,\) integers 0 to 6, got \(2,\): "),
        (lambda: SeatVectorEnv(2).step(np.zeros(3, int)), r"got \(3,\): \[0, 0, 0\]"),
    ],
)
def test_rejects_mistakes_with_one_line(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_ids_name_side_and_make_one_or_many_games():
    assert sorted(sides()) == ALL_SCENARIOS
    for name in SCENARIOS:
        spec = load_scenario(name).spec
        assert set(sides()[name]) == {spec.team_of(seat) for seat in spec.seats}
    blue = gymnasium.make("multigrid_rl/1v1-blue-v0", players={"red_0": "random"}).unwrapped
    assert (type(blue), blue.seat) == (SeatEnv, "blue_0")
    many = gymnasium.make_vec(
        "multigrid_rl.gym:multigrid_rl/1v1-red-v0", num_envs=4, players={"blue_0": "random"}, flat=True
    )
    assert (type(many), many.seat, many.num_envs) == (SeatVectorEnv, "red_0", 4)
    assert many.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert many.observation_space.shape == (4, 583)
    assert "multigrid_rl/single-blue-v0" not in register_envs()


def test_flat_views_hold_same_content():
    whole, flat = parallel_env("2v2"), parallel_env("2v2", flat=True)
    seen, vectors = whole.reset(seed=5)[0], flat.reset(seed=5)[0]
    for seat, vector in vectors.items():
        assert flat.observation_space(seat).contains(vector)
        assert vector.sum() == 27
        cells = vector[: 25 * 23].reshape(5, 5, 23).argmax(axis=-1)
        assert np.array_equal(c.decode(cells.astype(np.uint8)), seen[seat]["image"])
        assert vector[25 * 23 :].reshape(2, 4).argmax(axis=1).tolist() == [
            seen[seat]["direction"],
            seen[seat]["mission"],
        ]
