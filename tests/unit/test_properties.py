"""What holds in every game of every specification, whatever the players do."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from games import spec
from games import spec as make_spec
from multigrid_rl.streams import Streams, below, seeded
from multigrid_rl.types import GameSpec, RewardWeights, Rules
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World

few = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

RULES = st.builds(
    Rules,
    door_test=st.sampled_from(["own", "any"]),
    order=st.sampled_from(["random", "given"]),
    after_success=st.sampled_from(["stop", "continue"]),
    eliminated=st.sampled_from(["out", "linger"]),
    mission_view=st.sampled_from(["current", "lagged"]),
    key_cells=st.sampled_from(["not_before_doors", "any"]),
    final_view=st.sampled_from(["after_results", "before_results"]),
)
WEIGHTS = st.builds(
    RewardWeights,
    key_pickup=st.floats(0, 2),
    ball_pickup=st.floats(0, 2),
    ball_discount=st.floats(0.1, 1),
    invalid_pickup=st.floats(-0.1, 0),
    success=st.floats(0, 3),
    eliminated_opponent=st.floats(0, 2),
    got_eliminated=st.floats(-2, 0),
)


USUAL = st.just(RewardWeights())


@st.composite
def specs(draw, rules=RULES, reward=USUAL):
    """Any game; the registered numbers of agents and more."""
    return GameSpec(
        blue=draw(st.integers(0, 3)),
        red=draw(st.integers(1, 3)),
        obstacle=draw(st.booleans()),
        random_keys=draw(st.booleans()),
        death_match=draw(st.booleans()),
        max_steps=draw(st.sampled_from([1, 40, 150, 300])),
        view_size=draw(st.sampled_from([3, 5, 7])),
        rules=draw(rules),
        reward=draw(reward),
    )


SEEDS = st.integers(0, 2**32 - 1)
GAMES, STEPS = 24, 160
WALLS = c.empty_board() == c.WALL


class Crowd:
    """Random players who know the way: they pick up, toggle and drop when it matters, so that games get somewhere."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def actions(self, w: World) -> np.ndarray:
        s, agents = w.state, w.spec.num_agents
        shape = (w.num_games, agents)
        wander = self.rng.choice(np.array([0, 1, 2, 2, 2, 2, 3, 4, 5, 6], np.int8), size=shape)
        ahead = s.position.astype(np.int64) + np.array(c.STRIDE)[s.heading]
        code = np.take_along_axis(s.cells, ahead, axis=1)
        useful = np.full(shape, -1, np.int8)
        useful[(code >= c.KEY) & (code < c.AGENT) & (s.hand == c.EMPTY)] = c.PICKUP
        useful[(code >= c.DOOR_LOCKED) & (code < c.KEY)] = c.TOGGLE
        useful[(code >= c.DOOR_OPEN) & (code < c.KEY) & (self.rng.random(shape) < 0.7)] = c.FORWARD
        for a in range(agents):
            for b in range(agents):
                if w.flags.team[a] != w.flags.team[b]:
                    useful[ahead[:, a] == s.position[:, b], a] = c.TOGGLE
        take = (useful >= 0) & (self.rng.random(shape) < 0.7)
        return np.where(take, useful, wander).astype(np.int8)


def play_out(w: World, seed: int, steps: int = STEPS):
    """Yield the steps of a crowd's play.

    Now and then a door stands open, as one does whose opener is eliminated: too rare to wait for.
    """
    crowd = Crowd(seed)
    for _ in range(steps):
        for cell in c.DOOR_CELL:
            ajar = (crowd.rng.random(w.num_games) < 0.03) & (w.state.cells[:, cell] < c.DOOR_CLOSED)
            w.state.cells[ajar, cell] += c.DOOR_OPEN - c.DOOR_LOCKED
        yield w.step(crowd.actions(w))


#: Each code's worth as one digit of a number in base 1000: red key, blue key, red ball, blue ball.
DIGIT = np.zeros(c.NUM_CODES, np.int64)
DIGIT[[c.KEY, c.KEY + 1]] = 1
DIGIT[[c.KEY + 2, c.KEY + 3]] = 1000
DIGIT[c.BALL] = 1000**2
DIGIT[c.BALL + 1] = 1000**3


def _keys_balls_and_doors_are_conserved(w: World, _) -> None:
    red_ball = w.spec.obstacle and w.spec.blue > 0
    start = 1 + 1000 * (w.spec.blue > 0) + 1000**2 * red_ball + 1000**3 * w.spec.obstacle
    assert (DIGIT[w.state.cells].sum(axis=1) + DIGIT[w.state.hand].sum(axis=1) == start).all()
    doors = w.state.cells[:, c.DOOR_CELL]
    assert ((doors - c.DOOR_LOCKED) % 2 == [c.RED, c.BLUE]).all()
    assert ((doors >= c.DOOR_LOCKED) & (doors < c.KEY)).all()
    assert (w.state.cells[:, WALLS] == c.WALL).all()


