"""What happens in a game, in words: one caption for the start and one after each step. No drawing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import (
    BALL,
    DROP,
    EMPTY,
    EV_BALL,
    EV_DOOR,
    EV_DOOR_WIN,
    EV_ELIMINATED,
    EV_ELIMINATION_WIN,
    EV_INVALID,
    EV_VICTIM,
    FORWARD,
    PICKUP,
    TOGGLE,
)
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
    """Tells one game of a batch; make it at the game's start and let it tell every step.

    Args:
        world: the game as it stands before its first step.
        players: seat -> who sits there.
        game: number of the game within the batch.
    """

    def __init__(self, world: World, players: dict[str, str], game: int = 0) -> None:
        self._world = world
        self._players = players
        self._game = game
        self._totals = np.zeros(world.spec.num_agents)
        self._out = np.zeros(world.spec.num_agents, np.bool_)
        self._steps = 0
        self._remember()

    def _remember(self) -> None:
        self._position = self._world.state.position[self._game].copy()
        self._hand = self._world.state.hand[self._game].copy()

    def start(self) -> Caption:
        """Return the caption of the start."""
        return self._caption([""] * self._world.spec.num_agents, "")

    def tell(self, what: Step, actions: NDArray[np.int8]) -> Caption:
        """Return the caption after a step in which the agents took ``actions`` (A,)."""
        game, spec = self._game, self._world.spec
        self._steps += 1
        self._totals += what.reward[game]
        events = what.events[game]
        words = [self._words(a, int(actions[a]), bool(what.acted[game, a]), events) for a in range(spec.num_agents)]
        self._out |= events[:, EV_VICTIM] > 0
        result = ""
        if what.done[game]:
            result = result_words(spec, int(what.winner[game]), self._steps, events)
        self._remember()
        return self._caption(words, result)

    def _caption(self, words: list[str], result: str) -> Caption:
        rows = zip(self._world.spec.seats, words, self._totals.tolist(), self._out.tolist(), strict=True)
        lines = (AgentLine(seat, self._players[seat], said, total, out) for seat, said, total, out in rows)
        return Caption(self._steps, tuple(lines), result)

    def _words(self, a: int, action: int, acted: bool, events: NDArray[np.float32]) -> str:
        if not acted:
            return "out of the game"
        return ", ".join([ACTION_WORDS[action], *self._deeds(a, action, events)])

    def _deeds(self, a: int, action: int, events: NDArray[np.float32]) -> list[str]:
        row = events[a]
        deeds = {FORWARD: self._move, PICKUP: self._pickup, DROP: self._drop}.get(action, _nothing)(a, row)
        if action == TOGGLE and row[EV_DOOR]:
            deeds.append("opens its door")
        if row[EV_ELIMINATED]:
            deeds.append(f"eliminates {self._victims(a, events)}")
        if row[EV_VICTIM]:
            deeds.append("is eliminated")
        if row[EV_DOOR_WIN] or row[EV_ELIMINATION_WIN]:
            deeds.append("wins")
        return deeds

    def _move(self, a: int, row: NDArray[np.float32]) -> list[str]:
        # A victim is moved to its side room in the same step: whether it walked before is not known.
        still = self._world.state.position[self._game, a] == self._position[a]
        return ["blocked"] if still and not row[EV_VICTIM] else []

    def _pickup(self, a: int, row: NDArray[np.float32]) -> list[str]:
        before, after = int(self._hand[a]), int(self._world.state.hand[self._game, a])
        if before == EMPTY and after != EMPTY:
            return [f"picks up {_thing(after)}"]
        if row[EV_BALL]:
            return ["is paid for the ball again"]
        return [("has its hands full" if before != EMPTY else "finds nothing to take")] if row[EV_INVALID] else []

    def _drop(self, a: int, row: NDArray[np.float32]) -> list[str]:  # noqa: ARG002 - one of three of a kind
        before = int(self._hand[a])
        if before == EMPTY:
            return ["holds nothing"]
        dropped = self._world.state.hand[self._game, a] == EMPTY
        return [f"puts {_thing(before)} down" if dropped else "finds no room"]

    def _victims(self, a: int, events: NDArray[np.float32]) -> str:
        spec = self._world.spec
        team = spec.team_of(spec.seats[a])
        rivals = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) != team and events[k, EV_VICTIM]]
        return " and ".join(spec.seats[k] for k in rivals) or "an opponent"


def _nothing(a: int, row: NDArray[np.float32]) -> list[str]:  # noqa: ARG001 - turns, toggles and waits say no more
    return []


def _thing(code: int) -> str:
    return "the ball" if BALL <= code <= BALL + 1 else "its key"


def result_words(spec: GameSpec, winner: int, steps: int, events: NDArray[np.float32]) -> str:
    """Return how a game ended.

    Args:
        spec: the game.
        winner: 0 red, 1 blue, -1 nobody.
        steps: its length.
        events: (A, E) of the last step.
    """
    told = f"{steps} step{'' if steps == 1 else 's'}"
    if winner < 0:
        return f"nobody wins in {told}"
    own = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) == TEAMS[winner]]
    how = "by elimination" if events[own, EV_ELIMINATION_WIN].any() else "through its door"
    return f"{TEAMS[winner]} wins {how} after {told}"
