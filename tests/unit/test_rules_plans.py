"""Whole games: the plans of docs/game.md, section 9, missions on the way, truncation, and who step answers for."""

import numpy as np
import pytest

import games as g
from games import both_rules, clear, key_and_door_plan, place, play, put, spec, world
from multigrid_rl.world.constants import BLUE, DROP, PICKUP, RED
from multigrid_rl.world.engine import World

RED_START, BLUE_START = (9, 1, g.WEST), (6, 6, g.EAST)
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


# Plans ---------------------------------------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize(("limit", "view", "published"), [(1000, 7, 1.4883), (1280, 5, 1.4909)])
def test_single_red_wins_in_13_steps_at_best(rules, limit, view, published):
    plan = key_and_door_plan(RED_START, (7, 4), (*g.RED_FRONT, g.WEST))
    assert len(plan) == 13
    total, last = run(world(rules, blue=0, red=1, max_steps=limit, view_size=view), "red_0", plan)
    assert total == pytest.approx(0.5 + 1 - 0.9 * 13 / limit, rel=1e-12)
    assert total == pytest.approx(published, abs=5e-5)
    assert (last.winner, last.truncated) == (RED, False)


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
        assert last.winner == RED


@both_rules
@pytest.mark.parametrize(("seat", "start", "goal", "code", "winner"), [
    ("red_0", RED_START, (*g.RED_FRONT, g.WEST), g.RED_KEY, RED),
    ("blue_0", BLUE_START, (*g.BLUE_FRONT, g.EAST), g.BLUE_KEY, BLUE),
])  # fmt: skip
def test_1v1_takes_13_to_15_steps_from_every_key_cell(rules, seat, start, goal, code, winner):
    lengths = []
    for key in (cell for cell in g.ROOM if cell not in ((9, 1), (6, 6))):
        plan = key_and_door_plan(start, key, goal)
        w = world(rules)
        clear(w)
        put(w, key, code)
        bystander = "blue_0" if seat == "red_0" else "red_0"
        place(w, bystander, 2, 2, g.EAST)  # the opponent is ignored: out of the way
        total, last = run(w, seat, plan)
        assert total == pytest.approx(1.5 - 0.9 * len(plan) / 300, rel=1e-12)
        assert (last.winner, last.reward[bystander]) == (winner, 0)
        lengths.append(len(plan))
    assert (len(lengths), min(lengths), max(lengths)) == (34, 13, 15)
    assert np.mean(lengths) == pytest.approx(13.35, abs=0.005)
    assert 1.5 - 0.9 * min(lengths) / 300 == pytest.approx(1.461)


# Missions ------------------------------------------------------------------------------------------------------------


def missions(w):
    return dict(zip(w.spec.seats, w.state.mission[0].tolist(), strict=True))


@both_rules
def test_key_sends_taker_to_door_and_mates_to_ball(rules):
    w = world(rules, blue=2, red=2)
    w.state.mission[:] = 0
    place(w, "red_1", 7, 3, g.SOUTH)
    play(w, red_1=PICKUP)
    assert missions(w) == {"blue_0": 0, "blue_1": 0, "red_0": 2, "red_1": 3}


@both_rules
def test_ball_sends_mates_to_key_or_with_key_to_door(rules):
    w = world(rules, blue=0, red=3, obstacle=True)
    w.state.mission[:] = 0
    place(w, "red_0", 7, 3, g.SOUTH)
    place(w, "red_1", 5, 5, g.SOUTH)
    play(w, red_1=PICKUP)
    assert missions(w) == {"red_0": 1, "red_1": 2, "red_2": 1}
    play(w, red_0=PICKUP)
    assert missions(w) == {"red_0": 3, "red_1": 2, "red_2": 2}
    play(w, red_1=PICKUP)
    assert missions(w) == {"red_0": 3, "red_1": 2, "red_2": 1}


@both_rules
def test_charged_pickups_do_not_change_missions(rules):
    w = world(rules, blue=0, red=2)
    place(w, "red_0", 7, 3, g.SOUTH)
    play(w, red_0=PICKUP)
    w.state.mission[:] = 0
    for action in (PICKUP, DROP, PICKUP):
        play(w, red_0=action, red_1=PICKUP)
    assert missions(w) == {"red_0": 0, "red_1": 0}


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
