"""Section 4 written out slowly, cell by cell, against what the engine hands out."""

from dataclasses import replace

import numpy as np
import pytest

from games import EAST, NORTH, SOUTH, WEST, image, place, play, spec, world
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.types import Rules
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World

SIZES = [3, 5, 7]
#: Cells within the outer ring, on which nobody ever stands: 84, times 4 headings.
INNER = [c.cell_index(x, y) for x in range(1, 15) for y in range(1, 7)]
POSES = [(cell, heading) for cell in INNER for heading in range(4)]
UNSEEN, EMPTY, WALL = (0, 0, 0), (1, 0, 0), (2, 5, 0)
TEAM_COLOUR = {"red": 0, "blue": 2}


def opaque(cell):
    """Walls, and doors that are not open."""
    kind, _, state = cell
    return kind == 2 or (kind == 4 and state != 0)


def what_is_visible(window, size):
    """The spreading of visibility, sentence by sentence."""
    visible = {(size // 2, size - 1)}
    for j in range(size - 1, -1, -1):
        for columns, side in ((range(size - 1), 1), (range(size - 1, 0, -1), -1)):
            for i in columns:
                if (i, j) in visible and not opaque(window[i, j]):
                    visible.add((i + side, j))
                    if j > 0:
                        visible.update({(i, j - 1), (i + side, j - 1)})
    return visible


def expected_view(cells, agents, me, size):
    """The (V, V) triples that agent ``me`` sees.

    ``cells`` maps (x, y) to a triple; an agent is (x, y, heading, colour, out, carried triple).
    """
    x, y, heading, _, _, carried = agents[me]
    forward = {EAST: (1, 0), SOUTH: (0, 1), WEST: (-1, 0), NORTH: (0, -1)}[heading]
    right = (-forward[1], forward[0])
    content = dict(cells)
    if len(agents) >= 2:
        for ax, ay, facing, colour, out, _ in agents:
            if not out:
                content[ax, ay] = (10, colour, facing)
    window = {}
    for i in range(size):
        for j in range(size):
            ahead, aside = size - 1 - j, i - size // 2
            place = (x + ahead * forward[0] + aside * right[0], y + ahead * forward[1] + aside * right[1])
            window[i, j] = content.get(place, WALL)
    window[size // 2, size - 1] = carried
    visible = what_is_visible(window, size)
    return [[window[i, j] if (i, j) in visible else UNSEEN for j in range(size)] for i in range(size)]


def random_board(rng, walls):
    """(128,) codes: walls around, anything but agents within, with a share of walls."""
    inner = np.array([*range(c.WALL, c.AGENT)], np.uint8)
    board = rng.choice(inner, size=(16, 8))
    board[rng.random((16, 8)) > walls] = c.EMPTY
    board[[0, 15], :] = c.WALL
    board[:, [0, 7]] = c.WALL
    return board.reshape(-1)


def random_states(w, rng, walls):
    """Fill every game: agent 0 takes every pose in turn, the others stand on cells of their own."""
    s, agents = w.state, w.spec.num_agents
    for g in range(w.num_games):
        s.cells[g] = random_board(rng, walls)
        cell, heading = POSES[g]
        others = rng.permutation([other for other in INNER if other != cell])
        s.position[g] = [cell, *others[: agents - 1]]
        s.heading[g] = [heading, *rng.integers(0, 4, agents - 1)]
    s.shown[:] = rng.choice([c.EMPTY, *range(c.KEY, c.AGENT)], size=s.shown.shape)
    s.out[:] = rng.random(s.out.shape) < 0.25


def expected_tokens(w, g, a):
    """View of agent ``a`` of game ``g`` by the slow way."""
    s = w.state
    cells = {divmod(k, 8): tuple(c.CELL[code].tolist()) for k, code in enumerate(s.cells[g])}
    agents = [
        (
            *divmod(int(s.position[g, k]), 8),
            int(s.heading[g, k]),
            TEAM_COLOUR[seat[:-2]],
            bool(s.out[g, k]),
            tuple(c.CELL[s.shown[g, k]].tolist()),
        )
        for k, seat in enumerate(w.spec.seats)
    ]
    return np.array(expected_view(cells, agents, a, w.spec.view_size), np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("blue", "red", "walls"), [(0, 1, 0.4), (1, 1, 0.25), (1, 1, 0.9), (2, 2, 0.4)])
def test_views_from_every_pose_of_random_boards(size, blue, red, walls):
    rng = np.random.default_rng([size, blue, red, int(walls * 100)])
    w = World(spec("classic", blue=blue, red=red, view_size=size), len(POSES))
    random_states(w, rng, walls)
    before = w.state.cells.copy()
    tokens = w.observe()
    views = c.decode(tokens[..., : size * size]).reshape(len(POSES), blue + red, size, size, 3)
    for g in range(len(POSES)):
        for a in range(blue + red):
            assert np.array_equal(views[g, a], expected_tokens(w, g, a)), f"game {g} agent {a}"
    assert np.array_equal(tokens[..., size * size], w.state.heading)
    assert np.array_equal(w.state.cells, before)  # agents are drawn in and taken out again


@pytest.mark.parametrize("size", SIZES)
def test_views_during_random_play(size):
    rng = np.random.default_rng(size)
    w = World(spec("fair", blue=2, red=2, obstacle=True, random_keys=True, view_size=size), 8, seed=size)
    for _ in range(60):
        step = w.step(rng.choice([0, 1, 2, 2, 2, 3, 4, 5], size=(8, 4)).astype(np.int8))
        for g in range(8):
            for a in range(4):
                got = c.decode(step.tokens[g, a, : size * size]).reshape(size, size, 3)
                assert np.array_equal(got, expected_tokens(w, g, a))


def test_reference_view_of_1v1_start_by_hand():
    w = world("fair")
    assert image(w, "red_0").tolist() == expected_tokens(w, 0, 1).tolist()
    view = image(w, "red_0")  # on (9, 1), looking west: left is south
    assert view[2, 4].tolist() == [1, 0, 0]
    assert view[0, 3].tolist() == [5, 2, 4]  # the blue key on (8, 3)
    assert (view[3] == [2, 5, 0]).all()  # the wall y = 0 to the right
    assert not view[4].any()  # and nothing behind it


def test_own_cell_shows_key_available_then_picked_up():
    w = world("fair", blue=0, red=1)
    place(w, "red_0", 7, 3, SOUTH)
    own = []
    for action in (c.PICKUP, c.DONE, c.DROP, c.PICKUP):
        play(w, red_0=action)
        own.append(image(w, "red_0")[2, 4].tolist())
    assert own == [[5, 0, 4], [5, 0, 4], [1, 0, 0], [5, 0, 3]]
    assert w.state.hand[0, 0] == c.KEY + 1


@pytest.mark.parametrize("rules", [Rules(), Rules.classic()], ids=["fair", "classic"])
@pytest.mark.parametrize(
    ("name", "seen"), [("single", False), ("single-obstacle", False), ("single-obstacle-v3", True)]
)
def test_a_hidden_mission_reaches_no_reader(name, seen, rules):
    """At the start, in play and at the end, in tokens and in the number that faces show."""
    scenario = replace(load_scenario(name).spec, rules=rules, max_steps=40)
    assert scenario.mission_observed == seen
    w, rng = World(scenario, 64, seed=0), np.random.default_rng(0)
    w.state.mission[:], w.state.mission_value[:] = 3, 3
    columns, numbers = [w.observe()[..., -1].copy()], [w.outputs.obs_mission.copy()]
    for _ in range(90):
        step = w.step(rng.choice([0, 1, 2, 2, 2, 3, 4, 5], size=(64, 1)).astype(np.int8))
        columns += [step.tokens[..., -1].copy(), step.final_tokens[..., -1].copy()]
        numbers.append(step.obs_mission.copy())
    assert bool(np.any(columns)) == seen
    assert bool(np.any(numbers)) == seen
