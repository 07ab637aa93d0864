"""Players without a network: random, idle, and scripted baselines with full observation (docs/game.md, section 9).

The key-runner and the hunter find shortest paths over poses (cell and heading) by breadth-first search, once for
each game and step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import inlined, kernel
from multigrid_rl.text import expected
from multigrid_rl.types import Board, GameSpec, Policy, SeatView, UniformSource
from multigrid_rl.world import constants as c
from multigrid_rl.world.state import make_flags


class _Memoryless:
    name: str
    #: Whether it reads the whole board; a pool only slices the board for such players.
    reads_board = False

    def __init__(self, spec: GameSpec | None = None) -> None:
        """Make a player, which plays any game."""

    def initial_state(self, games: int) -> None:
        """Return no memory."""

    def reset_state(self, state: None, done: NDArray[np.bool_]) -> None:
        """Forget nothing."""


class RandomPlayer(_Memoryless):
    """Draws actions uniformly."""

    name = "random"

    def act(self, view: SeatView, state: None, rng: UniformSource) -> tuple[NDArray[np.int8], None]:  # noqa: ARG002
        """Draw actions (N,)."""
        drawn = rng.uniform(1)[:, 0] * len(c.ACTIONS)
        return drawn.astype(np.int8), None


class IdlePlayer(_Memoryless):
    """Does nothing."""

    name = "idle"

    def act(self, view: SeatView, state: None, rng: UniformSource) -> tuple[NDArray[np.int8], None]:  # noqa: ARG002
        """Return ``done`` for every game."""
        return np.full(len(view.tokens), c.DONE, np.int8), None


_POSES = c.CELLS * 4
#: Buffers of a search: poses to visit, and the first action on the way to each pose.
_Buffers = tuple[NDArray[np.int16], NDArray[np.int8]]


@inlined
def _agent_at(board: Board, g: int, cell: int) -> int:
    for a in range(board.position.shape[1]):
        if board.position[g, a] == cell and not board.out[g, a]:
            return a
    return -1


@inlined
def _first_move(board: Board, g: int, start: int, target: int, through_agents: bool, buffers: _Buffers) -> int:
    """Return the first action of a shortest path from pose ``start`` to one that faces ``target``; -1: there is none.

    DONE: the start already faces it.
    """
    queue, first = buffers
    for pose in range(_POSES):
        first[pose] = -1
    first[start] = c.DONE
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        pose = int(queue[head])
        head += 1
        cell, heading = pose // 4, pose % 4
        ahead = cell + c.STRIDE[heading]
        if ahead == target:
            return int(first[pose])
        free = board.cells[g, ahead] == c.EMPTY and (through_agents or _agent_at(board, g, ahead) < 0)
        for action in range(3):
            if action == c.FORWARD:
                if not free:
                    continue
                next_pose = ahead * 4 + heading
            elif action == c.LEFT:
                next_pose = cell * 4 + (heading + 3) % 4
            else:
                next_pose = cell * 4 + (heading + 1) % 4
            if first[next_pose] < 0:
                first[next_pose] = action if pose == start else first[pose]
                queue[tail] = next_pose
                tail += 1
    return -1


@inlined
def _find(cells: NDArray[np.uint8], g: int, low: int, high: int) -> int:
    for cell in range(c.CELLS):
        if low <= cells[g, cell] <= high:
            return cell
    return -1


@inlined
def _goal(cells: NDArray[np.uint8], g: int, team: int, hand: int) -> tuple[int, int]:
    """Return the next cell to face and the action there, to open the team's door; (-1, action): act in place."""
    blocked = cells[g, c.DOOR_FRONT[team]] == c.BALL + 1 - team
    if hand == c.EMPTY:
        if blocked:
            return c.DOOR_FRONT[team], c.PICKUP
        key = _find(cells, g, c.KEY + 2 * team, c.KEY + 2 * team + 1)
        return (key, c.PICKUP) if key >= 0 else (-1, c.DONE)
    if hand == c.BALL + 1 - team or blocked:
        return -1, c.DROP
    return c.DOOR_CELL[team], c.TOGGLE


