"""Captions: what agents do, in words that say what came of it."""

from __future__ import annotations

import numpy as np
import pytest

from games import (
    BLUE_BALL,
    BLUE_KEY_USED,
    EAST,
    NORTH,
    RED_FRONT,
    RED_KEY,
    RED_KEY_USED,
    WEST,
    clear,
    place,
    put,
    world,
)
from multigrid_rl.show.captions import ACTION_WORDS, Commentator
from multigrid_rl.world import constants as c


class Captioned:
    """A game set up by hand, with its commentator."""

    def __init__(self, **settings) -> None:
        self.world = world("fair", **settings)
        clear(self.world)

    def begin(self) -> None:
        self.world.observe()
        self.speaker = Commentator(self.world, {seat: f"p-{seat}" for seat in self.world.spec.seats})

    def play(self, **actions: int):
        row = np.array([[actions.get(seat, c.DONE) for seat in self.world.spec.seats]], np.int8)
        return self.speaker.step(self.world.step(row), row[0])

    def words(self, seat: str = "red_0", **actions: int) -> str:
        return next(line.words for line in self.play(**actions).agents if line.seat == seat)


@pytest.fixture
def alone() -> Captioned:
    """Red on (8, 3), heading west, nothing on the board."""
    game = Captioned(blue=0)
    place(game.world, "red_0", 8, 3, WEST)
    return game


def test_start_names_players(alone):
    alone.begin()
    caption = alone.speaker.start()
    assert (caption.step, caption.result) == (0, "")
    assert [(line.seat, line.player, line.words, line.total) for line in caption.agents] == [
        ("red_0", "p-red_0", "", 0.0)
    ]


def test_walking_and_turning(alone):
    place(alone.world, "red_0", 6, 3, WEST)
    alone.begin()
    assert alone.words(red_0=c.FORWARD) == "forward"
    assert alone.words(red_0=c.FORWARD) == "forward, blocked"
    assert alone.words(red_0=c.LEFT) == "turn left"
    assert alone.words(red_0=c.RIGHT) == "turn right"
    assert alone.words(red_0=c.DONE) == "wait"
    assert alone.words(red_0=c.TOGGLE) == "toggle"
    assert len(ACTION_WORDS) == len(set(ACTION_WORDS)) == len(c.ACTIONS)


def test_key_pickup_and_drop(alone):
    put(alone.world, (7, 3), RED_KEY)
    alone.begin()
    assert alone.words(red_0=c.DROP) == "drop, holds nothing"
    caption = alone.play(red_0=c.PICKUP)
    assert caption.agents[0].words == "pick up, picks up its key"
    assert caption.agents[0].total == pytest.approx(0.5)
    assert alone.words(red_0=c.PICKUP) == "pick up, has its hands full"
    assert alone.words(red_0=c.DROP) == "drop, puts its key down"
    assert alone.words(red_0=c.PICKUP) == "pick up, picks up its key"
    put(alone.world, (7, 3), BLUE_BALL)
    assert alone.words(red_0=c.DROP) == "drop, finds no room"


def test_pickup_of_nothing(alone):
    alone.begin()
    caption = alone.play(red_0=c.PICKUP)
    assert caption.agents[0].words == "pick up, finds nothing to take"
    assert caption.agents[0].total == pytest.approx(-0.001)


def test_ball_pays_again():
    game = Captioned(blue=0, obstacle=True)
    put(game.world, RED_FRONT, BLUE_BALL)
    place(game.world, "red_0", 6, 6, WEST)
    game.begin()
    assert game.words(red_0=c.PICKUP) == "pick up, picks up the ball"
    assert game.words(red_0=c.PICKUP) == "pick up, is rewarded for the ball again"


def test_door_win():
    game = Captioned()
    place(game.world, "red_0", *RED_FRONT, WEST, RED_KEY_USED)
    game.begin()
    caption = game.play(red_0=c.TOGGLE)
    assert caption.agents[1].words == "toggle, opens its door, wins"
    assert caption.result == "red wins through its door after 1 step"
    assert not any(line.out for line in caption.agents)


def test_elimination_names_victim():
    game = Captioned()
    place(game.world, "blue_0", 7, 3, EAST, BLUE_KEY_USED)
    place(game.world, "red_0", 8, 3, NORTH)
    game.begin()
    caption = game.play(blue_0=c.TOGGLE)
    assert [line.words for line in caption.agents] == ["toggle, eliminates red_0, wins", "wait, is eliminated"]
    assert [line.out for line in caption.agents] == [False, True]
    assert caption.result == "blue wins by elimination after 1 step"


def test_eliminated_agent_while_mates_play_on():
    game = Captioned(blue=1, red=2)
    place(game.world, "blue_0", 7, 3, EAST)
    place(game.world, "red_0", 8, 3, NORTH)
    place(game.world, "red_1", 10, 5, NORTH)
    game.begin()
    caption = game.play(blue_0=c.TOGGLE)
    assert caption.result == ""
    assert [line.out for line in caption.agents] == [False, True, False]
    caption = game.play(red_0=c.FORWARD)
    assert [line.words for line in caption.agents] == ["wait", "out of the game", "wait"]
    assert caption.agents[1].total == pytest.approx(-1.0)


def test_draw_at_last_step():
    game = Captioned(max_steps=2)
    game.begin()
    assert game.play().result == ""
    caption = game.play()
    assert (caption.step, caption.result) == (2, "nobody wins in 2 steps")
