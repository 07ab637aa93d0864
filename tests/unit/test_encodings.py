"""Our numbers are those of the `multigrid` package, and codes and triples are two names of one cell."""

import re

import numpy as np
import pytest
from multigrid.core.actions import Action
from multigrid.core.constants import Color, Direction, State, Type

from games import EAST, NORTH, SOUTH, VECTORS, WEST
from multigrid_rl.world import constants as c


@pytest.mark.parametrize(("ours", "theirs"), [(c.TYPES, Type), (c.COLOURS, Color), (c.STATES, State)])
def test_indices_equal_package(ours, theirs):
    assert {member.value: member.to_index() for member in theirs} == {
        name: k for k, name in enumerate(ours) if name in {member.value for member in theirs}
    }


def test_actions_equal_package():
    assert {member.name: int(member) for member in Action} == {name: k for k, name in enumerate(c.ACTIONS)}
    named = (c.LEFT, c.RIGHT, c.FORWARD, c.PICKUP, c.DROP, c.TOGGLE, c.DONE)
    assert named == tuple(int(Action[name]) for name in c.ACTIONS)


def test_headings_equal_package():
    theirs = (Direction.right, Direction.down, Direction.left, Direction.up)
    assert tuple(int(d) for d in theirs) == (EAST, SOUTH, WEST, NORTH)
    assert [tuple(int(v) for v in d.to_vec()) for d in theirs] == list(VECTORS)
    assert tuple(x * c.HEIGHT + y for x, y in VECTORS) == c.STRIDE


def test_each_code_has_unique_triple():
    assert c.CELL.shape == (c.NUM_CODES, 3)
    assert len(np.unique(c.CELL, axis=0)) == c.NUM_CODES
    assert ([len(c.TYPES), len(c.COLOURS), len(c.STATES)] > c.CELL).all()


@pytest.mark.parametrize(
    ("code", "triple"),
    [
        (c.UNSEEN, (0, 0, 0)),
        (c.EMPTY, (1, 0, 0)),
        (c.WALL, (2, 5, 0)),
        (c.DOOR_LOCKED + c.RED, (4, 0, 2)),
        (c.DOOR_CLOSED + c.BLUE, (4, 2, 1)),
        (c.DOOR_OPEN + c.BLUE, (4, 2, 0)),
        (c.KEY, (5, 0, 4)),
        (c.KEY + 1, (5, 0, 3)),
        (c.KEY + 2 * c.BLUE, (5, 2, 4)),
        (c.BALL + c.BLUE, (6, 2, 0)),
        (c.AGENT + 4 * c.BLUE + NORTH, (10, 2, 3)),
    ],
)
def test_codes_match_triples_of_section_1(code, triple):
    assert tuple(c.decode(np.array(code, np.uint8)).tolist()) == triple
    assert int(c.encode(np.array(triple, np.uint8))) == code


@pytest.mark.parametrize("shape", [(23,), (1, 23), (2, 3, 4), (0,)])
def test_decode_and_encode_are_inverse_for_every_shape(shape):
    codes = np.random.default_rng(0).integers(0, c.NUM_CODES, shape).astype(np.uint8)
    if shape == (23,):
        codes = np.arange(23, dtype=np.uint8)
    triples = c.decode(codes)
    assert triples.shape == (*shape, 3)
    back = c.encode(triples)
    assert back.dtype == np.uint8
    assert np.array_equal(back, codes)


@pytest.mark.parametrize(
    "triple", [(3, 0, 0), (1, 1, 0), (4, 1, 2), (5, 0, 0), (10, 0, 4), (0, 64, 0), (0, 63, 64), (255, 255, 255)]
)
def test_encode_rejects_unknown_triples(triple):
    triples = c.decode(np.arange(23, dtype=np.uint8))
    triples[7] = triple
    with pytest.raises(ValueError, match=re.escape(f"got {triple}")):
        c.encode(triples)
