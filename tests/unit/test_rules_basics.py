"""Layouts, starts, rewards by hand, doors that swing shut, and the whole games of docs/game.md, section 9."""

import numpy as np
import pytest

import games as g
from games import approx, at, both_rules, clear, find, place, play, spec, where, world
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


# Rewards -------------------------------------------------------------------------------------------------------------


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


# Doors that swing shut again -----------------------------------------------------------------------------------------


@both_rules
def test_opponent_toggles_door_both_ways_without_winning(rules):
    """It was left open by blue_0, which was eliminated while it opened it."""
    w = world(rules, blue=2, red=2)
    clear(w)
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, g.BLUE_KEY_USED)
    place(w, "red_0", 9, 1, g.EAST)
    play(w, ("red_0", "blue_0"), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert at(w, g.BLUE_DOOR) == c.DOOR_OPEN + c.BLUE
    place(w, "red_0", *g.BLUE_FRONT, g.EAST)
    for expected in (c.DOOR_CLOSED, c.DOOR_OPEN, c.DOOR_CLOSED):
        step = play(w, red_0=c.TOGGLE)
        assert at(w, g.BLUE_DOOR) == expected + c.BLUE
        assert set(step.reward.values()) == {0}
        assert step.events["red_0"] == {}
        assert not step.done


# Plans ---------------------------------------------------------------------------------------------------------------

#: Clear the ball away, paid n times, then key and door; found by exhaustive search over pose, hand, key and ball cell.
OBSTACLE_PLANS = {1: "02222212223122413122125", 2: "022222122233122413122125", 6: "0222221222333333122413122125"}


def run(w, seat, plan):
    """Play the plan of one seat; the others stand still. Returns the return of ``seat`` and the last step."""
    total = 0.0
    for k, action in enumerate(plan, 1):
        step = play(w, **{seat: int(action)})
        total += step.reward[seat]
        assert step.done == (k == len(plan))
    return total, step


@both_rules
@pytest.mark.parametrize(("pickups", "steps", "v2", "v3"), [
    (1, 23, 1.9293, 1.9338), (2, 24, 2.3334, 2.3381), (6, 28, 2.9829, 2.9884),
])  # fmt: skip
def test_single_red_with_obstacle_earns_section_9_reward(rules, pickups, steps, v2, v3):
    plan = OBSTACLE_PLANS[pickups]
    assert len(plan) == steps
    for limit, published in ((1000, v2), (1280, v3)):
        total, last = run(world(rules, blue=0, red=1, obstacle=True, max_steps=limit), "red_0", plan)
        balls = sum(0.5 * 0.9 ** (2**k) for k in range(pickups))
        assert total == pytest.approx(0.5 + balls + 1 - 0.9 * steps / limit, rel=1e-12)
        assert total == pytest.approx(published, abs=5.1e-5)
        assert last.winner == c.RED


# Seeds ---------------------------------------------------------------------------------------------------------------


@both_rules
def test_keys_follow_from_seed(rules):
    def layouts(seed):
        return World(spec(rules, random_keys=True), 50, seed=seed).state.cells.copy()

    assert np.array_equal(layouts(7), layouts(7))
    assert not np.array_equal(layouts(7), layouts(8))
    w = World(spec(rules, random_keys=True), 50, seed=1)
    w.reset()
    assert not np.array_equal(w.state.cells, layouts(1))  # without a seed the streams go on
    w.reset(seed=7)
    assert np.array_equal(w.state.cells, layouts(7))


def test_partial_reset_leaves_other_games_unchanged():
    w = World(spec("fair", random_keys=True), 6, seed=1)
    for _ in range(3):
        w.step(np.zeros((6, 2), np.int8))
    before = w.state.cells.copy(), w.state.clock.copy()
    which = np.array([1, 0, 0, 1, 0, 0], np.bool_)
    w.reset(which=which)
    assert w.state.clock.tolist() == [0, 3, 3, 0, 3, 3]
    assert np.array_equal(w.state.cells[~which], before[0][~which])
    assert w.state.heading[:, 1].tolist() == [g.WEST, g.NORTH, g.NORTH, g.WEST, g.NORTH, g.NORTH]
