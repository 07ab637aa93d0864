"""What happens in a game, in words: one caption for the start and one after each step. No drawing."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import Step

#: Each action as one would say it, by its number.
ACTION_WORDS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "wait")
#: Teams by number, as ``Step.winner`` counts them.
TEAMS = ("red", "blue")


class AgentLine(NamedTuple):
    """What one agent did, and what it has earned so far."""

    seat: str
    player: str  # who sits there
    words: str  # "pick up, picks up its key"
    total: float | None  # canonical return so far; None where it is not to be told
    out: bool  # it has been eliminated


class Caption(NamedTuple):
    """One moment of a game in words."""

    step: int  # steps played; 0 at the start
    agents: tuple[AgentLine, ...]  # in index order
    result: str  # who won and how; empty while the game goes on


class Commentator:
    """Tells a game, a batch of one; made before its first step. ``players``: seat -> who sits there."""

    def __init__(self, world: World, players: dict[str, str]) -> None:
        self._world, self._players = world, players
        self._totals = np.zeros(world.spec.num_agents)
        self._out = np.zeros(world.spec.num_agents, np.bool_)
        self._steps = 0
        self._remember()

    def _remember(self) -> None:
        self._position = self._world.state.position[0].copy()
        self._hand = self._world.state.hand[0].copy()

    def start(self) -> Caption:
        """Return the caption of the start."""
        return self._caption([""] * self._world.spec.num_agents, "")

    def tell(self, what: Step, actions: NDArray[np.int8]) -> Caption:
        """Return the caption after a step in which the agents took ``actions`` (A,)."""
        spec, events = self._world.spec, what.events[0]
        self._steps += 1
        self._totals += what.reward[0]
        words = [
            ", ".join([ACTION_WORDS[action], *self._deeds(a, action, events)])
            if what.acted[0, a]
            else "out of the game"
            for a, action in enumerate(actions.tolist())
        ]
        self._out |= events[:, c.EV_VICTIM] > 0
        result = result_words(spec, int(what.winner[0]), self._steps, events) if what.done[0] else ""
        self._remember()
        return self._caption(words, result)

    def _caption(self, words: list[str], result: str) -> Caption:
        rows = zip(self._world.spec.seats, words, self._totals.tolist(), self._out.tolist(), strict=True)
        lines = (AgentLine(seat, self._players[seat], said, total, out) for seat, said, total, out in rows)
        return Caption(self._steps, tuple(lines), result)

    def _deeds(self, a: int, action: int, events: NDArray[np.float32]) -> list[str]:
        row, deeds, spec = events[a], [], self._world.spec
        before, after = int(self._hand[a]), int(self._world.state.hand[0, a])
        still = self._world.state.position[0, a] == self._position[a]
        # A victim is moved to its side room in the same step: whether it walked before is not known.
        if action == c.FORWARD and still and not row[c.EV_VICTIM]:
            deeds.append("blocked")
        if action == c.PICKUP:
            deeds += _pickup(before, after, row)
        if action == c.DROP and before == c.EMPTY:
            deeds.append("holds nothing")
        elif action == c.DROP:
            deeds.append(f"puts {_thing(before)} down" if after == c.EMPTY else "finds no room")
        if action == c.TOGGLE and row[c.EV_DOOR]:
            deeds.append("opens its door")
        if row[c.EV_ELIMINATED]:
            rivals = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) != spec.team_of(spec.seats[a])]
            victims = [spec.seats[k] for k in rivals if events[k, c.EV_VICTIM]]
            deeds.append(f"eliminates {' and '.join(victims) or 'an opponent'}")
        if row[c.EV_VICTIM]:
            deeds.append("is eliminated")
        if row[c.EV_DOOR_WIN] or row[c.EV_ELIMINATION_WIN]:
            deeds.append("wins")
        return deeds


def _pickup(before: int, after: int, row: NDArray[np.float32]) -> list[str]:
    if before == c.EMPTY and after != c.EMPTY:
        return [f"picks up {_thing(after)}"]
    if row[c.EV_BALL]:
        return ["is paid for the ball again"]
    return [("has its hands full" if before != c.EMPTY else "finds nothing to take")] if row[c.EV_INVALID] else []


def _thing(code: int) -> str:
    return "the ball" if c.BALL <= code <= c.BALL + 1 else "its key"


def result_words(spec: GameSpec, winner: int, steps: int, events: NDArray[np.float32]) -> str:
    """Return how a game ended: ``winner`` is 0 red, 1 blue, -1 nobody; ``events`` (A, E) are those of the last step."""
    told = f"{steps} step{'' if steps == 1 else 's'}"
    if winner < 0:
        return f"nobody wins in {told}"
    own = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) == TEAMS[winner]]
    how = "by elimination" if events[own, c.EV_ELIMINATION_WIN].any() else "through its door"
    return f"{TEAMS[winner]} wins {how} after {told}"
