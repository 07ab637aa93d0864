"""What World refuses, and that its messages name the field, the value and what is allowed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from games import spec
from multigrid_rl.world.engine import World

GAME = spec("fair", blue=1, red=2)


@pytest.mark.parametrize(("field", "value", "message"), [
    ("view_size", 1, "view_size=1: allowed is 3 or 5 or 7"),
    ("view_size", 4, "view_size=4: allowed is 3 or 5 or 7"),
    ("view_size", 9, "view_size=9: allowed is 3 or 5 or 7"),
    ("max_steps", 0, "max_steps=0: allowed is at least 1"),
    ("max_steps", -5, "max_steps=-5: allowed is at least 1"),
    ("red", 0, "red=0: allowed is 1 to 4 agents"),
    ("red", 5, "red=5: allowed is 1 to 4 agents"),
    ("blue", -1, "blue=-1: allowed is 0 to 4 agents"),
    ("blue", 5, "blue=5: allowed is 0 to 4 agents"),
])  # fmt: skip
def test_a_specification_that_makes_no_game_is_refused(field, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        World(replace(GAME, **{field: value}), 1)


@pytest.mark.parametrize("games", [0, -3])
def test_no_games_are_refused(games):
    with pytest.raises(ValueError, match=f"num_games={games}: allowed is at least 1"):
        World(GAME, games)


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 4), (3, 3), (1, 2, 3), (0, 3)])
def test_actions_of_another_shape_are_refused(shape):
    w = World(GAME, 2)
    with pytest.raises(ValueError, match=re.escape(f"shape {shape}")):
        w.step(np.zeros(shape, np.int8))
    assert not w.state.clock.any()


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.bool_])
def test_actions_of_another_type_are_refused(dtype):
    w = World(GAME, 2)
    with pytest.raises(ValueError, match=f"type {np.dtype(dtype)}; allowed: .* int8, values 0 to 6"):
        w.step(np.zeros((2, 3), dtype))


@pytest.mark.parametrize("action", [-128, -1, 7, 127])
def test_numbers_that_are_no_action_do_nothing_to_the_board(action):
    w, idle = World(GAME, 2, seed=1), World(GAME, 2, seed=1)
    w.step(np.full((2, 3), action, np.int8))
    idle.step(np.full((2, 3), 6, np.int8))
    for ours, theirs in zip(w.state, idle.state, strict=True):
        assert np.array_equal(ours, theirs, equal_nan=ours.dtype == np.float64)
    assert not w.outputs.reward.any()


@pytest.mark.parametrize("order", [
    np.zeros((3, 3), np.int8) + np.arange(3, dtype=np.int8),  # three games' orders for two games
    np.tile(np.arange(3, dtype=np.int64), (2, 1)),
    np.tile(np.array([0, 0, 1], np.int8), (2, 1)),  # not a permutation
], ids=["shape", "type", "twice"])  # fmt: skip
def test_an_order_that_is_none_is_refused(order):
    with pytest.raises(ValueError, match="order"):
        World(GAME, 2).step(np.zeros((2, 3), np.int8), order)


def test_actions_need_not_be_contiguous():
    w, plain = World(GAME, 2, seed=1), World(GAME, 2, seed=1)
    actions = np.array([[2, 2, 0], [1, 2, 2]], np.int8)
    plain.step(actions)
    w.step(np.asfortranarray(actions))
    assert np.array_equal(w.state.position, plain.state.position)
    assert np.array_equal(w.state.heading, plain.state.heading)


def test_unknown_seats_are_refused():
    with pytest.raises(ValueError, match="seat: expected blue_0, red_0, red_1, got 'blue_1'"):
        GAME.team_of("blue_1")
    assert GAME.team_of("red_1") == "red"


def test_what_step_and_reset_return_has_the_documented_shapes():
    w = World(GAME, 2)
    assert w.reset().shape == (2, 3, GAME.num_tokens)
    step = w.step(np.zeros((2, 3), np.int8))
    shapes = {name: getattr(step, name).shape for name in step._fields}
    assert shapes == {
        **{"tokens": (2, 3, 27), "final_tokens": (2, 3, 27), "reward": (2, 3), "events": (2, 3, 10)},
        **{"terminated": (2, 3), "truncated": (2,), "done": (2,), "acted": (2, 3), "winner": (2,)},
    }
    board = w.board()
    assert (board.cells.shape, board.position.shape, board.out.shape) == ((2, 128), (2, 3), (2, 3))
