"""The PettingZoo face: contract, seeds, ends and aliases, for every scenario there is."""

import pickle
import warnings

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.utils.conversions import parallel_to_aec

from composing import GAMES
from games import EAST, NORTH, RED_FRONT, RED_KEY_USED, SOUTH, WEST, clear, place
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.text import ConfigError
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.pettingzoo_env import parallel_env

with warnings.catch_warnings():
    # PettingZoo's tests import one of its games by a way of its own that it calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

DEATH_MATCHES = [name for name in GAMES if load_scenario(name).game.death_match]
RANDOM_KEYS = [name for name in GAMES if load_scenario(name).game.random_keys]

every_game = pytest.mark.parametrize("scenario", GAMES)
every_death_match = pytest.mark.parametrize("scenario", DEATH_MATCHES)


def moves(env, rng):
    """One random action for each agent that plays."""
    return {agent: int(rng.integers(len(c.ACTIONS))) for agent in env.agents}


def transcript(env, steps, seed=None, start=True):
    """All that ``steps`` steps answer under actions from one fixed generator; finished games start anew."""
    rng = np.random.default_rng(7)
    record = [env.reset(seed=seed)] if start else []
    for _ in range(steps):
        if not env.agents:
            record.append(env.reset())
        record.append(env.step(moves(env, rng)))
    return record


def face(env, seat="red_0"):
    """Put a seat in the middle of the room, facing east, and return the cell ahead of it."""
    place(env.world, seat, 7, 3, EAST)
    return 8, 3


# The contract --------------------------------------------------------------------------------------------------------


@every_game
def test_passes_parallel_api_test(scenario):
    parallel_api_test(parallel_env(scenario), num_cycles=1500)


@every_game
def test_passes_parallel_seed_test(scenario):
    parallel_seed_test(lambda: parallel_env(scenario))


@every_game
# Two remarks that api_test makes on every environment whose observations are dictionaries.
@pytest.mark.filterwarnings("ignore:Observation is not a NumPy array:UserWarning")
@pytest.mark.filterwarnings("ignore:Observation space for each agent probably should be:UserWarning")
def test_passes_sequential_tests_after_conversion(scenario):
    api_test(parallel_to_aec(parallel_env(scenario, render_mode="rgb_array")), num_cycles=200)
    seed_test(lambda: parallel_to_aec(parallel_env(scenario)), num_cycles=200)


@every_game
def test_agents_are_seats_and_observations_fit_spaces(scenario):
    env, spec = parallel_env(scenario), load_scenario(scenario).spec
    assert (tuple(env.possible_agents), env.agents) == (spec.seats, [])
    observations, infos = env.reset(seed=1)
    assert list(observations) == list(infos) == env.agents == list(spec.seats)
    for agent, seen in observations.items():
        assert env.observation_space(agent).contains(seen)
        assert set(seen) == {"image", "direction", *(["mission"] if spec.mission_observed else [])}
        assert seen["image"].shape == (spec.view_size, spec.view_size, 3)


@every_game
def test_plays_same_games_as_world(scenario):
    env, rng = parallel_env(scenario), np.random.default_rng(3)
    spec = env.spec
    world = World(spec, 1, seed=11, auto_reset=False)
    env.reset(seed=11)
    area = spec.view_size**2
    for _ in range(300):
        if not env.agents:
            break
        actions = moves(env, rng)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        step = world.step(np.array([[actions.get(seat, c.DONE) for seat in spec.seats]], np.int8))
        for agent, seen in observations.items():
            a = spec.seats.index(agent)
            assert rewards[agent] == step.reward[0, a]
            assert (terminated[agent], truncated[agent]) == (step.terminated[0, a], step.truncated[0])
            assert np.array_equal(c.encode(seen["image"]).reshape(area), step.tokens[0, a, :area])
            assert seen["direction"] == step.tokens[0, a, area]
            assert [infos[agent][event] for event in c.EVENTS] == step.events[0, a].tolist()
            assert infos[agent]["mission"] in range(len(c.MISSIONS))
            if spec.mission_observed:
                assert infos[agent]["mission"] == seen["mission"]
            assert {type(value) for value in infos[agent].values()} == {float, int}


def test_metadata_and_missing_or_unknown_render_mode():
    env = parallel_env("1v1")
    assert env.metadata["name"] == str(env) == "1v1"
    assert env.metadata["render_modes"] == ["rgb_array"]
    assert env.metadata["is_parallelizable"]
    env.reset()
    assert env.render() is None
    with pytest.raises(ValueError, match=r"render_mode: .*'human'"):
        parallel_env("1v1", render_mode="human")


# Names ---------------------------------------------------------------------------------------------------------------


def test_accepts_original_names_and_rejects_unknown():
    assert parallel_env("MultiGrid-CompetativeRedBlueDoor-v3-CTDE-2v2").metadata["name"] == "2v2-peace"
    with pytest.raises(ConfigError, match=r"^scenario: expected .*1v1.*, got 1v2"):
        parallel_env("1v2")
    with pytest.raises(ConfigError, match="rules: expected fair, classic, got original"):
        parallel_env("1v1", rules="original")


