"""Turned by half a circle and with the colours swapped, the game is the same game."""

import numpy as np
import pytest
import torch

from multigrid_rl.models.registry import build
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.types import GameSpec, Rules, SeatView
from multigrid_rl.world import constants as c
from multigrid_rl.world.constants import SWAPPED, other_seat, other_side
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import token_categories

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


@pytest.mark.parametrize("members", [1, 2, 3])
def test_mirroring_twice_restores_view(members):
    rng = np.random.default_rng(1)
    views = [rng.integers(0, c.NUM_CODES, (50, members, 25)), rng.integers(0, 4, (50, members, 2))]
    tokens = np.concatenate(views, axis=2).astype(np.uint8).reshape(50, -1)
    turned = other_side(tokens, members)
    assert turned.shape == tokens.shape
    assert turned.dtype == np.uint8
    assert (turned != tokens).any(axis=1).all()
    np.testing.assert_array_equal(other_side(turned, members), tokens)


def test_mission_stays_and_heading_turns_for_every_member():
    tokens = np.array([[c.KEY] * 9 + [1, 3] + [c.WALL] * 9 + [2, 0]], np.uint8)
    assert other_side(tokens, 2).tolist() == [[c.KEY + 2] * 9 + [3, 3] + [c.WALL] * 9 + [0, 0]]


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
