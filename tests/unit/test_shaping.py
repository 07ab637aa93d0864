"""Training rewards as weights on events, and the event that only they use."""

from pathlib import Path

import numpy as np
import pytest

import games as g
from games import place, play, put, world
from multigrid_rl.cli.train import run_training
from multigrid_rl.players.factories import MatchFactory, match_of
from multigrid_rl.players.scripted import RandomPlayer
from multigrid_rl.text import ConfigError
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.events import EventBonus, check_reward

DUEL = GameSpec()


# --- weights


def events_of(**output: tuple[float, float]) -> np.ndarray:
    """One game's events by name: (blue_0, red_0)."""
    events = np.zeros((1, 2, c.NUM_EVENTS), np.float32)
    for name, values in output.items():
        events[0, :, c.EVENTS.index(name)] = values
    return events


def shaped(weights, canonical=(0.0, 0.0), **events) -> list[float]:
    return EventBonus(DUEL, weights)(events_of(**events), np.array([canonical]))[0].tolist()


def test_all_weights_add_to_canonical_reward_of_every_seat():
    weights = {"all": {"key_pickup": 2.0, "invalid_pickup": -0.5}}
    assert shaped(weights, (0.5, -0.001), key_pickup=(1, 0), invalid_pickup=(0, 1)) == [2.5, -0.501]
    assert shaped({}, (0.25, -1.0), key_pickup=(1, 1)) == [0.25, -1.0]


def test_seat_entry_replaces_single_weights_of_all():
    weights = {"all": {"key_pickup": 2.0, "success": 3.0}, "red_0": {"key_pickup": -1.0, "door_open": 0.25}}
    values = {"key_pickup": (1, 1), "success": (0.5, 0.5), "door_open": (1, 1)}
    assert shaped(weights, **values) == [2 + 1.5, -1 + 1.5 + 0.25]


def test_step_cost_is_constant_and_door_ready_is_revoked():
    assert shaped({"all": {"step": -0.01}, "red_0": {"step": -0.5}}) == [-0.01, -0.5]
    assert shaped({"all": {"door_ready": 2.0}}, door_ready=(1, -1)) == [2, -2]


def test_events_of_games_and_seats_do_not_mix():
    spec = GameSpec(blue=2, red=2)
    rng = np.random.default_rng(1)
    events = rng.integers(-8, 8, (5, 4, c.NUM_EVENTS)).astype(np.float32)
    canonical = rng.normal(size=(5, 4))
    found = EventBonus(spec, {"red_1": {"ball_pay": 3.0}, "blue_0": {"success": -2.0}})(events, canonical)
    wanted = canonical.copy()
    wanted[:, 3] += 3.0 * events[:, 3, c.EV_BALL]
    wanted[:, 0] -= 2.0 * events[:, 0, c.EV_SUCCESS]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_mates_pays_what_the_others_of_the_team_earn():
    canonical = np.array([[0.5, -1.0, 0.25, 2.0]])  # blue_0, blue_1, red_0, red_1
    spec, events = GameSpec(blue=2, red=2), np.zeros((1, 4, c.NUM_EVENTS), np.float32)
    assert EventBonus(spec, {"red_1": {"mates": 1.0}})(events, canonical).tolist() == [[0.5, -1.0, 0.25, 2.25]]
    common = EventBonus(spec, {"all": {"mates": 1.0}})(events, canonical)
    assert common.tolist() == [[-0.5, -0.5, 2.25, 2.25]]  # a reward in common
    assert EventBonus(DUEL, {"all": {"mates": 1.0}})(events[:, :2], canonical[:, :2]).tolist() == [[0.5, -1.0]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"red_1": {}}, r"^train\.bonus: expected seats all, blue_0, red_0, got red_1 \(did you mean red_0\?\)$"),
        (
            {"red_0": {"key_pick": 1.5}},
            r"^train\.bonus\.red_0: expected events .* got key_pick \(did you mean key_pickup\?",
        ),
        ({"all": {"zzz": 1.0}}, r"^train\.bonus\.all: expected events .*door_ready, step, mates, got zzz$"),
    ],
)
def test_rejects_unknown_seats_and_events(weights, message):
    with pytest.raises(ValueError, match=message) as caught:
        EventBonus(DUEL, weights)
    assert "\n" not in str(caught.value)


