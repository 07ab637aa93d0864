"""Frames of a game for films and renderers, with the drawing of web pages (``show/assets/board.js``).

Pillow is imported at the first frame only. A tile is 100 units wide.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from multigrid_rl.text import expected
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World

Picture = NDArray[np.uint8]
TILE_SIZE = 32
#: Below this, triangles are not recognisable.
SMALLEST_TILE = 4
#: Colours of pages in light mode (``show/assets/page.css``); team colours by team number.
PAPER, CARD, INK, SOFT, EDGE = "#faf9f6", "#ffffff", "#1c2024", "#59626c", "#7d858e"
TEAM_INKS = ("#b93d06", "#0b5aa2")
_FLOOR, _FLOOR_LINE, _WALL, _UNSEEN, _UNSEEN_LINE = "#f4f2ec", "#dcd8cf", "#444b54", "#c9ccd0", "#a4a9b0"
#: Factor by which tiles are drawn larger and then scaled down, for smooth edges.
_OVERSAMPLING = 4
#: Shapes of agents by team, pointing to the right; blue's is notched.
_POINTERS = (((94, 50), (12, 10), (12, 90)), ((96, 50), (10, 8), (28, 50), (10, 92)))
#: Position of the carried object by heading: a free corner at the agent's left.
_HANDS = ((80, 20), (80, 80), (20, 80), (20, 20))
_AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))


def render_frame(world: World, game: int, tile_size: int = TILE_SIZE) -> Picture:
    """Draw the current state of one game.

    Doors, keys and balls carry their team's letter, agents are triangles that point along their heading, with their
    object in a badge; eliminated agents are crossed out in their side room. Cells that living agents see are hatched in
    their team's direction.

    Args:
        game: number of the game within the batch.
        tile_size: width and height of one cell in pixels.

    Returns:
        uint8 (8 * tile_size, 16 * tile_size, 3), RGB; a new array.

    Raises ``ValueError``: the batch has no such game, or the tile is too small.
    """
    if not 0 <= game < world.num_games:
        raise ValueError(expected("game", f"0 to {world.num_games - 1}", game))
    if tile_size < SMALLEST_TILE:
        raise ValueError(expected("tile_size", f"at least {SMALLEST_TILE} pixels", tile_size))
    state, team, living = world.state, world.flags.team.tolist(), living_agents(world, game)
    codes, walls = state.cells[game].tolist(), state.cells[game].reshape(c.WIDTH, c.HEIGHT) == c.WALL
    views = (visible_cells(world, game, [a for a in living if team[a] == t]) << t for t in (0, 1))
    seen = np.where(walls, 0, sum(views, np.zeros(1, int))).reshape(-1).tolist()
    frame = np.empty((c.HEIGHT * tile_size, c.WIDTH * tile_size, 3), np.uint8)

    def draw(cell: int, *agent: Any) -> None:
        x, y = (part * tile_size for part in divmod(cell, c.HEIGHT))
        frame[y : y + tile_size, x : x + tile_size] = draw_tile(tile_size, codes[cell], seen[cell], agent)

    for cell in range(c.CELLS):
        draw(cell)
    crowd = [0, 0]
    numbered = world.spec.num_agents > 2 or len(set(team)) == 1
    for a, seat in enumerate(world.spec.seats):
        cell, out = int(state.position[game, a]), a not in living
        label = "RB"[team[a]] + (seat.rpartition("_")[2] if numbered else "")
        # Eliminated agents of a team share one cell: they are drawn below one another.
        draw(cell + crowd[team[a]] * out, team[a], int(state.heading[game, a]), label, int(state.hand[game, a]), out)
        crowd[team[a]] += out
    return frame


def living_agents(world: World, game: int) -> list[int]:
    """Return the indices of the agents that are not eliminated, in index order; also after the game's end."""
    # A win marks all agents as out, also the winners. Only eliminated agents move to their side room.
    s = world.state
    rooms = [c.SIDE_ROOM[team] for team in world.flags.team]
    return [a for a, room in enumerate(rooms) if not (s.out[game, a] and s.position[game, a] == room)]


