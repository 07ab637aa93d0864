"""The PettingZoo face: contract, seeds, ends and aliases, for every scenario there is; and its frames."""

import pickle
import warnings

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.utils.conversions import parallel_to_aec

import games as g
from composing import GAMES
from games import EAST, NORTH, RED_FRONT, RED_KEY_USED, SOUTH, WEST, clear, place, play, world
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.text import ConfigError
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.pettingzoo_env import parallel_env
from multigrid_rl.world.rendering import draw_tile, living_agents, render_frame, visible_cells

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
    with pytest.raises(ValueError, match=r"render_mode: .*'human'"):
        parallel_env("1v1", render_mode="human")
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


TILE = 32
#: Codes by what they look like: a key is the same before and after it has been picked up.
LOOKS = [
    (c.UNSEEN,), (c.EMPTY,), (c.WALL,), (g.RED_KEY, g.RED_KEY_USED), (g.BLUE_KEY, g.BLUE_KEY_USED),
    (g.RED_BALL,), (g.BLUE_BALL,),
    *((code,) for door in (c.DOOR_LOCKED, c.DOOR_CLOSED, c.DOOR_OPEN) for code in (door, door + 1)),
    *((c.AGENT + k,) for k in range(8)),
]  # fmt: skip
RED, BLUE = 1, 2


def tile_of(frame, cell, size=TILE):
    """Pixels of one cell."""
    x, y = cell
    return frame[y * size : (y + 1) * size, x * size : (x + 1) * size]


def agent(team, heading, hand=c.EMPTY, *, seen=0, label=None, out=False, size=TILE):
    """The tile of an agent on the floor."""
    return draw_tile(size, c.EMPTY, seen, (team, heading, label or "RB"[team], hand, out))


def changed_tiles(before, after, size=TILE):
    """Cells whose pixels differ."""
    differ = (before != after).any(axis=2)
    return {(x, y) for x in range(16) for y in range(8) if tile_of(differ, (x, y), size).any()}


def same(one, two):
    """Whether two pictures are the same, pixel by pixel."""
    return one.shape == two.shape and np.array_equal(one, two)


# Objects and agents on their tiles -----------------------------------------------------------------------------------


def test_everything_looks_different():
    pictures = [{draw_tile(TILE, code).tobytes() for code in codes} for codes in LOOKS]
    assert all(len(one) == 1 for one in pictures)
    assert len(set.union(*pictures)) == len(LOOKS)
    assert {code for codes in LOOKS for code in codes} == set(range(c.NUM_CODES))


@pytest.mark.parametrize("heading", [g.EAST, g.SOUTH, g.WEST, g.NORTH])
@pytest.mark.parametrize(("seat", "team"), [("red_0", 0), ("blue_0", 1)])
def test_agents_are_team_coloured_triangles_with_heading(seat, team, heading):
    w = world()
    place(w, seat, 8, 4, heading)
    w.observe()
    frame = render_frame(w, 0)
    seen = sum(int(visible_cells(w, 0, [a])[8, 4]) << int(w.flags.team[a]) for a in range(2))
    assert same(tile_of(frame, (8, 4)), agent(team, heading, seen=seen))
    assert len({agent(team, turned, seen=seen).tobytes() for turned in range(4)}) == 4
    # Its own view turns it: an agent that is a code, ahead is up.
    first = c.AGENT + 4 * team
    assert same(draw_tile(TILE, first + heading, turn=3 - heading), draw_tile(TILE, first + 3))


@pytest.mark.parametrize("scenario", GAMES)
def test_first_frame_of_every_game_shows_board(scenario):
    w = World(load_scenario(scenario).spec, 1, seed=1)
    frame = render_frame(w, 0)
    assert frame.shape == (8 * TILE, 16 * TILE, 3)
    assert frame.dtype == np.uint8
    team = w.flags.team
    lit = sum(visible_cells(w, 0, np.flatnonzero(team == t).tolist()) * (t + 1) for t in (0, 1))
    agents = {divmod(int(p), c.HEIGHT): a for a, p in enumerate(w.state.position[0])}
    alone = w.spec.num_agents == 2 and len(set(team.tolist())) == 2
    for x in range(c.WIDTH):
        for y in range(c.HEIGHT):
            code = int(w.state.cells[0, c.cell_index(x, y)])
            seen = 0 if code == c.WALL else int(lit[x, y])
            expected = draw_tile(TILE, code, seen)
            if (x, y) in agents:
                a = agents[x, y]
                label = "RB"[team[a]] + ("" if alone else w.spec.seats[a][-1])
                expected = agent(int(team[a]), int(w.state.heading[0, a]), seen=seen, label=label)
            assert same(tile_of(frame, (x, y)), expected), (x, y)


