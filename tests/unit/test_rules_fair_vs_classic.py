"""Section 8: each row of the table under both rule sets; of section 7, cases of several agents in one step."""

from dataclasses import replace

import numpy as np
import pytest

import games as g
from games import approx, at, both_rules, hand, heading_and_mission, image, place, play, put, spec, where, world
from multigrid_rl.types import RewardWeights, Rules
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World

WIN = 1 - 0.9 * 1 / 300
BLUE_SIDE = (13, 2)


def eliminated_blue_0(rules):
    """2v2 after red_0 eliminated blue_0 on (8, 3); returns the world and the step."""
    w = world(rules, blue=2, red=2)
    put(w, (8, 3), c.EMPTY)
    place(w, "blue_0", 8, 3, g.WEST)
    place(w, "red_0", 7, 3, g.EAST)
    return w, play(w, ("red_0",), red_0=c.TOGGLE)


# Door test -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "reward", "winner"), [("classic", WIN, c.RED), ("fair", 0, -1)])
def test_classic_wins_with_any_open_door_fair_needs_own(rules, reward, winner):
    w = world(rules, blue=2, red=1)
    put(w, g.BLUE_DOOR, c.DOOR_OPEN + c.BLUE)
    place(w, "red_0", *g.RED_FRONT, g.WEST)
    step = play(w, red_0=c.TOGGLE)
    assert step.reward["red_0"] == approx(reward)
    assert (step.winner, step.done) == (winner, winner == c.RED)


# Handling order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "firsts"), [("classic", {True}), ("fair", {True, False})])
def test_order_is_that_of_indices_in_classic_and_redrawn_each_step_in_fair(rules, firsts):
    w, found = world(rules, blue=0, red=2), set()
    for _ in range(40):
        place(w, "red_0", 6, 3, g.EAST)
        place(w, "red_1", 8, 3, g.WEST)
        play(w, red_0=c.FORWARD, red_1=c.FORWARD)
        found.add(where(w, "red_0") == (7, 3))
    assert found == firsts


def test_fair_orders_of_four_agents_are_equally_likely():
    games = 4800
    w = World(spec("fair", blue=2, red=2), games, seed=1)
    w.step(np.full((games, 4), c.DONE, np.int8))
    _, counts = np.unique(w.state.order, axis=0, return_counts=True)
    assert len(counts) == 24
    assert abs(counts - games / 24).max() < 5 * np.sqrt(games / 24)


# Winner eliminated in the winning step -------------------------------------------------------------------------------


@pytest.mark.parametrize(("switch", "toggler", "bystander"), [("stop", 0, 0), ("continue", 0.5, -0.001)])
def test_after_success_decides_handling_after_winner(switch, toggler, bystander):
    w = world(replace(Rules.classic(), after_success=switch), blue=1, red=2)
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, g.BLUE_KEY_USED)
    place(w, "red_0", 9, 1, g.EAST)
    step = play(w, ("blue_0", "red_0", "red_1"), blue_0=c.TOGGLE, red_0=c.TOGGLE, red_1=c.PICKUP)
    assert (step.reward["red_0"], step.reward["red_1"]) == (toggler, approx(bystander))
    assert step.reward["blue_0"] == approx(WIN if switch == "stop" else WIN - 1)


# Eliminated agents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "reported"), [("classic", False), ("fair", True)])
def test_fair_reports_elimination_at_once_classic_at_end(rules, reported):
    w, step = eliminated_blue_0(rules)
    assert step.terminated == {"blue_0": reported, "blue_1": False, "red_0": False, "red_1": False}
    assert play(w).terminated["blue_0"] == reported
    place(w, "red_0", *g.RED_FRONT, g.WEST, g.RED_KEY_USED)
    assert set(play(w, red_0=c.TOGGLE).terminated.values()) == {True}


@pytest.mark.parametrize(("rules", "penalty"), [("classic", -0.001), ("fair", 0)])
def test_only_classic_charges_pickups_of_eliminated(rules, penalty):
    w, step = eliminated_blue_0(rules)
    assert step.reward["blue_0"] == -1
    for _ in range(3):
        after = play(w, blue_0=c.PICKUP)
        assert after.reward == {"blue_0": approx(penalty), "blue_1": 0, "red_0": 0, "red_1": 0}
        assert ("invalid_pickup" in after.events["blue_0"]) == (penalty < 0)


@pytest.mark.parametrize(("rules", "reward"), [("classic", -1.001), ("fair", -1)])
def test_only_classic_charges_pickup_in_elimination_step(rules, reward):
    w = world(rules, blue=2, red=2)
    place(w, "blue_0", 8, 5, g.WEST)
    place(w, "red_0", 7, 5, g.EAST)
    assert play(w, ("red_0", "blue_0"), red_0=c.TOGGLE, blue_0=c.PICKUP).reward["blue_0"] == approx(reward)


@pytest.mark.parametrize(("rules", "acted"), [("classic", True), ("fair", False)])
def test_only_fair_drops_eliminated_agents_from_batch(rules, acted):
    w, step = eliminated_blue_0(rules)
    assert set(step.acted.values()) == {True}  # the step of the elimination itself still counts
    assert play(w).acted == {"blue_0": acted, "blue_1": True, "red_0": True, "red_1": True}


@both_rules
def test_eliminated_agents_stay_and_observe_from_side_room(rules):
    w, _ = eliminated_blue_0(rules)
    for action in range(7):
        play(w, blue_0=action)
        assert where(w, "blue_0") == BLUE_SIDE
        assert heading_and_mission(w, "blue_0")[0] == g.WEST
    assert image(w, "blue_0")[2, 3].tolist() == [1, 0, 0]  # (12, 2)
    assert image(w, "blue_0")[2, 2].tolist() == [2, 5, 0]  # (11, 2)


