"""Sections 1 to 3 and 5: layouts, starts, actions, pickups, drops and rewards with hand-computed numbers."""

import numpy as np
import pytest

import games as g
from games import approx, at, both_rules, clear, find, hand, place, play, put, spec, where, world
from multigrid_rl.types import RewardWeights
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World

# Layouts -------------------------------------------------------------------------------------------------------------


def test_walls_doors_and_rooms_match_section_1():
    w = world(blue=0, red=1)
    clear(w)
    for x in range(16):
        for y in range(8):
            code = at(w, (x, y))
            if (x, y) == (4, 6):
                assert code == c.DOOR_LOCKED + c.RED
            elif (x, y) == (11, 1):
                assert code == c.DOOR_LOCKED + c.BLUE  # also without a blue team
            else:
                assert code == (c.WALL if x in (0, 4, 11, 15) or y in (0, 7) else c.EMPTY)


@both_rules
@pytest.mark.parametrize(("blue", "red"), [(0, 1), (0, 2), (1, 1), (2, 2), (4, 4)])
def test_starts_in_index_order_blue_first(rules, blue, red):
    w = world(rules, blue=blue, red=red)
    names = [f"blue_{k}" for k in range(blue)] + [f"red_{k}" for k in range(red)]
    assert list(w.spec.seats) == names
    places = [(6 + k, 6, g.EAST) for k in range(blue)] + [(9 - k, 1, g.WEST) for k in range(red)]
    assert [(*where(w, s), int(w.state.heading[0, a])) for a, s in enumerate(names)] == places
    assert set(w.state.hand[0].tolist()) == {c.EMPTY}


@both_rules
@pytest.mark.parametrize(("blue", "red"), [(0, 1), (0, 2), (1, 1), (2, 2)])
@pytest.mark.parametrize("obstacle", [False, True])
def test_each_playing_team_has_fixed_key_and_obstacle_ball(rules, blue, red, obstacle):
    w = world(rules, blue=blue, red=red, obstacle=obstacle)
    assert find(w, g.RED_KEY) == [(7, 4)]
    assert find(w, g.BLUE_KEY) == ([(8, 3)] if blue else [])
    assert find(w, g.BLUE_BALL) == ([g.RED_FRONT] if obstacle else [])
    assert find(w, g.RED_BALL) == ([g.BLUE_FRONT] if obstacle and blue else [])
    assert find(w, g.RED_KEY_USED) + find(w, g.BLUE_KEY_USED) == []


@pytest.mark.parametrize(("blue", "red", "obstacle", "red_cells"), [(0, 2, True, 33), (1, 1, False, 34)])
def test_classic_random_red_key_is_uniform_over_free_cells(blue, red, obstacle, red_cells):
    games = 10200
    settings = {"blue": blue, "red": red, "obstacle": obstacle, "random_keys": True}
    w = World(spec("classic", **settings), games, seed=2)
    cells, counts = np.unique(np.argmax(w.state.cells == g.RED_KEY, axis=1), return_counts=True)
    taken = {(9, 1), (8, 1), g.RED_FRONT} if obstacle else {(9, 1), (6, 6)}
    assert {divmod(int(k), 8) for k in cells} == set(g.ROOM) - taken
    assert len(cells) == red_cells
    assert abs(counts - games / red_cells).max() < 5 * np.sqrt(games / red_cells)


# Actions -------------------------------------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize("heading", range(4))
def test_turns_and_steps_follow_headings(rules, heading):
    w = world(rules, blue=0, red=1)
    for action, after in ((c.LEFT, (heading - 1) % 4), (c.RIGHT, (heading + 1) % 4), (c.DONE, heading)):
        place(w, "red_0", 8, 2, heading)
        play(w, red_0=action)
        assert (where(w, "red_0"), int(w.state.heading[0, 0])) == ((8, 2), after)
    place(w, "red_0", 8, 2, heading)
    step = play(w, red_0=c.FORWARD)
    assert where(w, "red_0") == (8 + g.VECTORS[heading][0], 2 + g.VECTORS[heading][1])
    assert step.reward == {"red_0": 0}


@both_rules
@pytest.mark.parametrize(
    "code", [c.WALL, c.DOOR_LOCKED, c.DOOR_CLOSED, g.RED_KEY, g.BLUE_KEY_USED, g.RED_BALL, g.BLUE_BALL]
)
def test_agents_cannot_walk_onto_objects(rules, code):
    w = world(rules, blue=0, red=1)
    place(w, "red_0", 8, 2, g.EAST)
    put(w, (9, 2), code)
    play(w, red_0=c.FORWARD)
    assert where(w, "red_0") == (8, 2)


