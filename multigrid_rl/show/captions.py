"""Captions of a game: one for the start and one after each step. No drawing."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.evaluation.replays import GameRecord, frames, taken_actions
from multigrid_rl.show.words import plural
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import Step

#: Actions in words, by number.
ACTION_WORDS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "wait")
#: Teams by number, as ``Step.winner`` counts them.
TEAMS = ("red", "blue")
#: Events of an agent in words, in the order in which they are said.
_OUTCOMES = {
    c.EV_KEY: "picks up its key",
    c.EV_BALL: "is rewarded for the ball",
    c.EV_INVALID: "picks up nothing",
    c.EV_DOOR: "opens its door",
    c.EV_ELIMINATED: "eliminates an opponent",
    c.EV_VICTIM: "is eliminated",
    c.EV_DOOR_WIN: "wins",
    c.EV_ELIMINATION_WIN: "wins",
}


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

    def start(self) -> Caption:
        """Return the caption of the start."""
        return self._caption([""] * self._world.spec.num_agents, "")

    def step(self, step: Step, actions: NDArray[np.int8]) -> Caption:
        """Return the caption after a step in which the agents took ``actions`` (A,)."""
        spec, events = self._world.spec, step.events[0]
        self._steps += 1
        self._totals += step.reward[0]
        words = [
            ", ".join([ACTION_WORDS[action], *(came for event, came in _OUTCOMES.items() if events[a, event])])
            if step.acted[0, a]
            else "out of the game"
            for a, action in enumerate(actions.tolist())
        ]
        self._out |= events[:, c.EV_VICTIM] > 0
        result = result_words(spec, int(step.winner[0]), self._steps, events) if step.done[0] else ""
        return self._caption(words, result)

    def _caption(self, words: list[str], result: str) -> Caption:
        rows = zip(self._world.spec.seats, words, self._totals.tolist(), self._out.tolist(), strict=True)
        lines = (AgentLine(seat, self._players[seat], text, total, out) for seat, text, total, out in rows)
        return Caption(self._steps, tuple(lines), result)


def captioned(game: GameRecord) -> Iterator[tuple[World, Step | None, Caption]]:
    """Yield the frames of a recorded game, each with its caption. Raises ``ReplayError``: see ``replays.frames``."""
    shots = frames(game)
    world, _ = next(shots)
    commentator = Commentator(world, game.players)
    yield world, None, commentator.start()
    for (world, step), actions in zip(shots, taken_actions(game), strict=True):
        assert step is not None  # only the start has none
        yield world, step, commentator.step(step, actions)


def result_words(spec: GameSpec, winner: int, steps: int, events: NDArray[np.float32]) -> str:
    """Return how a game ended: ``winner`` is 0 red, 1 blue, -1 none; ``events`` (A, E) are those of the last step."""
    if winner < 0:
        return f"nobody wins in {plural(steps, 'step')}"
    own = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) == TEAMS[winner]]
    how = "by elimination" if events[own, c.EV_ELIMINATION_WIN].any() else "through its door"
    return f"{TEAMS[winner]} wins {how} after {plural(steps, 'step')}"