@pytest.mark.parametrize(("rules", "again"), [("classic", True), ("fair", False)])
def test_only_classic_eliminates_agent_twice(rules, again):
    w, _ = eliminated_blue_0(rules)
    put(w, g.BLUE_DOOR, c.DOOR_OPEN + c.BLUE)
    place(w, "red_0", *g.BLUE_FRONT, g.EAST)
    way = (c.FORWARD, g.BLUE_DOOR), (c.FORWARD, (12, 1)), (c.RIGHT, (12, 1)), (c.FORWARD, (12, 2)), (c.LEFT, (12, 2))
    for action, cell in (*way, (c.FORWARD, (12, 2))):  # (13, 2) is taken by the eliminated
        play(w, red_0=action)
        assert where(w, "red_0") == cell
    step = play(w, red_0=c.TOGGLE)
    assert step.reward == {"blue_0": -1 if again else 0, "blue_1": 0, "red_0": 0.5 if again else 0, "red_1": 0}
    assert ("got_eliminated" in step.events["blue_0"]) == again
    assert not step.done


# Mission in the observation ------------------------------------------------------------------------------------------


def test_first_mission_is_random_in_classic_and_first_in_fair():
    classic = World(spec("classic"), 400, seed=5)
    assert np.bincount(classic.state.mission[:, 0], minlength=4).min() > 60
    assert (classic.state.mission[:, :1] == classic.state.mission).all()  # the same for all agents
    assert (classic.outputs.tokens[..., -1] == classic.state.mission).all()
    fair = World(spec("fair"), 400, seed=5)
    assert not fair.outputs.tokens[..., -1].any()
    assert not fair.outputs.obs_mission.any()


@pytest.mark.parametrize(("rules", "tokens", "strings"), [
    ("classic", [1, 1, 0], [1, 1, 3]),  # the step of the pickup still shows the old one
    ("fair", [0, 3, 3], [0, 3, 3]),
])  # fmt: skip
def test_mission_token_lags_in_classic_and_is_current_in_fair(rules, tokens, strings):
    w = world(rules)
    if rules == "classic":
        w.state.mission[:] = w.state.mission_value[:] = 1
        w.observe()
    place(w, "red_0", 7, 3, g.SOUTH)
    seen = [(heading_and_mission(w, "red_0")[1], int(w.outputs.obs_mission[0, 1]))]
    for action in (c.PICKUP, c.DONE):
        play(w, red_0=action)
        seen.append((heading_and_mission(w, "red_0")[1], int(w.outputs.obs_mission[0, 1])))
    assert seen == list(zip(tokens, strings, strict=True))


# Random keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "before_doors"), [("classic", True), ("fair", False)])
@pytest.mark.parametrize("code", [g.RED_KEY, g.BLUE_KEY])
def test_only_classic_places_random_keys_before_doors(rules, before_doors, code):
    w = World(spec(rules, random_keys=True), 4000, seed=11)
    seen = {divmod(int(k), 8) for k in np.argmax(w.state.cells == code, axis=1)}
    assert (g.RED_FRONT in seen, g.BLUE_FRONT in seen) == (before_doors, before_doors)
    assert seen == set(g.ROOM) - {(9, 1), (6, 6)} - (set() if before_doors else {g.RED_FRONT, g.BLUE_FRONT})


# View of the final step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "shown"), [("classic", [10, 2, g.WEST]), ("fair", [1, 0, 0])])
def test_only_classic_shows_victim_where_it_stood(rules, shown):
    for team in (1, 2):  # the last step of a game, and a step within one
        w = world(rules, blue=team, red=2)
        place(w, "blue_0", 8, 5, g.WEST)
        place(w, "red_0", 7, 5, g.EAST)
        step = play(w, ("red_0",), red_0=c.TOGGLE)
        assert step.done == (team == 1)
        assert image(w, "red_0")[2, 3].tolist() == shown


# Weights -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_uses_discount_factor_of_weights(factor):
    weights = RewardWeights(ball_pickup=2.0, ball_discount=factor)
    w = world("fair", blue=0, red=1, obstacle=True, reward=weights)
    place(w, "red_0", 6, 6, g.WEST)
    pays = [play(w, red_0=c.PICKUP).reward["red_0"] for _ in range(3)]
    assert pays == approx([2 * factor ** (2**k) for k in range(3)])


def at_their_doors(rules, *, red_hand=g.RED_KEY_USED, blue_hand=g.BLUE_KEY_USED, **teams):
    w = world(rules, **teams)
    place(w, "red_0", *g.RED_FRONT, g.WEST, red_hand)
    place(w, "blue_0", *g.BLUE_FRONT, g.EAST, blue_hand)
    return w


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


# 6. The success reward goes to the first living member ---------------------------------------------------------------


@pytest.mark.parametrize(("rules", "expected"), [("classic", WIN - 0.001), ("fair", WIN)])
def test_6_only_classic_adds_rewards_after_success(rules, expected):
    w = world(rules, blue=1, red=2)
    place(w, "red_0", 6, 1, g.WEST)
    place(w, "red_1", *g.RED_FRONT, g.WEST, g.RED_KEY_USED)
    step = play(w, ("red_1", "red_0"), red_0=c.PICKUP, red_1=c.TOGGLE)
    assert step.reward["red_0"] == approx(expected)
