"""The numbered cases of docs/game.md, section 7: what happens when several agents act in one step."""

import numpy as np
import pytest

import games as g
from games import approx, at, both_rules, hand, place, play, put, where, world
from multigrid_rl.world import constants as c

#: Success in the first of 300 steps.
WIN = 1 - 0.9 * 1 / 300
BLUE_SIDE, RED_SIDE = (13, 2), (2, 2)


def face_to_face(rules, **teams):
    """red_0 on (7, 3) looks east at blue_0 on (8, 3), who looks back; the others stay at their starts."""
    w = world(rules, **teams)
    put(w, (8, 3), c.EMPTY)  # the fixed blue key
    place(w, "red_0", 7, 3, g.EAST)
    place(w, "blue_0", 8, 3, g.WEST)
    return w


def at_their_doors(rules, *, red_hand=g.RED_KEY_USED, blue_hand=g.BLUE_KEY_USED, **teams):
    w = world(rules, **teams)
    place(w, "red_0", *g.RED_FRONT, g.WEST, red_hand)
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, blue_hand)
    return w


# 1. One cell for two -------------------------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize(("first", "second"), [("red_0", "red_1"), ("red_1", "red_0")])
def test_1_first_in_order_gets_contested_cell(rules, first, second):
    w = world(rules, blue=0, red=2)
    place(w, "red_0", 6, 3, g.EAST)
    place(w, "red_1", 8, 3, g.WEST)
    start = where(w, second)
    step = play(w, (first, second), red_0=c.FORWARD, red_1=c.FORWARD)
    assert (where(w, first), where(w, second)) == ((7, 3), start)
    assert step.reward == {"red_0": 0, "red_1": 0}


@both_rules
@pytest.mark.parametrize(("order", "follower_at"), [(("red_0", "red_1"), (8, 3)), (("red_1", "red_0"), (9, 3))])
def test_1_following_works_only_behind_earlier_leader(rules, order, follower_at):
    w = world(rules, blue=0, red=2)
    place(w, "red_0", 8, 3, g.WEST)
    place(w, "red_1", 9, 3, g.WEST)
    play(w, order, red_0=c.FORWARD, red_1=c.FORWARD)
    assert where(w, "red_0") == (7, 3)
    assert where(w, "red_1") == follower_at


@both_rules
@pytest.mark.parametrize("order", [("red_0", "blue_0"), ("blue_0", "red_0")])
def test_1_swapping_never_works(rules, order):
    w = face_to_face(rules)
    play(w, order, red_0=c.FORWARD, blue_0=c.FORWARD)
    assert (where(w, "red_0"), where(w, "blue_0")) == ((7, 3), (8, 3))


# 2. Walking out of and into a toggle ---------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize("order", [("red_0", "blue_0"), ("blue_0", "red_0")])
def test_2_opponent_walking_away_is_missed(rules, order):
    w = face_to_face(rules)
    place(w, "blue_0", 8, 3, g.SOUTH)
    step = play(w, order, red_0=c.TOGGLE, blue_0=c.FORWARD)
    assert step.reward == {"red_0": 0, "blue_0": 0}
    assert step.events == {"red_0": {}, "blue_0": {}}
    assert where(w, "blue_0") == (8, 4)
    assert not step.done


@both_rules
@pytest.mark.parametrize("order", [("red_0", "blue_0"), ("blue_0", "red_0")])
def test_2_opponent_walking_into_toggled_cell_is_eliminated(rules, order):
    w = face_to_face(rules, blue=2, red=2)
    place(w, "blue_0", 9, 3, g.WEST)
    step = play(w, order, red_0=c.TOGGLE, blue_0=c.FORWARD)
    assert step.reward == {"blue_0": -1, "blue_1": 0, "red_0": 0.5, "red_1": 0}
    assert where(w, "blue_0") == BLUE_SIDE
    assert w.state.out[0].tolist() == [1, 0, 0, 0]
    assert step.events["blue_0"] == {"got_eliminated": 1}
    assert step.events["red_0"] == {"eliminated_opponents": 1}
    assert not step.done


