"""Frames: the right picture on the right tile, the same as the ``multigrid`` package draws it."""

from __future__ import annotations

import numpy as np
import pytest
from multigrid.core.agent import Agent
from multigrid.core.grid import Grid
from multigrid.core.world_object import Ball, Door, Key, Wall

from composing import GAMES
from games import (
    BLUE_BALL,
    BLUE_KEY,
    BLUE_KEY_USED,
    EAST,
    NORTH,
    RED_BALL,
    RED_DOOR,
    RED_KEY,
    RED_KEY_USED,
    SOUTH,
    WEST,
    clear,
    place,
    play,
    put,
    world,
)
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.rendering import living_agents, render_frame, visible_cells

TILE = 32
#: In the left room, which nobody sees from the middle room: no highlight there.
UNSEEN_CELL = (2, 4)
OBJECTS = [
    (RED_KEY, Key("red")),
    (RED_KEY_USED, Key("red")),
    (BLUE_KEY, Key("blue")),
    (BLUE_KEY_USED, Key("blue")),
    (RED_BALL, Ball("red")),
    (BLUE_BALL, Ball("blue")),
    (c.DOOR_LOCKED, Door("red", is_locked=True)),
    (c.DOOR_LOCKED + 1, Door("blue", is_locked=True)),
    (c.DOOR_CLOSED, Door("red")),
    (c.DOOR_CLOSED + 1, Door("blue")),
    (c.DOOR_OPEN, Door("red", is_open=True)),
    (c.DOOR_OPEN + 1, Door("blue", is_open=True)),
    (c.WALL, Wall()),
    (c.EMPTY, None),
]


def tile_of(frame, cell, size=TILE):
    """Pixels of one cell."""
    x, y = cell
    return frame[y * size : (y + 1) * size, x * size : (x + 1) * size]


def drawn(obj=None, *, colour=None, heading=None, highlight=False, size=TILE):
    """The package's own tile: an object, or an agent if ``colour`` is given."""
    agent = None
    if colour is not None:
        agent = Agent(0)
        agent.state.color, agent.state.dir, agent.state.pos = colour, heading, (1, 1)
    return Grid.render_tile(obj, agent=agent, highlight=highlight, tile_size=size).astype(np.uint8)


def changed_tiles(before, after, size=TILE):
    """Cells whose pixels differ."""
    differ = (before != after).any(axis=2)
    return {(x, y) for x in range(16) for y in range(8) if tile_of(differ, (x, y), size).any()}


def same(one, two):
    """Whether two pictures are the same, pixel by pixel."""
    return one.shape == two.shape and np.array_equal(one, two)


# Objects and agents on their tiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "obj"), OBJECTS)
def test_objects_look_as_package_draws_them(code, obj):
    w = world(blue=0)
    put(w, UNSEEN_CELL, code)
    assert same(tile_of(render_frame(w, 0), UNSEEN_CELL), drawn(obj))


@pytest.mark.parametrize("heading", [EAST, SOUTH, WEST, NORTH])
@pytest.mark.parametrize(("seat", "colour"), [("red_0", "red"), ("blue_0", "blue")])
def test_agents_are_team_coloured_triangles_with_heading(seat, colour, heading):
    w = world()
    place(w, seat, 8, 4, heading)
    w.observe()
    frame = render_frame(w, 0)
    assert same(tile_of(frame, (8, 4)), drawn(colour=colour, heading=heading, highlight=True))
    others = [drawn(colour=colour, heading=turned, highlight=True) for turned in range(4) if turned != heading]
    assert not any(same(tile_of(frame, (8, 4)), other) for other in others)


@pytest.mark.parametrize("scenario", GAMES)
def test_first_frame_of_every_game_shows_board(scenario):
    w = World(load_scenario(scenario).spec, 1, seed=1)
    frame = render_frame(w, 0)
    assert frame.shape == (8 * TILE, 16 * TILE, 3)
    assert frame.dtype == np.uint8
    seen = visible_cells(w, 0, living_agents(w, 0))
    agents = {divmod(int(p), c.HEIGHT): a for a, p in enumerate(w.state.position[0])}
    pictures = dict(OBJECTS)
    for x in range(c.WIDTH):
        for y in range(c.HEIGHT):
            lit = bool(seen[x, y])
            if (x, y) in agents:
                a = agents[x, y]
                colour = "blue" if w.spec.seats[a].startswith("blue") else "red"
                expected = drawn(colour=colour, heading=int(w.state.heading[0, a]), highlight=lit)
            else:
                expected = drawn(pictures[int(w.state.cells[0, c.cell_index(x, y)])], highlight=lit)
            assert same(tile_of(frame, (x, y)), expected), (x, y)


