"""Captions: what agents do, in words that say what came of it."""

import numpy as np
import pytest

import games as g
from games import clear, place, put, world
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


def test_every_action_and_what_came_of_it():
    game = Captioned(blue=0)
    place(game.world, "red_0", 8, 3, g.WEST)
    put(game.world, (7, 3), g.RED_KEY)
    game.begin()
    caption = game.speaker.start()
    assert (caption.step, caption.result) == (0, "")
    assert [tuple(line) for line in caption.agents] == [("red_0", "p-red_0", "", 0.0, False)]
    for action, words, total in (
        (c.DROP, "drop", 0.0),
        (c.PICKUP, "pick up, picks up its key", 0.5),
        (c.PICKUP, "pick up, picks up nothing", 0.499),
        (c.FORWARD, "forward", 0.499),
        (c.LEFT, "turn left", 0.499),
        (c.RIGHT, "turn right", 0.499),
        (c.DONE, "wait", 0.499),
        (c.TOGGLE, "toggle", 0.499),
    ):
        (line,) = game.play(red_0=action).agents
        assert (line.words, line.total) == (words, pytest.approx(total))
    assert len(ACTION_WORDS) == len(set(ACTION_WORDS)) == len(c.ACTIONS)


def test_ball_pays():
    game = Captioned(blue=0, obstacle=True)
    put(game.world, g.RED_FRONT, g.BLUE_BALL)
    place(game.world, "red_0", 6, 6, g.WEST)
    game.begin()
    assert game.words(red_0=c.PICKUP) == "pick up, is rewarded for the ball"


def test_door_win():
    game = Captioned()
    place(game.world, "red_0", *g.RED_FRONT, g.WEST, g.RED_KEY_USED)
    game.begin()
    caption = game.play(red_0=c.TOGGLE)
    assert caption.agents[1].words == "toggle, opens its door, wins"
    assert caption.result == "red wins through its door after 1 step"
    assert not any(line.out for line in caption.agents)


def test_elimination_win():
    game = Captioned()
    place(game.world, "blue_0", 7, 3, g.EAST, g.BLUE_KEY_USED)
    place(game.world, "red_0", 8, 3, g.NORTH)
    game.begin()
    caption = game.play(blue_0=c.TOGGLE)
    assert [line.words for line in caption.agents] == ["toggle, eliminates an opponent, wins", "wait, is eliminated"]
    assert [line.out for line in caption.agents] == [False, True]
    assert caption.result == "blue wins by elimination after 1 step"


def test_eliminated_agent_while_mates_play_on():
    game = Captioned(blue=1, red=2)
    place(game.world, "blue_0", 7, 3, g.EAST)
    place(game.world, "red_0", 8, 3, g.NORTH)
    place(game.world, "red_1", 10, 5, g.NORTH)
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
