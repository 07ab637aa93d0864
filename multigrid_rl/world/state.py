"""Arrays that hold a batch of games, the rules as numbers for the kernels, and observation windows."""

from __future__ import annotations

from dataclasses import astuple
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import inlined
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c


class State(NamedTuple):
    """State of ``N`` games of ``A`` agents."""

    cells: NDArray[np.uint8]  # (N, 128) cell codes, agents not drawn in
    position: NDArray[np.uint8]  # (N, A) cell index
    heading: NDArray[np.uint8]  # (N, A)
    hand: NDArray[np.uint8]  # (N, A) code of the carried object
    shown: NDArray[np.uint8]  # (N, A) code shown in the agent's cell of the view: a copy made at pickup
    under: NDArray[np.uint8]  # (N, A) scratch: code of the agent's cell while the agent is drawn over it
    order: NDArray[np.int8]  # (N, A) scratch: the order in which this step handles the agents
    out: NDArray[np.uint8]  # (N, A) the agent's terminated flag
    ready: NDArray[np.uint8]  # (N, A) carries its key, and nothing is before its door
    mission: NDArray[np.int8]  # (N, A) index of the mission string
    mission_value: NDArray[np.int8]  # (N, A) integer that stands for it in a classic observation
    ball_factor: NDArray[np.float64]  # (N, 2) factor of the next rewarded pickup of the (red, blue) ball
    clock: NDArray[np.int32]  # (N,) steps played
    over: NDArray[np.uint8]  # (N,) 1 once the game has ended
    stream: NDArray[np.uint64]  # (N,) the game's random stream


class Flags(NamedTuple):
    """A ``GameSpec`` as plain numbers, and per-agent constants."""

    team: NDArray[np.uint8]  # (A,) 0 red, 1 blue
    weights: NDArray[np.float64]  # (A, 7) fields of ``RewardWeights``, columns W_*
    start_cell: NDArray[np.uint8]  # (A,)
    start_heading: NDArray[np.uint8]  # (A,)
    board: NDArray[np.uint8]  # (128,) the board without movable objects
    max_steps: int
    obstacle: bool
    random_keys: bool
    death_match: bool
    any_door: bool
    random_order: bool
    stop_after_success: bool
    eliminated_out: bool
    mission_observed: bool
    mission_current: bool
    keys_anywhere: bool
    view_first: bool


class Step(NamedTuple):
    """Outputs of one step. The arrays belong to the world and change at its next step: copy them to keep them."""

    tokens: NDArray[np.uint8]  # (N, A, D) observation to act on next (after auto-reset: of the new game)
    obs_mission: NDArray[np.int8]  # (N, A) mission string index that the observation carries
    final_tokens: NDArray[np.uint8]  # (N, A, D) last observation; only rows of ``done`` games are valid
    reward: NDArray[np.float64]  # (N, A) canonical reward
    events: NDArray[np.float32]  # (N, A, E) events, columns ``constants.EVENTS``
    terminated: NDArray[np.bool_]  # (N, A)
    truncated: NDArray[np.bool_]  # (N,)
    done: NDArray[np.bool_]  # (N,) the game ended in this step
    acted: NDArray[np.bool_]  # (N, A) the agent was still in the game when the step began
    winner: NDArray[np.int8]  # (N,) 0 red, 1 blue, -1 none yet


def allocate_state(games: int, agents: int) -> State:
    """Allocate finished games, to be initialised by a reset."""
    grid = (games, agents)
    return State(
        cells=np.full((games, c.CELLS), c.EMPTY, np.uint8),
        position=np.zeros(grid, np.uint8),
        heading=np.zeros(grid, np.uint8),
        hand=np.full(grid, c.EMPTY, np.uint8),
        shown=np.full(grid, c.EMPTY, np.uint8),
        under=np.zeros(grid, np.uint8),
        order=np.zeros(grid, np.int8),
        out=np.zeros(grid, np.uint8),
        ready=np.zeros(grid, np.uint8),
        mission=np.zeros(grid, np.int8),
        mission_value=np.zeros(grid, np.int8),
        ball_factor=np.full((games, 2), np.nan),
        clock=np.zeros(games, np.int32),
        over=np.ones(games, np.uint8),
        stream=np.zeros(games, np.uint64),
    )


def allocate_outputs(games: int, agents: int, tokens: int) -> Step:
    """Allocate zeroed output buffers."""
    grid = (games, agents)
    return Step(
        tokens=np.zeros((*grid, tokens), np.uint8),
        obs_mission=np.zeros(grid, np.int8),
        final_tokens=np.zeros((*grid, tokens), np.uint8),
        reward=np.zeros(grid, np.float64),
        events=np.zeros((*grid, c.NUM_EVENTS), np.float32),
        terminated=np.zeros(grid, np.bool_),
        truncated=np.zeros(games, np.bool_),
        done=np.zeros(games, np.bool_),
        acted=np.ones(grid, np.bool_),
        winner=np.full(games, -1, np.int8),
    )