# 3. Two opponents toggle each other ----------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize(("first", "second", "side"), [
    ("red_0", "blue_0", BLUE_SIDE),
    ("blue_0", "red_0", RED_SIDE),
])  # fmt: skip
def test_3_first_in_order_wins_mutual_toggle(rules, first, second, side):
    w = face_to_face(rules, blue=2, red=2)
    stays = where(w, first)
    step = play(w, (first, second), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert step.reward[first] == 0.5
    assert step.reward[second] == -1
    assert (where(w, first), where(w, second)) == (stays, side)
    assert step.events[second] == {"got_eliminated": 1}
    assert "got_eliminated" not in step.events[first]
    assert not step.done
    assert step.winner == -1


@both_rules
@pytest.mark.parametrize(("first", "second", "winner"), [("red_0", "blue_0", c.RED), ("blue_0", "red_0", c.BLUE)])
def test_3_mutual_toggle_decides_1v1(rules, first, second, winner):
    w = face_to_face(rules)
    step = play(w, (first, second), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert step.reward[first] == approx(WIN)
    assert step.reward[second] == -1
    assert step.events[first]["elimination_win"] == 1
    assert step.winner == winner
    assert step.done
    assert step.terminated == {"blue_0": True, "red_0": True}


# 4. An opponent who opens its door -----------------------------------------------------------------------------------


def hunter_behind_opener(rules, **teams):
    """blue_0 is about to open its door, red_0 behind it is about to toggle it."""
    w = world(rules, **teams)
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, g.BLUE_KEY_USED)
    place(w, "red_0", 9, 1, g.EAST)
    return w


@both_rules
def test_4_door_opened_while_eliminated_pays_no_agent(rules):
    w = hunter_behind_opener(rules, blue=2, red=2)
    place(w, "red_1", 7, 5, g.WEST)
    step = play(w, ("red_0", "blue_0"), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert step.reward == {"blue_0": -1, "blue_1": 0, "red_0": 0.5, "red_1": 0}
    assert at(w, g.BLUE_DOOR) == c.DOOR_OPEN + c.BLUE
    assert "door_win" not in step.events["blue_0"]
    assert where(w, "blue_0") == BLUE_SIDE
    assert hand(w, "blue_0") == g.BLUE_KEY_USED
    assert not step.done


@both_rules
def test_4_last_opponent_eliminated_while_opening_loses(rules):
    w = hunter_behind_opener(rules)
    step = play(w, ("red_0", "blue_0"), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert step.reward == {"red_0": approx(WIN), "blue_0": -1}
    assert step.winner == c.RED
    assert "door_win" not in step.events["blue_0"]


@pytest.mark.parametrize(("rules", "blue", "red", "there"), [
    ("classic", WIN - 1, 0.5, BLUE_SIDE), ("fair", WIN, 0, g.BLUE_FRONT),
])  # fmt: skip
def test_4_later_toggle_eliminates_winner_in_classic_alone(rules, blue, red, there):
    w = hunter_behind_opener(rules)
    step = play(w, ("blue_0", "red_0"), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert step.reward == {"blue_0": approx(blue), "red_0": red}
    assert step.events["blue_0"]["door_win"] == 1
    assert ("got_eliminated" in step.events["blue_0"]) == (rules == "classic")
    assert step.events["red_0"] == ({"eliminated_opponents": 1} if rules == "classic" else {})
    assert where(w, "blue_0") == there
    assert (step.winner, step.done) == (c.BLUE, True)


# 5. Two doors in one step --------------------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize(("first", "second", "winner"), [("red_0", "blue_0", c.RED), ("blue_0", "red_0", c.BLUE)])
def test_5_first_in_order_wins_if_both_open_doors(rules, first, second, winner):
    w = at_their_doors(rules)
    step = play(w, (first, second), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert step.reward[first] == approx(WIN)
    assert step.reward[second] == 0
    assert step.events[first]["door_win"] == 1
    assert "door_win" not in step.events[second]
    assert step.winner == winner
    assert (at(w, g.RED_DOOR), at(w, g.BLUE_DOOR)) == (c.DOOR_OPEN + c.RED, c.DOOR_OPEN + c.BLUE)


@pytest.mark.parametrize(("thief", "opener", "locked", "owner"), [
    ("red_0", "blue_0", g.RED_DOOR, c.RED),
    ("blue_0", "red_0", g.BLUE_DOOR, c.BLUE),
])  # fmt: skip
@both_rules
def test_5_keyless_agent_wins_by_opponents_door_in_classic_alone(rules, thief, opener, locked, owner):
    w = at_their_doors(rules, **{f"{thief[:-2]}_hand": c.EMPTY})
    step = play(w, (thief, opener), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    first, later = (thief, opener) if rules == "classic" else (opener, thief)
    assert step.reward == {first: approx(WIN), later: 0}
    assert step.winner == (owner if rules == "classic" else 1 - owner)
    assert at(w, locked) == c.DOOR_LOCKED + owner


@both_rules
def test_5_later_keyless_agent_wins_nothing(rules):
    w = at_their_doors(rules, red_hand=c.EMPTY)
    step = play(w, ("blue_0", "red_0"), red_0=c.TOGGLE, blue_0=c.TOGGLE)
    assert step.reward == {"red_0": 0, "blue_0": approx(WIN)}


# 6. The success reward goes to the first living member ---------------------------------------------------------------


@both_rules
@pytest.mark.parametrize("order", [("red_1", "red_0"), ("red_0", "red_1")])
def test_6_eliminator_keeps_half_and_first_living_gets_success(rules, order):
    w = world(rules, blue=1, red=2)
    put(w, (8, 3), c.EMPTY)
    place(w, "blue_0", 8, 3, g.WEST)
    place(w, "red_1", 7, 3, g.EAST)
    place(w, "red_0", 6, 1, g.WEST)
    step = play(w, order, red_1=c.TOGGLE, red_0=c.RIGHT)
    assert step.reward == {"blue_0": -1, "red_0": approx(WIN), "red_1": 0.5}
    assert step.events["red_0"] == {"elimination_win": 1, "success": pytest.approx(WIN, rel=1e-6)}
    assert step.events["red_1"] == {"eliminated_opponents": 1}
    assert step.winner == c.RED
    assert step.done


@both_rules
def test_6_success_overwrites_earlier_reward_of_step(rules):
    w = world(rules, blue=1, red=2)
    place(w, "red_0", 8, 5, g.NORTH)
    put(w, (8, 4), g.RED_KEY)
    put(w, (7, 4), c.EMPTY)
    place(w, "red_1", *g.RED_FRONT, g.WEST, g.RED_KEY_USED)
    step = play(w, ("red_0", "red_1"), red_0=c.PICKUP, red_1=c.TOGGLE)
    assert step.reward["red_0"] == approx(WIN)  # the 0.5 of the key is gone
    assert step.reward["red_1"] == 0


@pytest.mark.parametrize(("rules", "expected"), [("classic", WIN - 0.001), ("fair", WIN)])
def test_6_only_classic_adds_rewards_after_success(rules, expected):
    w = world(rules, blue=1, red=2)
    place(w, "red_0", 6, 1, g.WEST)
    place(w, "red_1", *g.RED_FRONT, g.WEST, g.RED_KEY_USED)
    step = play(w, ("red_1", "red_0"), red_0=c.PICKUP, red_1=c.TOGGLE)
    assert step.reward["red_0"] == approx(expected)


# 7. One object for two -----------------------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize(("first", "second"), [("red_0", "red_1"), ("red_1", "red_0")])
@pytest.mark.parametrize(("thing", "cell", "pay"), [(g.RED_KEY, (7, 4), 0.5), (g.RED_BALL + 1, g.RED_FRONT, 0.45)])
def test_7_second_to_pick_up_same_object_pays(rules, first, second, thing, cell, pay):
    w = world(rules, blue=0, red=2, obstacle=True)
    x, y = cell
    place(w, "red_0", x + 1, y, g.WEST)
    place(w, "red_1", x, y - 1, g.SOUTH)
    assert at(w, cell) == thing
    step = play(w, (first, second), red_0=c.PICKUP, red_1=c.PICKUP)
    assert step.reward == {first: approx(pay), second: approx(-0.001)}
    assert at(w, cell) == c.EMPTY
    assert hand(w, first) in (thing, g.RED_KEY_USED)
    assert hand(w, second) == c.EMPTY
    assert np.isclose(sum(step.reward.values()), pay - 0.001)