@both_rules
@pytest.mark.parametrize(("code", "taken"), [
    (g.RED_KEY, True), (g.RED_KEY_USED, True), (g.BLUE_BALL, True),
    (g.BLUE_KEY, False), (g.BLUE_KEY_USED, False), (g.RED_BALL, False), (c.WALL, False),
    (c.DOOR_LOCKED, False), (c.EMPTY, False),
])  # fmt: skip
def test_red_takes_only_red_keys_and_blue_balls(rules, code, taken):
    w = world(rules, blue=1, red=1)
    clear(w)
    place(w, "red_0", 8, 2, g.EAST)
    put(w, (9, 2), code)
    step = play(w, red_0=c.PICKUP)
    assert (hand(w, "red_0") != c.EMPTY) == taken
    assert at(w, (9, 2)) == (c.EMPTY if taken else code)
    assert step.reward["red_0"] == (0.5 if code == g.RED_KEY else approx(-0.001))


@both_rules
def test_pickup_at_agent_takes_nothing_but_pays(rules):
    w = world(rules)
    place(w, "red_0", 7, 5, g.EAST)
    place(w, "blue_0", 8, 5, g.EAST, g.BLUE_KEY_USED)
    assert play(w, red_0=c.PICKUP).reward == {"red_0": approx(-0.001), "blue_0": 0}
    assert hand(w, "blue_0") == g.BLUE_KEY_USED


@both_rules
@pytest.mark.parametrize(("code", "dropped"), [
    (c.EMPTY, True), (c.WALL, False), (c.DOOR_LOCKED, False), (c.DOOR_OPEN, False), (g.RED_BALL, False),
    (g.BLUE_KEY, False),
])  # fmt: skip
def test_drop_needs_empty_cell(rules, code, dropped):
    w = world(rules, blue=0, red=1)
    place(w, "red_0", 8, 2, g.EAST, g.RED_KEY_USED)
    put(w, (9, 2), code)
    step = play(w, red_0=c.DROP)
    assert (at(w, (9, 2)), hand(w, "red_0")) == ((g.RED_KEY_USED, c.EMPTY) if dropped else (code, g.RED_KEY_USED))
    assert step.reward == {"red_0": 0}


@both_rules
def test_cannot_drop_onto_agent_or_from_empty_hands(rules):
    w = world(rules, blue=0, red=2)
    place(w, "red_0", 8, 2, g.EAST, g.RED_KEY_USED)
    place(w, "red_1", 9, 2, g.WEST)
    play(w, red_0=c.DROP, red_1=c.DROP)
    assert (hand(w, "red_0"), at(w, (9, 2)), at(w, (8, 2))) == (g.RED_KEY_USED, c.EMPTY, c.EMPTY)


@both_rules
@pytest.mark.parametrize("code", [c.WALL, c.EMPTY, g.RED_KEY, g.BLUE_KEY, g.RED_BALL, g.BLUE_BALL])
def test_toggle_affects_only_doors_and_opponents(rules, code):
    w = world(rules)
    place(w, "red_0", 8, 2, g.EAST, g.RED_KEY_USED)
    put(w, (9, 2), code)
    step = play(w, red_0=c.TOGGLE)
    assert (at(w, (9, 2)), step.reward["red_0"], step.done) == (code, 0, False)


@both_rules
def test_toggle_spares_mates_and_opponents_in_peace(rules):
    w = world(rules, blue=1, red=2, death_match=False)
    place(w, "red_0", 7, 2, g.EAST)
    place(w, "red_1", 8, 2, g.EAST)
    place(w, "blue_0", 9, 2, g.WEST)
    step = play(w, red_0=c.TOGGLE, red_1=c.TOGGLE, blue_0=c.TOGGLE)
    assert set(step.reward.values()) == {0}
    assert not w.state.out.any()


# Rewards -------------------------------------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize(("step", "limit", "reward"), [(1, 10, 0.91), (5, 10, 0.55), (13, 1000, 0.9883), (10, 10, 0.1)])
def test_success_reward_falls_by_nine_tenths_of_time_used(rules, step, limit, reward):
    w = world(rules, blue=0, red=1, max_steps=limit)
    place(w, "red_0", *g.RED_FRONT, g.WEST, g.RED_KEY_USED)
    w.state.clock[:] = step - 1
    won = play(w, red_0=c.TOGGLE)
    assert won.reward["red_0"] == approx(reward)
    assert (won.done, won.truncated, won.winner) == (True, step == limit, c.RED)
    assert at(w, g.RED_DOOR) == c.DOOR_OPEN + c.RED
    assert hand(w, "red_0") == g.RED_KEY_USED


