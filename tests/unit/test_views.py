"""What a seat sees: section 4 cell by cell, the numbers of cells, and the mirrored board."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from multigrid.core.actions import Action
from multigrid.core.constants import Color, Direction, State, Type

from games import EAST, NORTH, SOUTH, VECTORS, WEST, spec
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.models.registry import build
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.types import GameSpec, Rules, SeatView
from multigrid_rl.world import constants as c
from multigrid_rl.world.constants import SWAPPED, other_seat, other_side
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import token_categories

SIZES = [3, 5, 7]
#: Cells within the outer ring, on which nobody ever stands: 84, times 4 headings.
INNER = [c.cell_index(x, y) for x in range(1, 15) for y in range(1, 7)]
POSES = [(cell, heading) for cell in INNER for heading in range(4)]
UNSEEN, EMPTY, WALL = (0, 0, 0), (1, 0, 0), (2, 5, 0)
TEAM_COLOUR = {"red": 0, "blue": 2}


def opaque(cell):
    """Walls, and doors that are not open."""
    kind, _, state = cell
    return kind == 2 or (kind == 4 and state != 0)


def what_is_visible(window, size):
    """The spreading of visibility, sentence by sentence."""
    visible = {(size // 2, size - 1)}
    for j in range(size - 1, -1, -1):
        for columns, side in ((range(size - 1), 1), (range(size - 1, 0, -1), -1)):
            for i in columns:
                if (i, j) in visible and not opaque(window[i, j]):
                    visible.add((i + side, j))
                    if j > 0:
                        visible.update({(i, j - 1), (i + side, j - 1)})
    return visible


def expected_view(cells, agents, me, size):
    """The (V, V) triples that agent ``me`` sees.

    ``cells`` maps (x, y) to a triple; an agent is (x, y, heading, colour, out, carried triple).
    """
    x, y, heading, _, _, carried = agents[me]
    forward = {EAST: (1, 0), SOUTH: (0, 1), WEST: (-1, 0), NORTH: (0, -1)}[heading]
    right = (-forward[1], forward[0])
    content = dict(cells)
    if len(agents) >= 2:
        for ax, ay, facing, colour, out, _ in agents:
            if not out:
                content[ax, ay] = (10, colour, facing)
    window = {}
    for i in range(size):
        for j in range(size):
            ahead, aside = size - 1 - j, i - size // 2
            place = (x + ahead * forward[0] + aside * right[0], y + ahead * forward[1] + aside * right[1])
            window[i, j] = content.get(place, WALL)
    window[size // 2, size - 1] = carried
    visible = what_is_visible(window, size)
    return [[window[i, j] if (i, j) in visible else UNSEEN for j in range(size)] for i in range(size)]


def random_board(rng, walls):
    """(128,) codes: walls around, anything but agents within, with a share of walls."""
    inner = np.array([*range(c.WALL, c.AGENT)], np.uint8)
    board = rng.choice(inner, size=(16, 8))
    board[rng.random((16, 8)) > walls] = c.EMPTY
    board[[0, 15], :] = c.WALL
    board[:, [0, 7]] = c.WALL
    return board.reshape(-1)


def random_states(w, rng, walls):
    """Fill every game: agent 0 takes every pose in turn, the others stand on cells of their own."""
    s, agents = w.state, w.spec.num_agents
    for g in range(w.num_games):
        s.cells[g] = random_board(rng, walls)
        cell, heading = POSES[g]
        others = rng.permutation([other for other in INNER if other != cell])
        s.position[g] = [cell, *others[: agents - 1]]
        s.heading[g] = [heading, *rng.integers(0, 4, agents - 1)]
    s.shown[:] = rng.choice([c.EMPTY, *range(c.KEY, c.AGENT)], size=s.shown.shape)
    s.out[:] = rng.random(s.out.shape) < 0.25


def expected_tokens(w, g, a):
    """View of agent ``a`` of game ``g`` by the slow way."""
    s = w.state
    cells = {divmod(k, 8): tuple(c.CELL[code].tolist()) for k, code in enumerate(s.cells[g])}
    agents = [
        (
            *divmod(int(s.position[g, k]), 8),
            int(s.heading[g, k]),
            TEAM_COLOUR[seat[:-2]],
            bool(s.out[g, k]),
            tuple(c.CELL[s.shown[g, k]].tolist()),
        )
        for k, seat in enumerate(w.spec.seats)
    ]
    return np.array(expected_view(cells, agents, a, w.spec.view_size), np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("blue", "red", "walls"), [(0, 1, 0.4), (1, 1, 0.25), (1, 1, 0.9), (2, 2, 0.4)])
def test_views_from_every_pose_of_random_boards(size, blue, red, walls):
    rng = np.random.default_rng([size, blue, red, int(walls * 100)])
    w = World(spec("classic", blue=blue, red=red, view_size=size), len(POSES))
    random_states(w, rng, walls)
    before = w.state.cells.copy()
    tokens = w.observe()
    views = c.decode(tokens[..., : size * size]).reshape(len(POSES), blue + red, size, size, 3)
    for g in range(len(POSES)):
        for a in range(blue + red):
            assert np.array_equal(views[g, a], expected_tokens(w, g, a)), f"game {g} agent {a}"
    assert np.array_equal(tokens[..., size * size], w.state.heading)
    assert np.array_equal(w.state.cells, before)  # agents are drawn in and taken out again


@pytest.mark.parametrize("rules", [Rules(), Rules.classic()], ids=["fair", "classic"])
@pytest.mark.parametrize(
    ("name", "seen"), [("single", False), ("single-obstacle", False), ("single-obstacle-v3", True)]
)
def test_a_hidden_mission_reaches_no_reader(name, seen, rules):
    """At the start, in play and at the end, in tokens and in the number that faces show."""
    scenario = replace(load_scenario(name).spec, rules=rules, max_steps=40)
    assert scenario.mission_observed == seen
    w, rng = World(scenario, 64, seed=0), np.random.default_rng(0)
    w.state.mission[:], w.state.mission_value[:] = 3, 3
    columns, numbers = [w.observe()[..., -1].copy()], [w.outputs.obs_mission.copy()]
    for _ in range(90):
        step = w.step(rng.choice([0, 1, 2, 2, 2, 3, 4, 5], size=(64, 1)).astype(np.int8))
        columns += [step.tokens[..., -1].copy(), step.final_tokens[..., -1].copy()]
        numbers.append(step.obs_mission.copy())
    assert bool(np.any(columns)) == seen
    assert bool(np.any(numbers)) == seen


# --- our numbers equal the `multigrid` package


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


@pytest.mark.parametrize(
    "triple", [(3, 0, 0), (1, 1, 0), (4, 1, 2), (5, 0, 0), (10, 0, 4), (0, 64, 0), (0, 63, 64), (255, 255, 255)]
)
def test_encode_rejects_unknown_triples(triple):
    triples = c.decode(np.arange(23, dtype=np.uint8))
    triples[7] = triple
    with pytest.raises(ValueError, match=re.escape(f"got {triple}")):
        c.encode(triples)


# --- turned by half a circle and with the colours swapped, the game is the same game


GAMES, STEPS = 64, 150


def test_codes_change_only_colour_and_heading():
    by_hand = {
        **{code: code for code in (c.UNSEEN, c.EMPTY, c.WALL)},
        **{c.DOOR_LOCKED: c.DOOR_LOCKED + 1, c.DOOR_CLOSED: c.DOOR_CLOSED + 1, c.DOOR_OPEN: c.DOOR_OPEN + 1},
        **{c.KEY: c.KEY + 2, c.KEY + 1: c.KEY + 3, c.BALL: c.BALL + 1},
        **{c.AGENT + heading: c.AGENT + 4 + (heading + 2) % 4 for heading in range(4)},
    }
    both_ways = {**by_hand, **{after: before for before, after in by_hand.items()}}
    assert dict(enumerate(SWAPPED.tolist())) == both_ways
    assert len(both_ways) == c.NUM_CODES


@pytest.mark.parametrize(("seat", "other"), [("red_0", "blue_0"), ("blue_3", "red_3"), ("red", "blue")])
def test_other_seat_is_inverse_of_itself(seat, other):
    assert (other_seat(seat), other_seat(other)) == (other, seat)


def mirrored_state(world: World) -> World:
    """A world of the same games with the board turned and the teams swapped, built cell by cell."""
    spec, agents = world.spec, world.spec.num_agents
    twin = World(spec, world.num_games, seed=99, auto_reset=False)
    place = [spec.seats.index(other_seat(seat)) for seat in spec.seats]
    s, t = world.state, twin.state
    for x in range(c.WIDTH):
        for y in range(c.HEIGHT):
            t.cells[:, c.cell_index(15 - x, 7 - y)] = SWAPPED[s.cells[:, c.cell_index(x, y)]]
    for a in range(agents):
        x, y = np.divmod(s.position[:, a], c.HEIGHT)
        t.position[:, place[a]] = (15 - x) * c.HEIGHT + (7 - y)
        t.heading[:, place[a]] = (s.heading[:, a] + 2) % 4
        t.hand[:, place[a]], t.shown[:, place[a]] = SWAPPED[s.hand[:, a]], SWAPPED[s.shown[:, a]]
        for part in ("out", "ready", "mission", "mission_value"):
            getattr(t, part)[:, place[a]] = getattr(s, part)[:, a]
    t.ball_factor[:] = s.ball_factor[:, ::-1]
    t.clock[:], t.over[:] = s.clock, s.over
    twin.observe()
    return twin


@pytest.mark.parametrize("rules", [Rules(), Rules.classic()], ids=["fair", "classic"])
@pytest.mark.parametrize(
    ("team", "obstacle", "random_keys"), [(1, False, True), (1, True, False), (2, True, True), (2, False, False)]
)
def test_game_with_swapped_teams_on_turned_board_is_mirrored(team, obstacle, random_keys, rules):
    spec = GameSpec(blue=team, red=team, obstacle=obstacle, random_keys=random_keys, max_steps=STEPS, rules=rules)
    world = World(spec, GAMES, seed=5, auto_reset=False)
    twin = mirrored_state(world)
    place = [spec.seats.index(other_seat(seat)) for seat in spec.seats]
    rng = np.random.default_rng(2)
    happened = np.zeros(c.NUM_EVENTS)
    for _ in range(STEPS):
        # Actions of use are drawn more often than turns in place, or hardly anything would happen.
        actions = rng.choice(7, (GAMES, spec.num_agents), p=[0.15, 0.15, 0.3, 0.15, 0.05, 0.15, 0.05]).astype(np.int8)
        order = rng.permuted(np.tile(np.arange(spec.num_agents, dtype=np.int8), (GAMES, 1)), axis=1)
        step = world.step(actions, order)
        turned = twin.step(np.ascontiguousarray(actions[:, place]), np.array(place, np.int8)[order])
        for a, b in enumerate(place):
            # But for the eliminated: their side rooms' cells, (2, 2) and (13, 2), are no images of each other.
            inside = world.state.out[:, a] == 0
            np.testing.assert_array_equal(other_side(step.tokens[inside, a]), turned.tokens[inside, b])
            np.testing.assert_array_equal(step.reward[:, a], turned.reward[:, b])
            np.testing.assert_array_equal(step.events[:, a], turned.events[:, b])
            np.testing.assert_array_equal(step.terminated[:, a], turned.terminated[:, b])
        np.testing.assert_array_equal(np.where(step.winner < 0, -1, 1 - step.winner), turned.winner)
        happened += step.events.any(axis=(0, 1))
    needed = {"key_pickup", "invalid_pickup", "eliminated_opponents", "got_eliminated", "success", "elimination_win"}
    assert needed <= {name for name, count in zip(c.EVENTS, happened, strict=True) if count}


def test_start_with_fixed_keys_is_symmetric():
    world = World(GameSpec(blue=2, red=2, obstacle=True, random_keys=False), 1, seed=1)
    twin = mirrored_state(world)
    np.testing.assert_array_equal(twin.state.cells, world.state.cells)
    np.testing.assert_array_equal(twin.state.position, world.state.position)
    np.testing.assert_array_equal(twin.outputs.tokens, world.outputs.tokens)


@pytest.mark.parametrize("members", [1, 2])
def test_mirrored_player_plays_as_on_own_side(members):
    spec = GameSpec(blue=members, red=members, random_keys=True)
    net = build({"name": "mlp", "hidden": [8], "activation": "tanh"}, token_categories(spec) * members, 7 * members, 1)
    with torch.no_grad():
        net.policy[-1].weight.mul_(200)
    world = World(spec, GAMES, seed=3)
    blue = world.outputs.tokens[:, :members].reshape(GAMES, -1)
    own = FrozenPlayer("own", net, "", members=members)
    away = FrozenPlayer("away", net, "", members=members, mirrored=True)

    def chosen(player, tokens):
        streams = Streams(4, np.arange(GAMES, dtype=np.int64))
        return player.act(SeatView(tokens, None, 0), player.initial_state(GAMES), streams)[0]

    actions = chosen(own, blue)
    assert actions.shape == ((GAMES,) if members == 1 else (GAMES, members))
    assert len(np.unique(actions)) > 2
    np.testing.assert_array_equal(chosen(away, other_side(blue, members)), actions)
    assert (chosen(own, other_side(blue, members)) != actions).any()