def visible_cells(world: World, game: int, agents: Iterable[int] | None = None) -> NDArray[np.bool_]:
    """Return the board cells (16, 8) that ``agents`` (by default the living) see in the last observations."""
    area = world.spec.view_size**2
    visible = np.zeros(c.CELLS, np.bool_)
    for a in living_agents(world, game) if agents is None else agents:
        pose = int(world.state.position[game, a]) * 4 + int(world.state.heading[game, a])
        visible[world.tables.cells[pose][world.outputs.tokens[game, a, :area] > 0]] = True
    return visible.reshape(c.WIDTH, c.HEIGHT)


@lru_cache(maxsize=4096)
def draw_tile(size: int, code: int, seen: int = 0, agent: tuple[Any, ...] = (), turn: int = 0) -> Picture:
    """Draw one cell.

    Args:
        size: width and height in pixels.
        code: of the cell, see ``world.constants``.
        seen: 1 if red sees it, 2 if blue does, 3 if both do.
        agent: the agent on it: team, heading, label, code of its object, whether it is out.
        turn: quarter turns of an agent given as a code, for a view that looks up.

    Returns:
        uint8 (size, size, 3); not to be written to.
    """
    ground = {c.UNSEEN: _UNSEEN, c.WALL: _WALL}.get(code, _FLOOR)
    image = Image.new("RGBA", (size * _OVERSAMPLING,) * 2, ground)
    pen = _Pen(image)
    if code == c.UNSEEN:
        for k in range(-100, 100, 20):
            pen.line(((k, 100), (k + 100, 0)), _UNSEEN_LINE, 3)
    if code != c.WALL:
        pen.line(((0, 0), (100, 0), (100, 100), (0, 100), (0, 0)), _FLOOR_LINE, 2)
    for team in (0, 1):
        if seen >> team & 1:
            _shade(image, team)
    _draw_object(pen, code, turn)
    if agent:
        _draw_agent(pen, *agent)
    picture: Picture = np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BOX)).copy()
    picture.flags.writeable = False
    return picture


