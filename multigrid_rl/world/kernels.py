"""Layouts and the step loop over games."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import inlined, kernel
from multigrid_rl.streams import below
from multigrid_rl.world import constants as c
from multigrid_rl.world.phases import act, mark_ready, report_terminated, resolve
from multigrid_rl.world.state import Flags, State, Step
from multigrid_rl.world.views import ViewTables, draw_view


@inlined
def _has_team(f: Flags, team: int) -> bool:
    for a in range(len(f.team)):
        if f.team[a] == team:
            return True
    return False


@inlined
def _key_cell_allowed(s: State, f: Flags, g: int, cell: int) -> bool:
    if s.cells[g, cell] != c.EMPTY:
        return False
    if not f.keys_anywhere and (cell == c.DOOR_FRONT[c.RED] or cell == c.DOOR_FRONT[c.BLUE]):
        return False
    for a in range(len(f.team)):
        if s.position[g, a] == cell:
            return False
    return True


@inlined
def _place_keys(s: State, f: Flags, g: int) -> None:
    for team in (c.BLUE, c.RED):  # blue before red, after agents and balls
        if not _has_team(f, team):
            continue
        cell = c.FIXED_KEY[team]
        if f.random_keys:
            cell = int(c.ROOM[below(s.stream, g, len(c.ROOM))])
            while not _key_cell_allowed(s, f, g, cell):
                cell = int(c.ROOM[below(s.stream, g, len(c.ROOM))])
        s.cells[g, cell] = c.KEY + 2 * team


@inlined
def reset_game(s: State, f: Flags, g: int) -> None:
    """Reset a game from its random stream (rules, section 2)."""
    for cell in range(len(f.board)):
        s.cells[g, cell] = f.board[cell]
    for a in range(len(f.team)):
        s.position[g, a] = f.start_cell[a]
        s.heading[g, a] = f.start_heading[a]
        s.hand[g, a] = c.EMPTY
        s.shown[g, a] = c.EMPTY
        s.out[g, a] = 0
        s.ready[g, a] = 0
    for team in (c.RED, c.BLUE):
        s.ball_factor[g, 1 - team] = np.nan
        if f.obstacle and _has_team(f, team):
            s.cells[g, c.DOOR_FRONT[team]] = c.BALL + 1 - team
            s.ball_factor[g, 1 - team] = f.weights[0, c.W_DISCOUNT]
    _place_keys(s, f, g)
    mission = 0 if f.mission_current else below(s.stream, g, 4)
    for a in range(len(f.team)):
        s.mission[g, a] = mission
        s.mission_value[g, a] = mission
    s.clock[g] = 0
    s.over[g] = 0


@inlined
def observe(
    s: State, f: Flags, g: int, tables: ViewTables, tokens: NDArray[np.uint8], obs_mission: NDArray[np.int8]
) -> None:
    """Write every agent's observation of game ``g`` (rules, section 4)."""
    agents = len(f.team)
    # Draw the living agents into the board, one cell each, and restore those cells afterwards.
    for a in range(agents):
        if not s.out[g, a] and agents > 1:
            s.under[g, a] = s.cells[g, s.position[g, a]]
            s.cells[g, s.position[g, a]] = c.AGENT + 4 * f.team[a] + s.heading[g, a]
    area = tables.cells.shape[1]
    for a in range(agents):
        pose = int(s.position[g, a]) * 4 + int(s.heading[g, a])
        draw_view(s.cells, g, pose, int(s.shown[g, a]), tables, tokens[g, a])
        tokens[g, a, area] = s.heading[g, a]
        tokens[g, a, area + 1] = s.mission[g, a] if f.mission_current else s.mission_value[g, a]
        obs_mission[g, a] = s.mission[g, a]
    for a in range(agents):
        if not s.out[g, a] and agents > 1:
            s.cells[g, s.position[g, a]] = s.under[g, a]


@inlined
def _set_order(s: State, f: Flags, g: int, orders: NDArray[np.int8]) -> None:
    agents = len(f.team)
    for a in range(agents):
        s.order[g, a] = orders[g, a] if orders.shape[0] > 0 else a
    if f.random_order and orders.shape[0] == 0:
        for last in range(agents - 1, 0, -1):
            pick = below(s.stream, g, last + 1)
            s.order[g, last], s.order[g, pick] = s.order[g, pick], s.order[g, last]


@inlined
def _clear(o: Step, g: int) -> None:
    for a in range(o.reward.shape[1]):
        o.reward[g, a] = 0.0
        for e in range(o.events.shape[2]):
            o.events[g, a, e] = 0.0
    o.done[g] = False


@inlined
def _play(s: State, f: Flags, o: Step, g: int, actions: NDArray[np.int8], tables: ViewTables) -> bool:
    """Both phases of game ``g``. Returns whether it was won. Observations are computed between them or after them."""
    s.clock[g] += 1
    for k in range(len(f.team)):
        act(s, f, o, g, int(s.order[g, k]), int(actions[g, s.order[g, k]]))
    if f.view_first:
        observe(s, f, g, tables, o.tokens, o.obs_mission)
    won = False
    for k in range(len(f.team)):
        if resolve(s, f, o, g, int(s.order[g, k]), int(actions[g, s.order[g, k]])):
            won = True
            if f.stop_after_success:
                break
    if not won:  # after a success all agents are out, and no key changed hands
        for a in range(len(f.team)):
            mark_ready(s, f, o, g, a)
    if not f.view_first:
        observe(s, f, g, tables, o.tokens, o.obs_mission)
    return won


@kernel
def step_games(
    s: State,
    f: Flags,
    o: Step,
    tables: ViewTables,
    actions: NDArray[np.int8],
    orders: NDArray[np.int8],
    auto_reset: bool,
) -> None:
    """Step all games. ``orders`` is (N, A), or (0, A) for the order of the rules."""
    agents = len(f.team)
    for g in range(len(actions)):
        _clear(o, g)
        if s.over[g]:
            for a in range(agents):
                o.acted[g, a] = False
            continue
        for a in range(agents):
            o.acted[g, a] = not (f.eliminated_out and s.out[g, a])
        o.winner[g] = -1
        _set_order(s, f, g, orders)
        won = _play(s, f, o, g, actions, tables)
        report_terminated(s, f, o, g, won)
        o.truncated[g] = s.clock[g] >= f.max_steps
        if won or o.truncated[g]:
            o.done[g] = True
            s.over[g] = 1
            for a in range(agents):
                for k in range(o.tokens.shape[2]):
                    o.final_tokens[g, a, k] = o.tokens[g, a, k]
            if auto_reset:
                reset_game(s, f, g)
                observe(s, f, g, tables, o.tokens, o.obs_mission)


@kernel
def reset_games(s: State, f: Flags, o: Step, tables: ViewTables, which: NDArray[np.bool_]) -> None:
    """Reset the games in ``which`` and observe them."""
    for g in range(len(which)):
        if which[g]:
            reset_game(s, f, g)
            observe(s, f, g, tables, o.tokens, o.obs_mission)
            _clear(o, g)
            for a in range(len(f.team)):
                o.terminated[g, a] = False
                o.acted[g, a] = True
            o.truncated[g] = False
            o.winner[g] = -1


@kernel
def observe_games(s: State, f: Flags, o: Step, tables: ViewTables) -> None:
    """Observe all games."""
    for g in range(len(s.clock)):
        observe(s, f, g, tables, o.tokens, o.obs_mission)
