"""The Gymnasium face: contract, seeds, ends and who may sit where, for every scenario there is."""

import math
import pickle

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence

from bundles import bundle
from composing import ALL_SCENARIOS, GAMES, SCENARIOS
from games import EAST, NORTH, RED_FRONT, RED_KEY_USED, WEST, clear, image, place
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.gym import register_envs
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.gymnasium_env import SeatEnv
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
def test_made_environments_play_through_wrappers(scenario):
    env = gymnasium.make(f"multigrid_rl/{scenario}-v0", players=others(scenario), render_mode="rgb_array")
    seen, _ = env.reset(seed=1)
    for _ in range(5):
        assert env.observation_space.contains(seen)
        seen, *_ = env.step(env.action_space.sample())
    assert env.render().shape == (8 * 32, 16 * 32, 3)
    env.close()


def test_registering_can_be_repeated():
    registered = register_envs()
    assert {f"multigrid_rl/{name}-v0" for name in ALL_SCENARIOS} <= set(registered) <= set(gymnasium.registry)
    assert register_envs() == registered


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


@every_game
def test_every_seat_can_be_played(scenario):
    for seat in load_scenario(scenario).spec.seats:
        env = SeatEnv(scenario, seat, others(scenario, seat=seat))
        transcript(env, 30, seed=1)
        assert env.seat == seat


# Seeds ---------------------------------------------------------------------------------------------------------------


@every_game
def test_same_seed_plays_alike(scenario):
    one, two = seat_env(scenario), seat_env(scenario)
    assert data_equivalence(transcript(one, 400, seed=5), transcript(two, 400, seed=5))
    assert data_equivalence(transcript(one, 50, seed=5), transcript(seat_env(scenario), 50, seed=5))


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
def test_idle_game_is_truncated_not_terminated(scenario):
    env = seat_env(scenario, "idle")
    env.reset(seed=0)
    for step in range(1, env.game.max_steps + 1):
        seen, reward, terminated, truncated, info = env.step(c.RIGHT)
        last = step == env.game.max_steps
        assert (reward, terminated, truncated) == (0.0, False, last)
        assert info["winner"] == -1
    # The observation is that of the last state, not of a game begun anew.
    assert seen["direction"] == (WEST + env.game.max_steps) % 4
    assert env.match.env.world.state.clock[0] == env.game.max_steps
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step(c.DONE)


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


def test_loss_terminates_and_names_winner():
    env = SeatEnv("1v1", "blue_0", {"red_0": "key-runner"})
    env.reset(seed=0)
    terminated, steps = False, 0
    while not terminated:
        _, _, terminated, truncated, info = env.step(c.DONE)
        steps += 1
        assert not truncated
    assert info["winner"] == c.RED
    assert steps < 60


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
