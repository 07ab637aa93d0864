"""The Gymnasium faces, of one game and of many: contract, seeds, ends, who may sit where, ids, flat observations."""

import math
import pickle

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode

from bundles import bundle
from composing import ALL_SCENARIOS, GAMES, SCENARIOS
from games import EAST, NORTH, RED_FRONT, RED_KEY_USED, WEST, clear, image, place
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.gym import register_envs, sides
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.gymnasium_env import SeatEnv, SeatVectorEnv
from multigrid_rl.text import ConfigError
from multigrid_rl.world import constants as c
from multigrid_rl.world.pettingzoo_env import parallel_env

FOCAL = "red_0"
every_game = pytest.mark.parametrize("scenario", GAMES)
TEAM_DEATH_MATCHES = [
    name for name in GAMES if load_scenario(name).game.death_match and load_scenario(name).game.blue > 1
]


def _scenario_of(env_id: str) -> str:
    return gymnasium.spec(env_id).kwargs["scenario"]


def others(scenario, player="random", seat=FOCAL):
    """The same player for every seat but the focal one."""
    return {other: player for other in load_scenario(scenario).spec.seats if other != seat}


def seat_env(scenario, player="random", **settings):
    """The focal seat with one player everywhere else."""
    return SeatEnv(scenario, FOCAL, others(scenario, player), **settings)


def transcript(env, steps, seed=None, start=True):
    """All that ``steps`` steps answer under actions from one fixed generator; finished games start anew."""
    rng = np.random.default_rng(7)
    record = [env.reset(seed=seed)] if start else []
    for _ in range(steps):
        record.append(env.step(int(rng.integers(len(c.ACTIONS)))))
        if record[-1][2] or record[-1][3]:
            record.append(env.reset())
    return record


# The contract --------------------------------------------------------------------------------------------------------


@every_game
def test_passes_gymnasium_checker(scenario):
    made = gymnasium.make(f"multigrid_rl/{scenario}-v0", players=others(scenario), disable_env_checker=True)
    assert isinstance(made.unwrapped, SeatEnv)
    check_env(made.unwrapped)


@every_game
def test_matches_parallel_env_with_other_seats_filled(scenario):
    one, all_seats = seat_env(scenario, "idle"), parallel_env(scenario)
    rng = np.random.default_rng(4)
    (seen, info), (every_seen, every_info) = one.reset(seed=6), all_seats.reset(seed=6)
    assert data_equivalence((seen, info), (every_seen[FOCAL], every_info[FOCAL]))
    for _ in range(300):
        if FOCAL not in all_seats.agents:
            break
        action = int(rng.integers(len(c.ACTIONS)))
        expected = [part[FOCAL] for part in all_seats.step({FOCAL: action})]
        assert data_equivalence(list(one.step(action)), expected)


# Seeds ---------------------------------------------------------------------------------------------------------------


def test_unseeded_games_differ_in_keys_and_opponent_actions():
    env = seat_env("1v1")
    boards = set()
    for _ in range(20):
        env.reset()
        boards.add(env.match.env.world.state.cells.tobytes())
    assert len(boards) > 10
    moves = set()
    for _ in range(5):  # fixed keys: only the opponents' draws are left
        fixed = seat_env("2v2")
        fixed.reset()
        for _ in range(30):
            _, _, terminated, truncated, _ = fixed.step(c.DONE)
            if terminated or truncated:  # an opponent may be lucky
                break
        moves.add(fixed.match.env.world.state.position.tobytes() + fixed.match.env.world.state.heading.tobytes())
    assert len(moves) > 1


@every_game
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_pickled_game_continues_identically(scenario, pickler):
    env = seat_env(scenario, render_mode="rgb_array")
    transcript(env, 20, seed=9)
    twin = pickler.loads(pickler.dumps(env))
    assert np.array_equal(env.render(), twin.render())
    assert data_equivalence(transcript(env, 300, start=False), transcript(twin, 300, start=False))


# Ends ----------------------------------------------------------------------------------------------------------------


