"""The window in which a person plays: keys and pictures. The games are in :class:`play.Session`."""

import os
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from multigrid_rl.show.captions import Caption
from multigrid_rl.show.pictures import Notes, Picture, Strip, panel
from multigrid_rl.show.play import OtherPlayers, Session
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.rendering import render_frame

Command = Literal["restart", "help", "view", "quit"]

#: Action or command of each key, by pygame's name of the key.
KEYS: dict[str, int | Command] = {
    "left": c.LEFT, "a": c.LEFT, "right": c.RIGHT, "d": c.RIGHT, "up": c.FORWARD, "w": c.FORWARD, "space": c.TOGGLE,
    "p": c.PICKUP, "o": c.DROP, "backspace": c.DROP, "return": c.DONE, "enter": c.DONE, "n": c.DONE,
    "r": "restart", "h": "help", "v": "view", "escape": "quit",
}  # fmt: skip
HELP = [
    "Keys",
    "Left, A\tturn left",
    "Right, D\tturn right",
    "Up, W\tgo forward",
    "P\tpick up what lies ahead",
    "O, Backspace\tdrop what you carry",
    "Space\ttoggle: door open, opponent out",
    "Enter, N\twait a step",
    "V\twhat you see, or the whole board",
    "R\tnext game",
    "H\tthis help",
    "Esc\tquit",
]

#: Seconds between steps while the person is out and the others play on.
SPECTATOR_SECONDS = 0.35
#: Brightness of the empty room where the person does not see: walls and doors never move.
_FOG = 0.35
_IN_MEMORY = ("dummy", "offscreen")
_WANTED = "a machine with a screen (multigrid-rl video shows games without one)"


class Canvas:
    """Draws a session from the person's view."""

    def __init__(self, spec: GameSpec, tile: int) -> None:
        self._tile = tile
        self._strip = Strip(c.WIDTH * tile, spec.num_agents)
        world = World(spec, 1)
        world.state.cells[0] = c.empty_board()
        # Agents that are out and in their side room are not drawn, and see nothing.
        world.state.out[0] = 1
        world.state.position[0] = [c.SIDE_ROOM[team] for team in world.flags.team]
        self._bare = (render_frame(world, 0, tile) * _FOG).astype(np.uint8)
        #: (width, height) in pixels.
        self.size = (c.WIDTH * tile, c.HEIGHT * tile + self._strip.height)

    def draw(self, session: Session, *, whole_board: bool, help_shown: bool) -> Picture:
        """Return the picture (height, width, 3) of the current state."""
        board = render_frame(session.world, 0, self._tile)
        caption = session.caption
        if not whole_board:
            pixels = np.kron(session.seen().T, np.ones((self._tile, self._tile), np.bool_))  # (8 * tile, 16 * tile)
            board = np.where(pixels[..., None], board, self._bare)
            caption = _hidden(caption, session)
        score = session.score
        head = f"step {session.steps} of at most {session.spec.max_steps}"
        aside = f"won {score.won}, drawn {score.drawn}, lost {score.lost}"
        foot = f"{'you are out; the others play on' if session.out else 'your move'}   (H: help)"
        if caption.result:
            caption = caption._replace(result=f"{caption.result}   (R: next game, Esc: quit)")
        picture = self._strip.below(board, caption, Notes(head, aside, foot))
        return panel(picture, HELP) if help_shown else picture


def _hidden(caption: Caption, session: Session) -> Caption:
    """Return the caption without the actions of agents that the person does not see."""
    cells, seen = session.world.state.position[0], session.seen()
    lines = [
        line if line.out or seen[divmod(int(cell), c.HEIGHT)] else line._replace(words="out of your sight", total=None)
        for line, cell in zip(caption.agents, cells, strict=True)
    ]
    return caption._replace(agents=tuple(lines))