# What changes --------------------------------------------------------------------------------------------------------


def test_frame_changes_only_where_game_changes():
    w = world(blue=0)
    place(w, "red_0", 8, 4, g.WEST)
    w.observe()
    before = render_frame(w, 0)
    assert same(before, render_frame(w, 0))
    play(w, red_0=c.PICKUP)  # the key on (7, 4)
    taken = render_frame(w, 0)
    assert changed_tiles(before, taken) == {(7, 4), (8, 4)}
    play(w, red_0=c.DROP)
    assert same(render_frame(w, 0), before)
    play(w, red_0=c.LEFT)
    assert (8, 4) in changed_tiles(before, render_frame(w, 0))


@pytest.mark.parametrize("rules", ["classic", "fair"])
@pytest.mark.parametrize("blue", [1, 2])
def test_eliminated_agents_are_crossed_out_in_their_side_room(rules, blue):
    w = world(rules, blue=blue)
    place(w, "red_0", 7, 2, g.EAST)
    place(w, "blue_0", 8, 2, g.NORTH, g.BLUE_KEY_USED)
    w.observe()
    label = "B" if blue == 1 else "B0"
    assert same(tile_of(render_frame(w, 0), (8, 2)), agent(1, g.NORTH, g.BLUE_KEY_USED, seen=RED | BLUE, label=label))
    assert play(w, red_0=c.TOGGLE).done == (blue == 1)
    frame = render_frame(w, 0)
    assert living_agents(w, 0) == list(range(1, blue + 1))
    room = divmod(c.SIDE_ROOM[1], c.HEIGHT)
    heading, hand = int(w.state.heading[0, 0]), int(w.state.hand[0, 0])
    assert same(tile_of(frame, room), agent(1, heading, hand, label=label, out=True))
    assert same(tile_of(frame, (8, 2)), draw_tile(TILE, c.EMPTY, RED))
    assert same(tile_of(frame, (7, 2)), agent(0, g.EAST, seen=RED, label="R" if blue == 1 else "R0"))


# Light ---------------------------------------------------------------------------------------------------------------


def test_cells_in_view_are_shaded_but_walls():
    w = world(blue=0)
    clear(w)
    place(w, "red_0", 6, 3, g.NORTH)
    w.observe()
    expected = {(x, y) for x in range(4, 9) for y in range(4)}
    assert {tuple(cell) for cell in np.argwhere(visible_cells(w, 0, living_agents(w, 0))).tolist()} == expected
    place(w, "red_0", 5, 3, g.WEST)
    w.observe()
    beyond_the_wall = {(x, y) for x, y in np.argwhere(visible_cells(w, 0, living_agents(w, 0))).tolist() if x < 4}
    assert beyond_the_wall == set()
    frame = render_frame(w, 0)
    assert same(tile_of(frame, (4, 3)), draw_tile(TILE, c.WALL))
    assert same(tile_of(frame, (3, 3)), draw_tile(TILE, c.EMPTY))
    assert same(tile_of(frame, (5, 4)), draw_tile(TILE, c.EMPTY, RED))
    assert not same(draw_tile(TILE, c.EMPTY, RED), draw_tile(TILE, c.EMPTY, BLUE))


# Sizes, games and mistakes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 7, 16, 48])
def test_tiles_of_any_size(size):
    w = world()
    place(w, "red_0", 7, 2, g.EAST, g.RED_KEY)
    w.observe()
    frame = render_frame(w, 0, size)
    assert frame.shape == (8 * size, 16 * size, 3)
    assert same(tile_of(frame, g.RED_DOOR, size), draw_tile(size, c.DOOR_LOCKED))


def test_batch_games_have_own_frames_and_drawing_is_pure():
    w = World(load_scenario("1v1").spec, 3, seed=5)
    before = tuple(part.copy() for part in (*w.state, *w.outputs))
    frames = [render_frame(w, game) for game in range(3)]
    np.testing.assert_equal((*w.state, *w.outputs), before)
    assert len({frame.tobytes() for frame in frames}) == 3
    kept = frames[1].copy()
    frames[1][...] = 0
    assert same(render_frame(w, 1), kept)


def test_rejects_unknown_games_and_tiny_tiles():
    w = world()
    for game in (-1, 1):
        with pytest.raises(ValueError, match=f"game: expected 0 to 0, got {game}"):
            render_frame(w, game)
    with pytest.raises(ValueError, match=r"tile_size: .*3"):
        render_frame(w, 0, 3)