@every_game
def test_rules_can_be_chosen(scenario):
    given = load_scenario(scenario).game.rules
    assert parallel_env(scenario).spec == parallel_env(scenario, rules=given).spec
    assert parallel_env(scenario, rules="fair").spec.rules != parallel_env(scenario, rules="classic").spec.rules


# Seeds ---------------------------------------------------------------------------------------------------------------


def layouts(env, seeds):
    """First boards of games under ``seeds``; ``None`` resets without one."""
    boards = []
    for seed in seeds:
        env.reset(seed=seed)
        boards.append(env.world.state.cells.tobytes())
    return boards


@pytest.mark.parametrize("scenario", RANDOM_KEYS)
def test_other_seeds_and_unseeded_resets_give_other_games(scenario):
    env, fresh = parallel_env(scenario), parallel_env(scenario)
    # Two environments that never saw a seed do not start alike.
    assert layouts(env, [None] * 10) != layouts(fresh, [None] * 10)
    assert len(set(layouts(env, range(20)))) > 10
    assert len(set(layouts(env, [None] * 20))) > 10
    assert layouts(env, [3, None, None]) == layouts(fresh, [3, None, None])


@every_game
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_pickled_game_continues_identically(scenario, pickler):
    env = parallel_env(scenario, render_mode="rgb_array")
    transcript(env, 20, seed=9)
    twin = pickler.loads(pickler.dumps(env))
    assert env.render().shape == (8 * 32, 16 * 32, 3)
    assert np.array_equal(env.render(), twin.render())
    assert data_equivalence(transcript(env, 300, start=False), transcript(twin, 300, start=False))
    assert data_equivalence(env.reset(), twin.reset())


# Ends ----------------------------------------------------------------------------------------------------------------


@every_game
def test_idle_game_is_truncated_after_max_steps(scenario):
    env = parallel_env(scenario)
    env.reset(seed=0)
    for step in range(1, env.spec.max_steps + 1):
        _, rewards, terminated, truncated, infos = env.step(dict.fromkeys(env.agents, c.DONE))
        last = step == env.spec.max_steps
        assert set(truncated.values()) == {last}
        assert set(terminated.values()) == {False}
        assert set(rewards.values()) == {0.0}
        assert all(info["winner"] == -1 for info in infos.values())
    assert env.agents == []
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step({})


@every_game
@pytest.mark.parametrize("last", [False, True])
def test_win_terminates_all_and_in_last_step_also_truncates(scenario, last):
    env = parallel_env(scenario)
    env.reset(seed=0)
    clear(env.world)
    place(env.world, "red_0", *RED_FRONT, WEST, RED_KEY_USED)
    if last:
        env.world.state.clock[0] = env.spec.max_steps - 1
    _, rewards, terminated, truncated, infos = env.step({"red_0": c.TOGGLE})
    assert set(terminated.values()) == {True}
    assert set(truncated.values()) == {last}
    assert rewards["red_0"] == pytest.approx(0.1 if last else 1 - 0.9 / env.spec.max_steps)
    assert all(info["winner"] == c.RED for info in infos.values())
    assert infos["red_0"]["door_win"] == 1.0
    assert env.agents == []


@every_death_match
def test_eliminated_agent_leaves_in_same_step(scenario):
    env = parallel_env(scenario)
    env.reset(seed=0)
    clear(env.world)
    place(env.world, "blue_0", *face(env), NORTH)
    observations, rewards, terminated, truncated, infos = env.step({"red_0": c.TOGGLE})
    all_agents, rest = set(env.possible_agents), set(env.possible_agents) - {"blue_0"}
    assert all(set(part) == all_agents for part in (observations, rewards, terminated, truncated, infos))
    assert terminated["blue_0"]
    assert infos["blue_0"]["got_eliminated"] == infos["red_0"]["eliminated_opponents"] == 1.0
    assert rewards["blue_0"] == -1.0
    assert not any(truncated.values())
    if env.spec.blue == 1:
        assert env.agents == []
        assert infos["red_0"]["winner"] == infos["blue_0"]["winner"] == c.RED
        return
    assert set(env.agents) == rest
    assert [agent for agent in rest if terminated[agent]] == []
    assert infos["red_0"]["winner"] == -1
    # Afterwards only the others are answered for, and what the eliminated one sends is not looked at.
    parts = env.step({"red_0": c.RIGHT, "blue_0": "no action at all"})
    assert all(set(part) == rest for part in parts)
    assert set(env.reset()[0]) == all_agents == set(env.agents)


# What goes in -----------------------------------------------------------------------------------------


def test_rejects_unknown_agents_actions_and_early_steps_and_negative_seeds():
    env = parallel_env("1v1")
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step({})
    with pytest.raises(gymnasium.error.Error, match="-1"):
        env.reset(seed=-1)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="agent: expected blue_0, red_0, got 'green_0'"):
        env.step({"green_0": 0})
    for wrong in (7, -1, 2.0, None, "left", np.array([1])):
        with pytest.raises(ValueError, match=r"of red_0: expected 0 left, .* 6 done"):
            env.step({"red_0": wrong})
    assert env.world.state.clock[0] == 0
    for right in (np.int8(1), np.int64(1), np.array(1)):
        env.step({"red_0": right})
    assert env.world.state.heading[0].tolist() == [EAST, SOUTH]