def test_bonuses_add_to_shaping_function(tmp_path, monkeypatch):
    (tmp_path / "doubled.py").write_text("def twice(events, reward):\n    return 2 * reward\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"shaping": "doubled:twice", "bonus": {"all": {"key_pickup": 0.25}}}
    both = MatchFactory(DUEL, {}, tmp_path, {}, seed=1, **settings).training_reward()
    assert both(events_of(key_pickup=(0, 1)), np.array([[-1.0, 0.5]])).tolist() == [[-2.0, 1.25]]
    assert MatchFactory(DUEL, {}, tmp_path, {}, seed=1).training_reward() is None


OWN = """
import numpy as np
def good(events, reward):
    return reward + events[..., 0]
def whole(events, reward):
    return reward.astype(int)
def flat(events, reward):
    return reward.sum(axis=1)
def text(events, reward):
    return reward.astype(str)
def endless(events, reward):
    return reward / 0 * np.nan
def inside(events, reward):
    reward += 1
    return reward
def absent(events, reward):
    return events[..., nothing]
def listed(events, reward):
    return reward.tolist()
"""


@pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flat", r"expected numbers of shape \(3, 2\), \(games, agents\), as an array, got float64 \(3,\)"),
        ("text", r"expected numbers of shape .* got <U\d+ \(3, 2\)"),
        ("listed", "expected numbers of shape .* got list"),
        ("endless", r"expected finite numbers, got \[\[nan"),
        ("inside", ".* got a change in place"),
        ("absent", r"NameError: name 'nothing' is not defined \(own_rewards.py:17\)"),
    ],
)
def test_own_reward_is_tried_before_a_run(tmp_path, monkeypatch, name, said):
    (tmp_path / "own_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for right in ("good", "whole"):
        check_reward(f"own_rewards:{right}", 2)
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=f"^train.shaping=own_rewards:{name}: {said}"):
        run_training(["scenario=1v1", f"train.shaping=own_rewards:{name}", f"run_dir={run}"])
    assert not run.exists()


def test_canonical_returns_and_games_never_change():
    spec = GameSpec(max_steps=60)
    bonus = EventBonus(spec, {"all": {**dict.fromkeys(c.EVENTS, 3.0), "step": -1.0}})
    plain, bent = (match_of(spec, {"blue_0": RandomPlayer()}, 20, seed=1) for _ in range(2))
    bent.env.shaping = bonus
    rng, differ = np.random.default_rng(4), 0
    for _ in range(200):
        row = rng.integers(0, 7, 20)
        canonical, training = plain.step({"red_0": row}), bent.step({"red_0": row})
        np.testing.assert_array_equal(canonical.observations["red_0"], training.observations["red_0"])
        np.testing.assert_array_equal(canonical.done, training.done)
        differ += int((canonical.rewards["red_0"] != training.rewards["red_0"]).sum())
    assert differ == 20 * 200
    table = plain.drain_episodes()
    assert table.episodes > 20
    np.testing.assert_equal(table, bent.drain_episodes())


def test_steps_of_eliminated_agents_do_not_count():
    spec = GameSpec(blue=2, red=2, random_keys=False, max_steps=40)
    opponents = {"blue_0": {"hunter": 1.0}, "blue_1": {"hunter": 1.0}}
    bonus = {"all": {"step": -1.0}}
    team, apart = (
        MatchFactory(spec, opponents, Path("nowhere"), {}, seed=2, scheme=scheme, bonus=bonus).build(16, 0)
        for scheme in ("ctce", "dtde")
    )
    rng, alone = np.random.default_rng(1), 0
    for _ in range(150):
        row = rng.integers(0, 7, (16, 2))
        together, single = team.step({"red": row}), apart.step({"red_0": row[:, :1], "red_1": row[:, 1:]})
        canonical = apart.env.env.world.outputs.reward[:, 2:]
        acted = together.mask["red"]
        np.testing.assert_allclose(together.rewards["red"], (canonical - acted).sum(axis=1), atol=1e-12)
        for k, seat in enumerate(("red_0", "red_1")):
            np.testing.assert_allclose(single.rewards[seat], canonical[:, k] - acted[:, k], atol=1e-12)
        alone += int((acted.sum(axis=1) == 1).sum())
    assert alone > 10


