"""Captions of a game: one for the start and one after each step. No drawing."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.evaluation.replays import GameRecord, frames, taken_actions
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import Step

#: Actions in words, by number.
ACTION_WORDS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "wait")
#: Teams by number, as ``Step.winner`` counts them.
TEAMS = ("red", "blue")


class AgentLine(NamedTuple):
    """Last action of one agent, and its return so far."""

    seat: str
    player: str  # name of its player
    words: str  # "pick up, picks up its key"
    total: float | None  # canonical return so far; None where it is hidden
    out: bool  # it has been eliminated


class Caption(NamedTuple):
    """One moment of a game in words."""

    step: int  # steps played; 0 at the start
    agents: tuple[AgentLine, ...]  # in index order
    result: str  # winner and how; empty until the end


class Commentator:
    """Captions a game, a batch of one; made before its first step. ``players``: seat -> name of its player."""

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

    def step(self, step: Step, actions: NDArray[np.int8]) -> Caption:
        """Return the caption after a step in which the agents took ``actions`` (A,)."""
        spec, events = self._world.spec, step.events[0]
        self._steps += 1
        self._totals += step.reward[0]
        words = [
            ", ".join([ACTION_WORDS[action], *self._outcomes(a, action, events)])
            if step.acted[0, a]
            else "out of the game"
            for a, action in enumerate(actions.tolist())
        ]
        self._out |= events[:, c.EV_VICTIM] > 0
        result = result_words(spec, int(step.winner[0]), self._steps, events) if step.done[0] else ""
        self._remember()
        return self._caption(words, result)

    def _caption(self, words: list[str], result: str) -> Caption:
        rows = zip(self._world.spec.seats, words, self._totals.tolist(), self._out.tolist(), strict=True)
        lines = (AgentLine(seat, self._players[seat], text, total, out) for seat, text, total, out in rows)
        return Caption(self._steps, tuple(lines), result)

    def _outcomes(self, a: int, action: int, events: NDArray[np.float32]) -> list[str]:
        row, outcomes, spec = events[a], [], self._world.spec
        before, after = int(self._hand[a]), int(self._world.state.hand[0, a])
        unmoved = self._world.state.position[0, a] == self._position[a]
        # A victim is moved to its side room in the same step: whether it walked before is unknown.
        if action == c.FORWARD and unmoved and not row[c.EV_VICTIM]:
            outcomes.append("blocked")
        if action == c.PICKUP:
            outcomes += _pickup(before, after, row)
        if action == c.DROP and before == c.EMPTY:
            outcomes.append("holds nothing")
        elif action == c.DROP:
            outcomes.append(f"puts {_object_name(before)} down" if after == c.EMPTY else "finds no room")
        if action == c.TOGGLE and row[c.EV_DOOR]:
            outcomes.append("opens its door")
        if row[c.EV_ELIMINATED]:
            opponents = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) != spec.team_of(spec.seats[a])]
            victims = [spec.seats[k] for k in opponents if events[k, c.EV_VICTIM]]
            outcomes.append(f"eliminates {' and '.join(victims) or 'an opponent'}")
        if row[c.EV_VICTIM]:
            outcomes.append("is eliminated")
        if row[c.EV_DOOR_WIN] or row[c.EV_ELIMINATION_WIN]:
            outcomes.append("wins")
        return outcomes


def captioned(game: GameRecord) -> Iterator[tuple[World, Step | None, Caption]]:
    """Yield the frames of a recorded game, each with its caption. Raises ``ReplayError``: see ``replays.frames``."""
    shots = frames(game)
    world, _ = next(shots)
    commentator = Commentator(world, game.players)
    yield world, None, commentator.start()
    for (world, step), actions in zip(shots, taken_actions(game), strict=True):
        assert step is not None  # only the start has none
        yield world, step, commentator.step(step, actions)


def _pickup(before: int, after: int, row: NDArray[np.float32]) -> list[str]:
    if before == c.EMPTY and after != c.EMPTY:
        return [f"picks up {_object_name(after)}"]
    if row[c.EV_BALL]:
        return ["is rewarded for the ball again"]
    return [("has its hands full" if before != c.EMPTY else "finds nothing to take")] if row[c.EV_INVALID] else []


def _object_name(code: int) -> str:
    return "the ball" if c.BALL <= code <= c.BALL + 1 else "its key"


def result_words(spec: GameSpec, winner: int, steps: int, events: NDArray[np.float32]) -> str:
    """Return how a game ended: ``winner`` is 0 red, 1 blue, -1 none; ``events`` (A, E) are those of the last step."""
    length = f"{steps} step{'' if steps == 1 else 's'}"
    if winner < 0:
        return f"nobody wins in {length}"
    own = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) == TEAMS[winner]]
    how = "by elimination" if events[own, c.EV_ELIMINATION_WIN].any() else "through its door"
    return f"{TEAMS[winner]} wins {how} after {length}"