@both_rules
def test_key_pays_only_first_pickup(rules):
    w = world(rules, blue=0, red=2)
    place(w, "red_0", 7, 3, g.SOUTH)
    rewards = [play(w, red_0=action).reward["red_0"] for action in (c.PICKUP, c.DROP, c.PICKUP, c.PICKUP, c.DROP)]
    assert rewards == approx([0.5, 0, -0.001, -0.001, 0])
    place(w, "red_0", 7, 3, g.SOUTH, g.BLUE_BALL)  # with full hands nothing is taken, and paid for
    assert play(w, red_0=c.PICKUP).reward["red_0"] == approx(-0.001)
    assert (hand(w, "red_0"), at(w, (7, 4))) == (g.BLUE_BALL, g.RED_KEY_USED)
    place(w, "red_1", 6, 4, g.EAST)
    assert play(w, red_1=c.PICKUP).reward["red_1"] == approx(-0.001)  # nor for a team mate
    assert hand(w, "red_1") == g.RED_KEY_USED


@both_rules
def test_held_ball_pays_repeatedly_on_starting_cell(rules):
    w = world(rules, blue=0, red=1, obstacle=True)
    place(w, "red_0", 5, 5, g.SOUTH)
    pays = [play(w, red_0=c.PICKUP).reward["red_0"] for _ in range(7)]
    assert pays == approx([0.5 * 0.9 ** (2**k) for k in range(7)])
    assert pays == pytest.approx([0.45, 0.405, 0.32805, 0.215234, 0.092651, 0.017168, 0.000590], abs=5e-7)
    total = sum(pays) + sum(play(w, red_0=c.PICKUP).reward["red_0"] for _ in range(40))
    assert total == pytest.approx(1.508693, abs=5e-7)


@both_rules
def test_ball_pays_only_at_start_and_keeps_its_discount(rules):
    w = world(rules, blue=0, red=2, obstacle=True)
    place(w, "red_0", 5, 5, g.SOUTH)
    turns = [c.PICKUP, c.LEFT, c.DROP, c.PICKUP, c.RIGHT, c.DROP]  # facing south, then east
    rewards = [play(w, red_0=action).reward["red_0"] for action in turns]
    assert rewards == approx([0.45, 0, 0, -0.001, 0, 0])
    place(w, "red_1", 6, 6, g.WEST)
    assert play(w, red_1=c.PICKUP).reward["red_1"] == approx(0.405)


@both_rules
def test_blue_takes_red_ball_before_its_door(rules):
    w = world(rules, obstacle=True)
    place(w, "blue_0", 9, 1, g.EAST)
    place(w, "red_0", 5, 5, g.SOUTH)
    assert play(w, blue_0=c.PICKUP, red_0=c.PICKUP).reward == {"blue_0": approx(0.45), "red_0": approx(0.45)}
    assert (hand(w, "blue_0"), hand(w, "red_0")) == (g.RED_BALL, g.BLUE_BALL)
    assert play(w, blue_0=c.PICKUP).reward["blue_0"] == approx(0.405)


def test_seat_weights_pay_that_seat():
    blue = RewardWeights(key_pickup=0.2, invalid_pickup=-0.1, success=3.0, eliminated_opponent=0.7, got_eliminated=-2.0)
    w = world("fair", blue=2, red=2, seat_reward=(("blue_0", blue),))
    place(w, "blue_0", 8, 4, g.NORTH)
    paid = play(w, blue_0=c.PICKUP, red_0=c.PICKUP).reward
    assert paid == {"blue_0": approx(0.2), "blue_1": 0, "red_0": approx(-0.001), "red_1": 0}
    assert play(w, blue_0=c.PICKUP).reward["blue_0"] == approx(-0.1)
    place(w, "red_0", 8, 3, g.SOUTH)
    assert play(w, blue_0=c.TOGGLE).reward == {"blue_0": approx(0.7), "blue_1": 0, "red_0": -1, "red_1": 0}
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, g.BLUE_KEY_USED)
    assert play(w, blue_0=c.TOGGLE).reward["blue_0"] == approx(3 * (1 - 0.9 * 4 / 300))
    assert at(w, g.BLUE_DOOR) == c.DOOR_OPEN + c.BLUE


def first_cells(w, code):
    """Cell (x, y) of the one ``code`` in each game."""
    return [divmod(int(k), c.HEIGHT) for k in np.argmax(w.state.cells == code, axis=1)]


@both_rules
def test_random_keys_never_share_cell(rules):
    w = World(spec(rules, blue=2, red=2, obstacle=True, random_keys=True), 2000, seed=4)
    red, blue = first_cells(w, g.RED_KEY), first_cells(w, g.BLUE_KEY)
    starts = {(9, 1), (8, 1), (6, 6), (7, 6)}
    assert all(r != b for r, b in zip(red, blue, strict=True))
    assert not (set(red) | set(blue)) & starts
    counts = [(w.state.cells == code).sum(axis=1) for code in (g.RED_KEY, g.BLUE_KEY, g.RED_BALL, g.BLUE_BALL)]
    assert (np.array(counts) == 1).all()
