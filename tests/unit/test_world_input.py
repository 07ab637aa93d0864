"""What ``World`` rejects, by key and value."""

import re
from dataclasses import replace

import numpy as np
import pytest

from games import spec
from multigrid_rl.world.engine import World

GAME = spec("fair", blue=1, red=2)


@pytest.mark.parametrize(("field", "value"), [
    ("view_size", 1), ("view_size", 4), ("view_size", 9), ("max_steps", 0), ("max_steps", -5),
    ("red", 0), ("red", 5), ("blue", -1), ("blue", 5),
])  # fmt: skip
def test_rejects_impossible_games(field, value):
    with pytest.raises(ValueError, match=f"{field}: expected .*, got {value}$"):
        World(replace(GAME, **{field: value}), 1)


def test_rejects_empty_batch():
    with pytest.raises(ValueError, match=r"num_games: .*, got 0"):
        World(GAME, 0)


@pytest.mark.parametrize(("shape", "dtype"), [
    *(((shape), np.int8) for shape in [(2,), (2, 2), (2, 4), (3, 3), (1, 2, 3), (0, 3)]),
    *(((2, 3), dtype) for dtype in [np.int64, np.uint8, np.float32, np.bool_]),
])  # fmt: skip
def test_rejects_actions_of_another_shape_or_type(shape, dtype):
    w = World(GAME, 2)
    with pytest.raises(ValueError, match=re.escape(f"got {shape} {np.dtype(dtype)}")):
        w.step(np.zeros(shape, dtype))
    assert not w.state.clock.any()


@pytest.mark.parametrize("action", [-128, -1, 7, 127])
def test_unknown_action_numbers_do_nothing(action):
    w, idle = World(GAME, 2, seed=1), World(GAME, 2, seed=1)
    w.step(np.full((2, 3), action, np.int8))
    idle.step(np.full((2, 3), 6, np.int8))
    np.testing.assert_equal(w.state, idle.state)
    assert not w.outputs.reward.any()


@pytest.mark.parametrize("order", [
    np.zeros((3, 3), np.int8) + np.arange(3, dtype=np.int8),  # three games' orders for two games
    np.tile(np.arange(3, dtype=np.int64), (2, 1)),
    np.tile(np.array([0, 0, 1], np.int8), (2, 1)),  # not a permutation
], ids=["shape", "type", "twice"])  # fmt: skip
def test_rejects_invalid_orders(order):
    with pytest.raises(ValueError, match="order"):
        World(GAME, 2).step(np.zeros((2, 3), np.int8), order)


def test_actions_need_not_be_contiguous():
    w, plain = World(GAME, 2, seed=1), World(GAME, 2, seed=1)
    actions = np.array([[2, 2, 0], [1, 2, 2]], np.int8)
    plain.step(actions)
    w.step(np.asfortranarray(actions))
    assert np.array_equal(w.state.position, plain.state.position)
    assert np.array_equal(w.state.heading, plain.state.heading)


def test_rejects_unknown_seats():
    with pytest.raises(ValueError, match="seat: expected blue_0, red_0, red_1, got 'blue_1'"):
        GAME.team_of("blue_1")
    assert GAME.team_of("red_1") == "red"


def test_step_and_reset_return_documented_shapes():
    w = World(GAME, 2)
    assert w.reset().shape == (2, 3, GAME.num_tokens)
    step = w.step(np.zeros((2, 3), np.int8))
    shapes = {name: getattr(step, name).shape for name in step._fields}
    per_agent = dict.fromkeys(("reward", "terminated", "acted", "obs_mission"), (2, 3))
    per_game = dict.fromkeys(("truncated", "done", "winner"), (2,))
    assert shapes == {"tokens": (2, 3, 27), "final_tokens": (2, 3, 27), "events": (2, 3, 10)} | per_agent | per_game
    board = w.board()
    assert (board.cells.shape, board.position.shape, board.out.shape) == ((2, 128), (2, 3), (2, 3))
