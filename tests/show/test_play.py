"""The window: keys are posted to a display in memory until games end; what is left is score, record and screenshots."""

from __future__ import annotations

import os

import numpy as np
import pytest

from commands import call, complaint
from multigrid_rl.show.play import Score, Session
from multigrid_rl.show.window import Window
from multigrid_rl.text import ConfigError
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from persons import plan_of, session

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame

#: One key for each action, in the order of their numbers.
KEY_OF = (pygame.K_LEFT, pygame.K_d, pygame.K_UP, pygame.K_p, pygame.K_o, pygame.K_SPACE, pygame.K_RETURN)


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield
    pygame.quit()


def press(*keys: int) -> None:
    for key in keys:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
        pygame.event.post(pygame.event.Event(pygame.KEYUP, key=key))


def window(game: Session, over=lambda: None, **options) -> Window:
    made = Window(game, over, **{"tile": 24, **options})
    pygame.event.clear()
    return made


def test_keys_play_games():
    game, ended = session(), []
    shown = window(game, over=lambda: ended.append(game.caption.result))
    plan = plan_of(game)
    press(*(KEY_OF[action] for action in plan))
    press(pygame.K_UP, pygame.K_q, pygame.K_r, pygame.K_LEFT, pygame.K_ESCAPE)
    shown.run()
    # Nothing is played behind the end, an unknown key does nothing, and the next game was begun and left.
    (result,) = ended
    assert result.startswith("red wins ")
    assert result.endswith(f"after {len(plan)} steps")
    assert game.records[0].actions["red_0"] == "".join(map(str, plan))
    assert (game.game, game.score) == (1, Score(won=1, unfinished=1))


def test_help_and_view_keys():
    game = session()
    shown = window(game)
    shots = []
    draw = shown._draw

    def keep() -> None:
        draw()
        shots.append(pygame.surfarray.array3d(shown._surface).copy())

    shown._draw = keep
    press(pygame.K_h, pygame.K_UP, pygame.K_v, pygame.K_v, pygame.K_ESCAPE)
    shown.run()
    assert game.steps == 0
    # Each key gives two events, and both are drawn: start, h, h, up, up, v, v, v, v.
    start, helped, back, whole, again = shots[0], shots[1], shots[3], shots[5], shots[7]
    np.testing.assert_array_equal(start, back)
    np.testing.assert_array_equal(start, again)
    assert helped.mean() < start.mean() < whole.mean()


def test_closing_and_ctrl_c_keep_score(monkeypatch):
    game = session()
    shown = window(game)
    press(pygame.K_LEFT)
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    shown.run()
    assert game.score == Score(unfinished=1)

    def interrupted() -> None:
        raise KeyboardInterrupt

    game = session()
    shown = window(game)
    monkeypatch.setattr(shown, "_next_event", interrupted)
    shown.run()
    assert game.score == Score()


def test_delay_plays_without_keys():
    game = session(spec=GameSpec(max_steps=3))
    shown = window(game, tile=16, delay=0.05, over=lambda: press(pygame.K_ESCAPE))
    shown.run()
    assert game.score == Score(drawn=1)
    assert game.records[0].actions["red_0"] == str(c.DONE) * 3


# --- the verb


@pytest.fixture
def keys(monkeypatch):
    """Keys that are pressed as soon as the verb's window is open."""
    pressed: list[int] = []
    run = Window.run

    def typing(self) -> None:
        pygame.event.clear()
        press(*pressed)
        run(self)

    monkeypatch.setattr(Window, "run", typing)
    return pressed


def test_play_keeps_games_that_video_shows(keys, tmp_path):
    game = session()  # the same seed, the same keys on the floor
    plan = plan_of(game)
    keys += [*(KEY_OF[action] for action in plan), pygame.K_r, pygame.K_LEFT, pygame.K_ESCAPE]
    file = tmp_path / "mine.json"
    done = call("play", "scenario=1v1", "--opponent", "idle", "--seed", 4, "--record", file, "--tile", 24)
    assert done.exit_code == 0, done.output
    assert "game 0 of seed 4: red wins " in done.output
    assert "1 game: 1 won, 0 drawn, 0 lost; 1 left unfinished" in done.output
    assert f"{file}: 1 game" in done.output
    shown = call("video", file, "-o", tmp_path / "mine.gif")
    assert (
        f"1: won as red_0, game 0 of seed 4: blue_0 idle, red_0 you\n{tmp_path}/mine.gif: {len(plan)} steps"
        in shown.output
    )
    assert str(file) in complaint(call("play", "--record", file))


def test_no_record_without_finished_game(keys, tmp_path):
    keys += [pygame.K_LEFT, pygame.K_ESCAPE]
    done = call("play", "--opponent", "idle", "--side", "blue", "--record", tmp_path / "mine.json")
    assert done.exit_code == 0, done.output
    assert "blue_0 you, red_0 idle" in done.output
    assert "0 games: 0 won, 0 drawn, 0 lost; 1 left unfinished" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["scenario=nowhere"], ", got nowhere"),
        (["scenario=multigrid", "env_id=MultiGrid-Empty-5x5-v0"], "scenario: expected a game with opponents"),
        (["--opponent", "nobody"], "nobody"),
        (["--seat", "red_3"], "--seat: expected blue_0, red_0, got red_3"),
        (["--delay", "0"], "--delay: expected 0.05 to 60 seconds, got 0"),
        (["--delay", "nan"], "got nan"),
    ],
)
def test_play_rejects_mistakes(args, message):
    assert message in complaint(call("play", *args))


def test_play_without_screen(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    message = complaint(call("play", "--opponent", "idle"))
    assert message.startswith("multigrid-rl: window: expected a machine with a screen")


def test_rejects_broken_display(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "nonsense")
    with pytest.raises(ConfigError, match=r"window: expected a machine with a screen .*, got .*nonsense"):
        Window(session(), lambda: None, tile=16)