@inlined
def _nearest_opponent(board: Board, g: int, agent: int, team: NDArray[np.uint8]) -> int:
    nearest_cell, nearest_distance = -1, 1000
    for a in range(len(team)):
        if team[a] != team[agent] and not board.out[g, a]:
            here, there = int(board.position[g, agent]), int(board.position[g, a])
            distance = abs(here // 8 - there // 8) + abs(here % 8 - there % 8)
            if distance < nearest_distance:
                nearest_cell, nearest_distance = there, distance
    return nearest_cell


@kernel
def _plan(
    board: Board,
    agent: int,
    team: NDArray[np.uint8],
    hunt: bool,
    death_match: bool,
    uniform: NDArray[np.float64],
    buffers: _Buffers,
    actions: NDArray[np.int8],
) -> None:
    cells, position, heading, hand, out = board
    for g in range(len(cells)):
        actions[g] = c.DONE
        if out[g, agent]:
            continue
        pose = int(position[g, agent]) * 4 + int(heading[g, agent])
        ahead = int(position[g, agent]) + c.STRIDE[heading[g, agent]]
        other = _agent_at(board, g, ahead)
        if death_match and other >= 0 and team[other] != team[agent]:
            actions[g] = c.TOGGLE
            continue
        target, action = _goal(cells, g, int(team[agent]), int(hand[g, agent]))
        if hunt and death_match:
            prey = _nearest_opponent(board, g, agent, team)
            if prey >= 0:
                target, action = prey, c.TOGGLE
        if action == c.DROP:
            clear = cells[g, ahead] == c.EMPTY and other < 0 and ahead != c.DOOR_FRONT[team[agent]]
            actions[g] = c.DROP if clear else (c.LEFT if uniform[g, 0] < 0.5 else c.RIGHT)
            continue
        if target < 0:
            continue
        move = _first_move(board, g, pose, target, False, buffers)
        if move < 0:
            move = _first_move(board, g, pose, target, True, buffers)
        if move == c.DONE:
            actions[g] = action
        elif move >= 0:
            # A team mate blocks the path: turn away at random, so that one of them yields.
            stuck = move == c.FORWARD and other >= 0 and uniform[g, 0] < 0.3
            actions[g] = c.LEFT if stuck else move


class _Scripted(_Memoryless):
    reads_board = True
    hunt: bool

    def __init__(self, spec: GameSpec) -> None:
        self._team = make_flags(spec).team
        self._death_match = spec.death_match
        self._buffers: _Buffers = np.empty(_POSES, np.int16), np.empty(_POSES, np.int8)

    def act(self, view: SeatView, state: None, rng: UniformSource) -> tuple[NDArray[np.int8], None]:  # noqa: ARG002
        """Plan one action for each game. Raises ``ValueError`` if the view has no board."""
        if view.board is None:
            raise ValueError(expected(f"player {self.name}", "a view with the whole board", "one without"))
        actions = np.empty(len(view.tokens), np.int8)
        drawn = rng.uniform(1)
        _plan(view.board, view.seat, self._team, self.hunt, self._death_match, drawn, self._buffers, actions)
        return actions, None


class KeyRunner(_Scripted):
    """Clears the ball, fetches its key, opens its door, and toggles opponents in front of it."""

    name = "key-runner"
    hunt = False


class Hunter(_Scripted):
    """Chases the nearest living opponent and toggles it; runs for the door when there is no opponent."""

    name = "hunter"
    hunt = True


#: By the names of ``catalogue.BUILT_IN``.
SCRIPTED: dict[str, Callable[[GameSpec], Policy]] = {
    player.name: player for player in (RandomPlayer, IdlePlayer, KeyRunner, Hunter)
}