# What changes --------------------------------------------------------------------------------------------------------


def test_frame_changes_only_where_game_changes():
    w = world(blue=0)
    place(w, "red_0", 8, 4, WEST)
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


def test_last_frame_shows_opened_door_and_winner():
    w = world("fair")
    place(w, "red_0", 5, 6, WEST, RED_KEY_USED)
    outcome = play(w, red_0=c.TOGGLE)
    assert outcome.done
    frame = render_frame(w, 0)
    assert same(tile_of(frame, RED_DOOR), drawn(Door("red", is_open=True), highlight=True))
    assert living_agents(w, 0) == [0, 1]
    start = drawn(colour="blue", heading=EAST, highlight=True)
    assert same(tile_of(frame, (6, 6)), start)


@pytest.mark.parametrize("rules", ["classic", "fair"])
@pytest.mark.parametrize("blue", [1, 2])
def test_eliminated_agents_are_not_drawn(rules, blue):
    w = world(rules, blue=blue)
    place(w, "red_0", 7, 2, EAST)
    place(w, "blue_0", 8, 2, NORTH, BLUE_KEY_USED)
    w.observe()
    assert same(
        tile_of(render_frame(w, 0), (8, 2))[14:, :14], drawn(colour="blue", heading=NORTH, highlight=True)[14:, :14]
    )
    assert play(w, red_0=c.TOGGLE).done == (blue == 1)
    frame = render_frame(w, 0)
    assert living_agents(w, 0) == list(range(1, blue + 1))
    assert same(tile_of(frame, (13, 2)), drawn())
    assert same(tile_of(frame, (8, 2)), drawn(highlight=True))
    assert same(tile_of(frame, (7, 2)), drawn(colour="red", heading=EAST, highlight=True))


@pytest.mark.parametrize("heading", [EAST, SOUTH, WEST, NORTH])
def test_carried_object_is_framed_at_front_left(heading):
    w = world(blue=0)
    clear(w)
    pictures = {}
    for code in (c.EMPTY, RED_KEY_USED, BLUE_BALL):
        place(w, "red_0", 8, 4, heading, code)
        w.observe()
        pictures[code] = tile_of(render_frame(w, 0), (8, 4))
    assert len({picture.tobytes() for picture in pictures.values()}) == 3
    rows, columns = np.nonzero((pictures[BLUE_BALL] != pictures[c.EMPTY]).any(axis=2))
    right, down = {EAST: (1, 0), SOUTH: (1, 1), WEST: (0, 1), NORTH: (0, 0)}[heading]
    assert columns.min() == (20 if right else 0)
    assert columns.max() == (31 if right else 11)
    assert rows.min() == (20 if down else 0)
    assert rows.max() == (31 if down else 11)
    inside = pictures[BLUE_BALL][down * 20 + 6, right * 20 + 6]
    assert inside.tolist() == [0, 0, 255]


# Light ---------------------------------------------------------------------------------------------------------------


def test_cells_in_view_are_lighter_up_to_walls():
    w = world(blue=0)
    clear(w)
    place(w, "red_0", 6, 3, NORTH)
    w.observe()
    expected = {(x, y) for x in range(4, 9) for y in range(4)}
    assert {tuple(cell) for cell in np.argwhere(visible_cells(w, 0, living_agents(w, 0))).tolist()} == expected
    place(w, "red_0", 5, 3, WEST)
    w.observe()
    beyond_the_wall = {(x, y) for x, y in np.argwhere(visible_cells(w, 0, living_agents(w, 0))).tolist() if x < 4}
    assert beyond_the_wall == set()
    frame = render_frame(w, 0)
    assert same(tile_of(frame, (4, 3)), drawn(Wall(), highlight=True))
    assert same(tile_of(frame, (3, 3)), drawn())


# Sizes, games and mistakes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 7, 16, 48])
def test_tiles_of_any_size(size):
    w = world()
    place(w, "red_0", 7, 2, EAST, RED_KEY)
    w.observe()
    frame = render_frame(w, 0, size)
    assert frame.shape == (8 * size, 16 * size, 3)
    assert same(tile_of(frame, RED_DOOR, size), drawn(Door("red", is_locked=True), size=size))


def test_batch_games_have_own_frames_and_drawing_is_pure():
    w = World(load_scenario("1v1").spec, 3, seed=5)
    before = [part.copy() for part in (*w.state, *w.outputs)]
    frames = [render_frame(w, g) for g in range(3)]
    assert all(
        np.array_equal(one, two, equal_nan=True) for one, two in zip(before, (*w.state, *w.outputs), strict=True)
    )
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