def make_flags(spec: GameSpec) -> Flags:
    """Turn a specification into numbers for the kernels."""
    rules = spec.rules
    # Start cells and headings (A,) in index order (docs/game.md, section 2).
    cells = [(6 + k) * 8 + 6 for k in range(spec.blue)] + [(9 - k) * 8 + 1 for k in range(spec.red)]
    headings = [0] * spec.blue + [2] * spec.red
    return Flags(
        team=np.array([c.BLUE] * spec.blue + [c.RED] * spec.red, np.uint8),
        weights=np.array([astuple(spec.weights_of(seat)) for seat in spec.seats], np.float64),
        start_cell=np.array(cells, np.uint8),
        start_heading=np.array(headings, np.uint8),
        board=c.empty_board(),
        max_steps=spec.max_steps,
        obstacle=spec.obstacle,
        random_keys=spec.random_keys,
        death_match=spec.death_match,
        any_door=rules.door_test == "any",
        random_order=rules.order == "random",
        stop_after_success=rules.after_success == "stop",
        eliminated_out=rules.eliminated == "out",
        mission_observed=spec.mission_observed,
        mission_current=rules.mission_view == "current",
        keys_anywhere=rules.key_cells == "any",
        view_first=rules.final_view == "before_results",
    )


def token_categories(spec: GameSpec) -> list[int]:
    """Return the number of values of each observation token: cell codes, heading, mission."""
    return [c.NUM_CODES] * spec.view_size**2 + [4, len(c.MISSIONS)]


# --- observation windows (docs/game.md, section 4): table lookups, one row of the window at a time
#
# The window of an agent at (cell, heading) always covers the same board cells, so they come from a table. The board's
# outer ring is wall, so clamping coordinates makes cells outside count as wall. How visibility spreads within one row,
# and into the next, depends only on which cells of the row are visible and which are opaque: another table.

_OPAQUE_FROM = c.WALL
_OPAQUE_TO = c.DOOR_CLOSED + 1


class ViewTables(NamedTuple):
    """Lookup tables for one view size ``V``."""

    cells: NDArray[np.uint8]  # (128 * 4, V * V) board cell of window cell k = i * V + j for each pose
    spread: NDArray[np.uint8]  # (2**V, 2**V) visible cells of a row, from (visible before, opaque)
    upward: NDArray[np.uint8]  # (2**V, 2**V) cells that become visible in the row beyond


@lru_cache(maxsize=4)
def view_tables(view_size: int) -> ViewTables:
    """Build the tables for an odd ``view_size`` from 3 to 7."""
    v = view_size
    vectors = ((1, 0), (0, 1), (-1, 0), (0, -1))
    cells = np.zeros((c.CELLS * 4, v * v), np.uint8)
    for pose in range(c.CELLS * 4):
        x, y = divmod(pose // 4, c.HEIGHT)
        fx, fy = vectors[pose % 4]
        for i in range(v):
            for j in range(v):
                ahead, right = v - 1 - j, i - v // 2
                cx = min(max(x + ahead * fx - right * fy, 0), c.WIDTH - 1)
                cy = min(max(y + ahead * fy + right * fx, 0), c.HEIGHT - 1)
                cells[pose, i * v + j] = cx * c.HEIGHT + cy
    spread = np.zeros((2**v, 2**v), np.uint8)
    upward = np.zeros((2**v, 2**v), np.uint8)
    for visible in range(2**v):
        for opaque in range(2**v):
            spread[visible, opaque], upward[visible, opaque] = _spread_row(visible, opaque, v)
    return ViewTables(cells, spread, upward)


def _spread_row(visible: int, opaque: int, v: int) -> tuple[int, int]:
    up = 0
    for step, columns in ((1, range(v - 1)), (-1, range(v - 1, 0, -1))):
        for i in columns:
            if visible >> i & 1 and not opaque >> i & 1:
                visible |= 1 << (i + step)
                up |= (1 << i) | (1 << (i + step))
    return visible, up


@inlined
def draw_view(
    cells: NDArray[np.uint8], game: int, pose: int, hand: int, tables: ViewTables, out: NDArray[np.uint8]
) -> None:
    """Write the V * V codes that the agent at ``pose`` (cell * 4 + heading) sees into the start of ``out``."""
    size = int(np.sqrt(tables.cells.shape[1]))
    visible = 1 << (size // 2)
    for j in range(size - 1, -1, -1):
        opaque = 0
        for i in range(size):
            code = cells[game, tables.cells[pose, i * size + j]]
            if j == size - 1 and i == size // 2:
                code = np.uint8(hand)
            out[i * size + j] = code
            if _OPAQUE_FROM <= code <= _OPAQUE_TO:
                opaque |= 1 << i
        beyond = tables.upward[visible, opaque]
        visible = tables.spread[visible, opaque]
        for i in range(size):
            if not (visible >> i) & 1:
                out[i * size + j] = c.UNSEEN
        visible = int(beyond)
