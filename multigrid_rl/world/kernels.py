"""The game: layouts, the two phases of a step, and the loop over games (docs/game.md, sections 2 to 6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import inlined, kernel
from multigrid_rl.streams import below
from multigrid_rl.world import constants as c
from multigrid_rl.world.state import Flags, State, Step, ViewTables, draw_view

_GO_KEY, _GO_BALL, _GO_DOOR = 1, 2, 3


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
    """Reset a game from its random stream (docs/game.md, section 2)."""
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
    """Write every agent's observation of game ``g`` (docs/game.md, section 4)."""
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
        if f.mission_observed:  # else both stay 0: the task hides the mission
            tokens[g, a, area + 1] = s.mission[g, a] if f.mission_current else s.mission_value[g, a]
            obs_mission[g, a] = s.mission[g, a]
    for a in range(agents):
        if not s.out[g, a] and agents > 1:
            s.cells[g, s.position[g, a]] = s.under[g, a]


# --- phase one: actions (docs/game.md, section 3); phase two: results (docs/game.md, section 5)


@inlined
def _front(s: State, g: int, a: int) -> int:
    return int(s.position[g, a]) + c.STRIDE[s.heading[g, a]]


@inlined
def _occupied(s: State, g: int, cell: int) -> bool:
    for other in range(s.position.shape[1]):
        if s.position[g, other] == cell:
            return True
    return False


@inlined
def _own_key(code: int, team: int) -> bool:
    return code == c.KEY + 2 * team or code == c.KEY + 2 * team + 1


@inlined
def _set_mission(s: State, g: int, a: int, mission: int) -> None:
    # A mission set in play is stored as integer 0 in the original, whatever its text.
    s.mission[g, a] = mission
    s.mission_value[g, a] = 0


@inlined
def _toggle_door(s: State, f: Flags, o: Step, g: int, a: int, front: int) -> None:
    # The recordings show that any agent can toggle an unlocked door:
    # v3-CTCE-2v2-Death-Match, episode 44, steps 30 and 31.
    code = int(s.cells[g, front])
    team = (code - c.DOOR_LOCKED) % 2
    if code >= c.DOOR_OPEN:
        s.cells[g, front] = c.DOOR_CLOSED + team
    elif code >= c.DOOR_CLOSED or _own_key(int(s.hand[g, a]), team):
        s.cells[g, front] = c.DOOR_OPEN + team
        if team == f.team[a]:
            o.events[g, a, c.EV_DOOR] = 1.0


@inlined
def act(s: State, f: Flags, o: Step, g: int, a: int, action: int) -> None:
    """Phase one for one agent."""
    if s.out[g, a]:
        return
    team = int(f.team[a])
    if action == c.LEFT:
        s.heading[g, a] = (s.heading[g, a] + 3) & 3
    elif action == c.RIGHT:
        s.heading[g, a] = (s.heading[g, a] + 1) & 3
    elif c.FORWARD <= action <= c.TOGGLE:
        front = _front(s, g, a)
        code = int(s.cells[g, front])
        if action == c.FORWARD:
            if (code == c.EMPTY or code == c.DOOR_OPEN or code == c.DOOR_OPEN + 1) and not _occupied(s, g, front):
                s.position[g, a] = front
        elif action == c.PICKUP:
            if s.hand[g, a] == c.EMPTY and (_own_key(code, team) or code == c.BALL + 1 - team):
                s.hand[g, a] = code
                s.shown[g, a] = code
                s.cells[g, front] = c.EMPTY
        elif action == c.DROP:
            if s.hand[g, a] != c.EMPTY and code == c.EMPTY and not _occupied(s, g, front):
                s.cells[g, front] = s.hand[g, a]
                s.hand[g, a] = c.EMPTY
                s.shown[g, a] = c.EMPTY
        elif c.DOOR_LOCKED <= code <= c.DOOR_OPEN + 1:
            _toggle_door(s, f, o, g, a, front)


@inlined
def _success(s: State, f: Flags, o: Step, g: int, team: int, flag: int) -> bool:
    """End the game for ``team``, whose first living agent is rewarded; ``flag`` is the event that marks it."""
    value = 1.0 - 0.9 * s.clock[g] / f.max_steps
    rewarded = False
    for a in range(len(f.team)):
        if f.team[a] == team and not s.out[g, a]:
            o.reward[g, a] = f.weights[a, c.W_SUCCESS] * value  # replaces rewards earned earlier in this step
            o.events[g, a, c.EV_SUCCESS] = value
            o.events[g, a, flag] = 1.0
            rewarded = True
            break
    if rewarded:
        for a in range(len(f.team)):
            s.out[g, a] = 1
        if o.winner[g] < 0:
            o.winner[g] = team
    return rewarded