@every_game
@pytest.mark.parametrize("last", [False, True])
def test_win_terminates_and_in_last_step_also_truncates(scenario, last):
    env = seat_env(scenario, "idle")
    env.reset(seed=0)
    world = env.match.env.world
    clear(world)
    place(world, FOCAL, *RED_FRONT, WEST, RED_KEY_USED)
    if last:
        world.state.clock[0] = env.game.max_steps - 1
    seen, reward, terminated, truncated, info = env.step(c.TOGGLE)
    assert (terminated, truncated) == (True, last)
    assert reward == pytest.approx(0.1 if last else 1 - 0.9 / env.game.max_steps)
    assert info["winner"] == c.RED
    assert info["door_win"] == info["door_open"] == 1.0
    # The final observation: the door ahead is open.
    middle = env.game.view_size // 2
    assert seen["image"][middle, env.game.view_size - 2].tolist() == [4, 0, 0]
    assert np.array_equal(seen["image"], image(world, FOCAL))


@pytest.mark.parametrize("scenario", TEAM_DEATH_MATCHES)
def test_eliminated_seat_terminates_while_team_plays_on(scenario):
    env = SeatEnv(scenario, FOCAL, others(scenario, "idle") | {"blue_0": "key-runner"})
    env.reset(seed=0)
    world = env.match.env.world
    place(world, FOCAL, 7, 3, NORTH)
    place(world, "blue_0", 6, 3, EAST)  # a key-runner toggles whoever stands in front of it
    _, reward, terminated, truncated, info = env.step(c.DONE)
    assert (reward, terminated, truncated) == (-1.0, True, False)
    assert info["got_eliminated"] == 1.0
    assert info["winner"] == -1
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step(c.DONE)
    _, info = env.reset()
    assert info["got_eliminated"] == 0.0
    assert not env.step(c.DONE)[2]


# Who may sit where ---------------------------------------------------------------------------------------------------


def test_unnamed_seats_keep_scenario_players():
    env = SeatEnv("2v2", FOCAL, {"red_1": "idle", "blue_1": "hunter"})
    own = "+".join(load_scenario("2v2").kind.opponents["blue_0"])
    names = {seat: player.name for seat, player in env.match._players.items()}
    assert names == {"blue_0": own, "blue_1": "hunter", "red_1": "idle"}


@pytest.mark.parametrize("env_id", [name for name in register_envs() if _scenario_of(name) in SCENARIOS])
def test_every_id_is_made_and_played_without_arguments(env_id):
    env = gymnasium.make(env_id, disable_env_checker=True)
    env.reset(seed=1)
    env.step(0)
    match, scenario = env.unwrapped.match, load_scenario(_scenario_of(env_id))
    for seat in set(scenario.kind.learning) - {env.unwrapped.seat}:
        assert match._players[seat].name == "random"


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (("1v2",), ConfigError, "^scenario: expected .*, got 1v2"),
        (("1v1", "green_0", {"blue_0": "idle"}), ValueError, "seat: expected blue_0, red_0, got 'green_0'"),
        (("1v1", FOCAL, {"blue_1": "idle"}), ValueError, "^players: expected seats beside red_0: blue_0, got blue_1$"),
        (("single", FOCAL, {FOCAL: "idle"}), ValueError, "^players: expected seats beside red_0: none, got red_0$"),
        (("1v1", FOCAL, {"blue_0": "nobody"}), PlayerError, "^player: expected random, idle.*, got nobody$"),
        (("1v1", FOCAL, None, "human"), ValueError, "render_mode.*human"),
    ],
)
def test_rejects_unknown_names(args, error, message):
    with pytest.raises(error, match=message):
        SeatEnv(*args)


class Mine:
    """A player without a name."""

    def act(self, view, state, rng):
        return np.full(len(view.tokens), c.ACTIONS.index("left")), state