def _living_agents_have_a_walkable_cell_each_and_the_out_are_in_the_side_room(w: World, _) -> None:
    s = w.state
    living = s.out == 0
    under = np.take_along_axis(s.cells, s.position.astype(np.int64), axis=1)
    on_door = np.isin(s.position, c.DOOR_CELL)  # a door may swing shut on an agent in it
    assert (under[living & ~on_door] == c.EMPTY).all()
    assert (s.position == np.array(c.SIDE_ROOM)[w.flags.team])[~living].all()
    cells = np.where(living, s.position.astype(np.int64), 1000 + np.arange(w.spec.num_agents))
    assert (np.diff(np.sort(cells, axis=1), axis=1) > 0).all()


def _tokens_flags_and_winners_stay_in_range(w: World, step) -> None:
    spec, area = w.spec, w.spec.view_size**2
    assert step.tokens.shape == (GAMES, spec.num_agents, spec.num_tokens)
    assert (step.tokens[..., :area] < c.NUM_CODES).all()
    assert (step.tokens[..., area:] < 4).all()
    assert ((w.state.clock >= 0) & (w.state.clock < spec.max_steps)).all()
    assert np.isin(step.winner, [-1, c.RED, c.BLUE] if spec.blue else [-1, c.RED]).all()
    assert (step.done == (step.truncated | (step.winner >= 0))).all()
    assert (step.terminated.all(axis=1) >= (step.winner >= 0)).all()
    assert not step.truncated[~step.done].any()
    if spec.rules.eliminated == "linger":
        assert (step.terminated.any(axis=1) == (step.winner >= 0)).all()


def _reward_is_the_weighted_sum_of_events_but_for_winners(w: World, step) -> None:
    r = w.spec.reward
    weights = [r.key_pickup, r.ball_pickup, r.invalid_pickup, r.eliminated_opponent, r.got_eliminated]
    columns = [c.EV_KEY, c.EV_BALL, c.EV_INVALID, c.EV_ELIMINATED, c.EV_VICTIM]
    others = step.events[..., c.EV_SUCCESS] == 0  # a success takes the place of what was earned before it
    expected = step.events[..., columns].astype(np.float64) @ np.array(weights)
    np.testing.assert_allclose(step.reward[others], expected[others], rtol=1e-6, atol=1e-6)


@few
@given(specs(reward=WEIGHTS), SEEDS)
def test_invariants_hold_after_every_step(spec, seed):
    w = World(spec, GAMES, seed=seed)
    for step in play_out(w, seed):
        _keys_balls_and_doors_are_conserved(w, step)
        _living_agents_have_a_walkable_cell_each_and_the_out_are_in_the_side_room(w, step)
        _tokens_flags_and_winners_stay_in_range(w, step)
        _reward_is_the_weighted_sum_of_events_but_for_winners(w, step)


@few
@given(specs(), SEEDS)
def test_finished_game_stays_finished_without_auto_reset(spec, seed):
    w = World(spec, GAMES, seed=seed, auto_reset=False)
    ended = np.zeros(GAMES, int)
    for step in play_out(w, seed, steps=spec.max_steps):
        ended += step.done
    assert (ended == 1).all()
    assert w.state.over.all()
    before = w.state._make(field.copy() for field in w.state), w.outputs.tokens.copy()
    step = w.step(Crowd(seed + 1).actions(w))
    assert not step.reward.any()
    assert not step.events.any()
    assert not step.done.any()
    assert not step.acted.any()
    np.testing.assert_equal((w.state, step.tokens), before)


@few
@given(specs(), SEEDS, st.integers(1, 6))
def test_batch_size_does_not_matter(spec, seed, split):
    whole = World(spec, 7, seed=seed)
    parts = [World(spec, split, seed=seed), World(spec, 7 - split, seed=seed, first_game=split)]
    crowd = Crowd(seed)
    for _ in range(60):
        actions = crowd.actions(whole)
        together = whole.step(actions)
        halves = [parts[0].step(actions[:split].copy()), parts[1].step(actions[split:].copy())]
        joined = type(together)(*(np.concatenate(fields) for fields in zip(*halves, strict=True)))
        np.testing.assert_equal(together._replace(final_tokens=0), joined._replace(final_tokens=0))


@few
@given(specs(rules=st.sampled_from([Rules.classic(), Rules()])), SEEDS)
def test_returns_and_events_are_bounded(spec, seed):
    w = World(spec, GAMES, seed=seed)
    rivals = np.where(w.flags.team == c.BLUE, spec.red, spec.blue)
    totals = np.zeros((GAMES, spec.num_agents))
    ready = np.zeros((GAMES, spec.num_agents))
    for step in play_out(w, seed):
        assert np.isfinite(step.reward).all()
        totals += step.reward
        best = 0.5 + 1.508694 * spec.obstacle + 1 + 0.5 * rivals
        if spec.rules.eliminated == "out":
            assert (totals <= best + 1e-9).all()
            assert (totals >= -1 - 0.001 * spec.max_steps - 1e-9).all()
            assert (step.events[..., c.EV_VICTIM] <= 1).all()
        ready += step.events[..., c.EV_READY]
        assert np.isin(ready, [0, 1]).all()  # the one event that is taken back when it ends
        assert (np.delete(step.events, c.EV_READY, axis=2) >= 0).all()
        assert (step.events[..., [c.EV_KEY, c.EV_INVALID, c.EV_DOOR]] <= 1).all()
        assert (step.events[..., c.EV_SUCCESS] <= 1).all()
        totals[step.done] = ready[step.done] = 0