class Window:
    """A pygame window on a session.

    Args:
        session: the person's games.
        game_over: called after every finished game.
        tile: width of one cell in pixels.
        delay: seconds after which a step is played without a key; ``None``: the game waits for one.
        whole_board: shown at first, instead of the person's own view.

    Raises:
        ConfigError: there is no screen.
    """

    def __init__(
        self,
        session: Session,
        game_over: Callable[[], None],
        *,
        tile: int = 48,
        delay: float | None = None,
        whole_board: bool = False,
    ) -> None:
        self._session, self._game_over, self._delay = session, game_over, delay
        self._whole_board, self._help = whole_board, False
        self._canvas = Canvas(session.spec, tile)
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # else pygame greets on standard output
        import pygame  # noqa: PLC0415 - half a second, for a window alone

        self._pygame: Any = pygame
        self._surface = _open(self._pygame, self._canvas.size, f"multigrid-rl play: {session.others.seat}")

    def run(self) -> None:
        """Show and play until the person quits, by key, by closing the window or by Ctrl-C."""
        try:
            self._draw()
            while self._handle(self._next_event()):
                self._draw()
        except KeyboardInterrupt:
            pass
        finally:
            self._session.leave()
            self._pygame.quit()

    def _next_event(self) -> Any:
        seconds = self._delay
        if self._session.out and seconds is None:
            seconds = SPECTATOR_SECONDS
        if self._session.over or self._help or seconds is None:
            return self._pygame.event.wait()
        return self._pygame.event.wait(round(seconds * 1000))

    def _handle(self, event: Any) -> bool:
        """Handle an event; returns whether to go on."""
        pygame, session = self._pygame, self._session
        if event.type == pygame.QUIT:
            return False
        if event.type == pygame.NOEVENT:
            self._play(c.DONE)
        elif event.type == pygame.KEYDOWN:
            command = KEYS.get(pygame.key.name(event.key))
            if command == "quit":
                return False
            if self._help:
                self._help = False  # any key closes it and does nothing else
            elif command == "help":
                self._help = True
            elif command == "view":
                self._whole_board = not self._whole_board
            elif command == "restart":
                session.restart()
            elif isinstance(command, int):
                self._play(command)
        return True

    def _play(self, action: int) -> None:
        if self._session.over:
            return
        self._session.step(action)
        if self._session.over:
            self._game_over()

    def _draw(self) -> None:
        picture = self._canvas.draw(self._session, whole_board=self._whole_board, help_shown=self._help)
        height, width = picture.shape[:2]
        image = self._pygame.image.frombuffer(np.ascontiguousarray(picture).tobytes(), (width, height), "RGB")
        self._surface.blit(image, (0, 0))
        self._pygame.display.flip()


def window(
    spec: GameSpec, others: OtherPlayers, game_over: Callable[[Session], None], *, seed: int, **options: Any
) -> tuple[Session, Callable[[], None], str]:
    """Open a window; returns the games, what plays them, and a hint. Entry of ``tables.PERSONS``."""
    session = Session(spec, others, seed=seed)
    given = {name: value for name, value in options.items() if value is not None}
    return session, Window(session, lambda: game_over(session), **given).run, "press H for help"


def _open(pygame: Any, size: tuple[int, int], title: str) -> Any:
    driver = os.environ.get("SDL_VIDEODRIVER", "")
    variables = ("DISPLAY", "WAYLAND_DISPLAY")
    # Checked here, because SDL prints lines of its own while it looks for a screen.
    if sys.platform.startswith("linux") and not driver and not any(os.environ.get(name) for name in variables):
        raise ConfigError(expected("window", _WANTED, f"no {' and no '.join(variables)} in the environment"))
    try:
        pygame.display.init()
        # Without a screen SDL silently draws into memory: no window would ever appear.
        if pygame.display.get_driver() in _IN_MEMORY and driver not in _IN_MEMORY:
            pygame.quit()
            raise ConfigError(expected("window", _WANTED, "none"))
        surface = pygame.display.set_mode(size)
    except pygame.error as error:
        raise ConfigError(expected("window", _WANTED, error)) from error
    pygame.display.set_caption(title)
    return surface
