"""The two phases of a step for one game: actions (rules, section 3) and results (rules, section 5)."""

from __future__ import annotations

import numpy as np

from multigrid_rl.jit import inlined
from multigrid_rl.world import constants as c
from multigrid_rl.world.state import Flags, State, Step

_GO_KEY, _GO_BALL, _GO_DOOR = 1, 2, 3


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
    # Section 3 of the rules only covers locked doors. The recordings show that any agent can toggle an unlocked one:
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
    """Set the reported flags (rules, section 6): agents that stay are not reported before the game ends."""
    for a in range(len(f.team)):
        o.terminated[g, a] = won or (f.eliminated_out and s.out[g, a] == np.uint8(1))