class _Pen:
    """Draws in units of a tile onto an image; ``left``, ``top`` and ``scale`` place a smaller drawing in it."""

    def __init__(self, image: Any, left: float = 0, top: float = 0, scale: float = 1) -> None:
        self.image, self._left, self._top = image, left, top
        self._draw, self._unit = ImageDraw.Draw(image, "RGBA"), image.width / 100
        self._scale = scale

    def _at(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        unit, scale = self._unit, self._scale
        return [((self._left + x * scale) * unit, (self._top + y * scale) * unit) for x, y in points]

    def _wide(self, width: float) -> int:
        wide: int = max(1, round(width * self._scale * self._unit))
        return wide

    def line(self, points: Iterable[tuple[float, float]], colour: Any, width: float) -> None:
        """Draw a line through points."""
        self._draw.line(self._at(points), colour, self._wide(width), "curve")

    def shape(self, points: Iterable[tuple[float, float]], colour: Any) -> None:
        """Fill a polygon."""
        self._draw.polygon(self._at(points), colour)

    def box(self, left: float, top: float, right: float, bottom: float, **style: Any) -> None:
        """Draw a rounded rectangle; ``style``: ``fill``, ``outline`` and ``width``, in units."""
        style["width"] = self._wide(style.get("width", 1))
        self._draw.rounded_rectangle([*self._at([(left, top), (right, bottom)])], self._wide(6), **style)

    def disc(self, x: float, y: float, radius: float, **style: Any) -> None:
        """Draw a circle; ``style`` as in :meth:`box`."""
        style["width"] = self._wide(style.get("width", 1))
        ends = self._at([(x - radius, y - radius), (x + radius, y + radius)])
        self._draw.ellipse([*ends], **style)

    def letter(self, x: float, y: float, text: str, colour: Any) -> None:
        """Write a text centred on a point."""
        face = _font(self._wide(38))
        self._draw.text(self._at([(x, y)])[0], text, colour, face, "mm", stroke_width=self._wide(1.4))


@lru_cache(maxsize=32)
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _shade(image: Any, team: int) -> None:
    """Shade a cell that a team sees in its colour and direction of hatching."""
    colour = ImageColor.getrgb(TEAM_INKS[team])
    shade = Image.new("RGBA", image.size, (*colour, 26))
    pen = _Pen(shade)
    for k in range(-100, 100, 25):
        pen.line(((k, 100), (k + 100, 0)) if team == 0 else ((k, 0), (k + 100, 100)), (*colour, 140), 2.5)
    image.alpha_composite(shade)


def _draw_object(pen: _Pen, code: int, turn: int = 0, *, without_letter: bool = False) -> None:
    """Draw the object of a code; ``without_letter`` is for badges, which are too small for it."""
    if code >= c.AGENT:
        team, heading = divmod(code - c.AGENT, 4)
        _draw_agent(pen, team, (heading + turn) % 4, "RB"[team], c.EMPTY, False)
    elif code >= c.BALL:
        pen.disc(50, 50, 32, fill=TEAM_INKS[code - c.BALL])
        if not without_letter:
            pen.letter(50, 51, "RB"[code - c.BALL], CARD)
    elif code >= c.KEY:
        team, middle = (code - c.KEY) // 2, 50 if without_letter else 60
        pen.disc(28, middle, 22.5, outline=TEAM_INKS[team], width=11)
        for part in (
            ((46, middle), (92, middle)),
            ((71, middle), (71, middle + 20)),
            ((86, middle), (86, middle + 18)),
        ):
            pen.line(part, TEAM_INKS[team], 11)
        if not without_letter:
            pen.letter(70, 29, "RB"[team], TEAM_INKS[team])
    elif code >= c.DOOR_LOCKED:
        _draw_door(pen, (code - c.DOOR_LOCKED) % 2, (code - c.DOOR_LOCKED) // 2)


def _draw_door(pen: _Pen, team: int, state: int) -> None:
    """Draw a door: locked (0), closed (1) or open (2)."""
    ink = TEAM_INKS[team]
    if state == 2:
        pen.box(8, 6, 92, 94, fill=_FLOOR, outline=ink, width=8)
        pen.shape(((20, 14), (52, 26), (52, 86), (20, 90)), ink)
        pen.letter(72, 50, "RB"[team], ink)
        return
    pen.box(8, 6, 92, 94, fill=ink)
    if state == 0:
        pen.disc(50, 62, 9, fill=CARD)
        pen.shape(((46, 66), (54, 66), (60, 88), (40, 88)), CARD)
    else:
        pen.disc(76, 62, 7, fill=CARD)
    pen.letter(50, 30, "RB"[team], CARD)


def _draw_agent(pen: _Pen, team: int, heading: int, label: str, hand: int, out: bool) -> None:
    """Draw an agent; ``out``: an outline, crossed out."""
    points: tuple[tuple[int, int], ...] = _POINTERS[team]
    for _ in range(heading):
        points = tuple((100 - y, x) for x, y in points)
    dx, dy = _AHEAD[heading]
    if out:
        pen.line((*points, points[0]), TEAM_INKS[team], 4)
        pen.line(((14, 14), (86, 86)), INK, 6)
        pen.line(((86, 14), (14, 86)), INK, 6)
    else:
        pen.shape(points, TEAM_INKS[team])
    # The triangle's middle lies behind the tile's middle, away from its tip.
    pen.letter(50 - 9 * dx, 51 - 9 * dy, label, INK if out else CARD)
    if hand > c.EMPTY:
        x, y = _HANDS[heading]
        pen.disc(x, y, 28, fill=CARD, outline=EDGE, width=3)
        _draw_object(_Pen(pen.image, x - 22, y - 22, 0.44), hand, without_letter=True)