def test_seats_player_objects_and_mixtures():
    alone, mixed = SeatEnv(players={"blue_0": Mine()}), SeatEnv(players={"blue_0": {Mine(): 1, "idle": 3}})
    before = int(alone.reset(seed=1)[0]["direction"]), int(alone.match.env.world.state.heading[0, 0])
    alone.step(c.ACTIONS.index("done"))
    assert alone.match.env.world.state.heading[0, 0] == (before[1] + 3) % 4
    assert {int(mixed.reset(seed=k) and mixed.match._pooled[0].memory.chosen[0]) for k in range(20)} == {0, 1}
    with pytest.raises(ConfigError, match=r"player object: expected something with act\(.*\), got object"):
        SeatEnv(players={"blue_0": object()})
    for wrong in (["random"], {"random": math.inf}, {"random": 0}):
        with pytest.raises(ConfigError, match="expected a player, or players with weights above 0"):
            SeatEnv(players={"blue_0": wrong})


def test_rejects_unknown_actions_and_negative_seeds():
    env = seat_env("1v1")
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action of red_0: expected 0 left.*7"):
        env.step(7)
    with pytest.raises(gymnasium.error.Error, match="-1"):
        env.reset(seed=-1)


def test_frozen_players_come_from_given_folder(tmp_path):
    written = read_card(bundle(tmp_path / "tiny", ["blue_0"]))
    (tmp_path / "catalogue.yaml").write_text(f"players: {{tiny: {{sha256: {written.sha256}}}}}\n", encoding="utf-8")
    env = SeatEnv("1v1", FOCAL, {"blue_0": "tiny"}, checkpoints=tmp_path)
    twin = pickle.loads(pickle.dumps(env))
    assert data_equivalence(transcript(env, 40, seed=3), transcript(twin, 40, seed=3))
    assert not env.match._players["blue_0"].mirrored
    assert SeatEnv("1v1", "blue_0", {FOCAL: "tiny"}, checkpoints=tmp_path).match._players[FOCAL].mirrored
    with pytest.raises(PlayerError, match="does not fit seat blue_1"):
        SeatEnv("2v2", FOCAL, {"blue_0": "idle", "blue_1": "tiny", "red_1": "idle"}, checkpoints=tmp_path)


SIDE_BY_SIDE = 8


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("flat", [False, True])
def test_every_scenario_steps_within_spaces(scenario, flat):
    env = SeatVectorEnv(SIDE_BY_SIDE, scenario, players=others(scenario), flat=flat)
    seen, infos = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert env.observation_space.contains(seen)
        seen, rewards, terminated, truncated, infos = env.step(rng.integers(0, 7, SIDE_BY_SIDE))
        assert (rewards.shape, terminated.dtype, truncated.dtype) == ((SIDE_BY_SIDE,), np.bool_, np.bool_)
    assert {*c.EVENTS, "mission", "winner"} <= set(infos)
    assert all(infos[name].shape == (SIDE_BY_SIDE,) for name in (*c.EVENTS, "mission", "winner"))


def test_games_equal_batched_engine_and_follow_seed():
    envs = [SeatVectorEnv(SIDE_BY_SIDE, "1v1", players={"blue_0": "hunter"}) for _ in range(2)]
    rng = np.random.default_rng(1)
    ends = 0
    first, again = (env.reset(seed=9)[0] for env in envs)
    for _ in range(200):
        assert all(np.array_equal(first[key], again[key]) for key in first)
        actions = rng.integers(0, 7, SIDE_BY_SIDE)
        (first, _, terminated, truncated, infos), (again, *_) = (env.step(actions) for env in envs)
        ended = terminated | truncated
        ends += ended.sum()
        assert ended.any() == ("final_obs" in infos)
        if ended.any():
            assert np.array_equal(infos["_final_obs"], ended)
            assert (infos["winner"][terminated] >= 0).all()
            assert (envs[0].match.env.world.state.clock[ended] == 0).all()
    assert ends > SIDE_BY_SIDE


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
    env = SeatVectorEnv(3, "2v2-deathmatch", players=others("2v2-deathmatch", "idle") | {"blue_0": "key-runner"})
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