@inlined
def _eliminate(s: State, f: Flags, o: Step, g: int, a: int, victim: int) -> bool:
    s.out[g, victim] = 1
    s.position[g, victim] = c.SIDE_ROOM[f.team[victim]]
    o.events[g, victim, c.EV_VICTIM] += 1.0
    o.events[g, a, c.EV_ELIMINATED] += 1.0
    o.reward[g, a] += f.weights[a, c.W_ELIMINATED]
    o.reward[g, victim] += f.weights[victim, c.W_VICTIM]
    for other in range(len(f.team)):
        if f.team[other] == f.team[victim] and not s.out[g, other]:
            return False
    return _success(s, f, o, g, int(f.team[a]), c.EV_ELIMINATION_WIN)


@inlined
def _toggle_result(s: State, f: Flags, o: Step, g: int, a: int) -> bool:
    team = int(f.team[a])
    front = _front(s, g, a)
    victim = -1
    for other in range(len(f.team)):
        if f.team[other] != team and s.position[g, other] == front and not (f.eliminated_out and s.out[g, other]):
            victim = other
    if victim >= 0:
        return _eliminate(s, f, o, g, a, victim) if f.death_match else False
    if front != c.DOOR_CELL[team]:
        return False
    opened = s.cells[g, front] == c.DOOR_OPEN + team
    if f.any_door:
        opened = opened or s.cells[g, c.DOOR_CELL[1 - team]] == c.DOOR_OPEN + 1 - team
    return opened and _success(s, f, o, g, team, c.EV_DOOR_WIN)


@inlined
def _pickup_result(s: State, f: Flags, o: Step, g: int, a: int) -> None:
    team = int(f.team[a])
    hand = int(s.hand[g, a])
    ball = 1 - team
    factor = s.ball_factor[g, ball]
    if hand == c.KEY + 2 * team:
        o.reward[g, a] += f.weights[a, c.W_KEY]
        o.events[g, a, c.EV_KEY] += 1.0
        s.hand[g, a] = hand + 1
        for other in range(len(f.team)):
            if f.team[other] == team:
                _set_mission(s, g, other, _GO_DOOR if other == a else _GO_BALL)
    elif hand == c.BALL + ball and _front(s, g, a) == c.DOOR_FRONT[team] and factor >= 0.0:
        o.reward[g, a] += f.weights[a, c.W_BALL] * factor
        o.events[g, a, c.EV_BALL] += factor
        s.ball_factor[g, ball] = factor * factor
        for other in range(len(f.team)):
            if f.team[other] == team:
                carries = _own_key(int(s.hand[g, other]), team)
                _set_mission(s, g, other, _GO_BALL if other == a else (_GO_DOOR if carries else _GO_KEY))
    else:
        o.reward[g, a] += f.weights[a, c.W_INVALID]
        o.events[g, a, c.EV_INVALID] += 1.0


@inlined
def resolve(s: State, f: Flags, o: Step, g: int, a: int, action: int) -> bool:
    """Phase two for one agent. Returns whether it won the game."""
    if s.out[g, a] and f.eliminated_out:
        return False
    won = False
    if action == c.TOGGLE:
        won = _toggle_result(s, f, o, g, a)
    elif action == c.PICKUP:
        _pickup_result(s, f, o, g, a)
    return won


@inlined
def mark_ready(s: State, f: Flags, o: Step, g: int, a: int) -> None:
    """Report when an agent becomes, or stops being, ready for its door. Only training rewards use this event."""
    team = int(f.team[a])
    carries = _own_key(int(s.hand[g, a]), team) and not s.out[g, a]
    ready = np.uint8(carries and s.cells[g, c.DOOR_FRONT[team]] == c.EMPTY)
    if ready != s.ready[g, a]:
        o.events[g, a, c.EV_READY] = 1.0 if ready else -1.0
        s.ready[g, a] = ready


@inlined
def report_terminated(s: State, f: Flags, o: Step, g: int, won: bool) -> None:
    """Set the reported flags (docs/game.md, section 6); agents in the game are not reported before its end."""
    for a in range(len(f.team)):
        o.terminated[g, a] = won or (f.eliminated_out and s.out[g, a] == np.uint8(1))


# --- the loop over games


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