@few
@given(specs(), SEEDS)
def test_auto_reset_gives_final_observation_then_new_game(spec, seed):
    w = World(spec, GAMES, seed=seed)
    twin = World(spec, GAMES, seed=seed, auto_reset=False)
    crowd = Crowd(seed)
    for _ in range(STEPS):
        actions = crowd.actions(w)
        step, other = w.step(actions), twin.step(actions)
        done = step.done.copy()
        assert np.array_equal(done, other.done)
        assert np.array_equal(step.final_tokens[done], other.tokens[done])
        if done.any():
            assert np.array_equal(w.state.clock == 0, done)
            twin.reset(which=done)
        assert np.array_equal(step.tokens, twin.outputs.tokens)
        assert np.array_equal(w.state.stream, twin.state.stream)


def test_random_play_reaches_all_events():
    """Without wins, eliminations, paid balls and doors left open the tests above would prove little."""
    w = World(make_spec("fair", blue=2, red=2, obstacle=True, random_keys=True), 64, seed=1)
    seen = np.zeros(c.NUM_EVENTS)
    in_doorways = in_side_rooms = 0
    for step in play_out(w, 1, steps=600):
        seen += step.events.sum(axis=(0, 1))
        living = w.state.out == 0
        in_doorways += int((living & np.isin(w.state.position, c.DOOR_CELL)).sum())
        x = w.state.position // c.HEIGHT
        in_side_rooms += int((living & ((x < 4) | (x > 11))).sum())
    assert (seen > 0).all(), dict(zip(c.EVENTS, seen, strict=True))
    assert min(in_doorways, in_side_rooms) > 100


# --- what ``World`` rejects, by key and value, and its random streams


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


# --- random streams: one for each game, decided by seed, game number and purpose alone


SPEC = spec("fair", blue=1, red=1, random_keys=True, obstacle=True, max_steps=25)


def test_accepts_large_and_distant_game_numbers_and_seeds():
    w = World(SPEC, 3, seed=2**63 + 5, first_game=10**12)
    again = World(SPEC, 1, seed=2**63 + 5, first_game=10**12 + 2)
    assert w.state.stream[2] == again.state.stream[0]


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1])
def test_any_integer_is_a_seed(seed):
    assert len(np.unique(seeded(seed, np.arange(100)))) == 100


def test_streams_of_seeds_purposes_and_games_all_differ():
    starts = [seeded(seed, np.arange(50), purpose) for seed in range(20) for purpose in range(8)]
    assert len(np.unique(np.concatenate(starts))) == 20 * 8 * 50


def test_streams_do_not_overlap_soon():
    """A stream is a counter: two streams whose counters come near each other would repeat each other's numbers."""
    numbers = [Streams(seed, np.arange(20), purpose).uniform(200) for seed in range(5) for purpose in range(3)]
    assert len(np.unique(np.concatenate(numbers))) == 15 * 20 * 200


def test_uniform_lies_in_0_1_and_is_even():
    numbers = Streams(1, np.arange(500)).uniform(400)
    assert numbers.shape == (500, 400)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    expected = numbers.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi-squared with 19 degrees of freedom
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.012
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.012


def test_uniform_continues_where_it_stopped():
    whole = Streams(3, np.arange(4)).uniform(6)
    source = Streams(3, np.arange(4))
    assert np.array_equal(np.hstack([source.uniform(2), source.uniform(4)]), whole)
    assert np.array_equal(Streams(3, np.arange(2, 3)).uniform(6), whole[2:3])


@pytest.mark.parametrize("bound", [1, 2, 3, 36, 255])
def test_below_is_even_and_in_range(bound):
    stream = seeded(bound, np.arange(1))
    draws = 200 * bound
    counts = np.bincount([below(stream, 0, bound) for _ in range(draws)], minlength=bound)
    assert len(counts) == bound
    degrees = bound - 1
    assert ((counts - 200) ** 2 / 200).sum() <= degrees + 5 * np.sqrt(2 * degrees)


def test_below_moves_only_its_own_stream():
    stream = seeded(0, np.arange(3))
    before = stream.copy()
    below(stream, 1, 10)
    assert (stream != before).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.uint64])
def test_seeds_of_numpy_are_those_of_python(kind):
    assert np.array_equal(seeded(kind(7), np.arange(3)), seeded(7, np.arange(3)))