# --- door_ready


def ready(w, seat: str = "red_0", **actions: int) -> float:
    """What door_ready says of ``seat`` in one step."""
    play(w, **actions)
    return float(w.outputs.events[0, w.spec.seats.index(seat), c.EV_READY])


def coop(**changes):
    """Two reds, no ball yet; red_0 stands before its key at (7, 4), red_1 before the cell in front of the door."""
    w = world("fair", blue=0, red=2, **changes)
    place(w, "red_0", 7, 5, g.NORTH)
    place(w, "red_1", 5, 5, g.SOUTH)
    return w


def test_key_with_clear_door_is_ready_until_dropped():
    w = coop()
    assert ready(w, red_0=c.DONE) == 0
    assert ready(w, red_0=c.PICKUP) == 1
    assert ready(w, red_0=c.LEFT) == 0  # told once, when it comes to be so
    assert ready(w, red_0=c.DROP) == -1
    assert ready(w, red_0=c.PICKUP) == 1  # also with a key that was used before


def test_eliminated_carrier_loses_readiness_and_winner_keeps_it():
    w = world("fair", blue=1, red=2, death_match=True)
    place(w, "red_0", 7, 5, g.NORTH)
    place(w, "blue_0", 6, 5, g.EAST)
    assert ready(w, red_0=c.PICKUP) == 1
    assert ready(w, blue_0=c.TOGGLE) == -1
    assert ready(w, red_1=c.LEFT) == 0
    w = coop()
    place(w, "red_1", 9, 5, g.SOUTH)
    assert ready(w, red_0=c.PICKUP) == 1
    place(w, "red_0", *g.RED_FRONT, g.WEST, c.KEY + 1)
    assert ready(w, red_0=c.TOGGLE) == 0
    assert w.state.over[0]


def test_ball_before_door_prevents_readiness():
    w = coop()
    put(w, g.RED_FRONT, g.BLUE_BALL)
    assert ready(w, red_0=c.PICKUP) == 0
    assert ready(w, red_1=c.PICKUP) == 1  # the mate clears the way: red_0 becomes ready, who does nothing
    assert ready(w, "red_1", red_0=c.DONE) == 0
    assert ready(w, red_1=c.DROP) == -1  # the ball is put back
    assert ready(w, red_1=c.PICKUP) == 1


def test_each_team_has_own_key_and_door():
    w = world("fair", blue=1, red=1)
    place(w, "blue_0", 8, 2, g.SOUTH)  # its key is at (8, 3)
    place(w, "red_0", 7, 5, g.NORTH)
    put(w, g.RED_FRONT, g.BLUE_BALL)
    put(w, (10, 1), c.EMPTY)
    play(w, blue_0=c.PICKUP, red_0=c.PICKUP)
    assert w.outputs.events[0, :, c.EV_READY].tolist() == [1, 0]
    place(w, "blue_0", 8, 2, g.SOUTH, hand=g.RED_BALL)
    place(w, "red_0", 7, 5, g.NORTH, hand=g.BLUE_BALL)
    put(w, g.RED_FRONT, c.EMPTY)
    play(w)
    assert w.outputs.events[0, :, c.EV_READY].tolist() == [-1, 0]  # a ball in the hand is no key


def test_new_game_starts_unready():
    w = coop()
    assert ready(w, red_0=c.PICKUP) == 1
    w.reset()
    assert ready(w, red_0=c.DONE) == 0
    place(w, "red_0", 7, 5, g.NORTH, hand=g.RED_KEY)
    assert ready(w, red_0=c.DONE) == 1
