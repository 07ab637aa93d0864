"""Frames of a game, drawn by the ``multigrid`` package.

``multigrid`` is imported at the first frame only: it imports pygame, which training does not need.
"""

import os
from collections.abc import Iterable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.text import expected
from multigrid_rl.world.constants import CELLS, COLOURS, EMPTY, HEIGHT, SIDE_ROOM, TEAM_COLOUR, TYPES, WIDTH, decode
from multigrid_rl.world.engine import World

TILE_SIZE = 32
#: Below this, triangles are not recognisable.
SMALLEST_TILE = 4

_DOOR = TYPES.index("door")
_FRAME_GREY = 200


def render_frame(world: World, game: int, tile_size: int = TILE_SIZE) -> NDArray[np.uint8]:
    """Draw the current state of one game.

    Walls, doors, keys and balls are drawn in their colours, living agents as triangles that point along their heading.
    A carried object is framed at the agent's front left. Cells visible to a living agent are lighter.

    Args:
        world: the batch of games.
        game: number of the game within the batch.
        tile_size: width and height of one cell in pixels.

    Returns:
        uint8 (8 * tile_size, 16 * tile_size, 3), RGB; a new array.

    Raises:
        ValueError: the batch has no such game, or the tile is too small.
    """
    if not 0 <= game < world.num_games:
        raise ValueError(expected("game", f"0 to {world.num_games - 1}", game))
    if tile_size < SMALLEST_TILE:
        raise ValueError(expected("tile_size", f"at least {SMALLEST_TILE} pixels", tile_size))
    living = living_agents(world, game)
    grid = _library().Grid(WIDTH, HEIGHT)
    grid.state[...] = _library_codes(decode(world.state.cells[game])).reshape(WIDTH, HEIGHT, 3)
    triangles = [_triangle(world, game, a) for a in living]
    frame: NDArray[np.uint8] = grid.render(tile_size, triangles, visible_cells(world, game))
    for a in living:
        if world.state.hand[game, a] != EMPTY:
            _draw_carried(frame, world, game, a, tile_size)
    return frame


def living_agents(world: World, game: int) -> list[int]:
    """Return the indices of the agents that are not eliminated, in index order; also after the game's end."""
    # A win marks all agents as out, the winners too. Only eliminated agents are moved to their side room.
    s = world.state
    rooms = [SIDE_ROOM[team] for team in world.flags.team]
    return [a for a, room in enumerate(rooms) if not (s.out[game, a] and s.position[game, a] == room)]


def visible_cells(world: World, game: int, agents: Iterable[int] | None = None) -> NDArray[np.bool_]:
    """Return the board cells (16, 8) that ``agents`` (by default the living) see in the last observations."""
    area = world.spec.view_size**2
    visible = np.zeros(CELLS, np.bool_)
    for a in living_agents(world, game) if agents is None else agents:
        pose = int(world.state.position[game, a]) * 4 + int(world.state.heading[game, a])
        visible[world.tables.cells[pose][world.outputs.tokens[game, a, :area] > 0]] = True
    return visible.reshape(WIDTH, HEIGHT)


@lru_cache(maxsize=1)
def _library() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # else pygame prints a banner to standard output
    from multigrid.core.agent import Agent  # noqa: PLC0415
    from multigrid.core.grid import Grid  # noqa: PLC0415
    from multigrid.core.world_object import WorldObj  # noqa: PLC0415
    from multigrid.utils.rendering import downsample  # noqa: PLC0415

    return SimpleNamespace(Agent=Agent, Grid=Grid, WorldObj=WorldObj, downsample=downsample)


def _library_codes(triples: NDArray[np.uint8]) -> NDArray[np.int64]:
    # The package only has the states open, closed and locked, and only for doors.
    codes = triples.astype(np.int64)
    codes[codes[..., 0] != _DOOR, 2] = 0
    return codes


def _triangle(world: World, game: int, agent: int) -> Any:
    triangle = _library().Agent(agent)
    triangle.state.color = COLOURS[TEAM_COLOUR[world.flags.team[agent]]]
    triangle.state.pos = divmod(int(world.state.position[game, agent]), HEIGHT)
    triangle.state.dir = int(world.state.heading[game, agent])
    return triangle


def _draw_carried(frame: NDArray[np.uint8], world: World, game: int, agent: int, tile_size: int) -> None:
    x, y = divmod(int(world.state.position[game, agent]), HEIGHT)
    picture = _carried_picture(int(world.state.hand[game, agent]), max(tile_size * 3 // 8, 2))
    size = len(picture)
    # The triangle leaves the corners at its tip free: front left is up when heading +x, right when heading +y, ...
    right, down = ((1, 0), (1, 1), (0, 1), (0, 0))[world.state.heading[game, agent]]
    left = x * tile_size + right * (tile_size - size)
    top = y * tile_size + down * (tile_size - size)
    frame[top : top + size, left : left + size] = picture


@lru_cache(maxsize=64)
def _carried_picture(code: int, size: int) -> NDArray[np.uint8]:
    library = _library()
    large = np.zeros((3 * size, 3 * size, 3), np.uint8)
    library.WorldObj.from_array(_library_codes(decode(np.array(code)))).render(large)
    picture: NDArray[np.uint8] = library.downsample(large, 3).astype(np.uint8)
    picture[[0, -1], :] = picture[:, [0, -1]] = _FRAME_GREY
    return picture
