"""Frames: the right picture on the right tile, as pages draw it."""

import numpy as np
import pytest

import games as g
from composing import GAMES
from games import clear, place, play, put, world
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.rendering import draw_tile, living_agents, render_frame, visible_cells

TILE = 32
#: In the left room, which nobody sees from the middle room: no shade there.
UNSEEN_CELL = (2, 4)
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


@pytest.mark.parametrize("code", [code for codes in LOOKS for code in codes if 0 < code < c.AGENT])
def test_objects_are_drawn_on_their_cells(code):
    w = world(blue=0)
    put(w, UNSEEN_CELL, code)
    assert same(tile_of(render_frame(w, 0), UNSEEN_CELL), draw_tile(TILE, code))


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


def test_last_frame_shows_opened_door_and_winner():
    w = world("fair")
    place(w, "red_0", 5, 6, g.WEST, g.RED_KEY_USED)
    outcome = play(w, red_0=c.TOGGLE)
    assert outcome.done
    frame = render_frame(w, 0)
    assert same(tile_of(frame, g.RED_DOOR), draw_tile(TILE, c.DOOR_OPEN, RED))
    assert living_agents(w, 0) == [0, 1]
    assert same(tile_of(frame, (6, 6)), agent(1, g.EAST, seen=BLUE))


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


@pytest.mark.parametrize("heading", [g.EAST, g.SOUTH, g.WEST, g.NORTH])
def test_carried_object_is_a_badge_at_front_left(heading):
    w = world(blue=0)
    clear(w)
    pictures = {}
    for code in (c.EMPTY, g.RED_KEY_USED, g.BLUE_BALL):
        place(w, "red_0", 8, 4, heading, code)
        w.observe()
        pictures[code] = tile_of(render_frame(w, 0), (8, 4))
    assert len({picture.tobytes() for picture in pictures.values()}) == 3
    rows, columns = np.nonzero((pictures[g.BLUE_BALL] != pictures[c.EMPTY]).any(axis=2))
    right, down = {g.EAST: (1, 0), g.SOUTH: (1, 1), g.WEST: (0, 1), g.NORTH: (0, 0)}[heading]
    half = TILE // 2
    assert (columns.min() >= half - 1) if right else (columns.max() <= half)
    assert (rows.min() >= half - 1) if down else (rows.max() <= half)


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
