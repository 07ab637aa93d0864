"""Section 8's legitimate tactics, after which a game must still end, and doors that swing shut again."""

import pytest

import games as g
from games import at, both_rules, clear, find, hand, place, play, where, world
from multigrid_rl.world.constants import BLUE, DOOR_CLOSED, DOOR_LOCKED, DOOR_OPEN, DROP, EMPTY, FORWARD, LEFT, TOGGLE

MAX_STEPS = 24


def play_to_the_end(w, actions):
    """Play ``actions`` of the seats over and over until the game ends, by truncation and nothing else."""
    start = int(w.state.clock[0])
    for t in range(start, MAX_STEPS):
        step = play(w, **{seat: moves[t % len(moves)] for seat, moves in actions.items()})
        assert step.winner == -1
        assert step.done == step.truncated == (t + 1 == MAX_STEPS)
    return step


# Tactics -------------------------------------------------------------------------------------------------------------


@both_rules
@pytest.mark.parametrize("thing", [g.RED_KEY_USED, g.BLUE_BALL])
def test_object_blocking_other_door_leads_to_truncation(rules, thing):
    w = world(rules, max_steps=MAX_STEPS)
    clear(w)
    place(w, "red_0", 9, 1, g.EAST, thing)
    place(w, "blue_0", 10, 2, g.NORTH, g.BLUE_KEY_USED)
    play(w, red_0=DROP)
    assert at(w, g.BLUE_FRONT) == thing
    last = play_to_the_end(w, {"blue_0": (FORWARD, TOGGLE)})
    assert where(w, "blue_0") == (10, 2)
    assert at(w, g.BLUE_DOOR) == DOOR_LOCKED + BLUE
    assert not any(last.terminated.values())
    assert last.reward == {"blue_0": 0, "red_0": 0}


@both_rules
def test_eliminated_key_carrier_leads_to_truncation(rules):
    w = world(rules, blue=2, red=2, max_steps=MAX_STEPS)
    clear(w)
    place(w, "blue_0", 8, 3, g.WEST, g.BLUE_KEY_USED)
    place(w, "red_0", 7, 3, g.EAST)
    place(w, "blue_1", *g.BLUE_FRONT, g.EAST)
    assert play(w, red_0=TOGGLE).events["blue_0"] == {"got_eliminated": 1}
    last = play_to_the_end(w, {"blue_0": (TOGGLE,), "blue_1": (TOGGLE, DROP), "red_0": (FORWARD, LEFT)})
    assert hand(w, "blue_0") == g.BLUE_KEY_USED  # it stays with its carrier for good
    assert find(w, g.BLUE_KEY_USED) == []
    assert at(w, g.BLUE_DOOR) == DOOR_LOCKED + BLUE
    assert last.terminated == {"blue_0": rules == "fair", "blue_1": False, "red_0": False, "red_1": False}


# Doors that swing shut again -----------------------------------------------------------------------------------------


def door_left_open(rules):
    """blue_0 was eliminated while it opened the blue door; blue_1 stands at the open door."""
    w = world(rules, blue=2, red=2)
    clear(w)
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, g.BLUE_KEY_USED)
    place(w, "red_0", 9, 1, g.EAST)
    play(w, ("red_0", "blue_0"), red_0=TOGGLE, blue_0=TOGGLE)
    assert at(w, g.BLUE_DOOR) == DOOR_OPEN + BLUE
    place(w, "blue_1", *g.BLUE_FRONT, g.EAST)
    place(w, "red_0", 6, 3, g.WEST)
    w.observe()
    return w


@both_rules
def test_own_open_door_closes_unpaid_and_reopens_without_key_and_wins(rules):
    w = door_left_open(rules)
    step = play(w, blue_1=TOGGLE)
    assert at(w, g.BLUE_DOOR) == DOOR_CLOSED + BLUE
    assert set(step.reward.values()) == {0}
    assert not step.done
    step = play(w, blue_1=TOGGLE)
    assert at(w, g.BLUE_DOOR) == DOOR_OPEN + BLUE
    assert step.reward["blue_1"] == pytest.approx(1 - 0.9 * 3 / 300, rel=1e-12)
    assert (step.winner, step.done) == (BLUE, True)


@both_rules
def test_opponent_toggles_door_both_ways_without_winning(rules):
    w = door_left_open(rules)
    place(w, "blue_1", 7, 6, g.SOUTH)
    place(w, "red_0", *g.BLUE_FRONT, g.EAST)
    for expected in (DOOR_CLOSED, DOOR_OPEN, DOOR_CLOSED):
        step = play(w, red_0=TOGGLE)
        assert at(w, g.BLUE_DOOR) == expected + BLUE
        assert set(step.reward.values()) == {0}
        assert step.events["red_0"] == {}
        assert not step.done


@both_rules
@pytest.mark.parametrize("carried", [EMPTY, g.RED_KEY_USED, g.RED_BALL])
def test_locked_door_stays_locked_without_key(rules, carried):
    w = world(rules, blue=2, red=2)
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, carried)
    step = play(w, blue_0=TOGGLE)
    assert at(w, g.BLUE_DOOR) == DOOR_LOCKED + BLUE
    assert step.events["blue_0"] == {}
    assert not step.done
